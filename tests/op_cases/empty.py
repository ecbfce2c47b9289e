"""Tensors without elements: batches of nothing, rows of nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.op_cases.case import OpCase

_functional = torch.nn.functional


def _gradient(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The result and the gradients of every argument."""

    def run(*args: torch.Tensor) -> Any:
        given = [a.detach().requires_grad_() for a in args]
        made = fn(*given)
        made.sum().backward()
        return made, *(a.grad for a in given)

    return run


def _fractional(x: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
    dims = x.ndim - 2
    pool = getattr(_functional, f"fractional_max_pool{dims}d")
    return pool(x, 2, output_size=2, _random_samples=samples)


def _case(name: str, fn: Callable[..., Any], *shapes: tuple[int, ...]) -> OpCase:
    def made() -> tuple[Any, ...]:
        return tuple(torch.randn(s) for s in shapes)

    return OpCase(name, _gradient(fn), made, halves=("cloud",))


CASES = [
    _case(
        "fractional_max_pool2d", lambda x, s: _fractional(x, s.detach()), (0, 2, 5, 4), (0, 2, 2)
    ),
    _case(
        "fractional_max_pool3d",
        lambda x, s: _fractional(x, s.detach()),
        (0, 1, 4, 5, 4),
        (0, 1, 3),
    ),
    _case("cdist_batch_of_nothing", torch.cdist, (1, 3, 5), (0, 4, 5)),
    _case("cdist_no_rows", torch.cdist, (2, 0, 5), (2, 4, 5)),
    _case("cdist_no_features", torch.cdist, (3, 0), (4, 0)),
]
