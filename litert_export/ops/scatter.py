"""Writes by position: scatter, index_put and their kin.

Constant positions need no scatter: every element of the result is picked, by one GATHER, from the
tensor or from the updates (the last update wins). For positions that the program computes,
SCATTER_ND sums updates onto zeros; where a write must overwrite instead, all but the last of the
updates that share a position are first sent to a spare position.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from litert_export.graph import Graph, Value
from litert_export.ops._dims import (
    axis,
    binary,
    computes,
    concat,
    count,
    filled,
    i32,
    scalar,
    slice_dim,
    take,
)
from litert_export.ops.index import along_dim, choose, expanded, linear_position, positive
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported, one_of

_SCATTER_TYPES = ("float32", "int32", "int64", "int8", "uint8", "bool")


def _scattered(g: Graph, where: Value, updates: Value, rows: int) -> Value:
    """The sum of `updates` [K, inner] per position `where` [K], zeros elsewhere: [rows, inner]."""
    shape = (rows, updates.shape[1])
    index = g.reshape(g.cast(where, "int32"), (where.size, 1))
    return g.emit("SCATTER_ND", index, updates, i32(g, shape), shape=shape, dtype=updates.dtype)


def _only_last(g: Graph, where: Value, spare: int) -> tuple[Value, Value]:
    """(order, positions): the updates sorted by position, all but the last of equals at `spare`."""
    n = where.size
    where = g.cast(where, "int32")
    if n == 1:
        return i32(g, [0]), where
    kind = "int32" if (spare + 1) * n < 1 << 31 else "int64"
    keys = binary(g, "MUL", g.cast(where, kind), scalar(g, n, kind))
    keys = binary(g, "ADD", keys, g.const(np.arange(n), dtype=kind))
    _, order = g.emit("TOPK_V2", keys, i32(g, n), outputs=[((n,), kind), ((n,), "int32")])
    ordered = take(g, where, order, 0)
    # Downwards, the first of a run of equal positions is the last update.
    same = g.emit(
        "EQUAL", slice_dim(g, ordered, 0, 1, n), slice_dim(g, ordered, 0, 0, n - 1), dtype="bool"
    )
    rest = choose(g, same, scalar(g, spare, "int32"), slice_dim(g, ordered, 0, 1, n))
    return order, concat(g, [slice_dim(g, ordered, 0, 0, 1), rest], 0)


def _overwrite(g: Graph, x: Value, where: Value, updates: Value) -> Value:
    """`x` [rows, inner] with rows `where` [K] replaced by `updates` [K, inner]."""
    rows = x.shape[0]
    if not where.size or not x.size:
        return x
    if where.data is not None:
        source = np.arange(rows)
        source[where.data] = rows + np.arange(where.size)
        return take(g, concat(g, [x, updates], 0), i32(g, source), 0)
    if x.dtype not in _SCATTER_TYPES:
        raise Unsupported(f"writes of {x.dtype} at computed positions")
    order, where = _only_last(g, where, rows)
    updates = take(g, updates, order, 0)
    ones = g.const(np.ones((where.size, 1), np.int32))
    hit = slice_dim(g, _scattered(g, where, ones, rows + 1), 0, 0, rows)
    new = slice_dim(g, _scattered(g, where, updates, rows + 1), 0, 0, rows)
    return choose(g, g.emit("GREATER", hit, scalar(g, 0, "int32"), dtype="bool"), new, x)


def _accumulate(g: Graph, x: Value, where: Value, updates: Value) -> Value:
    """`x` [rows, inner] plus the sum of `updates` [K, inner] at rows `where` [K]."""
    if not where.size or not x.size:
        return x
    if x.dtype == "bool":
        raise Unsupported("sums of booleans")
    kind = x.dtype if x.dtype in ("float32", "int32", "int64") else "int32"
    total = _scattered(g, where, g.cast(updates, kind), x.shape[0])
    return g.cast(binary(g, "ADD", g.cast(x, kind), total), x.dtype)


def _write(g: Graph, x: Value, where: Value, updates: Value, accumulate: bool) -> Value:
    return (_accumulate if accumulate else _overwrite)(g, x, where, updates)


# along one dimension


def _scatter(
    g: Graph, x: Value, dim: int, index: Value, src: Value | None, value: float, accumulate: bool
) -> Value:
    shape = x.shape
    if not index.size:
        return x
    x, index = g.reshape(x, shape or (1,)), g.reshape(index, index.shape or (1,))
    dim = axis(dim, x.rank)
    if src is None:
        src = filled(g, index.shape, value, x.dtype)
    src = g.reshape(src, src.shape or (1,))
    for d in range(x.rank):  # only the part that the index covers is used
        src = slice_dim(g, src, d, 0, index.shape[d])
    where = along_dim(g, x.shape, index, dim)
    flat = g.reshape(x, (x.size, 1))
    updates = g.reshape(src, (src.size, 1))
    where = g.reshape(where, (where.size,))
    return g.reshape(_write(g, flat, where, updates, accumulate), shape)


@computes(aten.scatter.src)
def scatter(g: Graph, x: Value, dim: int, index: Value, src: Value) -> Value:
    return _scatter(g, x, dim, index, src, 0, False)


@computes(aten.scatter.value)
def scatter_value(g: Graph, x: Value, dim: int, index: Value, value: float) -> Value:
    return _scatter(g, x, dim, index, None, value, False)


@computes(aten.scatter_add.default)
def scatter_add(g: Graph, x: Value, dim: int, index: Value, src: Value) -> Value:
    return _scatter(g, x, dim, index, src, 0, True)


@computes(aten.scatter.reduce)
def scatter_reduce(g: Graph, x: Value, dim: int, index: Value, src: Value, *, reduce: str) -> Value:
    one_of(add=True)(reduce)
    return _scatter(g, x, dim, index, src, 0, True)


@computes(aten.scatter_reduce.two)
def scatter_reduce_two(
    g: Graph, x: Value, dim: int, index: Value, src: Value, reduce: str, *, include_self: bool
) -> Value:
    kind = one_of(sum="sum", mean="mean")(reduce)
    if not include_self:
        raise Unsupported("include_self=False")
    total = _scatter(g, x, dim, index, src, 0, True)
    if kind == "sum":
        return total
    if x.dtype != "float32":
        raise Unsupported(f"reduce='mean' of {x.dtype}")
    times = _scatter(g, filled(g, x.shape, 1, x.dtype), dim, index, None, 1, True)
    return binary(g, "DIV", total, times)


def _rows(g: Graph, x: Value, dim: int, index: Value, source: Value, accumulate: bool) -> Value:
    """Whole slices of `x` along `dim` written at `index` [K]."""
    shape = x.shape
    if not index.size or not x.size:
        return x
    x = g.reshape(x, shape or (1,))
    dim = axis(dim, x.rank)
    order = [dim, *(d for d in range(x.rank) if d != dim)]
    moved = g.transpose(x, order)
    n = moved.shape[0]
    where = positive(g, g.reshape(index, (index.size,)), n)
    source = g.reshape(source, source.shape or (1,))
    updates = g.reshape(g.transpose(source, order), (where.size, x.size // n))
    result = _write(g, g.reshape(moved, (n, x.size // n)), where, updates, accumulate)
    back = [order.index(d) for d in range(x.rank)]
    return g.reshape(g.transpose(g.reshape(result, moved.shape), back), shape)


@computes(aten.index_copy.default)
def index_copy(g: Graph, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _rows(g, x, dim, index, source, False)


@computes(aten.index_add.default)
def index_add(g: Graph, x: Value, dim: int, index: Value, source: Value, *, alpha: float) -> Value:
    if alpha != 1:
        source = binary(g, "MUL", source, scalar(g, alpha, source.dtype))
    return _rows(g, x, dim, index, source, True)


def _filled_rows(g: Graph, x: Value, dim: int, index: Value, value: Value) -> Value:
    shape = list(x.shape or (1,))
    shape[axis(dim, x.rank)] = index.size
    source = g.broadcast_to(g.reshape(g.cast(value, x.dtype), ()), shape)
    return _rows(g, x, dim, index, source, False)


@computes(aten.index_fill.int_Scalar)
def index_fill(g: Graph, x: Value, dim: int, index: Value, value: float) -> Value:
    return _filled_rows(g, x, dim, index, scalar(g, value, x.dtype))


@computes(aten.index_fill.int_Tensor)
def index_fill_tensor(g: Graph, x: Value, dim: int, index: Value, value: Value) -> Value:
    return _filled_rows(g, x, dim, index, value)


# at several index tensors


def _masked(g: Graph, x: Value, mask: Value, values: Value, accumulate: bool) -> Value:
    """One value written wherever a computed mask holds."""
    if values.size != 1:
        raise Unsupported("several values written through a mask that the program computes")
    values = g.reshape(values, ())
    if accumulate:
        values = binary(g, "ADD", x, values)
    mask = g.reshape(g.cast(mask, "bool"), mask.shape + (1,) * (x.rank - mask.rank))
    return choose(g, mask, values, x)


@computes(aten.index_put.default)
def index_put(
    g: Graph, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool
) -> Value:
    values = g.cast(values, x.dtype)
    first = indices[0]
    masked = len(indices) == 1 and first is not None and first.dtype in ("bool", "uint8")
    if masked and first.data is None:
        return _masked(g, x, first, values, accumulate)
    given = expanded(g, indices)
    dims = [d for d, index in enumerate(given) if index is not None]
    picked = [v for v in given if v is not None]
    block = np.broadcast_shapes(*(v.shape for v in picked))
    if not x.size or not count(block):
        return x
    rest = [d for d in range(x.rank) if d not in dims]
    order = [*dims, *rest]
    moved = g.transpose(x, order)
    rows, inner = count(moved.shape[: len(dims)]), count(moved.shape[len(dims) :])
    where = linear_position(g, picked, moved.shape[: len(dims)])
    where = g.reshape(g.broadcast_to(where, block), (count(block),))
    updates = _updates(g, x, dims, block, values)
    updates = g.reshape(updates, (count(block), inner))
    result = _write(g, g.reshape(moved, (rows, inner)), where, updates, accumulate)
    back = [order.index(d) for d in range(x.rank)]
    return g.transpose(g.reshape(result, moved.shape), back)


def _updates(g: Graph, x: Value, dims: Sequence[int], block: Sequence[int], values: Value) -> Value:
    """`values` broadcast to what `x[indices]` has, the indexed dimensions moved to the front."""
    rest = [n for d, n in enumerate(x.shape) if d not in dims]
    first = dims[0]
    if list(dims) != list(range(first, first + len(dims))):
        return g.broadcast_to(values, (*block, *rest))
    k = len(block)
    wide = g.broadcast_to(values, (*x.shape[:first], *block, *rest[first:]))
    front = list(range(first, first + k))
    return g.transpose(wide, [*front, *(d for d in range(wide.rank) if d not in front)])
