"""Grid sampling: both interpolations, every padding mode, both corner rules, places far outside."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F

from tests.op_cases.case import OpCase


def _case(mode: str, padding: str, corners: bool) -> OpCase:
    def fn(image: Any, grid: Any) -> torch.Tensor:
        return F.grid_sample(image, grid, mode, padding, align_corners=corners)

    name = f"{mode}_{padding}" + ("_corners" if corners else "")
    return OpCase(name, fn, lambda: (torch.randn(2, 3, 4, 5), 3 * torch.randn(2, 3, 4, 2)))


CASES = [
    *itertools.starmap(
        _case,
        itertools.product(
            ("bilinear", "nearest"), ("zeros", "border", "reflection"), (False, True)
        ),
    ),
    OpCase(
        "affine",
        lambda x, t: F.grid_sample(
            x, F.affine_grid(t, x.shape, align_corners=False), align_corners=False
        ),
        lambda: (torch.randn(2, 1, 5, 6), torch.randn(2, 2, 3)),
    ),
    OpCase(
        "one_pixel",
        lambda x, grid: F.grid_sample(x, grid, padding_mode="reflection", align_corners=True),
        lambda: (torch.randn(1, 2, 1, 1), torch.randn(1, 2, 3, 2)),
    ),
]
