"""Activation functions, softmax and their backward operators.

Formulas are PyTorch's CPU kernels', in float32 for float16 and bfloat16. Scalars may be traced.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud_backend.dtypes import to_jax, to_torch
from cloud_backend.ops import lowers
from cloud_backend.ops._shared import canonical_dim, cast, compute_dtype, elementwise, is_complex
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported, one_of

_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715


@lowers(aten.relu.default)
def relu(x):
    if is_complex(x.dtype):
        raise Unsupported("clamp is not supported for complex types")
    if x.dtype == np.bool_:
        raise RuntimeError("Boolean inputs not supported for relu")
    return jnp.maximum(x, 0)


@lowers(aten.threshold.default)
def threshold(x, threshold, value):
    return jnp.where(x <= cast(threshold, x.dtype), cast(value, x.dtype), x)


@lowers(aten.threshold_backward.default)
def threshold_backward(grad_output, x, threshold):
    return elementwise(lambda g, v: jnp.where(v <= cast(threshold, v.dtype), 0, g), grad_output, x)


@lowers(aten.leaky_relu.default)
def leaky_relu(x, negative_slope):
    return elementwise(lambda v: jnp.where(v > 0, v, v * cast(negative_slope, v.dtype)), x)


@lowers(aten.leaky_relu_backward.default)
def leaky_relu_backward(grad_output, x, negative_slope, self_is_result):
    return elementwise(
        lambda g, v: jnp.where(v > 0, g, g * cast(negative_slope, g.dtype)), grad_output, x
    )


@lowers(aten._prelu_kernel.default)
def prelu(x, weight):
    return elementwise(lambda v, w: jnp.where(v > 0, v, v * w), x, weight)


@lowers(aten._prelu_kernel_backward.default)
def prelu_backward(grad_output, x, weight):
    x_grad = elementwise(lambda g, v, w: jnp.where(v > 0, g, g * w), grad_output, x, weight)
    weight_grad = elementwise(lambda g, v: jnp.where(v > 0, 0, g * v), grad_output, x)
    return x_grad, jnp.broadcast_to(weight_grad, x_grad.shape)


@lowers(aten.elu.default)
def elu(x, alpha, scale, input_scale):
    def f(v):
        a, s, i = (cast(c, v.dtype) for c in (alpha, scale, input_scale))
        return jnp.where(v > 0, v * s, jnp.expm1(jnp.minimum(v, 0) * i) * a * s)

    return elementwise(f, x)


@lowers(aten.elu_backward.default)
def elu_backward(grad_output, alpha, scale, input_scale, is_result, self_or_result):
    def f(g, v):
        a, s, i = (cast(c, v.dtype) for c in (alpha, scale, input_scale))
        if is_result:
            return jnp.where(v <= 0, g * i * (v + a * s), g * s)
        return jnp.where(v <= 0, g * i * a * s * jnp.exp(jnp.minimum(v, 0) * i), g * s)

    return elementwise(f, grad_output, self_or_result)


@lowers(aten.celu.default)
def celu(x, alpha):
    def f(v):
        a = cast(alpha, v.dtype)
        return jnp.where(v > 0, v, jnp.expm1(jnp.minimum(v, 0) / a) * a)

    return elementwise(f, x)


@lowers(aten.gelu.default)
def gelu(x, *, approximate):
    tanh = one_of(none=False, tanh=True)(approximate)
    return elementwise(lambda v: jax.nn.gelu(v, approximate=tanh), x)


@lowers(aten.gelu_backward.default)
def gelu_backward(grad_output, x, *, approximate):
    def exact(g, v):
        cdf = 0.5 * jax.lax.erfc(-v * math.sqrt(0.5))
        pdf = jnp.exp(-0.5 * v * v) * (1 / math.sqrt(2 * math.pi))
        return g * (cdf + v * pdf)

    def tanh(g, v):
        inner = _SQRT_2_OVER_PI * (v + _GELU_CUBIC * v * v * v)
        t = jnp.tanh(inner)
        slope = _SQRT_2_OVER_PI * (1 + 3 * _GELU_CUBIC * v * v)
        return g * (0.5 * (1 + t) + 0.5 * v * (1 - t * t) * slope)

    return elementwise(one_of(none=exact, tanh=tanh)(approximate), grad_output, x)


@lowers(aten.silu.default)
def silu(x):
    return elementwise(lambda v: v * _logistic(v), x)


def _logistic(v):
    return 1 / (1 + jnp.exp(-v)) if np.dtype(v.dtype).kind == "c" else jax.nn.sigmoid(v)


@lowers(aten.silu_backward.default)
def silu_backward(grad_output, x):
    def f(g, v):
        s = _logistic(v)
        return g * s * (1 + v * (1 - s))

    return elementwise(f, grad_output, x)


@lowers(aten.mish.default)
def mish(x):
    return elementwise(lambda v: v * jnp.tanh(jax.nn.softplus(v)), x)


@lowers(aten.mish_backward.default)
def mish_backward(grad_output, x):
    def f(g, v):
        t = jnp.tanh(jax.nn.softplus(v))
        return g * (t + v * jax.nn.sigmoid(v) * (1 - t * t))

    return elementwise(f, grad_output, x)


@lowers(aten.sigmoid_backward.default)
def sigmoid_backward(grad_output, output):
    return elementwise(lambda g, o: g * jnp.conj((1 - o) * o), grad_output, output)


@lowers(aten.tanh_backward.default)
def tanh_backward(grad_output, output):
    return elementwise(lambda g, o: g * jnp.conj(1 - o * o), grad_output, output)


@lowers(aten.softplus.default)
def softplus(x, beta, threshold):
    def f(v):
        scaled = v * cast(beta, v.dtype)
        linear = scaled > cast(threshold, v.dtype)
        safe = jnp.where(linear, 0, scaled)
        return jnp.where(linear, v, jnp.log1p(jnp.exp(safe)) / cast(beta, v.dtype))

    return elementwise(f, x)


@lowers(aten.softplus_backward.default)
def softplus_backward(grad_output, x, beta, threshold):
    def f(g, v):
        scaled = v * cast(beta, v.dtype)
        return jnp.where(scaled > cast(threshold, v.dtype), g, g * jax.nn.sigmoid(scaled))

    return elementwise(f, grad_output, x)


@lowers(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(x):
    """The result, and the buffer exp(-|x|) that PyTorch's CPU kernel keeps for the backward."""
    wide = cast(x, compute_dtype(x.dtype))
    buffer = jnp.exp(-jnp.abs(wide))
    return cast(jnp.minimum(wide, 0) - jnp.log1p(buffer), x.dtype), cast(buffer, x.dtype)


@lowers(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(grad_output, x, buffer):
    return elementwise(lambda g, v: g * jax.nn.sigmoid(-v), grad_output, x)


@lowers(aten.hardtanh.default)
def hardtanh(x, min_val, max_val):
    return jnp.minimum(jnp.maximum(x, cast(min_val, x.dtype)), cast(max_val, x.dtype))


@lowers(aten.hardtanh_backward.default)
def hardtanh_backward(grad_output, x, min_val, max_val):
    def f(g, v):
        outside = (v <= cast(min_val, v.dtype)) | (v >= cast(max_val, v.dtype))
        return jnp.where(outside, 0, g)

    return elementwise(f, grad_output, x)


@lowers(aten.hardsigmoid.default)
def hardsigmoid(x):
    return elementwise(lambda v: jnp.clip(v + 3, 0, 6) / 6, x)


@lowers(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(grad_output, x):
    return elementwise(lambda g, v: jnp.where((v > -3) & (v < 3), g / 6, 0), grad_output, x)


@lowers(aten.hardswish.default)
def hardswish(x):
    return elementwise(lambda v: v * jnp.clip(v + 3, 0, 6) / 6, x)


@lowers(aten.hardswish_backward.default)
def hardswish_backward(grad_output, x):
    def f(g, v):
        return jnp.where(v <= -3, 0, jnp.where(v < 3, g * (v / 3 + 0.5), g))

    return elementwise(f, grad_output, x)


@lowers(aten.hardshrink.default)
def hardshrink(x, lambd):
    def f(v):
        edge = cast(lambd, v.dtype)
        return jnp.where((v >= -edge) & (v <= edge), 0, v)

    return elementwise(f, x)


@lowers(aten.softshrink.default)
def softshrink(x, lambd):
    def f(v):
        edge = cast(lambd, v.dtype)
        return jnp.where(v > edge, v - edge, jnp.where(v < -edge, v + edge, v * 0))

    return elementwise(f, x)


def _shrink_backward(g, v, lambd):
    edge = cast(lambd, v.dtype)
    return jnp.where((v >= -edge) & (v <= edge), 0, g)


@lowers(aten.hardshrink_backward.default)
def hardshrink_backward(grad_out, x, lambd):
    return elementwise(lambda g, v: _shrink_backward(g, v, lambd), grad_out, x)


@lowers(aten.softshrink_backward.default)
def softshrink_backward(grad_output, x, lambd):
    return elementwise(lambda g, v: _shrink_backward(g, v, lambd), grad_output, x)


def _halves(x: jax.Array, dim: int) -> tuple[jax.Array, jax.Array]:
    if x.ndim == 0 or x.shape[canonical_dim(dim, x.ndim)] % 2:
        raise Unsupported(
            f"Halving dimension must be even, but dimension {dim} of {x.shape} is not"
        )
    first, second = jnp.split(x, 2, axis=dim)
    return first, second


@lowers(aten.glu.default)
def glu(x, dim):
    return elementwise(lambda a, b: a * jax.nn.sigmoid(b), *_halves(x, dim))


@lowers(aten.glu_backward.default)
def glu_backward(grad_output, x, dim):
    first, second = _halves(x, dim)
    to_first = elementwise(lambda g, b: g * jax.nn.sigmoid(b), grad_output, second)

    def second_grad(g, a, b):
        gate = jax.nn.sigmoid(b)
        return g * a * gate * (1 - gate)

    to_second = elementwise(second_grad, grad_output, first, second)
    return jnp.concatenate([to_first, to_second], axis=dim)


@lowers(aten.glu_jvp.default)
def glu_jvp(glu, x, dx, dim):
    _, gate_in = _halves(x, dim)
    d_first, d_second = _halves(dx, dim)

    def f(out, b, da, db):
        gate = jax.nn.sigmoid(b)
        return da * gate + out * (db - gate * db)

    return elementwise(f, glu, gate_in, d_first, d_second)


def _softmax_input(x: jax.Array, half_to_float: bool) -> tuple[jax.Array, Any]:
    """The operand in its compute dtype, and the result's dtype."""
    if half_to_float and x.dtype != np.float16:
        raise Unsupported("conversion is supported for Half type only")
    wide = compute_dtype(x.dtype)
    return cast(x, wide), wide if half_to_float else x.dtype


@lowers(aten._softmax.default)
def softmax(x, dim, half_to_float):
    wide, dtype = _softmax_input(x, half_to_float)
    if x.ndim == 0:
        return jnp.where(jnp.isfinite(wide), 1, jnp.nan).astype(dtype)
    return cast(jax.nn.softmax(wide, axis=dim), dtype)


@lowers(aten._log_softmax.default)
def log_softmax(x, dim, half_to_float):
    wide, dtype = _softmax_input(x, half_to_float)
    if x.ndim == 0:
        return jnp.where(jnp.isfinite(wide), 0, jnp.nan).astype(dtype)
    return cast(jax.nn.log_softmax(wide, axis=dim), dtype)


@lowers(aten._safe_softmax.default)
def safe_softmax(x, dim, dtype):
    wide = cast(x, compute_dtype(x.dtype if dtype is None else to_jax(dtype)))
    result = softmax(wide, dim, False)
    masked = jnp.all(wide == -jnp.inf, axis=dim if x.ndim else None, keepdims=x.ndim > 0)
    return cast(jnp.where(masked, 0, result), x.dtype if dtype is None else to_jax(dtype))


def _sum_over(x, dim):
    return jnp.sum(x, axis=dim, keepdims=True) if x.ndim else x


@lowers(aten._softmax_backward_data.default)
def softmax_backward_data(grad_output, output, dim, input_dtype):
    wide = compute_dtype(grad_output.dtype)
    g, o = cast(grad_output, wide), cast(output, wide)
    return cast(o * (g - _sum_over(g * o, dim)), to_jax(input_dtype))


@lowers(aten._log_softmax_backward_data.default)
def log_softmax_backward_data(grad_output, output, dim, input_dtype):
    wide = compute_dtype(grad_output.dtype)
    g, o = cast(grad_output, wide), cast(output, wide)
    return cast(g - jnp.exp(o) * _sum_over(g, dim), to_jax(input_dtype))


def _masked_over(x, mask, mask_type):
    """The mask (True hides) for all of `x`, from one of (length, length) or (batch, length)."""
    if mask.dtype != np.bool_:
        raise Unsupported(f"_masked_softmax: the mask must be bool, not {mask.dtype}")
    if mask_type not in (0, 1, 2):
        raise Unsupported("_masked_softmax: mask_type must be 0 (source), 1 (keys) or 2 (whole)")
    if mask.ndim != 2 or x.ndim != 4:
        mask_type = 2
    if mask_type == 2:
        wanted = x.shape
    else:
        wanted = (x.shape[2] if mask_type == 0 else x.shape[0], x.shape[3])
    if mask.shape != wanted:
        raise Unsupported(
            f"_masked_softmax: a mask of type {mask_type} must be {list(wanted)}, "
            f"not {list(mask.shape)}"
        )
    return jnp.broadcast_to(mask[:, None, None] if mask_type == 1 else mask, x.shape)


@lowers(aten._masked_softmax.default)
def masked_softmax(x, mask, dim=None, mask_type=None):
    hidden = _masked_over(x, mask, mask_type)
    wide = cast(x, compute_dtype(x.dtype))
    wide = jnp.where(hidden, -jnp.inf, wide)
    return cast(softmax(wide, -1 if dim is None else dim, False), x.dtype)


@lowers(aten._masked_softmax_backward.default)
def masked_softmax_backward(grad_output, output, mask, dim=None):
    if mask.shape != grad_output.shape:
        raise Unsupported("_masked_softmax_backward: the mask must have the gradient's shape")
    kept = jnp.where(mask, 0, output)
    dtype = to_torch(grad_output.dtype)
    made = softmax_backward_data(grad_output, kept, -1 if dim is None else dim, dtype)
    return jnp.where(mask, 0, made)
