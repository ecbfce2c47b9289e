"""`segment_reduce` and its gradient, by lengths and by offsets; softmax under masks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tests.op_cases.case import OpCase

_KINDS = ("sum", "mean", "prod", "max", "min")


def _case(
    name: str, fn: Callable[..., Any], args: Callable[[], tuple[Any, ...]], tol: float | None = None
) -> OpCase:
    return OpCase(name, fn, args, tol=tol, halves=("cloud",))


def _lengths() -> tuple[Any, ...]:
    # Repeated values, zeros and a segment of nothing.
    return torch.randn(7, 3).mul(2).round(), torch.tensor([3, 0, 2, 2])


def _batch() -> tuple[Any, ...]:
    return torch.randn(2, 4, 3), torch.tensor([[1, 3, 0], [0, 2, 2]])


def _offsets() -> tuple[Any, ...]:
    return torch.randn(7, 2), torch.tensor([1, 3, 3, 6])  # the first row and the last in none


def _by_lengths(kind: str, x: Any, lengths: Any, **options: Any) -> Any:
    axis = lengths.ndim - 1
    return torch.segment_reduce(x, kind, lengths=lengths, axis=axis, **options)


def _gradient(fn: Callable[..., Any], x: torch.Tensor, *rest: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    made = fn(x, *rest)
    weights = torch.linspace(0.5, 2, made.numel(), device="cpu").reshape(made.shape)
    (made * weights.to(made)).sum().backward()
    return made, x.grad


def _by_offsets(kind: str, x: Any, offsets: Any) -> Any:
    return torch.segment_reduce(x, kind, offsets=offsets, initial=0.5)


def _masked(**options: Any) -> Callable[..., Any]:
    return lambda x, mask: torch._masked_softmax(x, mask, **options)


def _scores(*mask: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randn(2, 3, 4, 4), torch.rand(mask) < 0.4)


CASES = [
    *(
        _case(f"{k}_lengths", functools.partial(_gradient, functools.partial(_by_lengths, k)), a)
        for k, a in (("sum", _batch), ("prod", _batch), ("max", _lengths), ("min", _batch))
    ),
    *(
        _case(f"{k}_initial", functools.partial(_by_lengths, k, initial=1.5), _lengths)
        for k in _KINDS
    ),
    *(
        _case(f"{k}_offsets", functools.partial(_gradient, functools.partial(_by_offsets, k)), a)
        for k, a in ((k, _offsets) for k in _KINDS)
    ),
    _case("unsafe", functools.partial(_by_lengths, "mean", unsafe=True), _batch),
    _case(
        "prod_zeros",
        functools.partial(_gradient, functools.partial(_by_lengths, "prod")),
        lambda: (torch.tensor([2.0, 0, 4, 0, 0, 3, 5]), torch.tensor([3, 2, 2])),
    ),
    _case("masked_softmax_source", _masked(dim=3, mask_type=0), _scores(4, 4)),
    _case("masked_softmax_keys", _masked(dim=3, mask_type=1), _scores(2, 4)),
    _case("masked_softmax_whole", _masked(dim=1, mask_type=2), _scores(2, 3, 4, 4)),
    _case(
        "masked_softmax_gradient",
        functools.partial(_gradient, _masked(dim=-1, mask_type=2)),
        _scores(2, 3, 4, 4),
        1e-4,  # differences of nearly equal sums
    ),
]
