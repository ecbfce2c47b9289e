"""Histograms with even bins and given edges, weights and densities; the hash of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.op_cases.case import OpCase


def _case(name: str, fn: Callable[..., Any], args: Callable[[], tuple[Any, ...]]) -> OpCase:
    return OpCase(name, fn, args, halves=("cloud",))


def _line() -> tuple[Any, ...]:
    return (torch.tensor([1.0, 2, 3, 2.5, 4, 2]),)


def _edges() -> tuple[Any, ...]:
    return (*_line(), torch.tensor([0.5, 2, 2.5, 4]))


def _plane(*shape: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randn(*shape, 2), torch.rand(shape))


def _plane_edges() -> tuple[Any, ...]:
    return torch.randn(9, 2), torch.tensor([-1.0, 0, 2]), torch.tensor([-0.5, 0, 0.5, 1])


def _spread(*bins: int, **options: Any) -> Callable[..., Any]:
    """`histogramdd` with these bins; the weights are used where a density is asked for."""

    def fn(x: torch.Tensor, weight: torch.Tensor) -> Any:
        weighted = {"weight": weight} if "density" in options else {}
        hist, edges = torch.histogramdd(x, list(bins), **options, **weighted)
        return hist, *edges

    return fn


def _many(n: int) -> tuple[Any, ...]:
    return (torch.arange(n, dtype=torch.float64).reshape(2, -1) / 3 - 1,)


def _number(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The hash in halves that every comparison knows."""
    made = torch.hash_tensor(x, *args, **kwargs).view(torch.int64)
    return torch.stack([made >> 32, made & 0xFFFFFFFF])


_HASHED = {
    "f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "i8": torch.int8,
    "i64": torch.int64, "bool": torch.bool,
}  # fmt: skip

CASES = [
    _case("even", lambda x: tuple(torch.histogram(x, 4)), _line),
    _case("range", lambda x: tuple(torch.histogram(x, 3, range=(1.5, 3))), _line),
    _case("density", lambda x: tuple(torch.histogram(x, 5, density=True)), _line),
    _case("one_value", lambda x: tuple(torch.histogram(x[:1], 3)), _line),
    _case("no_value", lambda x: tuple(torch.histogram(x[:0], 3)), _line),
    _case("edges", lambda x, e: tuple(torch.histogram(x, e)), _edges),
    _case(
        "edges_weighted",
        lambda x, e: tuple(torch.histogram(x, e, weight=x, density=True)),
        _edges,
    ),
    _case("many", lambda x: tuple(torch.histogram(x, 50)), lambda: _many(600)),
    _case("two", _spread(2, 3), _plane(9)),
    _case("two_density", _spread(3, 2, density=True), _plane(3, 4)),
    _case("two_range", _spread(2, 2, range=[-1.0, 1, 0, 2]), _plane(9)),
    _case("one_dimension", lambda x, w: torch.histogramdd(x[:, :1], [3]).hist, _plane(9)),
    _case(
        "one_dimension_range",
        lambda x, w: torch.histogramdd(x[:, :1], [3], range=[-1.0, 1]),
        _plane(9),
    ),
    _case("two_edges", lambda x, a, b: torch.histogramdd(x, [a, b]).hist, _plane_edges),
    *(
        _case(f"hash_{n}", _number, lambda d=d: ((100 * torch.randn(3, 4)).to(d),))
        for n, d in _HASHED.items()
    ),
    _case("hash_dim", lambda x: _number(x, 1, keepdim=True), lambda: (torch.randn(3, 4, 2),)),
    _case("hash_dims", lambda x: _number(x, (0, -1)), lambda: (torch.randn(3, 4, 2),)),
]
