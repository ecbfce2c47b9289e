"""Arithmetic, comparisons, logic and mathematics, element by element, with PyTorch's promotion.

Near-identical ops are registered by constructors. A call is computed in a type that LiteRT's kernel
has (see `_shared.KERNEL_TYPES`), with casts around it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from litert_export import schema
from litert_export.graph import Graph, Value
from litert_export.ops import lowers
from litert_export.ops._shared import (
    KERNEL_TYPES,
    Number,
    as_value,
    binary,
    compare,
    compute_type,
    float32,
    is_float,
    result_type,
    unary,
)
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported

NONE = {"fused_activation_function": "NONE"}


def _mul(g: Graph, x: Value, y: Value | Number) -> Value:
    return binary(g, "MUL", x, y, dtype=x.dtype, **NONE)


def _add(g: Graph, x: Value, y: Value | Number) -> Value:
    return binary(g, "ADD", x, y, dtype=x.dtype, **NONE)


def _sub(g: Graph, x: Value | Number, y: Value | Number) -> Value:
    dtype = x.dtype if isinstance(x, Value) else y.dtype if isinstance(y, Value) else "float32"
    return binary(g, "SUB", x, y, dtype=dtype, **NONE)


# arithmetic


def _scaled(g: Graph, y: Value | Number, alpha: Number, dtype: str) -> Value | Number:
    if alpha == 1:
        return y
    if not isinstance(y, Value):
        return y * alpha
    return binary(g, "MUL", y, alpha, dtype=dtype, **NONE)


@lowers(aten.add.Tensor, aten.add.Scalar)
def add(g: Graph, x: Value, other: Value | Number, *, alpha: Number) -> Value:
    dtype = g.result[0].dtype
    if dtype == "bool":
        return g.emit("LOGICAL_OR", x, as_value(g, other, "bool"))
    return binary(g, "ADD", x, _scaled(g, other, alpha, dtype), dtype=dtype, **NONE)


@lowers(aten.sub.Tensor, aten.sub.Scalar)
def sub(g: Graph, x: Value, other: Value | Number, *, alpha: Number) -> Value:
    dtype = g.result[0].dtype
    return binary(g, "SUB", x, _scaled(g, other, alpha, dtype), dtype=dtype, **NONE)


@lowers(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(g: Graph, x: Value, other: Value | Number, *, alpha: Number) -> Value:
    dtype = g.result[0].dtype
    return binary(g, "SUB", other, _scaled(g, x, alpha, dtype), dtype=dtype, **NONE)


@lowers(aten.mul.Tensor, aten.mul.Scalar)
def mul(g: Graph, x: Value, other: Value | Number) -> Value:
    dtype = g.result[0].dtype
    if dtype == "bool":
        return g.emit("LOGICAL_AND", x, as_value(g, other, "bool"))
    return binary(g, "MUL", x, other, dtype=dtype, **NONE)


@lowers(aten.pow.Tensor_Scalar)
def pow_scalar(g: Graph, x: Value, exponent: Number) -> Value:
    dtype = g.result[0].dtype
    x = as_value(g, x, dtype)
    if not is_float(dtype):
        return _integer_power(g, x, int(exponent))
    x = float32(g, x)
    if exponent == 0.5:
        y = g.emit("SQRT", x)
    elif exponent == -0.5:
        y = g.emit("RSQRT", x)
    elif exponent in (2, 3):
        y = g.emit("MUL", x, x, **NONE)
        y = g.emit("MUL", y, x, **NONE) if exponent == 3 else y
    elif exponent == -1:
        y = g.emit("DIV", g.const(np.float32(1)), x, **NONE)
    else:
        y = g.emit("POW", x, g.const(np.float32(exponent)))
    return g.cast(y, dtype)


def _integer_power(g: Graph, x: Value, exponent: int) -> Value:
    if exponent < 0:
        raise Unsupported("a negative power of integers")
    if exponent == 0:
        return g.broadcast_to(as_value(g, 1, x.dtype), x.shape)
    result: Value | None = None
    base = x
    while exponent:
        if exponent & 1:
            result = base if result is None else _mul(g, result, base)
        exponent >>= 1
        base = _mul(g, base, base) if exponent else base
    assert result is not None
    return result


@lowers(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_tensor(g: Graph, x: Value | Number, exponent: Value) -> Value:
    return binary(g, "POW", x, exponent, dtype=g.result[0].dtype)


@lowers(aten.maximum.default, aten.fmax.default)
def maximum(g: Graph, x: Value, other: Value) -> Value:
    dtype = g.result[0].dtype
    if dtype == "bool":
        return g.emit("LOGICAL_OR", x, other)
    return binary(g, "MAXIMUM", x, other, dtype=dtype)


@lowers(aten.minimum.default, aten.fmin.default)
def minimum(g: Graph, x: Value, other: Value) -> Value:
    dtype = g.result[0].dtype
    if dtype == "bool":
        return g.emit("LOGICAL_AND", x, other)
    return binary(g, "MINIMUM", x, other, dtype=dtype)


@lowers(aten.clamp.default, aten.clamp.Tensor)
def clamp(g: Graph, x: Value, min: Value | Number | None, max: Value | Number | None) -> Value:
    dtype = g.result[0].dtype
    x = as_value(g, x, dtype)
    if is_float(dtype) and not isinstance(max, Value) and not isinstance(min, Value):
        known = {(0, None): "RELU", (0, 6): "RELU6", (-1, 1): "RELU_N1_TO_1"}.get((min, max))
        if known:
            return g.cast(g.emit(known, float32(g, x)), dtype)
    if min is not None:
        x = binary(g, "MAXIMUM", x, _bound(min, dtype), dtype=dtype)
    if max is not None:
        x = binary(g, "MINIMUM", x, _bound(max, dtype), dtype=dtype)
    return x


def _bound(limit: Value | Number, dtype: str) -> Value | Number:
    """A bound in the tensor's type; one beyond an integer type wraps around, as PyTorch's does."""
    if isinstance(limit, Value) or is_float(dtype):
        return limit
    return int(np.asarray(int(limit), np.int64).astype(schema.numpy_dtype(dtype)))


@lowers(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(g: Graph, x: Value, min: Value | Number) -> Value:
    return clamp(g, x, min, None)


@lowers(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(g: Graph, x: Value, max: Value | Number) -> Value:
    return clamp(g, x, None, max)


def magnitude(g: Graph, x: Value) -> Value:
    """|x|, element by element."""
    if x.dtype in ("uint8", "bool"):
        return x
    if x.dtype == "int64":
        return g.emit("MAXIMUM", x, g.emit("NEG", x))
    inner = compute_type("ABS", x.dtype)
    return g.cast(g.emit("ABS", g.cast(x, inner)), x.dtype)


@lowers(aten.abs.default)
def abs_(g: Graph, x: Value) -> Value:
    return magnitude(g, x)


@lowers(aten.neg.default)
def neg(g: Graph, x: Value) -> Value:
    inner = compute_type("NEG", x.dtype)
    return g.cast(g.emit("NEG", g.cast(x, inner)), x.dtype)


@lowers(aten.sign.default, aten.sgn.default)
def sign(g: Graph, x: Value) -> Value:
    if x.dtype == "bool":
        return x
    if x.dtype == "int64":
        high = g.emit("MINIMUM", x, as_value(g, 1, "int64"))
        return g.emit("MAXIMUM", high, as_value(g, -1, "int64"))
    inner = compute_type("SIGN", x.dtype)
    return g.cast(g.emit("SIGN", g.cast(x, inner)), x.dtype)


# comparisons and logic


def _comparison(code: str, *ops: Any) -> None:
    @lowers(*ops)
    def lowering(g: Graph, x: Value, other: Value | Number) -> Value:
        if code in ("EQUAL", "NOT_EQUAL") or result_type(x, other) != "bool":
            return compare(g, code, x, other)
        inner = (as_value(g, as_value(g, v, "bool"), "int32") for v in (x, other))
        return g.emit(code, *inner, dtype="bool")


_comparison("EQUAL", aten.eq.Tensor, aten.eq.Scalar)
_comparison("NOT_EQUAL", aten.ne.Tensor, aten.ne.Scalar)
_comparison("LESS", aten.lt.Tensor, aten.lt.Scalar)
_comparison("LESS_EQUAL", aten.le.Tensor, aten.le.Scalar)
_comparison("GREATER", aten.gt.Tensor, aten.gt.Scalar)
_comparison("GREATER_EQUAL", aten.ge.Tensor, aten.ge.Scalar)


def truth(g: Graph, x: Value) -> Value:
    """Whether each element differs from zero."""
    return x if x.dtype == "bool" else compare(g, "NOT_EQUAL", x, 0)


@lowers(aten.logical_and.default)
def logical_and(g: Graph, x: Value, other: Value) -> Value:
    return g.emit("LOGICAL_AND", truth(g, x), truth(g, other))


@lowers(aten.logical_or.default)
def logical_or(g: Graph, x: Value, other: Value) -> Value:
    return g.emit("LOGICAL_OR", truth(g, x), truth(g, other))


@lowers(aten.logical_xor.default)
def logical_xor(g: Graph, x: Value, other: Value) -> Value:
    return g.emit("NOT_EQUAL", truth(g, x), truth(g, other))


@lowers(aten.logical_not.default)
def logical_not(g: Graph, x: Value) -> Value:
    return g.emit("LOGICAL_NOT", truth(g, x))


@lowers(aten.where.self)
def where(g: Graph, condition: Value, x: Value, other: Value) -> Value:
    dtype, shape = g.result[0].dtype, g.result[0].shape
    a, b = as_value(g, x, dtype), as_value(g, other, dtype)
    return g.emit("SELECT_V2", truth(g, condition), a, b, shape=shape, dtype=dtype)


@lowers(aten.isnan.default)
def isnan(g: Graph, x: Value) -> Value:
    if not is_float(x):
        return g.const(np.zeros(x.shape, np.bool_))
    x = float32(g, x)
    return g.emit("NOT_EQUAL", x, x, dtype="bool")


@lowers(aten.isinf.default)
def isinf(g: Graph, x: Value) -> Value:
    if not is_float(x):
        return g.const(np.zeros(x.shape, np.bool_))
    x = float32(g, x)
    return g.emit("EQUAL", g.emit("ABS", x), g.const(np.float32(np.inf)), dtype="bool")


# bits


@lowers(aten.bitwise_not.default)
def bitwise_not(g: Graph, x: Value) -> Value:
    if x.dtype == "bool":
        return g.emit("LOGICAL_NOT", x)
    return _sub(g, _neg_one_minus(g, x), 0)


def _neg_one_minus(g: Graph, x: Value) -> Value:
    """-1 - x, which is what flipping every bit gives in two's complement."""
    high = 255 if x.dtype == "uint8" else -1
    return binary(g, "SUB", high, x, dtype=x.dtype, **NONE)


def _bitwise(code: str, *ops: Any) -> None:
    @lowers(*ops)
    def lowering(g: Graph, x: Value, other: Value | Number) -> Value:
        dtype = g.result[0].dtype
        a, b = as_value(g, x, dtype), as_value(g, other, dtype)
        if dtype == "bool":
            logical = {"AND": "LOGICAL_AND", "OR": "LOGICAL_OR", "XOR": "NOT_EQUAL"}[code]
            return g.emit(logical, a, b)
        if dtype not in KERNEL_TYPES["BITWISE_XOR"]:
            raise Unsupported(f"LiteRT has no bitwise kernel for {dtype}")
        if code == "XOR":
            return g.emit("BITWISE_XOR", a, b)
        # LiteRT has no integer AND: the broadcasting sum holds it, a + b = (a ^ b) + 2 (a & b).
        a, b = g.broadcast_to(a, g.result[0].shape), g.broadcast_to(b, g.result[0].shape)
        both = g.emit("STABLEHLO_AND", a, b)
        if code == "AND":
            return both
        return g.emit("BITWISE_XOR", g.emit("BITWISE_XOR", a, b), both)


_bitwise("AND", aten.bitwise_and.Tensor, aten.bitwise_and.Scalar)
_bitwise("OR", aten.bitwise_or.Tensor, aten.bitwise_or.Scalar)
_bitwise("XOR", aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar)


@lowers(aten.__rshift__.Scalar, aten.bitwise_right_shift.Tensor_Scalar)
def right_shift(g: Graph, x: Value, other: Number) -> Value:
    if x.dtype == "int64":
        raise Unsupported("LiteRT has no 64-bit shift")
    return g.emit("RIGHT_SHIFT", x, g.broadcast_to(as_value(g, other, x.dtype), x.shape))


# mathematics


def _unary(code: str, *ops: Any) -> None:
    @lowers(*ops)
    def lowering(g: Graph, x: Value) -> Value:
        return unary(g, code, x)


for _code, _op in {
    "EXP": aten.exp.default,
    "LOG": aten.log.default,
    "SQRT": aten.sqrt.default,
    "RSQRT": aten.rsqrt.default,
    "SIN": aten.sin.default,
    "COS": aten.cos.default,
}.items():
    _unary(_code, _op)


def _rounding(code: str, *ops: Any) -> None:
    @lowers(*ops)
    def lowering(g: Graph, x: Value) -> Value:
        return unary(g, code, x) if is_float(x) else x


_rounding("FLOOR", aten.floor.default)
_rounding("CEIL", aten.ceil.default)
_rounding("ROUND", aten.round.default)


@lowers(aten.trunc.default)
def trunc(g: Graph, x: Value) -> Value:
    if not is_float(x):
        return x
    a = float32(g, x)
    down = g.emit("FLOOR", a)
    up = g.emit("CEIL", a)
    negative = g.emit("LESS", a, g.const(np.float32(0)), dtype="bool")
    return g.cast(g.emit("SELECT_V2", negative, up, down, shape=x.shape, dtype="float32"), x.dtype)


@lowers(aten.exp2.default)
def exp2(g: Graph, x: Value) -> Value:
    return binary(g, "POW", 2.0, x, dtype=g.result[0].dtype)


@lowers(aten.square.default)
def square(g: Graph, x: Value) -> Value:
    return _mul(g, x, x)


def _logarithm(base: float, op: Any) -> None:
    @lowers(op)
    def lowering(g: Graph, x: Value) -> Value:
        dtype = g.result[0].dtype
        y = g.emit("LOG", as_value(g, as_value(g, x, dtype), "float32"))
        return binary(g, "MUL", y, 1 / math.log(base), dtype=dtype, **NONE)


_logarithm(2, aten.log2.default)
_logarithm(10, aten.log10.default)


@lowers(aten.atan2.default)
def atan2(g: Graph, x: Value, other: Value) -> Value:
    dtype, shape = g.result[0].dtype, g.result[0].shape
    # The kernel does not broadcast.
    a, b = (
        g.broadcast_to(as_value(g, as_value(g, v, dtype), "float32"), shape) for v in (x, other)
    )
    return g.cast(g.emit("ATAN2", a, b), dtype)


@lowers(aten.addcmul.default)
def addcmul(g: Graph, x: Value, tensor1: Value, tensor2: Value, *, value: Number) -> Value:
    dtype = g.result[0].dtype
    product = binary(g, "MUL", tensor1, tensor2, dtype=dtype, **NONE)
    return binary(g, "ADD", x, _scaled(g, product, value, dtype), dtype=dtype, **NONE)


@lowers(aten.addcdiv.default)
def addcdiv(g: Graph, x: Value, tensor1: Value, tensor2: Value, *, value: Number) -> Value:
    dtype = g.result[0].dtype
    quotient = binary(g, "DIV", tensor1, tensor2, dtype=dtype, **NONE)
    return binary(g, "ADD", x, _scaled(g, quotient, value, dtype), dtype=dtype, **NONE)
