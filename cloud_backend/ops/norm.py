"""Batch, layer, group and RMS normalisation with their gradients.

Statistics and sums are taken in float32 for float16 and bfloat16, and saved statistics keep that
dtype, as PyTorch's accelerator kernels do. Outputs and gradients are rounded once.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast, compute_dtype
from torch_tpu_unified.core.aten import aten


def _moments(x, axes, keepdims=True):
    """Mean and biased variance, in x's dtype."""
    mean = jnp.mean(x, axis=axes, keepdims=True)
    var = jnp.mean(jnp.square(x - mean), axis=axes, keepdims=True)
    if keepdims:
        return mean, var
    return jnp.squeeze(mean, axes), jnp.squeeze(var, axes)


def _channels(v, ndim):
    """A vector over channels, shaped to broadcast against (N, C, ...)."""
    return v.reshape(1, -1, *(1,) * (ndim - 2))


# ---- batch norm


def _batch_norm(x, weight, bias, mean, invstd):
    """Normalise with the given statistics; result in the compute dtype."""
    wide = mean.dtype
    scale = invstd if weight is None else invstd * cast(weight, wide)
    out = (cast(x, wide) - _channels(mean, x.ndim)) * _channels(scale, x.ndim)
    return out if bias is None else out + _channels(cast(bias, wide), x.ndim)


def batch_statistics(x):
    """Mean and biased variance over all but the channels, in the compute dtype."""
    axes = (0, *range(2, x.ndim))
    return _moments(cast(x, compute_dtype(x.dtype)), axes, keepdims=False)


def _updated(running, value, momentum):
    if running is None:
        return None
    wide = compute_dtype(running.dtype)
    return cast(cast(value, wide) * momentum + cast(running, wide) * (1 - momentum), running.dtype)


def _train(x, weight, bias, running_mean, running_var, momentum, eps):
    mean, var = batch_statistics(x)
    invstd = jax.lax.rsqrt(var + eps)
    out = cast(_batch_norm(x, weight, bias, mean, invstd), x.dtype)
    n = x.size // max(x.shape[1], 1)
    unbiased = var * (n / max(n - 1, 1))
    return (
        out,
        mean,
        invstd,
        _updated(running_mean, mean, momentum),
        _updated(running_var, unbiased, momentum),
    )


def _infer(x, weight, bias, running_mean, running_var, eps):
    wide = compute_dtype(x.dtype)
    mean, var = cast(running_mean, wide), cast(running_var, wide)
    invstd = jax.lax.rsqrt(var + eps)
    return cast(_batch_norm(x, weight, bias, mean, invstd), x.dtype), mean, invstd


@lowers(aten._native_batch_norm_legit_functional.default)
def native_batch_norm_functional(
    input,
    weight,
    bias,
    running_mean,
    running_var,
    training,
    momentum,
    eps,
):
    if training:
        return _train(input, weight, bias, running_mean, running_var, momentum, eps)
    return *_infer(input, weight, bias, running_mean, running_var, eps), running_mean, running_var


@lowers(aten._native_batch_norm_legit.no_stats)
def native_batch_norm_no_stats(input, weight, bias, training, momentum, eps):
    return _train(input, weight, bias, None, None, momentum, eps)[:3]


@lowers(aten._native_batch_norm_legit_no_training.default)
def native_batch_norm_no_training(
    input,
    weight,
    bias,
    running_mean,
    running_var,
    momentum,
    eps,
):
    # As PyTorch's meta kernel has it for devices other than the CPU, whose statistics are empty.
    return _infer(input, weight, bias, running_mean, running_var, eps)


@lowers(aten._batch_norm_with_update_functional.default)
def batch_norm_with_update_functional(
    input,
    weight,
    bias,
    running_mean,
    running_var,
    momentum,
    eps,
):
    out, mean, invstd, *running = _train(
        input, weight, bias, running_mean, running_var, momentum, eps
    )
    return out, mean, invstd, jnp.zeros(0, np.uint8), *running


@lowers(aten._batch_norm_no_update.default)
def batch_norm_no_update(
    input,
    weight,
    bias,
    running_mean,
    running_var,
    momentum,
    eps,
):
    out, mean, invstd = _infer(input, weight, bias, running_mean, running_var, eps)
    return out, mean, invstd, jnp.zeros(0, np.uint8)


@lowers(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    grad_out,
    input,
    weight,
    running_mean,
    running_var,
    save_mean,
    save_invstd,
    train,
    eps,
    output_mask,
):
    wide = compute_dtype(input.dtype)
    axes = (0, *range(2, input.ndim))
    if train:
        mean, invstd = cast(save_mean, wide), cast(save_invstd, wide)
    else:
        mean = cast(running_mean, wide)
        invstd = jax.lax.rsqrt(cast(running_var, wide) + eps)
    grad, centred = cast(grad_out, wide), cast(input, wide) - _channels(mean, input.ndim)
    grad_sum = jnp.sum(grad, axis=axes)
    projected = jnp.sum(grad * centred, axis=axes)
    scale = invstd if weight is None else invstd * cast(weight, wide)
    grad_x = grad_w = grad_b = None
    if output_mask[0]:
        inner = grad
        if train:
            n = max(input.size // max(input.shape[1], 1), 1)
            slope = _channels(projected * jnp.square(invstd) / n, input.ndim)
            inner = grad - _channels(grad_sum / n, input.ndim) - centred * slope
        grad_x = cast(inner * _channels(scale, input.ndim), input.dtype)
    like = input.dtype if weight is None else weight.dtype
    if output_mask[1]:
        grad_w = cast(projected * invstd, like)
    if output_mask[2]:
        grad_b = cast(grad_sum, like)
    return grad_x, grad_w, grad_b


@lowers(aten.batch_norm_backward.default)
def batch_norm_backward(
    grad_out,
    input,
    weight,
    running_mean,
    running_var,
    save_mean,
    save_var,
    update,
    eps,
    output_mask,
    reserve,
):
    return native_batch_norm_backward(
        grad_out,
        input,
        weight,
        running_mean,
        running_var,
        save_mean,
        save_var,
        update,
        eps,
        output_mask,
    )


# ---- layer norm


@lowers(aten.native_layer_norm.default)
def native_layer_norm(input, normalized_shape, weight, bias, eps):
    wide = compute_dtype(input.dtype)
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    x = cast(input, wide)
    mean, var = _moments(x, axes)
    rstd = jax.lax.rsqrt(var + eps)
    out = (x - mean) * rstd
    if weight is not None:
        out = out * cast(weight, wide)
    if bias is not None:
        out = out + cast(bias, wide)
    return cast(out, input.dtype), mean, rstd


@lowers(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    grad_out,
    input,
    normalized_shape,
    mean,
    rstd,
    weight,
    bias,
    output_mask,
):
    wide = compute_dtype(input.dtype)
    lead = input.ndim - len(normalized_shape)
    axes, outer = tuple(range(lead, input.ndim)), tuple(range(lead))
    grad = cast(grad_out, wide)
    normed = (cast(input, wide) - cast(mean, wide)) * cast(rstd, wide)
    grad_x = grad_w = grad_b = None
    if output_mask[0]:
        scaled = grad if weight is None else grad * cast(weight, wide)
        along = jnp.mean(scaled * normed, axis=axes, keepdims=True)
        inner = scaled - jnp.mean(scaled, axis=axes, keepdims=True) - normed * along
        grad_x = cast(inner * cast(rstd, wide), input.dtype)
    if output_mask[1] and weight is not None:
        grad_w = cast(jnp.sum(grad * normed, axis=outer), weight.dtype)
    if output_mask[2] and bias is not None:
        grad_b = cast(jnp.sum(grad, axis=outer), bias.dtype)
    return grad_x, grad_w, grad_b


# ---- RMS norm


@lowers(aten._fused_rms_norm.default)
def fused_rms_norm(input, normalized_shape, weight, eps):
    wide = compute_dtype(input.dtype)
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    x = cast(input, wide)
    epsilon = float(jnp.finfo(wide).eps) if eps is None else eps
    rstd = jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=axes, keepdims=True) + epsilon)
    out = x * rstd
    if weight is not None:
        out = out * cast(weight, wide)
    return cast(out, input.dtype), rstd


@lowers(aten._fused_rms_norm_backward.default)
def fused_rms_norm_backward(
    grad_out,
    input,
    normalized_shape,
    rstd,
    weight,
    output_mask,
):
    wide = compute_dtype(input.dtype)
    lead = input.ndim - len(normalized_shape)
    axes, outer = tuple(range(lead, input.ndim)), tuple(range(lead))
    grad, rstd = cast(grad_out, wide), cast(rstd, wide)
    normed = cast(input, wide) * rstd
    grad_x = grad_w = None
    if output_mask[0]:
        scaled = grad if weight is None else grad * cast(weight, wide)
        along = jnp.mean(scaled * normed, axis=axes, keepdims=True)
        grad_x = cast((scaled - normed * along) * rstd, input.dtype)
    if output_mask[1] and weight is not None:
        grad_w = cast(jnp.sum(grad * normed, axis=outer), weight.dtype)
    return grad_x, grad_w


# ---- group norm


def _grouped(x, n, c, spatial, group):
    return x.reshape(n, group, c // group, spatial)


@lowers(aten.native_group_norm.default)
def native_group_norm(input, weight, bias, N, C, HxW, group, eps):
    wide = compute_dtype(input.dtype)
    x = _grouped(cast(input, wide), N, C, HxW, group)
    mean, var = _moments(x, (2, 3))
    rstd = jax.lax.rsqrt(var + eps)
    out = (x - mean) * rstd
    if weight is not None:
        out = out * cast(weight, wide).reshape(1, group, -1, 1)
    if bias is not None:
        out = out + cast(bias, wide).reshape(1, group, -1, 1)
    mean, rstd = (cast(v.reshape(N, group), input.dtype) for v in (mean, rstd))
    return cast(out, input.dtype).reshape(input.shape), mean, rstd


@lowers(aten.native_group_norm_backward.default)
def native_group_norm_backward(
    grad_out,
    input,
    mean,
    rstd,
    weight,
    N,
    C,
    HxW,
    group,
    output_mask,
):
    wide = compute_dtype(input.dtype)
    grad, x = (_grouped(cast(v, wide), N, C, HxW, group) for v in (grad_out, input))
    mean, rstd = (cast(v, wide).reshape(N, group, 1, 1) for v in (mean, rstd))
    normed = (x - mean) * rstd
    grad_x = grad_w = grad_b = None
    if output_mask[0]:
        scaled = grad if weight is None else grad * cast(weight, wide).reshape(1, group, -1, 1)
        count = max(math.prod(x.shape[2:]), 1)
        along = jnp.sum(scaled * normed, axis=(2, 3), keepdims=True) / count
        inner = scaled - jnp.sum(scaled, axis=(2, 3), keepdims=True) / count - normed * along
        grad_x = cast(inner * rstd, input.dtype).reshape(input.shape)
    like = input.dtype if weight is None else weight.dtype
    if output_mask[1]:
        grad_w = cast(jnp.sum(grad * normed, axis=(0, 3)).reshape(C), like)
    if output_mask[2]:
        grad_b = cast(jnp.sum(grad, axis=(0, 3)).reshape(C), like)
    return grad_x, grad_w, grad_b
