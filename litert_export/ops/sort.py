"""Sorting and searching, on TOPK_V2: it sorts downwards and keeps equal elements in order.

Ascending order sorts the values turned around (`-x`, or `-1 - x` for integers, which cannot
overflow), so that equal elements keep their order there too.
"""

from __future__ import annotations

import numpy as np

from litert_export.graph import Graph, Value
from litert_export.ops._dims import (
    NARROW,
    axis,
    computes,
    filled,
    from_last,
    i32,
    slice_dim,
    to_last,
)
from litert_export.ops.reduce import reduced, reversed_order
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported


def top(g: Graph, x: Value, k: int, dim: int, descending: bool) -> tuple[Value, Value]:
    """The first k (values, int64 indices) in sorted order along `dim`."""
    if not x.rank:
        return x, g.const(np.int64(0))
    dtype, dim = x.dtype, axis(dim, x.rank)
    shape = tuple(k if d == dim else n for d, n in enumerate(x.shape))
    if not k or not x.size:
        return filled(g, shape, 0, dtype), filled(g, shape, 0, "int64")
    if dtype in NARROW:
        x = g.cast(x, "int32")
    keys = to_last(g, x if descending else reversed_order(g, x), dim)
    found = (*keys.shape[:-1], k)
    values, index = g.emit("TOPK_V2", keys, i32(g, k), outputs=[(found, x.dtype), (found, "int32")])
    values = values if descending else reversed_order(g, values)
    index = g.cast(from_last(g, index, dim), "int64")
    return g.cast(from_last(g, values, dim), dtype), index


@computes(aten.topk.default)
def topk(g: Graph, x: Value, k: int, dim: int, largest: bool, sorted: bool) -> tuple[Value, Value]:
    return top(g, x, k, dim, largest)


def _size(x: Value, dim: int) -> int:
    return x.shape[axis(dim, x.rank)] if x.rank else 1


@computes(aten.sort.default)
def sort(g: Graph, x: Value, dim: int, descending: bool) -> tuple[Value, Value]:
    return top(g, x, _size(x, dim), dim, descending)


@computes(aten.sort.stable)
def sort_stable(
    g: Graph, x: Value, *, stable: bool | None, dim: int, descending: bool
) -> tuple[Value, Value]:
    return top(g, x, _size(x, dim), dim, descending)


@computes(aten.argsort.default)
def argsort(g: Graph, x: Value, dim: int, descending: bool) -> Value:
    return top(g, x, _size(x, dim), dim, descending)[1]


@computes(aten.argsort.stable)
def argsort_stable(g: Graph, x: Value, *, stable: bool, dim: int, descending: bool) -> Value:
    return top(g, x, _size(x, dim), dim, descending)[1]


def _kth(g: Graph, x: Value, k: int, dim: int) -> tuple[Value, Value]:
    """The k-th smallest (from 1) along `dim`, shaped as the results ask."""
    found = top(g, x, k, dim, False)
    dim = axis(dim, x.rank)
    values, index = (slice_dim(g, v, dim, k - 1, k) if x.rank else v for v in found)
    return g.reshape(values, g.result[0].shape), g.reshape(index, g.result[0].shape)


@computes(aten.kthvalue.default)
def kthvalue(g: Graph, x: Value, k: int, dim: int, keepdim: bool) -> tuple[Value, Value]:
    return _kth(g, x, k, dim)


@computes(aten.median.dim)
def median_dim(g: Graph, x: Value, dim: int, keepdim: bool) -> tuple[Value, Value]:
    return _kth(g, x, (_size(x, dim) + 1) // 2, dim)


@computes(aten.median.default)
def median(g: Graph, x: Value) -> Value:
    return _kth(g, g.reshape(x, (x.size,)), (x.size + 1) // 2, 0)[0]


# searching


def _rank_in(g: Graph, edges: Value, x: Value, right: bool) -> Value:
    """How many of `edges` (last dimension) lie before each x of shape [..., 1]."""
    kind = "float32" if "float32" in (edges.dtype, x.dtype) else "int64"
    before = g.emit(
        "LESS_EQUAL" if right else "LESS", g.cast(edges, kind), g.cast(x, kind), dtype="bool"
    )
    total = reduced(g, "SUM", g.cast(before, "int32"), [before.rank - 1], False)
    return g.cast(total, g.result[0].dtype)


@computes(aten.bucketize.Tensor)
def bucketize(g: Graph, x: Value, boundaries: Value, *, out_int32: bool, right: bool) -> Value:
    return _rank_in(g, boundaries, g.reshape(x, (*x.shape, 1)), right)


@computes(aten.searchsorted.Tensor)
def searchsorted(
    g: Graph,
    sorted_sequence: Value,
    x: Value,
    *,
    out_int32: bool,
    right: bool,
    side: str | None,
    sorter: Value | None,
) -> Value:
    if sorter is not None:
        raise Unsupported("searchsorted with a sorter")
    edges = sorted_sequence
    if edges.rank > 1:
        edges = g.reshape(edges, (*edges.shape[:-1], 1, edges.shape[-1]))
    return _rank_in(g, edges, g.reshape(x, (*x.shape, 1)), right or side == "right")
