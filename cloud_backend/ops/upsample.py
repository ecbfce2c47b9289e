"""Resizing of images: nearest, linear, cubic, antialiased; and their gradients.

Every mode is separable: each spatial dimension is multiplied by a constant matrix (out x in) that
holds the mode's weights; nearest gathers instead. A gradient is the product with the transpose.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast, compute_dtype
from torch_tpu_unified.core.aten import aten


def _ratio(size: int, out: int, align_corners: bool, scale: float | None) -> float:
    """Input pixels for each output pixel."""
    if align_corners:
        return (size - 1) / (out - 1) if out > 1 else 0.0
    return 1 / scale if scale is not None and scale > 0 else size / out


def _source(size, out, align_corners, scale):
    """The real-valued source position of each output pixel."""
    ratio = _ratio(size, out, align_corners, scale)
    i = np.arange(out)
    return i * ratio if align_corners else (i + 0.5) * ratio - 0.5


def nearest_positions(size: int, out: int, scale: float | None, exact: bool) -> np.ndarray:
    """The source pixel of each output pixel. Rounding happens in float32, as in PyTorch."""
    ratio = np.float32(1 / scale) if scale is not None and scale > 0 else np.float32(size / out)
    i = np.arange(out, dtype=np.float32)
    at = np.floor((i + np.float32(0.5)) * ratio if exact else i * ratio)
    return np.minimum(at.astype(np.int64), size - 1)


def linear_matrix(size: int, out: int, align_corners: bool, scale: float | None) -> np.ndarray:
    """Weights of linear interpolation, shape (out, size)."""
    at = np.maximum(_source(size, out, align_corners, scale), 0)
    low = np.minimum(np.floor(at).astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    weight = np.clip(at - low, 0, 1)
    matrix = np.zeros((out, size))
    rows = np.arange(out)
    np.add.at(matrix, (rows, low), 1 - weight)
    np.add.at(matrix, (rows, high), weight)
    return matrix


def _cubic(t: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic convolution kernel."""
    t = np.abs(t)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0))


def cubic_matrix(size: int, out: int, align_corners: bool, scale: float | None) -> np.ndarray:
    """Weights of cubic interpolation with the edge repeated, shape (out, size)."""
    at = _source(size, out, align_corners, scale)
    low = np.floor(at).astype(np.int64)
    matrix = np.zeros((out, size))
    for offset in (-1, 0, 1, 2):
        column = np.clip(low + offset, 0, size - 1)
        np.add.at(matrix, (np.arange(out), column), _cubic(at - (low + offset), -0.75))
    return matrix


def _antialiased(support: float, kernel: Callable[[np.ndarray], np.ndarray]):
    """Weights of a kernel that widens when the image shrinks."""

    def matrix(size, out, align_corners, scale):
        ratio = _ratio(size, out, align_corners, scale)
        width = support * max(ratio, 1.0)
        weights = np.zeros((out, size))
        for i in range(out):
            centre = ratio * (i + 0.5)
            first = max(int(centre - width + 0.5), 0)
            last = min(int(centre + width + 0.5), size)
            at = (np.arange(first, last) - centre + 0.5) / max(ratio, 1.0)
            row = kernel(at)
            total = row.sum()
            weights[i, first:last] = row / total if total else row
        return weights

    return matrix


linear_aa_matrix = _antialiased(1.0, lambda t: np.maximum(1 - np.abs(t), 0))
cubic_aa_matrix = _antialiased(2.0, lambda t: _cubic(t, -0.5))

lanczos_aa_matrix = _antialiased(
    3.0, lambda t: np.where(np.abs(t) < 3, np.sinc(t) * np.sinc(t / 3), 0)
)


def _multiply(x: jax.Array, matrices: Sequence[np.ndarray]) -> jax.Array:
    """Each matrix applied to one of the last dimensions of `x`."""
    for d, matrix in enumerate(matrices):
        axis = x.ndim - len(matrices) + d
        weights = jnp.asarray(matrix, x.dtype)
        x = jnp.tensordot(x, weights, ((axis,), (1,)), precision=jax.lax.Precision.HIGHEST)
        x = jnp.moveaxis(x, -1, axis)
    return x


def _resize(x, matrices):
    wide = compute_dtype(x.dtype) if x.dtype.kind not in "iu" else np.dtype(np.float32)
    out = _multiply(cast(x, wide), matrices)
    if x.dtype.kind in "iu":
        info = np.iinfo(x.dtype)
        out = jnp.clip(jnp.round(out), info.min, info.max)
    return cast(out, x.dtype)


def _resize_backward(grad, matrices):
    wide = compute_dtype(grad.dtype)
    return cast(_multiply(cast(grad, wide), [m.T for m in matrices]), grad.dtype)


def _interpolation(name: str, n: int, matrix) -> None:
    """Register a mode that has `align_corners`, and its gradient, over n dimensions."""

    def matrices(sizes, outs, align_corners, scales):
        return [matrix(s, o, align_corners, c) for s, o, c in zip(sizes, outs, scales, strict=True)]

    def forward(x, output_size, align_corners, *scales):
        return _resize(x, matrices(x.shape[-n:], output_size, align_corners, scales))

    def backward(grad, output_size, input_size, align_corners, *scales):
        sizes = tuple(input_size)[-n:]
        return _resize_backward(grad, matrices(sizes, output_size, align_corners, scales))

    _with_scales(name, n, forward, backward, True)


def _nearest(name: str, n: int, exact: bool) -> None:
    """Register a nearest mode and its gradient over n dimensions."""

    def forward(x, output_size, *scales):
        for d, out in enumerate(output_size):
            axis = x.ndim - n + d
            at = nearest_positions(x.shape[axis], out, scales[d], exact)
            x = jnp.take(x, at, axis=axis)
        return x

    def backward(grad, output_size, input_size, *scales):
        out = cast(grad, compute_dtype(grad.dtype))
        for d, size in enumerate(tuple(input_size)[-n:]):
            axis = out.ndim - n + d
            at = nearest_positions(size, output_size[d], scales[d], exact)
            zeros = jnp.zeros((*out.shape[:axis], size, *out.shape[axis + 1 :]), out.dtype)
            out = zeros.at[(slice(None),) * axis + (at,)].add(out)
        return cast(out, grad.dtype)

    _with_scales(name, n, forward, backward, False)


def _with_scales(name, n, forward, backward, corners) -> None:
    """Register `forward` and `backward` under the schema's parameter names for n dimensions."""
    scales = {1: ["scales"], 2: ["scales_h", "scales_w"], 3: ["scales_d", "scales_h", "scales_w"]}
    rest = (["align_corners"] if corners else []) + scales[n]
    _named(getattr(aten, name).default, forward, ["x", "output_size", *rest])
    _named(
        getattr(aten, f"{name}_backward").default,
        backward,
        ["grad_output", "output_size", "input_size", *rest],
    )


def _named(op, function, names) -> None:
    def lowering(**given):
        return function(*(given[name] for name in names))

    lowering.__signature__ = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    )
    lowers(op)(lowering)


for _n in (1, 2, 3):
    _nearest(f"upsample_nearest{_n}d", _n, exact=False)
    _nearest(f"_upsample_nearest_exact{_n}d", _n, exact=True)
for _name, _n, _matrix in (
    ("upsample_linear1d", 1, linear_matrix),
    ("upsample_bilinear2d", 2, linear_matrix),
    ("upsample_trilinear3d", 3, linear_matrix),
    ("upsample_bicubic2d", 2, cubic_matrix),
    ("_upsample_bilinear2d_aa", 2, linear_aa_matrix),
    ("_upsample_bicubic2d_aa", 2, cubic_aa_matrix),
    ("_upsample_lanczos2d_aa", 2, lanczos_aa_matrix),
):
    _interpolation(_name, _n, _matrix)
