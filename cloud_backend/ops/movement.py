"""Joining, repeating, reordering and padding: `cat`, `flip`, `repeat`, `roll`, the pads, `tril`.

Every result is a new array whose values are copies of the input's, or a constant.
Backwards of the pads are the transposes of their linear forwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import canonical_dim, cast, compute_dtype, result_dtype
from torch_tpu_unified.core.aten import aten


@lowers(aten.cat.default)
def cat(tensors, dim=0):
    if any(t.ndim == 0 for t in tensors):
        raise RuntimeError("zero-dimensional tensor cannot be concatenated")
    dtype = result_dtype(*tensors)
    # Historic exception of PyTorch: 1-d empty tensors join anything.
    kept = [t for t in tensors if t.shape != (0,)] or tensors[:1]
    dim = canonical_dim(dim, kept[0].ndim)
    return jnp.concatenate([cast(t, dtype) for t in kept], axis=dim)


@lowers(aten.stack.default)
def stack(tensors, dim=0):
    dtype = result_dtype(*tensors)
    dim = canonical_dim(dim, tensors[0].ndim + 1)
    return jnp.stack([cast(t, dtype) for t in tensors], axis=dim)


@lowers(aten.block_diag.default)
def block_diag(tensors):
    dtype = result_dtype(*tensors)
    blocks = [cast(t, dtype).reshape((1,) * (2 - t.ndim) + t.shape) for t in tensors]
    rows, columns = (sum(b.shape[d] for b in blocks) for d in (0, 1))
    out = jnp.zeros((rows, columns), dtype)
    row = column = 0
    for b in blocks:
        out = out.at[row : row + b.shape[0], column : column + b.shape[1]].set(b)
        row, column = row + b.shape[0], column + b.shape[1]
    return out


@lowers(aten.flip.default)
def flip(x, dims):
    return jnp.flip(x, [canonical_dim(d, x.ndim) for d in dims] if x.ndim else ())


@lowers(aten.roll.default)
def roll(x, shifts, dims=()):
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    if not dims:
        return jnp.roll(x.ravel(), shifts[0]).reshape(x.shape)
    if x.ndim == 0 or x.size == 0:
        return x
    return jnp.roll(x, shifts, [canonical_dim(d, x.ndim) for d in dims])


@lowers(aten.rot90.default)
def rot90(x, k=1, dims=(0, 1)):
    return jnp.rot90(x, k, tuple(canonical_dim(d, x.ndim) for d in dims))


@lowers(aten.repeat.default)
def repeat(x, repeats):
    return jnp.tile(x.reshape((1,) * (len(repeats) - x.ndim) + x.shape), tuple(repeats))


@lowers(aten.tile.default)
def tile(x, dims):
    return jnp.tile(x, tuple(dims))


def pad_pairs(pad: Sequence[int], ndim: int) -> list[tuple[int, int]]:
    """PyTorch's padding, last dimension first, as (before, after) for each dimension."""
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)][::-1]
    return [(0, 0)] * (ndim - len(pairs)) + pairs


@lowers(aten.constant_pad_nd.default)
def constant_pad_nd(x, pad, value=0):
    config = [(before, after, 0) for before, after in pad_pairs(pad, x.ndim)]
    return jax.lax.pad(x, cast(value, x.dtype), config)


def _pad_positions(n: int, before: int, after: int, reflect: bool) -> np.ndarray:
    """Source positions of a padded dimension; negative padding crops."""
    at = np.arange(-before, n + after)
    if reflect:
        at = np.abs(at)
        return np.where(at >= n, 2 * (n - 1) - at, at)
    return np.clip(at, 0, n - 1)


def _pad(x, padding, reflect):
    for d, (before, after) in enumerate(pad_pairs(padding, x.ndim)):
        if before or after:
            x = jnp.take(x, _pad_positions(x.shape[d], before, after, reflect), axis=d)
    return x


def _pad_backward(grad, shape, padding, reflect):
    out = grad.astype(compute_dtype(grad.dtype))
    for d, (before, after) in enumerate(pad_pairs(padding, len(shape))):
        if before or after:
            at = _pad_positions(shape[d], before, after, reflect)
            zeros = jnp.zeros((*out.shape[:d], shape[d], *out.shape[d + 1 :]), out.dtype)
            out = zeros.at[(slice(None),) * d + (at,)].add(out)
    return out.astype(grad.dtype)


def _register_pads(forward, backward, reflect):
    @lowers(*forward)
    def pad(x, padding):
        return _pad(x, padding, reflect)

    @lowers(*backward)
    def pad_backward(grad_output, x, padding):
        return _pad_backward(grad_output, x.shape, padding, reflect)


_register_pads(
    (
        aten.reflection_pad1d.default,
        aten.reflection_pad2d.default,
        aten.reflection_pad3d.default,
    ),
    (
        aten.reflection_pad1d_backward.default,
        aten.reflection_pad2d_backward.default,
        aten.reflection_pad3d_backward.default,
    ),
    True,
)
_register_pads(
    (
        aten.replication_pad1d.default,
        aten.replication_pad2d.default,
        aten.replication_pad3d.default,
    ),
    (
        aten.replication_pad1d_backward.default,
        aten.replication_pad2d_backward.default,
        aten.replication_pad3d_backward.default,
    ),
    False,
)


@lowers(aten.tril.default)
def tril(x, diagonal=0):
    return jnp.tril(x, diagonal)


@lowers(aten.triu.default)
def triu(x, diagonal=0):
    return jnp.triu(x, diagonal)


@lowers(aten.pixel_shuffle.default)
def pixel_shuffle(x, upscale_factor):
    r = upscale_factor
    *lead, c, h, w = x.shape
    out = x.reshape(*lead, c // (r * r), r, r, h, w)
    n = len(lead)
    order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    return jnp.transpose(out, order).reshape(*lead, c // (r * r), h * r, w * r)


@lowers(aten.pixel_unshuffle.default)
def pixel_unshuffle(x, downscale_factor):
    r = downscale_factor
    *lead, c, h, w = x.shape
    out = x.reshape(*lead, c, h // r, r, w // r, r)
    n = len(lead)
    order = [*range(n), n, n + 2, n + 4, n + 1, n + 3]
    return jnp.transpose(out, order).reshape(*lead, c * r * r, h // r, w // r)


@lowers(aten.channel_shuffle.default, aten.native_channel_shuffle.default)
def channel_shuffle(x, groups):
    n, c, *rest = x.shape
    return x.reshape(n, groups, c // groups, *rest).swapaxes(1, 2).reshape(x.shape)
