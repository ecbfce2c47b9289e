"""Fractional max pooling and unpooling: windows at given places, and values put back at positions.

`random_samples` is an input, so these are deterministic. Indices are flat positions in a plane.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops.pool import scatter_planes
from torch_tpu_unified.core.aten import aten


def _starts(samples, size: int, kernel: int, out: int):
    """Where each window starts, shape (planes, out): PyTorch's pseudo-random sequence."""
    alpha = (size - kernel) / (out - 1) if out > 1 else 0.0
    alpha = jnp.asarray(alpha, samples.dtype)
    i = jnp.arange(out, dtype=samples.dtype)
    at = jnp.floor((i + samples[:, None]) * alpha) - jnp.floor(samples * alpha)[:, None]
    at = at.astype(np.int32)
    return at.at[:, -1].set(size - kernel) if out else at


def _fractional(x, kernel, out, samples, order):
    """`order` says which sample each dimension takes."""
    n = len(kernel)
    lead, sizes = x.shape[:-n], x.shape[-n:]
    planes = math.prod(lead)
    samples = samples.reshape(planes, n)
    flat = jnp.zeros((planes,) + (1,) * (2 * n), np.int32)
    for d in range(n):
        starts = _starts(samples[:, order[d]], sizes[d], kernel[d], out[d])
        at = starts[:, :, None] + jnp.arange(kernel[d], dtype=np.int32)
        shape = [planes] + [1] * (2 * n)
        shape[1 + d], shape[1 + n + d] = out[d], kernel[d]
        flat = flat * sizes[d] + at.reshape(shape)
    flat = flat.reshape(planes, math.prod(out), math.prod(kernel))
    rows = jnp.arange(planes)[:, None, None]
    windows = x.reshape(planes, math.prod(sizes))[rows, flat]
    best = jnp.argmax(windows, axis=-1, keepdims=True)
    shape = (*lead, *out)
    values = jnp.take_along_axis(windows, best, axis=-1).reshape(shape)
    return values, jnp.take_along_axis(flat, best, axis=-1).reshape(shape).astype(np.int64)


@lowers(aten.fractional_max_pool2d.default)
def fractional_max_pool2d(x, kernel_size, output_size, random_samples):
    return _fractional(x, kernel_size, output_size, random_samples, (1, 0))


@lowers(aten.fractional_max_pool3d.default)
def fractional_max_pool3d(x, kernel_size, output_size, random_samples):
    return _fractional(x, kernel_size, output_size, random_samples, (0, 1, 2))


@lowers(aten.fractional_max_pool2d_backward.default, aten.fractional_max_pool3d_backward.default)
def fractional_max_pool_backward(grad_output, x, kernel_size, output_size, indices):
    return scatter_planes(grad_output, indices, x.shape, len(kernel_size))


# ---- unpooling


@lowers(aten.max_unpool2d.default)
def max_unpool2d(x, indices, output_size):
    return _unpool(x, indices, tuple(output_size))


@lowers(aten.max_unpool3d.default)
def max_unpool3d(x, indices, output_size, stride, padding):
    return _unpool(x, indices, tuple(output_size))


def _unpool(x, indices, out):
    n = len(out)
    lead = x.shape[:-n]
    planes = math.prod(lead)
    rows = jnp.arange(planes, dtype=np.int32)[:, None]
    zeros = jnp.zeros((planes, math.prod(out)), x.dtype)
    values = x.reshape(planes, math.prod(x.shape[-n:]))
    flat = zeros.at[rows, indices.reshape(values.shape)].set(values, mode="drop")
    return flat.reshape(*lead, *out)
