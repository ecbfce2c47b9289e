"""Pointwise operators of one tensor: mathematics, rounding, parts of complex numbers, copies.

Integers become floats where PyTorch makes them so; float16 and bfloat16 compute in float32 and
round once at the end.
"""

from __future__ import annotations

import math
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
    real_dtype,
    result_dtype,
)
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported


def floating(op: Any, f: Callable[[Any], Any]) -> None:
    """Register `f` for an operator whose result is floating (`sin`, `exp`)."""

    @lowers(op)
    def lowering(x):
        return elementwise(f, x, floating=True)


def same_dtype(op: Any, f: Callable[[Any], Any], *, integers: bool = False) -> None:
    """Register `f` for an operator that keeps its dtype; `integers` says that it changes them."""

    @lowers(op)
    def lowering(x):
        if is_integral(x.dtype) and not integers:
            return x
        return elementwise(f, x)


def to_bool(op: Any, f: Callable[[Any], Any]) -> None:
    """Register the predicate `f`."""

    @lowers(op)
    def lowering(x):
        return f(x)


def _sinc(x):
    angle = x * math.pi
    zero = x == 0
    return jnp.where(zero, jnp.ones_like(x), jnp.sin(angle) / jnp.where(zero, 1, angle))


def _rsqrt(x):
    return 1 / jnp.sqrt(x) if is_complex(x.dtype) else jax.lax.rsqrt(x)


def _entropy(x):
    inside = jnp.where(x > 0, x, 1)
    value = jnp.where(x > 0, -inside * jnp.log(inside), jnp.where(x == 0, 0, -jnp.inf))
    return jnp.where(jnp.isnan(x), x, value).astype(x.dtype)


def digamma(x):
    # By reflection below 0, with the exact fraction: XLA's own loses digits near the poles there.
    # At 0 PyTorch gives the infinity on zero's side.
    upper = jsp.digamma(jnp.where(x < 0, 1 - x, x))
    fraction = x - jnp.trunc(x)
    lower = jnp.where(fraction == 0, jnp.nan, upper - math.pi / jnp.tan(math.pi * fraction))
    value = jnp.where(x < 0, lower, upper)
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), value).astype(x.dtype)


def _sigmoid(x):
    return 1 / (1 + jnp.exp(-x)) if is_complex(x.dtype) else jax.nn.sigmoid(x)


for _op, _f in {
    aten.acos.default: jnp.arccos,
    aten.acosh.default: jnp.arccosh,
    aten.asin.default: jnp.arcsin,
    aten.asinh.default: jnp.arcsinh,
    aten.atan.default: jnp.arctan,
    aten.atanh.default: jnp.arctanh,
    aten.cos.default: jnp.cos,
    aten.cosh.default: jnp.cosh,
    aten.deg2rad.default: lambda x: x * (math.pi / 180),
    aten.digamma.default: digamma,
    aten.erf.default: jax.lax.erf,
    aten.erfc.default: jax.lax.erfc,
    aten.erfinv.default: jax.lax.erf_inv,
    aten.exp.default: jnp.exp,
    aten.exp2.default: jnp.exp2,
    aten.expm1.default: jnp.expm1,
    aten.i0.default: jsp.i0,
    aten.lgamma.default: jax.lax.lgamma,
    aten.log.default: jnp.log,
    aten.log10.default: jnp.log10,
    aten.log1p.default: jnp.log1p,
    aten.log2.default: jnp.log2,
    aten.rad2deg.default: lambda x: x * (180 / math.pi),
    aten.reciprocal.default: lambda x: 1 / x,
    aten.rsqrt.default: _rsqrt,
    aten.sigmoid.default: _sigmoid,
    aten.sin.default: jnp.sin,
    aten.sinc.default: _sinc,
    aten.sinh.default: jnp.sinh,
    aten.special_entr.default: _entropy,
    aten.special_i0e.default: jsp.i0e,
    aten.special_i1.default: jsp.i1,
    aten.special_i1e.default: jsp.i1e,
    aten.special_log_ndtr.default: jsp.log_ndtr,
    aten.special_ndtri.default: jsp.ndtri,
    aten.sqrt.default: jnp.sqrt,
    aten.tan.default: jnp.tan,
    aten.tanh.default: jnp.tanh,
}.items():
    floating(_op, _f)


for _op, _f in {
    aten.ceil.default: jnp.ceil,
    aten.floor.default: jnp.floor,
    aten.frac.default: lambda x: x - jnp.trunc(x),
    aten.round.default: jnp.round,
    aten.trunc.default: jnp.trunc,
}.items():
    same_dtype(_op, _f)


def _sign(x):
    if is_complex(x.dtype):
        raise Unsupported("sign is not for complex numbers; use torch.sgn")
    # PyTorch's sign of a NaN is 0.
    return cast(x > 0, x.dtype) - cast(x < 0, x.dtype) if x.dtype != np.bool_ else x


def _sgn(x):
    if not is_complex(x.dtype):
        return _sign(x)
    size = jnp.abs(x)
    return jnp.where(size == 0, 0, x / jnp.where(size == 0, 1, size)).astype(x.dtype)


for _op, _f in {
    aten._conj_physical.default: jnp.conj,
    aten.neg.default: jnp.negative,
    aten.sgn.default: _sgn,
    aten.sign.default: _sign,
    aten.bitwise_not.default: jnp.invert,
}.items():
    same_dtype(_op, _f, integers=True)


def _false(x):
    return jnp.zeros(x.shape, np.bool_)


for _op, _f in {
    aten.isinf.default: lambda x: _false(x) if is_integral(x.dtype) else jnp.isinf(x),
    aten.isnan.default: lambda x: _false(x) if is_integral(x.dtype) else jnp.isnan(x),
    aten.isneginf.default: lambda x: _false(x) if is_integral(x.dtype) else x == -jnp.inf,
    aten.isposinf.default: lambda x: _false(x) if is_integral(x.dtype) else x == jnp.inf,
    aten.logical_not.default: lambda x: x == 0,
    aten.signbit.default: lambda x: x < 0 if is_integral(x.dtype) else jnp.signbit(x),
}.items():
    to_bool(_op, _f)


@lowers(aten.abs.default)
def abs_(x):
    if x.dtype == np.bool_ or np.dtype(x.dtype).kind == "u":
        return x
    return jnp.abs(x)


@lowers(aten.angle.default)
def angle(x):
    if is_complex(x.dtype):
        return jnp.angle(x)
    dtype = result_dtype(x)
    if is_integral(dtype):
        x = cast(x, real_dtype(None))
    value = jnp.where(x < 0, math.pi, 0.0).astype(x.dtype)
    return jnp.where(jnp.isnan(x), x, value)


@lowers(aten.round.decimals)
def round_decimals(x, *, decimals):
    if is_integral(x.dtype):
        if decimals < 0:
            raise Unsupported("round of integers to negative decimals is not supported")
        return x
    if decimals == 0:
        return elementwise(jnp.round, x)
    scale = 10.0 ** abs(decimals)
    if decimals > 0:
        return elementwise(lambda v: jnp.round(v * scale) / scale, x)
    return elementwise(lambda v: jnp.round(v / scale) * scale, x)


@lowers(aten.nan_to_num.default)
def nan_to_num(x, nan, posinf, neginf):
    if is_integral(x.dtype):
        return x
    limits = jnp.finfo(x.dtype)
    nan = 0.0 if nan is None else nan
    posinf = limits.max if posinf is None else cast(posinf, real_dtype(x.dtype))
    neginf = limits.min if neginf is None else cast(neginf, real_dtype(x.dtype))

    def real(v):
        v = jnp.where(jnp.isnan(v), cast(nan, v.dtype), v)
        v = jnp.where(v == jnp.inf, cast(posinf, v.dtype), v)
        return jnp.where(v == -jnp.inf, cast(neginf, v.dtype), v)

    if is_complex(x.dtype):
        return jax.lax.complex(real(x.real), real(x.imag))
    return real(x)


@lowers(aten.logit.default)
def logit(x, eps):
    def f(v):
        if eps is not None:
            # where, not clip: a NaN stays, and eps > 0.5 behaves as PyTorch's two comparisons
            v = jnp.where(v < eps, eps, jnp.where(v > 1 - eps, 1 - eps, v)).astype(v.dtype)
        return jnp.log(v / (1 - v))

    return elementwise(f, x, floating=True)


@lowers(aten.logit_backward.default)
def logit_backward(grad_output, x, eps):
    def f(g, v):
        slope = g / (v * (1 - v))
        if eps is None:
            return jnp.where((v < 0) | (v > 1), jnp.nan, slope)
        return jnp.where((v < eps) | (v > 1 - eps), 0, slope)

    return elementwise(f, grad_output, x)


@lowers(aten.frexp.Tensor)
def frexp(x):
    mantissa, exponent = jnp.frexp(cast(x, compute_dtype(x.dtype)))
    mantissa = jnp.where(jnp.isfinite(x), mantissa, cast(x, mantissa.dtype))
    return cast(mantissa, x.dtype), cast(jnp.where(jnp.isfinite(x), exponent, 0), np.int32)


@lowers(aten.clone.default, aten.alias.default, aten.detach.default)
def clone(x):
    return x


@lowers(aten.lift.default, aten.lift_fresh.default, aten.lift_fresh_copy.default)
def lift(x):
    return x


@lowers(aten.copy.default)
def copy(x, src):
    return jnp.broadcast_to(cast(src, x.dtype), x.shape)


@lowers(aten.fill.Scalar, aten.fill.Tensor)
def fill(x, value):
    return jnp.broadcast_to(cast(value, x.dtype), x.shape)


@lowers(aten.zero.default)
def zero(x):
    return jnp.zeros_like(x)
