"""Dimension arithmetic and the few building blocks that several families share.

Works on shapes and constants; appends operators only where the name says so. Dimensions count from
the front once they went through `axis`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from litert_export.graph import Graph, ResultType, Value
from litert_export.ops import lowers
from torch_tpu_unified.core.errors import Unsupported

# Unsigned and narrow types that most arithmetic kernels lack; int32 holds all their values.
NARROW = ("bool", "int8", "uint8", "int16", "uint16")
UNROLLED = 8  # up to so many steps a loop costs more than it saves
HALF = ("float16", "bfloat16")
LOWEST = float(np.finfo(np.float32).min)


def axis(dim: int, rank: int) -> int:
    """The dimension counted from the front; a 0-d tensor counts as one-dimensional."""
    count = max(rank, 1)
    if not -count <= dim < count:
        raise Unsupported(f"dimension {dim} of a tensor of rank {rank}")
    return dim % count


def axes(dims: int | Sequence[int] | None, rank: int) -> list[int]:
    """Sorted dimensions; None and an empty list mean all of them."""
    if isinstance(dims, int):
        dims = [dims]
    if not dims:
        return list(range(rank))
    return sorted({axis(d, rank) for d in dims}) if rank else []


def without(shape: Sequence[int], dims: Sequence[int], keepdim: bool) -> tuple[int, ...]:
    """The shape of a reduction over `dims`."""
    if keepdim:
        return tuple(1 if i in dims else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in dims)


def replaced(shape: Sequence[int], dim: int, *sizes: int) -> tuple[int, ...]:
    """The shape with dimension `dim` replaced by `sizes`."""
    return (*shape[:dim], *sizes, *shape[dim + 1 :])


def count(shape: Sequence[int]) -> int:
    """The number of elements."""
    return int(np.prod(shape, dtype=np.int64))


def i32(g: Graph, values: Any) -> Value:
    """An int32 constant, the type of the operators' parameter tensors."""
    return g.const(np.asarray(values, np.int32))


def scalar(g: Graph, value: Any, dtype: str) -> Value:
    """A 0-d constant of a LiteRT type."""
    return g.const(np.asarray(value), dtype=dtype)


def filled(g: Graph, shape: Sequence[int], value: Any, dtype: str) -> Value:
    """A constant of one value; large ones are spread at run time instead of stored."""
    if not 0 < count(shape) <= 1 << 16:  # nor can a constant without elements be an output
        return g.emit("FILL", i32(g, shape), scalar(g, value, dtype), shape=shape, dtype=dtype)
    return g.const(np.full(tuple(shape), value), dtype=dtype)


def binary(g: Graph, code: str, a: Value, b: Value) -> Value:
    """One of ADD, SUB, MUL, DIV without an activation."""
    return g.emit(code, a, b, fused_activation_function="NONE")


def slice_dim(g: Graph, x: Value, dim: int, start: int, stop: int, step: int = 1) -> Value:
    """`x[..., start:stop:step, ...]` along one dimension, with 0 <= start <= stop <= size."""
    size = x.shape[dim]
    if (start, stop, step) == (0, size, 1):
        return x
    length = max(0, -(-(stop - start) // step))
    shape = replaced(x.shape, dim, length)
    if x.data is not None:
        return g.const(
            np.ascontiguousarray(x.data[(slice(None),) * dim + (slice(start, stop, step),)])
        )
    begin = [0] * x.rank
    begin[dim] = start
    if length <= 1 or step == 1:
        return g.emit("SLICE", x, i32(g, begin), i32(g, shape), shape=shape)
    end, strides = list(x.shape), [1] * x.rank
    end[dim], strides[dim] = stop, step
    return g.emit("STRIDED_SLICE", x, i32(g, begin), i32(g, end), i32(g, strides), shape=shape)


def take(g: Graph, x: Value, indices: Value, dim: int) -> Value:
    """GATHER along `dim`: the result has the indices' shape in the place of that dimension."""
    shape = replaced(x.shape, dim, *indices.shape)
    if x.data is not None and indices.data is not None:
        return g.const(np.take(x.data, indices.data, axis=dim))
    return g.emit("GATHER", x, indices, shape=shape, axis=dim, batch_dims=0)


def concat(g: Graph, parts: Sequence[Value], dim: int) -> Value:
    """CONCATENATION along `dim`; parts without elements are left out."""
    parts = [p for p in parts if p.shape[dim]] or list(parts[:1])
    if len(parts) == 1:
        return parts[0]
    shape = replaced(parts[0].shape, dim, sum(p.shape[dim] for p in parts))
    if all(p.data is not None for p in parts):
        return g.const(np.concatenate([p.data for p in parts], axis=dim))
    return g.emit("CONCATENATION", *parts, shape=shape, axis=dim, fused_activation_function="NONE")


def pad(g: Graph, x: Value, pads: Sequence[tuple[int, int]], value: Any = 0) -> Value:
    """Constant padding by (before, after) of every dimension, all of them >= 0."""
    if not any(before or after for before, after in pads):
        return x
    if x.rank > 5:
        return _pad_by_dim(g, x, pads, value)
    shape = [b + d + a for d, (b, a) in zip(x.shape, pads, strict=True)]
    amounts = i32(g, pads)
    if value == 0:
        return g.emit("PAD", x, amounts, shape=shape)
    return g.emit("PADV2", x, amounts, scalar(g, value, x.dtype), shape=shape)


def _pad_by_dim(g: Graph, x: Value, pads: Sequence[tuple[int, int]], value: Any) -> Value:
    """The PAD kernels stop at rank 5: pad dimension by dimension as rank 3."""
    for dim, (before, after) in enumerate(pads):
        if before or after:
            flat = g.reshape(x, (count(x.shape[:dim]), x.shape[dim], count(x.shape[dim + 1 :])))
            flat = pad(g, flat, [(0, 0), (before, after), (0, 0)], value)
            x = g.reshape(flat, replaced(x.shape, dim, flat.shape[1]))
    return x


def to_last(g: Graph, x: Value, dim: int) -> Value:
    """`x` with dimension `dim` moved to the end."""
    return g.transpose(x, [*(d for d in range(x.rank) if d != dim), dim])


def from_last(g: Graph, x: Value, dim: int) -> Value:
    """`x` with its last dimension moved to `dim`."""
    order = list(range(x.rank - 1))
    order.insert(dim, x.rank - 1)
    return g.transpose(x, order)


def computes(*ops: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`lowers` for functions that calculate: half precision is computed in float32 around them.

    float64 is refused: the kernels lack it, and float32 would quietly lose digits.
    """

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        return lowers(*ops)(_widened(function))

    return add


def _widened(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def lowering(g: Graph, *args: Any, **kwargs: Any) -> Any:
        expected = g.result
        met = {r.dtype for r in expected if r is not None} | _types((args, kwargs))
        if "float64" in met:
            raise Unsupported("LiteRT has no float64 kernel for it; use float32")
        if not met.intersection(HALF):
            return function(g, *args, **kwargs)
        g.result = tuple(
            ResultType(r.shape, "float32") if r is not None and r.dtype in HALF else r
            for r in expected
        )
        try:
            found = function(g, *_wide(g, args), **_wide(g, kwargs))
        finally:
            g.result = expected
        if isinstance(found, Value):
            return g.cast(found, expected[0].dtype)
        pairs = zip(found, expected, strict=True)
        return tuple(g.cast(v, r.dtype) if v is not None and r is not None else v for v, r in pairs)

    return lowering


def _types(tree: Any) -> set[str]:
    if isinstance(tree, Value):
        return {tree.dtype}
    parts = tree.values() if isinstance(tree, dict) else tree
    if isinstance(tree, (list, tuple, dict)):
        return {name for part in parts for name in _types(part)}
    return set()


def _wide(g: Graph, tree: Any) -> Any:
    if isinstance(tree, Value):
        return g.cast(tree, "float32") if tree.dtype in HALF else tree
    if isinstance(tree, dict):
        return {k: _wide(g, v) for k, v in tree.items()}
    return type(tree)(_wide(g, v) for v in tree) if isinstance(tree, (list, tuple)) else tree
