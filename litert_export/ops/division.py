"""Quotients and remainders: true, floored and truncated, of floats and of integers.

LiteRT divides integers in 32 bits only. An int64 quotient is computed there when the operands'
ranges prove that it fits, and otherwise by long division in exact int64 arithmetic.
"""

from __future__ import annotations

import math

import numpy as np

from litert_export.graph import Graph, Value
from litert_export.ops import lowers
from litert_export.ops._range import Bounds, bounds
from litert_export.ops._shared import (
    Number,
    as_value,
    binary,
    compare,
    compute_type,
    is_float,
)
from litert_export.ops.pointwise import NONE, magnitude, neg, trunc
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported

_INT32 = np.iinfo(np.int32)
# The largest power of two whose int64 has room for rounding above it.
_HUGE = 1 << 62
# A float32 quotient of two rounded int64 values is off by at most this share of itself:
# three roundings of 2^-24 each, and some room.
_ERROR = 2.0**-22


@lowers(aten.div.Tensor, aten.div.Scalar)
def div(g: Graph, x: Value, other: Value | Number) -> Value:
    if not isinstance(other, Value) and other != 0 and is_float(x):
        # A power of two has an exact reciprocal; any other divisor rounds differently.
        if math.frexp(abs(other))[0] == 0.5 and math.isfinite(1 / other):
            return binary(g, "MUL", x, 1 / other, dtype=g.result[0].dtype, **NONE)
    return binary(g, "DIV", x, other, dtype=g.result[0].dtype, **NONE)


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(g: Graph, x: Value, other: Value | Number, *, rounding_mode: str | None) -> Value:
    if rounding_mode is None:
        return div(g, x, other)
    if rounding_mode == "floor":
        return floor_divide(g, x, other)
    dtype = g.result[0].dtype
    if is_float(dtype):
        return trunc(g, binary(g, "DIV", x, other, dtype=dtype, **NONE))
    return _integer_quotient(g, x, other, dtype, floor=False)


@lowers(aten.floor_divide.default)
def floor_divide(g: Graph, x: Value, other: Value | Number) -> Value:
    dtype = g.result[0].dtype
    if not is_float(dtype):
        return _integer_quotient(g, x, other, dtype, floor=True)
    # floor((x - x mod y) / y), PyTorch's way: the plain quotient may round up to an integer.
    a, b = as_value(g, x, "float32"), as_value(g, other, "float32")
    rest = g.emit("FLOOR_MOD", a, b)
    quotient = g.emit("DIV", g.emit("SUB", a, rest, **NONE), b, **NONE)
    return g.cast(g.emit("ROUND", quotient), dtype)


@lowers(aten.remainder.Tensor, aten.remainder.Scalar)
def remainder(g: Graph, x: Value, other: Value | Number) -> Value:
    return binary(g, "FLOOR_MOD", x, other, dtype=g.result[0].dtype)


@lowers(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(g: Graph, x: Value, other: Value | Number) -> Value:
    dtype = g.result[0].dtype
    a, b = as_value(g, x, dtype), as_value(g, other, dtype)
    # The remainder with the dividend's sign: of the magnitudes, then the sign put back.
    size = binary(g, "FLOOR_MOD", magnitude(g, a), magnitude(g, b), dtype=dtype)
    negative = compare(g, "LESS", a, 0)
    return g.emit("SELECT_V2", negative, neg(g, size), size, shape=size.shape, dtype=dtype)


@lowers(aten.reciprocal.default)
def reciprocal(g: Graph, x: Value) -> Value:
    return binary(g, "DIV", 1.0, x, dtype=g.result[0].dtype, **NONE)


def _integer_quotient(
    g: Graph, x: Value | Number, y: Value | Number, dtype: str, *, floor: bool
) -> Value:
    a, b = as_value(g, x, dtype), as_value(g, y, dtype)
    if b.data is not None and not b.data.all():
        raise Unsupported("an integer division by zero")
    if dtype == "int64":
        over, under = bounds(g, a), bounds(g, b)
        if not _fits_int32(over, under):
            return _long_division(g, a, b, over, under, floor=floor)
        inner = "int32"
    else:
        inner = compute_type("FLOOR_DIV", dtype)
    a, b = g.cast(a, inner), g.cast(b, inner)
    # LiteRT's integer DIV truncates.
    made = g.emit("FLOOR_DIV", a, b) if floor else g.emit("DIV", a, b, **NONE)
    return g.cast(made, dtype)


def _fits_int32(x: Bounds, y: Bounds) -> bool:
    """Whether both operands and their quotient (-2^31 / -1 is one more) are int32."""
    operands = all(_INT32.min <= v <= _INT32.max for v in (*x, *y))
    return operands and not (x[0] == _INT32.min and y[0] <= -1 <= y[1])


def _long_division(
    g: Graph, x: Value, y: Value, over: Bounds, under: Bounds, *, floor: bool
) -> Value:
    """The exact int64 quotient, by refining float32 estimates of what is left.

    Each step takes `round(rest / y)` in float32 off the rest, in int64; the error of an estimate is
    a fixed share of it, so two to four steps leave |rest| < |y|, and its sign tells the rounding.
    """
    smallest = under[0] if under[0] > 0 else -under[1] if under[1] < 0 else 1
    size = max(-over[0], over[1]) / smallest
    divisor = g.cast(y, "float32")
    quotient: Value | None = None
    rest = x
    while quotient is None or size >= 0.75:
        part = g.emit("DIV", g.cast(rest, "float32"), divisor, **NONE)
        if size >= _HUGE:
            part = g.emit("MINIMUM", part, g.const(np.float32(_HUGE)))
            part = g.emit("MAXIMUM", part, g.const(np.float32(-_HUGE)))
        whole = g.cast(g.emit("ROUND", part), "int64")
        rest = g.emit("SUB", rest, g.emit("MUL", whole, y, **NONE), **NONE)
        quotient = whole if quotient is None else g.emit("ADD", quotient, whole, **NONE)
        size = max(size - _HUGE, min(size, _HUGE) * _ERROR + 0.5)
    down = g.cast(_wrong_side(g, rest, y, under), "int64")
    quotient = g.emit("SUB", quotient, down, **NONE)
    if floor:
        return quotient
    # Truncation differs where the quotient is negative and not whole.
    rest = g.emit("SUB", x, g.emit("MUL", quotient, y, **NONE), **NONE)
    up = g.emit("LOGICAL_AND", compare(g, "LESS", quotient, 0), compare(g, "NOT_EQUAL", rest, 0))
    return g.emit("ADD", quotient, g.cast(up, "int64"), **NONE)


def _wrong_side(g: Graph, rest: Value, y: Value, under: Bounds) -> Value:
    """Whether the rest is not zero and has another sign than the divisor."""
    if under[0] > 0:
        return compare(g, "LESS", rest, 0)
    if under[1] < 0:
        return compare(g, "GREATER", rest, 0)
    signs = g.emit("NOT_EQUAL", compare(g, "LESS", rest, 0), compare(g, "LESS", y, 0))
    return g.emit("LOGICAL_AND", compare(g, "NOT_EQUAL", rest, 0), signs)
