"""Pairwise distances: `cdist` and `pdist` for every p, with PyTorch's gradients.

At distance zero a gradient is zero. The pairwise differences are formed inside a fused reduction.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast
from torch_tpu_unified.core.aten import aten


def _norm(difference, p):
    """The p-norm over the last axis."""
    size = jnp.abs(difference)
    if difference.shape[-1] == 0:
        return jnp.zeros(difference.shape[:-1], difference.dtype)
    if p == 0:
        return jnp.sum(size != 0, axis=-1).astype(difference.dtype)
    if p == 1:
        return jnp.sum(size, axis=-1)
    if p == 2:
        return jnp.sqrt(jnp.sum(size * size, axis=-1))
    if p == float("inf"):
        return jnp.max(size, axis=-1)
    return jnp.sum(size**p, axis=-1) ** (1 / p)


def _slope(difference, distance, p):
    """The derivative of the p-norm with respect to each difference; `distance` has a last axis."""
    sign, size = jnp.sign(difference), jnp.abs(difference)
    if p == 0:
        return jnp.zeros_like(difference)
    if p == 1:
        return sign
    if p == float("inf"):
        return sign * (size == distance)
    safe = jnp.where(distance == 0, 1, distance)
    if p == 2:
        slope = difference / safe
    elif p < 2:
        power = jnp.where(size == 0, 0, jnp.where(size == 0, 1, size) ** (p - 1))
        slope = sign * power / safe ** (p - 1)
    else:
        slope = difference * size ** (p - 2) / safe ** (p - 1)
    return jnp.where(distance == 0, 0, slope)


def _differences(x1, x2):
    return x1[..., :, None, :] - x2[..., None, :, :]


@lowers(aten._cdist_forward.default)
def cdist_forward(x1, x2, p, compute_mode):
    return _norm(_differences(x1, x2), p)


@lowers(aten._euclidean_dist.default)
def euclidean_dist(x1, x2):
    return _norm(_differences(x1, x2), 2.0)


@lowers(aten._cdist_backward.default)
def cdist_backward(grad, x1, x2, p, cdist):
    if grad.size == 0:
        return jnp.zeros_like(x1)  # not broadcast with an empty batch of x2
    slope = _slope(_differences(x1, x2), cdist[..., None], p)
    out = jnp.sum(grad[..., None] * slope, axis=-2)
    return out.reshape(jnp.broadcast_shapes(out.shape, x1.shape))


@lowers(aten._pdist_forward.default)
def pdist_forward(x, p=2.0):
    i, j = np.triu_indices(x.shape[0], 1)
    return _norm(x[i] - x[j], p)


@lowers(aten._pdist_backward.default)
def pdist_backward(grad, x, p, pdist):
    i, j = np.triu_indices(x.shape[0], 1)
    part = grad[:, None] * _slope(x[i] - x[j], pdist[:, None], p)
    return cast(jnp.zeros_like(x).at[i].add(part).at[j].add(-part), x.dtype)
