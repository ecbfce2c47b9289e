"""Operators that are several steps in one: parts of layers, and gradients of gradients."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast, compute_dtype
from cloud_backend.ops.activations import glu_backward
from cloud_backend.ops.linalg import cholesky_solve
from cloud_backend.ops.matmul import product
from cloud_backend.ops.pool import Window, _max_pool, scatter_planes
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported


@lowers(aten._compute_linear_combination.default, meta=False)
def compute_linear_combination(input, coefficients):
    return cast(product(coefficients, input.reshape(input.shape[0], -1)), input.dtype).reshape(
        coefficients.shape[0], *input.shape[1:]
    )


@lowers(aten._cholesky_solve_helper.default, meta=False)
def cholesky_solve_helper(x, A, upper):
    return cholesky_solve(x, A, upper)


@lowers(aten._masked_scale.default, meta=False)
def masked_scale(x, mask, scale):
    wide = compute_dtype(x.dtype)
    return cast(cast(x, wide) * cast(mask, wide) * scale, x.dtype)


@lowers(aten.glu_backward_jvp.default, meta=False)
def glu_backward_jvp(grad_x, grad_glu, x, dgrad_glu, dx, dim):
    _, tangent = jax.jvp(lambda g, v: glu_backward(g, v, dim), (grad_glu, x), (dgrad_glu, dx))
    return tangent


@lowers(aten.max_pool2d_backward.default, meta=False)
def max_pool2d_backward(
    grad_output, x, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False
):
    window = Window(2, x.shape, kernel_size, stride, padding, dilation, ceil_mode)
    return scatter_planes(grad_output, _max_pool(x, window)[1], x.shape, 2)


@lowers(aten._weight_norm_interface_backward.default, meta=False)
def weight_norm_interface_backward(grad_w, saved_v, saved_g, saved_norms, dim):
    wide = compute_dtype(saved_v.dtype)
    grad, v, g, norms = (cast(t, wide) for t in (grad_w, saved_v, saved_g, saved_norms))
    axes = tuple(d for d in range(v.ndim) if d != dim)
    dot = jnp.sum(v * grad, axis=axes, keepdims=True)
    g, norms = g.reshape(dot.shape), norms.reshape(dot.shape)
    grad_v = g / norms * (grad - v * dot / jnp.square(norms))
    return cast(grad_v, saved_v.dtype), cast((dot / norms).reshape(saved_g.shape), saved_g.dtype)


@lowers(aten._transform_bias_rescale_qkv.default, meta=False)
def transform_bias_rescale_qkv(qkv, qkv_bias, num_heads):
    batch, length, width = qkv.shape
    wide = compute_dtype(qkv.dtype)
    parts = (cast(qkv, wide) + cast(qkv_bias, wide)).reshape(
        batch, length, 3, num_heads, width // 3 // num_heads
    )
    query, key, value = jnp.moveaxis(parts.transpose(0, 3, 1, 2, 4), 3, 0)
    query = query / math.sqrt(query.shape[-1])
    return tuple(cast(v, qkv.dtype) for v in (query, key, value))


# ---- rows of different lengths


def _one_level(offsets):
    if len(offsets) != 1:
        raise Unsupported(f"{len(offsets)} levels of lengths; one is supported")
    return offsets[0]


@lowers(aten._jagged_to_padded_dense_forward.default, meta=False)
def jagged_to_padded_dense(values, offsets, max_lengths, padding_value=0.0):
    starts = _one_level(offsets)
    at = starts[:-1, None] + np.arange(max_lengths[0])
    valid = at < starts[1:, None]
    rows = values[jnp.clip(at, 0, max(values.shape[0] - 1, 0))]
    valid = valid.reshape(*valid.shape, *(1,) * (rows.ndim - 2))
    return jnp.where(valid, rows, cast(padding_value, values.dtype))


def _length_unknown(args, kwargs):
    return (args[2] if len(args) > 2 else kwargs.get("total_L")) is None


@lowers(aten._padded_dense_to_jagged_forward.default, meta=False, host=_length_unknown)
def padded_dense_to_jagged(dense, offsets, total_L=None):
    starts = _one_level(offsets)
    total = int(starts[-1]) if total_L is None else total_L
    at = jnp.arange(total)
    row = jnp.searchsorted(starts, at, side="right") - 1
    column = at - starts[row]
    taken = dense[row, jnp.clip(column, 0, dense.shape[1] - 1)]
    inside = (column < dense.shape[1]).reshape(-1, *(1,) * (taken.ndim - 1))
    return jnp.where(inside, taken, jnp.zeros((), dense.dtype))
