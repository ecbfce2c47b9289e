"""Reads by position: advanced indexing, gather, embedding look-ups, masks.

GATHER refuses negative indices at run time, so they are shifted up where PyTorch allows them; an
index out of range stays out of range and the run fails, as in PyTorch. Several index tensors become
one position in the flattened dimensions. A boolean mask needs constant contents, since the size of
its result depends on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from litert_export.graph import Graph, Value
from litert_export.ops import lowers
from litert_export.ops._dims import (
    axis,
    binary,
    concat,
    count,
    filled,
    i32,
    replaced,
    scalar,
    slice_dim,
    take,
)
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported

MSG_MASK = "a boolean mask that the program computes selects an unknown number of elements"


def positive(g: Graph, index: Value, size: int) -> Value:
    """The indices with negative ones counted from the end."""
    if index.data is not None:
        data = index.data.astype(np.int64)
        if data.size and not -size <= data.min() <= data.max() < size:
            raise Unsupported(f"an index is out of range for a dimension of size {size}")
        return g.const(np.where(data < 0, data + size, data), dtype="int32")
    if index.dtype not in ("int32", "int64"):
        index = g.cast(index, "int32")
    shifted = binary(g, "ADD", index, scalar(g, size, index.dtype))
    negative = g.emit("LESS", index, scalar(g, 0, index.dtype), dtype="bool")
    return g.emit("SELECT_V2", negative, shifted, index, shape=index.shape, dtype=index.dtype)


def expanded(g: Graph, indices: Sequence[Value | None]) -> list[Value | None]:
    """The indices with constant masks replaced by the positions they select."""
    result: list[Value | None] = []
    for index in indices:
        if index is None or index.dtype not in ("bool", "uint8"):
            result.append(index)
        elif index.data is None:
            raise Unsupported(MSG_MASK)
        else:
            result += [g.const(part) for part in np.nonzero(index.data)]
    return result


def linear_position(g: Graph, indices: Sequence[Value], sizes: Sequence[int]) -> Value:
    """One position in the row-major flattening of `sizes` for broadcast index tensors."""
    total: Value | None = None
    constant: Any = 0
    for k, (index, size) in enumerate(zip(indices, sizes, strict=True)):
        step = count(sizes[k + 1 :])
        index = positive(g, index, size)
        if index.data is not None:
            constant = constant + index.data.astype(np.int64) * step
            continue
        index = g.cast(index, "int32")
        part = index if step == 1 else binary(g, "MUL", index, scalar(g, step, "int32"))
        total = part if total is None else binary(g, "ADD", total, part)
    if total is None:
        return i32(g, constant)
    return binary(g, "ADD", total, i32(g, constant)) if np.any(constant) else total


@lowers(aten.index.Tensor)
def index_(g: Graph, x: Value, indices: Sequence[Value | None]) -> Value:
    shape = g.result[0].shape
    given = expanded(g, indices)
    dims = [d for d, index in enumerate(given) if index is not None]
    picked = [v for v in given if v is not None]
    if not count(shape):
        return filled(g, shape, 0, x.dtype)
    if len(dims) == 1:
        return take(g, x, positive(g, picked[0], x.shape[dims[0]]), dims[0])
    position = linear_position(g, picked, [x.shape[d] for d in dims])
    first = dims[0]
    adjacent = dims == list(range(first, first + len(dims)))
    if not adjacent:  # PyTorch then puts the indexed dimensions in front
        x = g.transpose(x, [*dims, *(d for d in range(x.rank) if d not in dims)])
        first = 0
    flat = (*x.shape[:first], count(x.shape[first : first + len(dims)]))
    x = g.reshape(x, (*flat, *x.shape[first + len(dims) :]))
    return take(g, x, position, first)


@lowers(aten.index_select.default)
def index_select(g: Graph, x: Value, dim: int, index: Value) -> Value:
    x = g.reshape(x, x.shape or (1,))
    index = g.reshape(index, (index.size,))
    return g.reshape(take(g, x, index, axis(dim, x.rank)), g.result[0].shape)


@lowers(aten.take.default)
def take_(g: Graph, x: Value, index: Value) -> Value:
    return take(g, g.reshape(x, (x.size,)), positive(g, index, x.size), 0)


def along_dim(g: Graph, shape: Sequence[int], index: Value, dim: int) -> Value:
    """int32 positions in a flattened tensor of `shape` for `gather`'s indices along `dim`."""
    rank = len(shape)
    strides = [count(shape[d + 1 :]) for d in range(rank)]
    base = np.zeros([1] * rank, np.int64)
    for d in range(rank):
        if d != dim:
            column = np.arange(index.shape[d]) * strides[d]
            base = base + column.reshape([-1 if e == d else 1 for e in range(rank)])
    if index.data is not None:
        return i32(g, index.data.astype(np.int64) * strides[dim] + base)
    index = g.cast(index, "int32")
    if strides[dim] != 1:
        index = binary(g, "MUL", index, scalar(g, strides[dim], "int32"))
    return binary(g, "ADD", index, i32(g, base)) if base.any() else index


@lowers(aten.gather.default)
def gather(g: Graph, x: Value, dim: int, index: Value, *, sparse_grad: bool) -> Value:
    shape = g.result[0].shape
    if not count(shape):
        return filled(g, shape, 0, x.dtype)
    x = g.reshape(x, x.shape or (1,))
    index = g.reshape(index, index.shape or (1,))
    dim = axis(dim, x.rank)
    position = along_dim(g, x.shape, index, dim)
    return g.reshape(take(g, g.reshape(x, (x.size,)), position, 0), shape)


@lowers(aten.embedding.default)
def embedding(
    g: Graph,
    weight: Value,
    indices: Value,
    padding_idx: int,
    scale_grad_by_freq: bool,
    sparse: bool,
) -> Value:
    return take(g, weight, indices, 0)


@lowers(aten.one_hot.default)
def one_hot(g: Graph, x: Value, num_classes: int) -> Value:
    shape = g.result[0].shape
    on, off = scalar(g, 1, "int64"), scalar(g, 0, "int64")
    return g.emit("ONE_HOT", x, i32(g, shape[-1]), on, off, shape=shape, dtype="int64", axis=-1)


# masks


def choose(g: Graph, condition: Value, a: Value, b: Value) -> Value:
    """`a` where the condition holds, else `b`, all broadcast."""
    shape = np.broadcast_shapes(condition.shape, a.shape, b.shape)
    return g.emit("SELECT_V2", condition, a, b, shape=shape, dtype=a.dtype)


@lowers(aten.masked_fill.Scalar)
def masked_fill(g: Graph, x: Value, mask: Value, value: float | int | bool) -> Value:
    return choose(g, g.cast(mask, "bool"), scalar(g, value, x.dtype), x)


@lowers(aten.masked_fill.Tensor)
def masked_fill_tensor(g: Graph, x: Value, mask: Value, value: Value) -> Value:
    return choose(g, g.cast(mask, "bool"), g.cast(value, x.dtype), x)


# windows that are written back


def _joined(g: Graph, x: Value, src: Value, dim: int, places: np.ndarray[Any, Any]) -> Value:
    """`x` with `places` (ascending) along `dim` taken from `src`."""
    src = g.cast(src, x.dtype)
    size = x.shape[dim]
    if not places.size:
        return x
    if places[-1] - places[0] + 1 == places.size:
        head = slice_dim(g, x, dim, 0, int(places[0]))
        tail = slice_dim(g, x, dim, int(places[-1]) + 1, size)
        return concat(g, [head, src, tail], dim)
    where = np.arange(size)
    where[places] = size + np.arange(places.size)
    return take(g, concat(g, [x, src], dim), i32(g, where), dim)


@lowers(aten.slice_scatter.default)
def slice_scatter(
    g: Graph, x: Value, src: Value, dim: int, start: int | None, end: int | None, step: int
) -> Value:
    dim = axis(dim, x.rank)
    places = np.arange(x.shape[dim])[slice(start, end, step)]
    src = g.broadcast_to(src, replaced(x.shape, dim, places.size))
    return _joined(g, x, src, dim, places)


@lowers(aten.select_scatter.default)
def select_scatter(g: Graph, x: Value, src: Value, dim: int, index: int) -> Value:
    dim = axis(dim, x.rank)
    src = g.reshape(src, replaced(x.shape, dim, 1))
    return _joined(g, x, src, dim, np.array([index % x.shape[dim]]))
