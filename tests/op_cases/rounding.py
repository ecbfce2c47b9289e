"""bfloat16 where PyTorch rounds after every step: equal to its CPU results, not only near them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tests.op_cases.case import OpCase

_HALF = torch.bfloat16


def _case(name: str, fn: Callable[..., Any], *shapes: tuple[int, ...], low: float = -2) -> OpCase:
    """On uniform values, compared bit by bit."""

    def made() -> tuple[Any, ...]:
        return tuple((torch.rand(s) * 4 + low).to(_HALF) for s in shapes)

    def bits(*args: torch.Tensor) -> torch.Tensor:
        return fn(*args).view(torch.int16)

    return OpCase(name, bits, made, halves=("cloud",))


def _logits(x: torch.Tensor, target: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    loss = torch.nn.functional.binary_cross_entropy_with_logits
    weight, positive = (*rest, None, None)[:2]
    return loss(x, target.sigmoid(), weight, pos_weight=positive, reduction="none")


def _exponential(x: torch.Tensor) -> torch.Tensor:
    # CPU PyTorch overflows in bfloat16, even for small matrices.
    return torch.matrix_exp(x if x.device.type == "tpu" else x.float()).float()


CASES = [
    _case("addr", torch.addr, (5, 40), (5,), (40,)),
    _case("addr_scaled", functools.partial(torch.addr, beta=0.7, alpha=2.5), (5, 40), (5,), (40,)),
    _case("cross", torch.linalg.cross, (40, 3), (40, 3)),
    _case("cross_dim", functools.partial(torch.linalg.cross, dim=0), (3, 2, 9), (3, 1, 9)),
    _case("logits", _logits, (6, 40), (6, 40)),
    _case("logits_weighted", _logits, (6, 40), (6, 40), (40,)),
    _case("logits_positive", _logits, (6, 40), (6, 40), (40,), (40,)),
    _case("histc", functools.partial(torch.histc, bins=50, min=-1, max=1.5), (400,)),
    _case("histc_all", functools.partial(torch.histc, bins=100), (400,)),
    OpCase(
        "matrix_exp",
        _exponential,
        lambda: (torch.randn(2, 4, 4).to(_HALF),),
        tol=1e-2,
        halves=("cloud",),
    ),
]
