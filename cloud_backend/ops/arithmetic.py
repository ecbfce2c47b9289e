"""Pointwise arithmetic of two and three tensors: sums, products, quotients, powers, extremes.

Types promote as in PyTorch; integers wrap; float16 and bfloat16 compute in float32. `alpha` and
other Scalars may be traced, so no lowering branches on their values unless they are declared
static.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import (
    cast,
    compute_dtype,
    elementwise,
    is_complex,
    is_integral,
    is_scalar,
    promoted,
    result_dtype,
    scalar_kind,
)
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported, one_of


def binary(*ops: Any, f: Callable[[Any, Any], Any], floating: bool = False) -> None:
    """Register `f` for operators of `(self, other)`, promoted to one dtype."""

    @lowers(*ops)
    def lowering(x, other):
        return elementwise(f, x, other, floating=floating)


def _scaled(alpha: Any, other: Any, dtype: np.dtype) -> Any:
    if isinstance(alpha, (int, float)) and alpha == 1:
        return other
    if dtype == np.bool_:
        return other & cast(alpha, np.bool_)
    return cast(alpha, dtype) * other


def _check_alpha(alpha: Any, dtype: np.dtype) -> None:
    if is_scalar(alpha) and scalar_kind(alpha) is float and is_integral(dtype):
        raise Unsupported("For integral input tensors, argument alpha must not be floating point")


@lowers(aten.add.Tensor, aten.add.Scalar)
def add(x, other, *, alpha):
    _check_alpha(alpha, result_dtype(x, other))
    return elementwise(lambda a, b: a + _scaled(alpha, b, a.dtype), x, other)


def _check_subtraction(*operands: Any) -> None:
    kinds = [scalar_kind(a) if is_scalar(a) else a.dtype for a in operands]
    if any(k in (bool, np.dtype(np.bool_)) for k in kinds):
        raise RuntimeError(
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying "
            "to invert a mask, use the `~` or `logical_not()` operator instead."
        )


@lowers(aten.sub.Tensor, aten.sub.Scalar)
def sub(x, other, *, alpha):
    _check_subtraction(x, other)
    _check_alpha(alpha, result_dtype(x, other))
    return elementwise(lambda a, b: a - _scaled(alpha, b, a.dtype), x, other)


@lowers(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(x, other, *, alpha):
    _check_subtraction(x, other)
    _check_alpha(alpha, result_dtype(x, other))
    return elementwise(lambda a, b: b - _scaled(alpha, a, a.dtype), x, other)


def _div_trunc(a, b):
    if is_integral(a.dtype):
        return jax.lax.div(*jnp.broadcast_arrays(a, b))
    return jnp.trunc(a / b)


def _div_floor(a, b):
    if is_integral(a.dtype):
        return jnp.floor_divide(a, b)
    # Python's floor division: exact where a / b rounds up to the next integer.
    rest = jnp.fmod(a, b)
    quotient = (a - rest) / b
    quotient = jnp.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1, quotient)
    floor = jnp.floor(quotient)
    floor = jnp.where(quotient - floor > 0.5, floor + 1, floor)
    floor = jnp.where(quotient != 0, floor, jnp.copysign(jnp.zeros_like(a), a / b))
    return jnp.where(b == 0, a / b, floor)


@lowers(aten.div.Tensor, aten.div.Scalar)
def div(x, other):
    return elementwise(jnp.divide, x, other, floating=True)


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(x, other, *, rounding_mode):
    if rounding_mode is None:
        return div(x, other)
    f = one_of(trunc=_div_trunc, floor=_div_floor)(rounding_mode)
    if rounding_mode == "trunc" and compute_dtype(dtype := result_dtype(x, other)) != dtype:
        # PyTorch rounds the quotient to the half type first, which may carry it to an integer.
        return jnp.trunc(elementwise(jnp.divide, x, other))
    return elementwise(f, x, other)


def _remainder(a, b):
    if is_integral(a.dtype):
        return jnp.remainder(a, b)
    rest = jnp.fmod(a, b)
    return jnp.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


def _integer_pow(base, exponent):
    """`base ** exponent` of integers, wrapping; a negative exponent truncates the true value."""

    def step(state):
        result, square, left = state
        result = jnp.where(left & 1 == 1, result * square, result)
        return result, square * square, left >> 1

    positive = jnp.maximum(exponent, 0)
    start = (jnp.ones_like(base), base, positive)
    result, _, _ = jax.lax.while_loop(lambda s: jnp.any(s[2] > 0), step, start)
    if np.dtype(base.dtype).kind == "u":
        return result
    odd_sign = jnp.where(exponent & 1 == 1, -1, 1).astype(base.dtype)
    inverse = jnp.where(base == 1, 1, jnp.where(base == -1, odd_sign, 0)).astype(base.dtype)
    return jnp.where(exponent < 0, inverse, result)


def _pow(base, exponent):
    if base.dtype == np.bool_:
        return base | ~exponent
    if is_integral(base.dtype):
        base, exponent = jnp.broadcast_arrays(base, exponent)
        return _integer_pow(base, exponent)
    return jnp.power(base, exponent)


@lowers(aten.pow.Tensor_Tensor)
def pow_tensor(x, exponent):
    return elementwise(_pow, x, exponent)


@lowers(aten.pow.Scalar)
def pow_scalar(x, exponent):
    return elementwise(_pow, x, exponent)


@lowers(aten.pow.Tensor_Scalar, static=("exponent",))
def pow_tensor_scalar(x, exponent):
    dtype = result_dtype(x, exponent)
    if is_integral(dtype):
        if exponent < 0:
            raise Unsupported("Integers to negative integer powers are not allowed.")
        return elementwise(_pow, x, exponent)
    special = {
        0.5: jnp.sqrt,
        1: lambda v: v,
        2: lambda v: v * v,
        3: lambda v: v * v * v,
        -0.5: lambda v: 1 / jnp.sqrt(v),
        -1: lambda v: 1 / v,
        -2: lambda v: 1 / (v * v),
    }
    if not isinstance(exponent, complex) and exponent in special:
        return elementwise(special[exponent], cast(x, dtype))
    return elementwise(_pow, x, exponent)


def _mul(a, b):
    return a & b if a.dtype == np.bool_ else a * b


def logaddexp(a, b):
    """log(exp(a) + exp(b)); an imaginary part may leave (-pi, pi], as PyTorch's."""
    if is_complex(a.dtype):
        swap = b.real > a.real
        top, low = jnp.where(swap, b, a), jnp.where(swap, a, b)
    else:
        top, low = jnp.maximum(a, b), jnp.minimum(a, b)
    infinite = jnp.isinf(top.real) & (top.real == low.real)
    gap = jnp.where(infinite, 0, low - top)
    return jnp.where(infinite, top, top + jnp.log1p(jnp.exp(gap)))


def _logaddexp2(a, b):
    top = jnp.maximum(a, b)
    small = jnp.exp2(-jnp.abs(a - b))
    value = top + jnp.log1p(small) / np.log(2.0).astype(a.dtype)
    return jnp.where(a == b, jnp.where(jnp.isinf(a), a, a + 1), value)


def _times_log(f):
    """`x * f(y)`, which is 0 at x = 0 unless y is a NaN."""

    def product(a, b):
        zero = (a == 0) & ~jnp.isnan(b)
        return jnp.where(zero, 0, a * f(jnp.where(zero, 1, b))).astype(a.dtype)

    return product


@lowers(aten.heaviside.default)
def heaviside(x, values):
    return elementwise(lambda a, b: jnp.where(a == 0, b, cast(a > 0, a.dtype)), x, values)


def _lcm(a, b):
    divisor = jnp.gcd(a, b)
    return jnp.where(divisor == 0, 0, jnp.abs(a // jnp.where(divisor == 0, 1, divisor) * b))


def _gammainc(a, x):
    value = jsp.gammainc(a, x)
    return jnp.where((a == 0) & (x > 0), 1, value).astype(value.dtype)


def _gammaincc(a, x):
    value = jsp.gammaincc(a, x)
    return jnp.where((a == 0) & (x > 0), 0, value).astype(value.dtype)


binary(aten.mul.Tensor, aten.mul.Scalar, f=_mul)
binary(aten.floor_divide.default, aten.floor_divide.Scalar, f=_div_floor)
binary(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor, f=_remainder)
binary(aten.fmod.Tensor, aten.fmod.Scalar, f=jnp.fmod)
binary(aten.maximum.default, f=jnp.maximum)
binary(aten.minimum.default, f=jnp.minimum)
binary(aten.fmax.default, f=jnp.fmax)
binary(aten.fmin.default, f=jnp.fmin)
binary(aten.atan2.default, f=jnp.arctan2, floating=True)
binary(aten.copysign.Tensor, aten.copysign.Scalar, f=jnp.copysign, floating=True)
binary(aten.hypot.default, f=jnp.hypot)
binary(aten.logaddexp.default, f=logaddexp)
binary(aten.logaddexp2.default, f=_logaddexp2)
binary(
    aten.xlogy.Tensor,
    aten.xlogy.Scalar_Self,
    aten.xlogy.Scalar_Other,
    f=_times_log(jnp.log),
    floating=True,
)
binary(
    aten.special_xlog1py.default,
    aten.special_xlog1py.self_scalar,
    aten.special_xlog1py.other_scalar,
    f=_times_log(jnp.log1p),
    floating=True,
)
binary(aten.gcd.default, f=jnp.gcd)
binary(aten.lcm.default, f=_lcm)
binary(aten.igamma.default, f=_gammainc)
binary(aten.igammac.default, f=_gammaincc)
binary(aten.ldexp.Tensor, f=lambda a, b: a * jnp.exp2(b), floating=True)


@lowers(aten.nextafter.default)
def nextafter(x, other):
    # In the tensors' own dtype: the next float32 is not the next bfloat16.
    return jnp.nextafter(*promoted(x, other))


@lowers(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(x, end, weight):
    def f(a, b, w):
        near_end = b - (b - a) * (1 - w)
        return jnp.where(jnp.abs(w) < 0.5, a + w * (b - a), near_end)

    return elementwise(f, x, end, weight)


@lowers(aten.addcmul.default)
def addcmul(x, tensor1, tensor2, *, value):
    return elementwise(lambda a, b, c: a + _mul(_scaled(value, b, a.dtype), c), x, tensor1, tensor2)


@lowers(aten.addcdiv.default)
def addcdiv(x, tensor1, tensor2, *, value):
    if is_integral(result_dtype(tensor1, tensor2)):
        raise Unsupported("Integer division with addcdiv is no longer supported")
    return elementwise(lambda a, b, c: a + _scaled(value, b, a.dtype) / c, x, tensor1, tensor2)


@lowers(aten.complex.default)
def complex_(real, imag):
    return jax.lax.complex(*jnp.broadcast_arrays(real, imag))


@lowers(aten.polar.default)
def polar(abs, angle):
    size, turn = jnp.broadcast_arrays(abs, angle)
    return jax.lax.complex(size * jnp.cos(turn), size * jnp.sin(turn))


@lowers(aten._add_relu.Tensor, aten._add_relu.Scalar)
def add_relu(x, other, *, alpha):
    return jnp.maximum(add(x, other, alpha=alpha), 0)
