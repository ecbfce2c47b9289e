"""Fake quantisation for training: round to a grid of integers and back, in floating point.

`q = round(x / scale) + zero_point` with ties to even, kept within `quant_min` and `quant_max`. The
mask says where q was inside, which is where the gradient passes.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast, compute_dtype
from torch_tpu_unified.core.aten import aten


def _along(v, x, axis):
    """A vector over dimension `axis` of x, shaped to broadcast."""
    return v.reshape([-1 if d == axis % x.ndim else 1 for d in range(x.ndim)])


def _quantize(x, scale, zero_point, quant_min, quant_max):
    """The value on the grid, in the compute dtype, and whether it was inside."""
    wide = compute_dtype(x.dtype)
    scale, zero_point = cast(scale, wide), cast(zero_point, wide)
    q = jnp.round(cast(x, wide) * (1 / scale)) + zero_point
    inside = (q >= quant_min) & (q <= quant_max)
    return (jnp.clip(q, quant_min, quant_max) - zero_point) * scale, inside


@lowers(aten.fake_quantize_per_tensor_affine_cachemask.default, meta=False)
def per_tensor(x, scale, zero_point, quant_min, quant_max):
    out, inside = _quantize(x, jnp.float32(scale), zero_point, quant_min, quant_max)
    return cast(out, x.dtype), inside


@lowers(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default, meta=False)
def per_tensor_of_tensors(x, scale, zero_point, fake_quant_enabled, quant_min, quant_max):
    out, inside = _quantize(x, scale.reshape(()), zero_point.reshape(()), quant_min, quant_max)
    enabled = fake_quant_enabled.reshape(()) != 0
    return jnp.where(enabled, cast(out, x.dtype), x), inside | ~enabled


@lowers(aten.fake_quantize_per_channel_affine_cachemask.default, meta=False)
def per_channel(x, scale, zero_point, axis, quant_min, quant_max):
    scale, zero_point = _along(scale, x, axis), _along(zero_point, x, axis)
    out, inside = _quantize(x, scale, zero_point, quant_min, quant_max)
    return cast(out, x.dtype), inside


# ---- scale and zero point that are learnt


def _learnt(zero_point, quant_min, quant_max, axis, backward):
    """A floating zero point as an integer; PyTorch rounds one for a whole tensor half up."""
    if axis is None and not backward:
        return jnp.trunc(jnp.clip(zero_point + 0.5, quant_min, quant_max))
    return jnp.clip(jnp.round(zero_point), quant_min, quant_max)


def _shaped(x, scale, zero_point, axis):
    if axis is None:
        return scale.reshape(()), zero_point.reshape(())
    return _along(scale, x, axis), _along(zero_point, x, axis)


def _forward(x, scale, zero_point, axis, quant_min, quant_max):
    scale, zero_point = _shaped(x, scale, zero_point, axis)
    zero_point = _learnt(zero_point, quant_min, quant_max, axis, False)
    return cast(_quantize(x, scale, zero_point, quant_min, quant_max)[0], x.dtype)


def _backward(grad, x, scale, zero_point, axis, quant_min, quant_max, grad_factor):
    like_scale, like_zero = scale, zero_point
    scale, zero_point = _shaped(x, scale, zero_point, axis)
    zero_point = _learnt(zero_point, quant_min, quant_max, axis, True)
    on_grid, inside = _quantize(x, scale, zero_point, quant_min, quant_max)
    grad_x = jnp.where(inside, grad, 0)
    q = jnp.round(x * (1 / scale)) + zero_point
    edge = jnp.where(q < quant_min, quant_min - zero_point, quant_max - zero_point)
    grad_scale = grad * jnp.where(inside, (on_grid - x) / scale, edge) * grad_factor
    grad_zero = jnp.where(inside, 0, -grad * scale * grad_factor)
    axes = tuple(d for d in range(x.ndim) if axis is None or d != axis % x.ndim)
    return (
        grad_x,
        cast(jnp.sum(grad_scale, axis=axes).reshape(like_scale.shape), like_scale.dtype),
        cast(jnp.sum(grad_zero, axis=axes).reshape(like_zero.shape), like_zero.dtype),
    )


@lowers(aten._fake_quantize_learnable_per_tensor_affine.default, meta=False)
def learnable_per_tensor(x, scale, zero_point, quant_min, quant_max, grad_factor=1.0):
    return _forward(x, scale, zero_point, None, quant_min, quant_max)


@lowers(aten._fake_quantize_learnable_per_channel_affine.default, meta=False)
def learnable_per_channel(x, scale, zero_point, axis, quant_min, quant_max, grad_factor=1.0):
    return _forward(x, scale, zero_point, axis, quant_min, quant_max)


@lowers(aten._fake_quantize_learnable_per_tensor_affine_backward.default, meta=False)
def learnable_per_tensor_backward(
    grad, x, scale, zero_point, quant_min, quant_max, grad_factor=1.0
):
    return _backward(grad, x, scale, zero_point, None, quant_min, quant_max, grad_factor)


@lowers(aten._fake_quantize_learnable_per_channel_affine_backward.default, meta=False)
def learnable_per_channel_backward(
    grad, x, scale, zero_point, axis, quant_min, quant_max, grad_factor=1.0
):
    return _backward(grad, x, scale, zero_point, axis, quant_min, quant_max, grad_factor)


# ---- an observer and fake quantisation in one


def _observed(x, running_min, running_max, averaging_const, per_row, ch_axis):
    """Running extremes after this batch; infinite ones are not set yet."""
    axes = tuple(d for d in range(x.ndim) if not per_row or d != ch_axis % x.ndim)
    low, high = jnp.min(x, axis=axes), jnp.max(x, axis=axes)

    def moved(running, value):
        value = cast(value.reshape(-1), running.dtype)
        running = jnp.broadcast_to(running.reshape(-1), value.shape)
        mixed = running + averaging_const * (value - running)
        return jnp.where(jnp.isinf(running), value, mixed)

    return moved(running_min, low), moved(running_max, high)


_SMALLEST_SCALE = float(np.float32(6.1e-5))


def _parameters(low, high, quant_min, quant_max, symmetric):
    """Scale and zero point that cover [low, high] and zero, as PyTorch's quantiser picks them."""
    low, high = low.astype(np.float64), high.astype(np.float64)
    levels = quant_max - quant_min
    both_signs = (low < 0) & (high > 0) & symmetric
    most, least = levels // 2, -(levels // 2 + 1)
    largest = jnp.maximum(jnp.abs(low / least), jnp.abs(high / most))
    low = jnp.minimum(jnp.where(both_signs, largest * least, low), 0)
    high = jnp.maximum(jnp.where(both_signs, largest * most, high), 0)
    scale = (high - low) / levels
    single = scale.astype(np.float32)
    scale = jnp.where((single == 0) | jnp.isinf(1 / single), 0.1, scale)
    small = scale < _SMALLEST_SCALE
    growth = _SMALLEST_SCALE / scale
    low, high = (
        jnp.where(small, jnp.where(other == 0, sign * _SMALLEST_SCALE * levels, v * growth), v)
        for v, other, sign in ((low, high, -1), (high, low, 1))
    )
    scale = jnp.where(small, _SMALLEST_SCALE, scale)
    by_low, by_high = quant_min - low / scale, quant_max - high / scale
    low_error = abs(quant_min) + jnp.abs(low / scale)
    high_error = abs(quant_max) + jnp.abs(high / scale)
    zero = jnp.where(low_error < high_error, by_low, by_high)
    zero = jnp.where(both_signs, (quant_min + quant_max) / 2, zero)
    return scale, jnp.clip(jnp.round(zero), quant_min, quant_max)


@lowers(aten._fused_moving_avg_obs_fq_helper_functional.default, meta=False)
def observe_and_quantize(
    x,
    observer_on,
    fake_quant_on,
    running_min,
    running_max,
    scale,
    zero_point,
    averaging_const,
    quant_min,
    quant_max,
    ch_axis,
    per_row_fake_quant=False,
    symmetric_quant=False,
):
    observing = observer_on.reshape(()) != 0
    enabled = fake_quant_on.reshape(()) != 0
    low, high = _observed(x, running_min, running_max, averaging_const, per_row_fake_quant, ch_axis)
    low = jnp.where(observing, low, running_min.reshape(-1)).reshape(running_min.shape)
    high = jnp.where(observing, high, running_max.reshape(-1)).reshape(running_max.shape)
    new_scale, new_zero = (
        jnp.where(enabled, cast(new.reshape(old.shape), old.dtype), old)
        for new, old in zip(
            _parameters(low, high, quant_min, quant_max, symmetric_quant),
            (scale, zero_point),
            strict=True,
        )
    )
    shaped = _shaped(x, new_scale, new_zero, ch_axis if per_row_fake_quant else None)
    out, inside = _quantize(x, *shaped, quant_min, quant_max)
    out = jnp.where(enabled, cast(out, x.dtype), x)
    return out, inside | ~enabled, low, high, new_scale, new_zero
