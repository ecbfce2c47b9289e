"""Reductions: sums, products, extremes, truth, moments, norms.

Axes are constants. Booleans and narrow integers widen before they are summed, as in PyTorch; a
reduction over nothing gives the operation's neutral element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from litert_export.graph import Graph, Value
from litert_export.ops._dims import (
    NARROW,
    axes,
    axis,
    binary,
    computes,
    count,
    filled,
    i32,
    scalar,
    to_last,
    without,
)
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported

Dims = int | Sequence[int] | None
_NEUTRAL = {"SUM": 0, "REDUCE_PROD": 1, "MEAN": float("nan"), "REDUCE_ANY": 0, "REDUCE_ALL": 1}
_ARG_TYPES = ("float32", "int32", "int8", "uint8", "bool")
_INT64 = 4  # TensorType.INT64, for options that hold a type


def reduced(g: Graph, code: str, x: Value, dims: Dims, keepdim: bool) -> Value:
    """One reduction operator over `dims` (None or empty: all)."""
    over = axes(dims, x.rank)
    shape = without(x.shape, over, keepdim)
    if not x.size:
        if code not in _NEUTRAL and count(shape):
            raise Unsupported("the largest or smallest of no elements")
        return filled(g, shape, _NEUTRAL.get(code, 0), x.dtype)
    if all(x.shape[d] == 1 for d in over):
        return g.reshape(x, shape)
    return g.emit(code, x, i32(g, over), shape=shape, keep_dims=keepdim)


def _summed(g: Graph, code: str, x: Value, dims: Dims, keepdim: bool) -> Value:
    return reduced(g, code, g.cast(x, g.result[0].dtype), dims, keepdim)


@computes(aten.sum.default)
def sum_all(g: Graph, x: Value, *, dtype: Any) -> Value:
    return _summed(g, "SUM", x, None, False)


@computes(aten.sum.dim_IntList)
def sum_(g: Graph, x: Value, dim: Dims, keepdim: bool, *, dtype: Any) -> Value:
    return _summed(g, "SUM", x, dim, keepdim)


@computes(aten.mean.default)
def mean_all(g: Graph, x: Value, *, dtype: Any) -> Value:
    return _summed(g, "MEAN", x, None, False)


@computes(aten.mean.dim)
def mean(g: Graph, x: Value, dim: Dims, keepdim: bool, *, dtype: Any) -> Value:
    return _summed(g, "MEAN", x, dim, keepdim)


@computes(aten.prod.default)
def prod_all(g: Graph, x: Value, *, dtype: Any) -> Value:
    return _summed(g, "REDUCE_PROD", x, None, False)


@computes(aten.prod.dim_int)
def prod(g: Graph, x: Value, dim: int, keepdim: bool, *, dtype: Any) -> Value:
    return _summed(g, "REDUCE_PROD", x, dim, keepdim)


@computes(aten.count_nonzero.default)
def count_nonzero(g: Graph, x: Value, dim: int | None) -> Value:
    return reduced(g, "SUM", g.cast(g.cast(x, "bool"), "int64"), dim, False)


@computes(aten.count_nonzero.dim_IntList)
def count_nonzero_dims(g: Graph, x: Value, dim: Dims) -> Value:
    return reduced(g, "SUM", g.cast(g.cast(x, "bool"), "int64"), dim, False)


# extremes


def extreme(g: Graph, x: Value, largest: bool, dims: Dims, keepdim: bool) -> Value:
    """The largest or smallest elements over `dims`."""
    if x.dtype == "bool":
        return reduced(g, "REDUCE_ANY" if largest else "REDUCE_ALL", x, dims, keepdim)
    return reduced(g, "REDUCE_MAX" if largest else "REDUCE_MIN", x, dims, keepdim)


@computes(aten.amax.default)
def amax(g: Graph, x: Value, dim: Dims, keepdim: bool) -> Value:
    return extreme(g, x, True, dim, keepdim)


@computes(aten.amin.default)
def amin(g: Graph, x: Value, dim: Dims, keepdim: bool) -> Value:
    return extreme(g, x, False, dim, keepdim)


@computes(aten.max.default)
def max_all(g: Graph, x: Value) -> Value:
    return extreme(g, x, True, None, False)


@computes(aten.min.default)
def min_all(g: Graph, x: Value) -> Value:
    return extreme(g, x, False, None, False)


@computes(aten.aminmax.default)
def aminmax(g: Graph, x: Value, *, dim: int | None, keepdim: bool) -> tuple[Value, Value]:
    low = extreme(g, x, False, dim, keepdim)
    return low, extreme(g, x, True, dim, keepdim)


def reversed_order(g: Graph, x: Value) -> Value:
    """Values whose order is that of `x` turned around, without overflow."""
    if x.dtype in NARROW:
        x = g.cast(x, "int32")
    if x.dtype in ("int32", "int64"):
        return binary(g, "SUB", scalar(g, -1, x.dtype), x)
    return g.emit("NEG", x)


def _position(g: Graph, x: Value, largest: bool, dim: int | None, keepdim: bool) -> Value:
    """The first index of the extreme along `dim`, int64."""
    shape = g.result[-1].shape
    if dim is None or not x.rank:
        x, dim = g.reshape(x, (x.size,)), 0
    dim = axis(dim, x.rank)
    if x.shape[dim] == 1:
        return g.const(np.zeros(shape, np.int64))
    if x.dtype in ("int16", "uint16"):
        x = g.cast(x, "int32")
    rest = without(x.shape, [dim], False)
    if x.dtype in _ARG_TYPES:
        code = "ARG_MAX" if largest else "ARG_MIN"
        found = g.emit(code, x, i32(g, dim), shape=rest, dtype="int64", output_type=_INT64)
        return g.reshape(found, shape)
    last = to_last(g, x if largest else reversed_order(g, x), dim)
    outputs = [((*last.shape[:-1], 1), last.dtype), ((*last.shape[:-1], 1), "int32")]
    _, found = g.emit("TOPK_V2", last, i32(g, 1), outputs=outputs)
    return g.cast(g.reshape(found, shape), "int64")


@computes(aten.argmax.default)
def argmax(g: Graph, x: Value, dim: int | None, keepdim: bool) -> Value:
    return _position(g, x, True, dim, keepdim)


@computes(aten.argmin.default)
def argmin(g: Graph, x: Value, dim: int | None, keepdim: bool) -> Value:
    return _position(g, x, False, dim, keepdim)


@computes(aten.max.dim)
def max_dim(g: Graph, x: Value, dim: int, keepdim: bool) -> tuple[Value, Value]:
    return extreme(g, x, True, dim, keepdim), _position(g, x, True, dim, keepdim)


@computes(aten.min.dim)
def min_dim(g: Graph, x: Value, dim: int, keepdim: bool) -> tuple[Value, Value]:
    return extreme(g, x, False, dim, keepdim), _position(g, x, False, dim, keepdim)


# truth


def _truth(g: Graph, code: str, x: Value, dims: Dims, keepdim: bool) -> Value:
    found = reduced(g, code, g.cast(x, "bool"), dims, keepdim)
    return g.cast(found, g.result[0].dtype)


@computes(aten.any.default)
def any_all(g: Graph, x: Value) -> Value:
    return _truth(g, "REDUCE_ANY", x, None, False)


@computes(aten.any.dim, aten.any.dims)
def any_(g: Graph, x: Value, dim: Dims, keepdim: bool) -> Value:
    return _truth(g, "REDUCE_ANY", x, dim, keepdim)


@computes(aten.all.default)
def all_all(g: Graph, x: Value) -> Value:
    return _truth(g, "REDUCE_ALL", x, None, False)


@computes(aten.all.dim, aten.all.dims)
def all_(g: Graph, x: Value, dim: Dims, keepdim: bool) -> Value:
    return _truth(g, "REDUCE_ALL", x, dim, keepdim)


# moments


def _moments(
    g: Graph, x: Value, dims: Dims, correction: float | None, keepdim: bool
) -> tuple[Value, Value]:
    """(variance, mean); the mean is taken off first, so that large means cost no digits."""
    over = axes(dims, x.rank)
    n = count([x.shape[d] for d in over])
    centre = reduced(g, "MEAN", x, over, True)
    squares = g.emit("SQUARED_DIFFERENCE", x, centre)
    divisor = n - (1 if correction is None else correction)
    if divisor == n:
        variance = reduced(g, "MEAN", squares, over, keepdim)
    else:
        total = reduced(g, "SUM", squares, over, keepdim)
        variance = binary(g, "DIV", total, scalar(g, max(divisor, 0), x.dtype))
    return variance, g.reshape(centre, variance.shape)


@computes(aten.var.correction)
def var(g: Graph, x: Value, dim: Dims, *, correction: float | None, keepdim: bool) -> Value:
    return _moments(g, x, dim, correction, keepdim)[0]


@computes(aten.std.correction)
def std(g: Graph, x: Value, dim: Dims, *, correction: float | None, keepdim: bool) -> Value:
    return g.emit("SQRT", _moments(g, x, dim, correction, keepdim)[0])


@computes(aten.var_mean.correction)
def var_mean(
    g: Graph, x: Value, dim: Dims, *, correction: float | None, keepdim: bool
) -> tuple[Value, Value]:
    return _moments(g, x, dim, correction, keepdim)


@computes(aten.std_mean.correction)
def std_mean(
    g: Graph, x: Value, dim: Dims, *, correction: float | None, keepdim: bool
) -> tuple[Value, Value]:
    variance, centre = _moments(g, x, dim, correction, keepdim)
    return g.emit("SQRT", variance), centre


# norms


def norm_over(g: Graph, x: Value, order: float, dims: Dims, keepdim: bool) -> Value:
    """The vector norm of `x` over `dims`."""
    if order == 2:
        return g.emit("SQRT", reduced(g, "SUM", g.emit("SQUARE", x), dims, keepdim))
    if order == 0:
        return reduced(g, "SUM", g.cast(g.cast(x, "bool"), x.dtype), dims, keepdim)
    size = g.emit("ABS", x)
    if order in (float("inf"), -float("inf")):
        return extreme(g, size, order > 0, dims, keepdim)
    if order == 1:
        return reduced(g, "SUM", size, dims, keepdim)
    powers = g.emit("POW", size, scalar(g, order, x.dtype))
    total = reduced(g, "SUM", powers, dims, keepdim)
    return g.emit("POW", total, scalar(g, 1 / order, x.dtype))


def _norm(g: Graph, x: Value, order: float | None, dims: Dims, keepdim: bool) -> Value:
    x = g.cast(x, g.result[0].dtype)
    return norm_over(g, x, 2 if order is None else order, dims, keepdim)


@computes(aten.linalg_vector_norm.default)
def vector_norm(g: Graph, x: Value, ord: float, dim: Dims, keepdim: bool, *, dtype: Any) -> Value:
    return _norm(g, x, ord, dim, keepdim)


@computes(aten.norm.Scalar)
def norm_scalar(g: Graph, x: Value, p: float) -> Value:
    return _norm(g, x, p, None, False)


@computes(aten.norm.ScalarOpt_dtype)
def norm_dtype(g: Graph, x: Value, p: float | None, *, dtype: Any) -> Value:
    return _norm(g, x, p, None, False)


@computes(aten.norm.ScalarOpt_dim)
def norm_dim(g: Graph, x: Value, p: float | None, dim: Dims, keepdim: bool) -> Value:
    return _norm(g, x, p, dim, keepdim)


@computes(aten.norm.ScalarOpt_dim_dtype)
def norm_dim_dtype(
    g: Graph, x: Value, p: float | None, dim: Dims, keepdim: bool, *, dtype: Any
) -> Value:
    return _norm(g, x, p, dim, keepdim)


@computes(aten.logsumexp.default)
def logsumexp(g: Graph, x: Value, dim: Dims, keepdim: bool) -> Value:
    x = g.cast(x, g.result[0].dtype)
    top = extreme(g, x, True, dim, True)
    # An infinite top would give inf - inf; the sum of exponentials is then right without it.
    infinite = g.emit("EQUAL", g.emit("ABS", top), scalar(g, np.inf, x.dtype), dtype="bool")
    top = g.emit("SELECT_V2", infinite, scalar(g, 0, x.dtype), top, shape=top.shape, dtype=x.dtype)
    total = reduced(g, "SUM", g.emit("EXP", binary(g, "SUB", x, top)), dim, keepdim)
    return binary(g, "ADD", g.emit("LOG", total), g.reshape(top, total.shape))
