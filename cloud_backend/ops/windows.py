"""Windows and samples of images: `im2col`, `col2im`, grid sampling, affine grids.

Gradients of the samplers are the vjp of their forwards, which are gathers with weights.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast, compute_dtype, expand_list
from cloud_backend.ops.pool import Window
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported


def _columns(x, kernel_size, dilation, padding, stride):
    """Windows of (..., C, H, W) as (..., C x kernel, windows)."""
    window = Window(2, x.shape, kernel_size, stride, padding, dilation)
    parts = jnp.stack(window.slices(x, 0), axis=-3)
    *lead, c, k, oh, ow = parts.shape
    return parts.reshape(*lead, c * k, oh * ow)


@lowers(aten.im2col.default)
def im2col(x, kernel_size, dilation, padding, stride):
    return _columns(x, kernel_size, dilation, padding, stride)


@lowers(aten.col2im.default)
def col2im(x, output_size, kernel_size, dilation, padding, stride):
    kernel = expand_list(kernel_size, 2)
    channels = x.shape[-2] // (kernel[0] * kernel[1])
    wide = compute_dtype(x.dtype)
    like = jax.ShapeDtypeStruct((*x.shape[:-2], channels, *output_size), wide)
    fold = jax.linear_transpose(lambda v: _columns(v, kernel, dilation, padding, stride), like)
    return cast(fold(cast(x, wide))[0], x.dtype)


# ---- grid sampling

BILINEAR, NEAREST, BICUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2


def _unnormalised(at, size, align_corners):
    if align_corners:
        return (at + 1) / 2 * (size - 1)
    return ((at + 1) * size - 1) / 2


def _reflected(at, low, high):
    """Positions reflected at low/2 and high/2 (doubled, so that halves are whole numbers)."""
    if low == high:
        return jnp.zeros_like(at)
    start, span = low / 2, (high - low) / 2
    away = jnp.abs(at - start)
    extra = jnp.mod(away, span)
    flips = jnp.floor(away / span)
    return jnp.where(flips % 2 == 0, extra + start, span - extra + start)


def _bounded(at, size, padding, align_corners):
    """Positions moved inside the image by the padding mode; zeros leaves them."""
    if padding == REFLECTION:
        low, high = (0, 2 * (size - 1)) if align_corners else (-1, 2 * size - 1)
        at = _reflected(at, low, high)
    if padding != ZEROS:
        at = jnp.clip(at, 0, size - 1)
    return at


def _fetch(image, positions):
    """image (C, *size) at integer positions (one array per dimension), zero outside."""
    sizes = image.shape[1:]
    inside = jnp.ones(positions[0].shape, bool)
    slots = []
    for at, size in zip(positions, sizes, strict=True):
        whole = jnp.nan_to_num(at, nan=-1.0, posinf=-1.0, neginf=-1.0)
        inside &= (whole >= 0) & (whole < size)
        slots.append(jnp.clip(whole, 0, size - 1).astype(np.int32))
    return jnp.where(inside, image[(slice(None), *slots)], 0)


def _linear_sample(image, positions):
    lows = [jnp.floor(p) for p in positions]
    total = 0
    for corner in itertools.product((0, 1), repeat=len(positions)):
        weight = 1
        for p, low, c in zip(positions, lows, corner, strict=True):
            weight = weight * ((p - low) if c else (low + 1 - p))
        at = [low + c for low, c in zip(lows, corner, strict=True)]
        total = total + _fetch(image, at) * weight
    return total


def _cubic_weights(t, a=-0.75):
    """Weights of the four pixels around a position with fraction t."""

    def near(v):
        return ((a + 2) * v - (a + 3)) * v * v + 1

    def far(v):
        return ((a * v - 5 * a) * v + 8 * a) * v - 4 * a

    return far(t + 1), near(t), near(1 - t), far(2 - t)


def _cubic_sample(image, positions, padding, align_corners):
    lows = [jnp.floor(p) for p in positions]
    weights = [_cubic_weights(p - low) for p, low in zip(positions, lows, strict=True)]
    total = 0
    for offsets in itertools.product(range(4), repeat=len(positions)):
        weight, at = 1, []
        for d, o in enumerate(offsets):
            weight = weight * weights[d][o]
            at.append(_bounded(lows[d] + (o - 1), image.shape[d + 1], padding, align_corners))
        total = total + _fetch(image, at) * weight
    return total


def _sample(images, grid, mode, padding, align_corners):
    """images (N, C, *size) sampled at grid (N, *out, n), whose last axis is x, y(, z)."""
    n = images.ndim - 2
    sizes = images.shape[2:]

    def one(image, points):
        positions = [
            _unnormalised(points[..., n - 1 - d], sizes[d], align_corners) for d in range(n)
        ]
        if mode == BICUBIC:
            return _cubic_sample(image, positions, padding, align_corners)
        positions = [
            _bounded(p, s, padding, align_corners) for p, s in zip(positions, sizes, strict=True)
        ]
        if mode == NEAREST:
            return _fetch(image, [jnp.round(p) for p in positions])
        return _linear_sample(image, positions)

    return jax.vmap(one)(images, grid)


def _grid_sampler(images, grid, mode, padding, align_corners):
    if mode not in (BILINEAR, NEAREST, BICUBIC):
        raise Unsupported(f"interpolation_mode={mode}")
    wide = compute_dtype(images.dtype)
    if 0 in (images.shape[0], *grid.shape[1:-1]):
        return jnp.zeros((*images.shape[:2], *grid.shape[1:-1]), images.dtype)
    out = _sample(cast(images, wide), cast(grid, wide), mode, padding, align_corners)
    return cast(out, images.dtype)


def _grid_sampler_backward(grad, images, grid, mode, padding, align_corners, mask):
    wide = compute_dtype(images.dtype)

    def forward(i, g):
        return _sample(i, g, mode, padding, align_corners)

    _, pull = jax.vjp(forward, cast(images, wide), cast(grid, wide))
    grad_images, grad_grid = pull(cast(grad, wide))
    return (
        cast(grad_images, images.dtype) if mask[0] else None,
        cast(grad_grid, grid.dtype) if mask[1] else None,
    )


@lowers(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners):
    return _grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners)


@lowers(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(
    grad_output,
    input,
    grid,
    interpolation_mode,
    padding_mode,
    align_corners,
    output_mask,
):
    return _grid_sampler_backward(
        grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask
    )


@lowers(aten.affine_grid_generator.default)
def affine_grid_generator(theta, size, align_corners):
    wide = compute_dtype(theta.dtype)
    axes = []
    for length in size[2:]:
        line = np.linspace(-1, 1, length) if length > 1 else np.zeros(length)
        axes.append(line if align_corners else line * (length - 1) / max(length, 1))
    grid = np.meshgrid(*axes, indexing="ij")
    base = jnp.asarray(np.stack([*grid[::-1], np.ones(size[2:])], axis=-1), wide)
    out = jnp.einsum("...k,njk->n...j", base, cast(theta, wide), precision="highest")
    return cast(out, theta.dtype)
