"""The parts of batch norm over several processes (`nn.SyncBatchNorm`): statistics, then the rest.

Statistics are taken in the compute dtype of the input, as in `norm.py`. The two operators that
update running statistics, which their schemas do not say, give the new values as further results.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast, compute_dtype
from cloud_backend.ops.norm import _batch_norm, _channels, _updated, batch_statistics
from torch_tpu_unified.core.aten import aten


@lowers(aten.batch_norm_stats.default, meta=False)
def batch_norm_stats(input, eps):
    mean, var = batch_statistics(input)
    return mean, jax.lax.rsqrt(var + eps)


@lowers(aten.batch_norm_elemt.default, meta=False)
def batch_norm_elemt(input, weight, bias, mean, invstd, eps):
    return cast(_batch_norm(input, weight, bias, mean, invstd), input.dtype)


@lowers(aten.batch_norm_update_stats.default, meta=False)
def batch_norm_update_stats(input, running_mean, running_var, momentum):
    mean, var = batch_statistics(input)
    count = input.size // max(input.shape[1], 1)
    unbiased = var * (count / max(count - 1, 1))
    return (
        mean,
        var,
        _updated(running_mean, mean, momentum),
        _updated(running_var, unbiased, momentum),
    )


def _gathered(mean, invstd, running_mean, running_var, momentum, eps, counts):
    """Statistics of all from those of each process, shapes (processes, channels)."""
    counts = counts.reshape(-1, 1)
    total = jnp.sum(counts)
    joint = jnp.sum(mean * counts, axis=0) / total
    var = 1 / jnp.square(invstd) - eps
    squares = jnp.sum((var + jnp.square(mean - joint)) * counts, axis=0)
    return (
        joint,
        jax.lax.rsqrt(squares / total + eps),
        _updated(running_mean, joint, momentum),
        _updated(running_var, squares / (total - 1), momentum),
    )


@lowers(aten.batch_norm_gather_stats.default, meta=False)
def batch_norm_gather_stats(input, mean, invstd, running_mean, running_var, momentum, eps, count):
    counts = jnp.full((mean.shape[0],), count, mean.dtype)
    return _gathered(mean, invstd, running_mean, running_var, momentum, eps, counts)


@lowers(aten.batch_norm_gather_stats_with_counts.default, meta=False)
def batch_norm_gather_stats_with_counts(
    input, mean, invstd, running_mean, running_var, momentum, eps, counts
):
    counts = cast(counts, mean.dtype)
    return _gathered(mean, invstd, running_mean, running_var, momentum, eps, counts)


@lowers(aten.batch_norm_backward_reduce.default, meta=False)
def batch_norm_backward_reduce(grad_out, input, mean, invstd, weight, input_g, weight_g, bias_g):
    wide = compute_dtype(input.dtype)
    grad, axes = cast(grad_out, wide), (0, *range(2, input.ndim))
    sum_dy = jnp.sum(grad, axis=axes)
    centred = cast(input, wide) - _channels(mean, input.ndim)
    sum_dy_xmu = jnp.sum(grad * centred, axis=axes)
    parameter = input.dtype if weight is None else weight.dtype
    return (
        sum_dy if input_g else None,
        sum_dy_xmu if input_g else None,
        cast(sum_dy_xmu * invstd, parameter) if weight_g else None,
        cast(sum_dy, parameter) if bias_g else None,
    )


@lowers(aten.batch_norm_backward_elemt.default, meta=False)
def batch_norm_backward_elemt(grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count):
    wide = compute_dtype(input.dtype)
    total = cast(jnp.sum(count), wide)
    centred = cast(input, wide) - _channels(mean, input.ndim)
    slope = jnp.square(invstd) * sum_dy_xmu / total
    scale = invstd if weight is None else invstd * cast(weight, wide)
    grad = cast(grad_out, wide) - _channels(sum_dy / total, input.ndim)
    return cast(
        (grad - centred * _channels(slope, input.ndim)) * _channels(scale, input.ndim), input.dtype
    )
