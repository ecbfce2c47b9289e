"""Views and movements: reshapes, permutations, slices, joins, repeats, diagonals.

All of them only move elements, so every element type that the kernels know is fine. Views become
plain results: a LiteRT tensor never aliases another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from litert_export.graph import Graph, Value
from litert_export.ops import lowers
from litert_export.ops._dims import (
    axes,
    axis,
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

_SPLIT_TYPES = ("float32", "int8", "uint8", "int16", "int32", "int64")
_PACK_TYPES = ("float32", "int8", "uint8", "int16", "int32", "int64", "uint32")
_UNPACK_TYPES = ("float32", "float16", "int8", "uint8", "int16", "int32", "bool")
# The CPU delegate runs SPLIT and CONCATENATION of few tensors, but neither PACK nor UNPACK.
_FEW = 4


@lowers(aten.alias.default, aten.detach.default, aten.clone.default)
def same(g: Graph, x: Value) -> Value:
    return x


@lowers(aten._to_copy.default)
def to_copy(g: Graph, x: Value, *, dtype: object) -> Value:
    return g.cast(x, g.result[0].dtype)


@lowers(aten.copy.default)
def copy(g: Graph, x: Value, src: Value) -> Value:
    return g.broadcast_to(g.cast(src, x.dtype), x.shape)


@lowers(aten.view.default, aten._unsafe_view.default, aten.view_copy.default)
def view(g: Graph, x: Value, size: Sequence[int]) -> Value:
    return g.reshape(x, g.result[0].shape)


@lowers(aten.squeeze.default)
def squeeze(g: Graph, x: Value) -> Value:
    return g.reshape(x, g.result[0].shape)


@lowers(aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default)
def squeeze_dim(g: Graph, x: Value, dim: int | Sequence[int]) -> Value:
    return g.reshape(x, g.result[0].shape)


@lowers(aten.view.dtype)
def view_dtype(g: Graph, x: Value, dtype: object) -> Value:
    shape, wanted = g.result[0]
    if wanted == x.dtype:
        return x
    return g.emit("BITCAST", x, shape=shape, dtype=wanted)


@lowers(aten.expand.default)
def expand(g: Graph, x: Value, size: Sequence[int], *, implicit: bool) -> Value:
    return g.broadcast_to(x, g.result[0].shape)


@lowers(aten.permute.default)
def permute(g: Graph, x: Value, dims: Sequence[int]) -> Value:
    return g.transpose(x, [axis(d, x.rank) for d in dims])


@lowers(aten.transpose.int)
def transpose(g: Graph, x: Value, dim0: int, dim1: int) -> Value:
    if not x.rank:
        return x
    perm = list(range(x.rank))
    a, b = axis(dim0, x.rank), axis(dim1, x.rank)
    perm[a], perm[b] = b, a
    return g.transpose(x, perm)


@lowers(aten.t.default)
def t(g: Graph, x: Value) -> Value:
    return g.transpose(x, range(x.rank)[::-1])


# slices


def _bounds(start: int | None, end: int | None, size: int) -> tuple[int, int]:
    start, end, _ = slice(start, end).indices(size)
    return start, max(start, end)


@lowers(aten.slice.Tensor)
def slice_(g: Graph, x: Value, dim: int, start: int | None, end: int | None, step: int) -> Value:
    dim = axis(dim, x.rank)
    return slice_dim(g, x, dim, *_bounds(start, end, x.shape[dim]), step)


@lowers(aten.select.int)
def select(g: Graph, x: Value, dim: int, index: int) -> Value:
    dim = axis(dim, x.rank)
    index = index + x.shape[dim] if index < 0 else index
    return g.reshape(slice_dim(g, x, dim, index, index + 1), g.result[0].shape)


def _pieces(g: Graph, x: Value, sizes: Sequence[int], dim: int) -> tuple[Value, ...]:
    ends = np.cumsum(sizes).tolist()
    return tuple(slice_dim(g, x, dim, end - n, end) for n, end in zip(sizes, ends, strict=True))


def _split(g: Graph, x: Value, sizes: Sequence[int], dim: int) -> tuple[Value, ...]:
    even = len(set(sizes)) == 1 and sizes[0]
    if len(sizes) == 1 or not even or x.dtype not in _SPLIT_TYPES or x.data is not None:
        return _pieces(g, x, sizes, dim)
    outputs = [(replaced(x.shape, dim, n), x.dtype) for n in sizes]
    return tuple(g.emit("SPLIT", i32(g, dim), x, outputs=outputs, num_splits=len(sizes)))


@lowers(aten.split.Tensor, aten.unsafe_split.Tensor)
def split(g: Graph, x: Value, split_size: int, dim: int) -> tuple[Value, ...]:
    dim = axis(dim, x.rank)
    return _split(g, x, [shape[dim] for shape, _ in g.result], dim)


@lowers(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default)
def split_with_sizes(g: Graph, x: Value, split_sizes: Sequence[int], dim: int) -> tuple[Value, ...]:
    return _split(g, x, list(split_sizes), axis(dim, x.rank))


@lowers(aten.unbind.int)
def unbind(g: Graph, x: Value, dim: int) -> tuple[Value, ...]:
    dim = axis(dim, x.rank)
    n, rest = x.shape[dim], replaced(x.shape, dim)
    if n > _FEW and x.dtype in _UNPACK_TYPES and x.data is None:
        return tuple(g.emit("UNPACK", x, outputs=[(rest, x.dtype)] * n, num=n, axis=dim))
    return tuple(g.reshape(piece, rest) for piece in _pieces(g, x, [1] * n, dim))


@lowers(aten.unfold.default)
def unfold(g: Graph, x: Value, dimension: int, size: int, step: int) -> Value:
    if not x.rank:
        return g.reshape(x, g.result[0].shape)
    dim = axis(dimension, x.rank)
    starts = np.arange(0, x.shape[dim] - size + 1, step)
    windows = take(g, x, i32(g, starts[:, None] + np.arange(size)), dim)
    order = [d for d in range(windows.rank) if d != dim + 1]
    return g.transpose(windows, [*order, dim + 1])


@lowers(aten.as_strided.default, aten.as_strided_copy.default)
def as_strided(
    g: Graph, x: Value, size: Sequence[int], stride: Sequence[int], storage_offset: int | None
) -> Value:
    """Right for a tensor that fills its storage in order, which the emitter's graphs hold."""
    index = np.full(tuple(size), storage_offset or 0, np.int64)
    for dim, (n, step) in enumerate(zip(size, stride, strict=True)):
        index += (np.arange(n) * step).reshape((n,) + (1,) * (len(size) - dim - 1))
    if index.size and not 0 <= index.min() <= index.max() < x.size:
        raise Unsupported("as_strided reads outside of its input")
    return take(g, g.reshape(x, (x.size,)), i32(g, index), 0)


# joins and repeats


@lowers(aten.cat.default)
def cat(g: Graph, tensors: Sequence[Value], dim: int) -> Value:
    shape, dtype = g.result[0]
    # A tensor of shape [0] may be joined with anything, and adds nothing.
    parts = [v for v in tensors if v.shape != (0,)] or list(tensors)
    return concat(g, [g.cast(v, dtype) for v in parts], axis(dim, len(shape)))


@lowers(aten.stack.default)
def stack(g: Graph, tensors: Sequence[Value], dim: int) -> Value:
    shape, dtype = g.result[0]
    dim, parts = axis(dim, len(shape)), [g.cast(v, dtype) for v in tensors]
    if len(parts) > _FEW and dtype in _PACK_TYPES:
        return g.emit("PACK", *parts, shape=shape, values_count=len(parts), axis=dim)
    return concat(g, [g.reshape(v, replaced(shape, dim, 1)) for v in parts], dim)


@lowers(aten.flip.default)
def flip(g: Graph, x: Value, dims: Sequence[int]) -> Value:
    for dim in axes(dims, x.rank) if dims else ():
        if x.shape[dim] > 1:
            x = g.emit("REVERSE_V2", x, i32(g, [dim]))
    return x


@lowers(aten.roll.default)
def roll(g: Graph, x: Value, shifts: Sequence[int], dims: Sequence[int]) -> Value:
    if not dims:
        flat = g.reshape(x, (x.size,))
        return g.reshape(_roll(g, flat, shifts[0], 0), x.shape) if x.size else x
    for shift, dim in zip(shifts, dims, strict=True):
        x = _roll(g, x, shift, axis(dim, x.rank))
    return x


def _roll(g: Graph, x: Value, shift: int, dim: int) -> Value:
    size = x.shape[dim]
    shift = shift % size if size else 0
    if not shift:
        return x
    tail = slice_dim(g, x, dim, size - shift, size)
    return concat(g, [tail, slice_dim(g, x, dim, 0, size - shift)], dim)


@lowers(aten.repeat.default)
def repeat(g: Graph, x: Value, repeats: Sequence[int]) -> Value:
    x = g.reshape(x, (1,) * (len(repeats) - x.rank) + x.shape)
    if all(n == 1 for n in repeats):
        return x
    if not count(g.result[0].shape):
        return filled(g, g.result[0].shape, 0, x.dtype)
    return g.emit("TILE", x, i32(g, repeats), shape=g.result[0].shape)


@lowers(aten.tile.default)
def tile(g: Graph, x: Value, dims: Sequence[int]) -> Value:
    return repeat(g, x, [1] * (x.rank - len(dims)) + list(dims))


@lowers(aten.repeat_interleave.self_int)
def repeat_interleave(
    g: Graph, x: Value, repeats: int, dim: int | None, *, output_size: int | None
) -> Value:
    if dim is None:
        x, dim = g.reshape(x, (x.size,)), 0
    dim = axis(dim, x.rank)
    x = g.reshape(x, x.shape or (1,))
    wide = replaced(x.shape, dim, x.shape[dim], repeats)
    spread = g.broadcast_to(g.reshape(x, replaced(x.shape, dim, x.shape[dim], 1)), wide)
    return g.reshape(spread, g.result[0].shape)


@lowers(aten.repeat_interleave.self_Tensor)
def repeat_interleave_each(
    g: Graph, x: Value, repeats: Value, dim: int | None, *, output_size: int | None
) -> Value:
    if repeats.data is None:
        raise Unsupported("the repeats depend on the input, so the result has no fixed shape")
    if dim is None:
        x, dim = g.reshape(x, (x.size,)), 0
    dim = axis(dim, x.rank)
    times = np.broadcast_to(repeats.data, (x.shape[dim],))
    return take(g, x, i32(g, np.repeat(np.arange(x.shape[dim]), times)), dim)


# diagonals and triangles


def _triangle(g: Graph, x: Value, keep: np.ndarray) -> Value:
    mask = g.const(keep)
    if keep.all():
        return x
    if x.dtype == "bool":
        return g.emit("LOGICAL_AND", x, mask)
    # A product with the mask would turn infinities into NaN.
    return g.emit("SELECT_V2", mask, x, scalar(g, 0, x.dtype), shape=x.shape, dtype=x.dtype)


@lowers(aten.tril.default)
def tril(g: Graph, x: Value, diagonal: int) -> Value:
    return _triangle(g, x, np.tri(*x.shape[-2:], diagonal, dtype=bool))


@lowers(aten.triu.default)
def triu(g: Graph, x: Value, diagonal: int) -> Value:
    return _triangle(g, x, ~np.tri(*x.shape[-2:], diagonal - 1, dtype=bool))


def diagonal_positions(rows: int, columns: int, offset: int) -> np.ndarray:
    """Positions of a diagonal in a flattened matrix."""
    length = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    start = offset if offset >= 0 else -offset * columns
    return start + np.arange(length) * (columns + 1)


@lowers(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(g: Graph, x: Value, offset: int, dim1: int, dim2: int) -> Value:
    a, b = axis(dim1, x.rank), axis(dim2, x.rank)
    rest = [d for d in range(x.rank) if d not in (a, b)]
    x = g.transpose(x, [*rest, a, b])
    rows, columns = x.shape[-2:]
    flat = g.reshape(x, (*x.shape[:-2], rows * columns))
    where = diagonal_positions(rows, columns, offset)
    return take(g, flat, i32(g, where), flat.rank - 1)


@lowers(aten.diag_embed.default)
def diag_embed(g: Graph, x: Value, offset: int, dim1: int, dim2: int) -> Value:
    shape, dtype = g.result[0]
    n = x.shape[-1] + abs(offset)
    where = np.full(n * n, x.shape[-1])  # the zero behind the last element
    where[diagonal_positions(n, n, offset)] = np.arange(x.shape[-1])
    zero = g.const(np.zeros((*x.shape[:-1], 1)), dtype=dtype)
    extended = concat(g, [x, zero], x.rank - 1)
    full = take(g, extended, i32(g, where.reshape(n, n)), x.rank - 1)
    a, b = axis(dim1, len(shape)), axis(dim2, len(shape))
    order = list(range(len(shape) - 2))
    for dim, source in sorted([(a, full.rank - 2), (b, full.rank - 1)]):
        order.insert(dim, source)
    return g.transpose(full, order)
