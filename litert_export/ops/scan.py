"""Running sums, products and extremes along a dimension.

LiteRT has only CUMSUM; the others combine each element with the one 1, 2, 4, … places before it,
which needs log2(n) steps and no loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from litert_export.graph import Graph, Value
from litert_export.ops._dims import NARROW, axis, binary, computes, i32, pad, slice_dim
from torch_tpu_unified.core.aten import aten


def _shifted(g: Graph, x: Value, dim: int, by: int, fill: float | int) -> Value:
    """`x` moved `by` places towards the end, the start filled."""
    kept = slice_dim(g, x, dim, 0, x.shape[dim] - by)
    return pad(g, kept, [(by, 0) if d == dim else (0, 0) for d in range(x.rank)], fill)


def _steps(size: int) -> list[int]:
    return [1 << k for k in range((size - 1).bit_length())] if size > 1 else []


@computes(aten.cumsum.default)
def cumsum(g: Graph, x: Value, dim: int, *, dtype: Any) -> Value:
    x = g.cast(x, g.result[0].dtype)
    if not x.rank or not x.size:
        return x
    return g.emit("CUMSUM", x, i32(g, axis(dim, x.rank)), shape=x.shape)


@computes(aten.cumprod.default)
def cumprod(g: Graph, x: Value, dim: int, *, dtype: Any) -> Value:
    x = g.cast(x, g.result[0].dtype)
    if not x.rank or not x.size:
        return x
    dim = axis(dim, x.rank)
    for by in _steps(x.shape[dim]):
        x = binary(g, "MUL", x, _shifted(g, x, dim, by, 1))
    return x


def _running(g: Graph, x: Value, dim: int, compare: str) -> tuple[Value, Value]:
    """Running extremes with their positions; of equal elements the last one counts."""
    shape, dtype = g.result[0]
    if not x.rank or not x.size:
        return x, g.const(np.zeros(shape, np.int64))
    if dtype in NARROW:
        x = g.cast(x, "int32")
    dim = axis(dim, x.rank)
    size = x.shape[dim]
    column = np.arange(size, dtype=np.int64).reshape([-1 if d == dim else 1 for d in range(x.rank)])
    index = g.const(np.ascontiguousarray(np.broadcast_to(column, shape)))
    for by in _steps(size):
        before = _shifted(g, x, dim, by, 0)
        better = g.emit(compare, x, before, dtype="bool")
        # The first `by` elements have nothing before them.
        better = g.emit("LOGICAL_OR", better, g.const(column < by))
        index = _choose(g, better, index, _shifted(g, index, dim, by, 0))
        x = _choose(g, better, x, before)
    return g.cast(x, dtype), index


def _choose(g: Graph, condition: Value, a: Value, b: Value) -> Value:
    return g.emit("SELECT_V2", condition, a, b, shape=a.shape, dtype=a.dtype)


@computes(aten.cummax.default)
def cummax(g: Graph, x: Value, dim: int) -> tuple[Value, Value]:
    return _running(g, x, dim, "GREATER_EQUAL")


@computes(aten.cummin.default)
def cummin(g: Graph, x: Value, dim: int) -> tuple[Value, Value]:
    return _running(g, x, dim, "LESS_EQUAL")
