"""Max and average pooling, plain and adaptive, in one to three dimensions, and their gradients.

Max compares one strided slice of the input for each position in the kernel, and gives the first
largest element with its flat position in the input plane, as PyTorch does; average sums windows and
divides by the count that `count_include_pad`, `ceil_mode` and `divisor_override` prescribe.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast, compute_dtype, expand_list
from cloud_backend.ops.index import lowest
from torch_tpu_unified.core.aten import aten


def output_size(size, kernel, stride, padding, dilation, ceil_mode) -> int:
    """Length of a pooled dimension; the last window must start inside the input or left padding."""
    reach = size + 2 * padding - dilation * (kernel - 1) - 1
    out = -(-reach // stride) + 1 if ceil_mode else reach // stride + 1
    if ceil_mode and (out - 1) * stride >= size + padding:
        out -= 1
    return out


class Window:
    """The settings of a pool over the last `n` dimensions of `shape`."""

    def __init__(self, n, shape, kernel, stride, padding, dilation=1, ceil_mode=False) -> None:
        self.n = n
        self.kernel = expand_list(kernel, n)
        self.stride = expand_list(stride, n) if stride not in ((), [], None) else self.kernel
        self.padding, self.dilation = expand_list(padding, n), expand_list(dilation, n)
        self.size = tuple(shape[-n:])
        self.out = tuple(
            output_size(*v, ceil_mode)
            for v in zip(
                self.size, self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )

    def pads(self) -> list[tuple[int, int]]:
        """Padding before and after, so that every window lies inside."""
        pairs = []
        for d in range(self.n):
            reach = (self.out[d] - 1) * self.stride[d] + self.dilation[d] * (self.kernel[d] - 1)
            pairs.append((self.padding[d], reach + 1 - self.size[d] - self.padding[d]))
        return pairs

    def slices(self, x: jax.Array, fill) -> list[jax.Array]:
        """One array of shape (..., *out) for each position in the kernel, in row-major order."""
        lead = x.ndim - self.n
        config = [(0, 0, 0)] * lead + [(a, b, 0) for a, b in self.pads()]
        padded = jax.lax.pad(x, jnp.asarray(fill, x.dtype), config)
        parts = []
        for position in itertools.product(*map(range, self.kernel)):
            start = [0] * lead + [p * d for p, d in zip(position, self.dilation, strict=True)]
            stop = list(x.shape[:lead])
            for d in range(self.n):
                stop.append(start[lead + d] + (self.out[d] - 1) * self.stride[d] + 1)
            steps = [1] * lead + list(self.stride)
            parts.append(jax.lax.slice(padded, start, stop, steps))
        return parts

    def flat_positions(self) -> np.ndarray:
        """Shape (kernel positions, *out): the flat position in the input plane, -1 for padding."""
        axes = []
        for d in range(self.n):
            at = np.arange(self.out[d])[:, None] * self.stride[d] - self.padding[d]
            axes.append(at + np.arange(self.kernel[d]) * self.dilation[d])
        flat = np.zeros((math.prod(self.kernel), *self.out), np.int64)
        for k, position in enumerate(itertools.product(*map(range, self.kernel))):
            inside = np.ones(self.out, bool)
            for d, p in enumerate(position):
                at = axes[d][:, p].reshape((-1,) + (1,) * (self.n - d - 1))
                inside &= (at >= 0) & (at < self.size[d])
                flat[k] = flat[k] * self.size[d] + at
            flat[k] = np.where(inside, flat[k], -1)
        return flat


def _max_pool(x, window: Window):
    """Largest element of each window and its flat position in the plane."""
    positions = window.flat_positions()
    parts = window.slices(x, lowest(x.dtype))
    best = parts[0]
    where = jnp.broadcast_to(jnp.asarray(positions[0]), best.shape)
    for part, at in zip(parts[1:], positions[1:], strict=True):
        # NaN wins over everything; padding never wins.
        better = ((part > best) | jnp.isnan(part) | (where < 0)) & (at >= 0)
        best = jnp.where(better, part, best)
        where = jnp.where(better, jnp.asarray(at), where)
    return best, where


def scatter_planes(grad, indices, shape, n):
    """Add grad to the flat positions `indices` of each plane of `shape`."""
    planes = math.prod(shape[:-n])
    wide = compute_dtype(grad.dtype)
    if grad.size == 0:
        return jnp.zeros(shape, grad.dtype)
    rows = jnp.arange(planes, dtype=np.int32)[:, None]
    at = indices.reshape(planes, -1).astype(np.int32)
    zeros = jnp.zeros((planes, math.prod(shape[-n:])), wide)
    out = zeros.at[rows, at].add(cast(grad, wide).reshape(planes, -1), mode="drop")
    return cast(out, grad.dtype).reshape(shape)


def _register_max_pool(n, forward, backward):
    @lowers(forward)
    def max_pool(x, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
        return _max_pool(x, Window(n, x.shape, kernel_size, stride, padding, dilation, ceil_mode))

    @lowers(backward)
    def max_pool_backward(
        grad_output, x, kernel_size, stride, padding, dilation, ceil_mode, indices
    ):
        return scatter_planes(grad_output, indices, x.shape, n)


_register_max_pool(
    2, aten.max_pool2d_with_indices.default, aten.max_pool2d_with_indices_backward.default
)
_register_max_pool(
    3, aten.max_pool3d_with_indices.default, aten.max_pool3d_with_indices_backward.default
)


# ---- average


def _divisors(window: Window, count_include_pad, divisor_override) -> np.ndarray:
    """What each window's sum is divided by, of shape `window.out`."""
    if divisor_override is not None:
        return np.full(window.out, divisor_override, np.float64)
    total = np.ones(window.out)
    for d in range(window.n):
        start = np.arange(window.out[d]) * window.stride[d] - window.padding[d]
        end = np.minimum(start + window.kernel[d], window.size[d] + window.padding[d])
        if not count_include_pad:
            start, end = np.maximum(start, 0), np.minimum(end, window.size[d])
        total = total * (end - start).reshape((-1,) + (1,) * (window.n - d - 1))
    return total


def _average(x, window: Window, divisors: np.ndarray):
    n = window.n
    pads = [(0, 0)] * (x.ndim - n) + window.pads()
    # A crop (negative padding) is not something reduce_window does.
    crop = [slice(None)] * (x.ndim - n)
    for d, (before, after) in enumerate(window.pads()):
        crop.append(slice(0, window.size[d] + min(after, 0)))
        pads[x.ndim - n + d] = (before, max(after, 0))
    ones = (1,) * (x.ndim - n)
    total = jax.lax.reduce_window(
        x[tuple(crop)],
        np.zeros((), x.dtype),
        jax.lax.add,
        ones + window.kernel,
        ones + window.stride,
        pads,
    )
    if x.dtype.kind in "iu":
        return jax.lax.div(total, jnp.broadcast_to(jnp.asarray(divisors, x.dtype), total.shape))
    return total / jnp.asarray(divisors, x.dtype)


def _register_avg_pool(n, forward, backward):
    @lowers(forward)
    def avg_pool(
        x,
        kernel_size,
        stride=(),
        padding=0,
        ceil_mode=False,
        count_include_pad=True,
        divisor_override=None,
    ):
        window = Window(n, x.shape, kernel_size, stride, padding, 1, ceil_mode)
        divisors = _divisors(window, count_include_pad, divisor_override)
        return cast(_average(cast(x, compute_dtype(x.dtype)), window, divisors), x.dtype)

    @lowers(backward)
    def avg_pool_backward(
        grad_output,
        x,
        kernel_size,
        stride,
        padding,
        ceil_mode,
        count_include_pad,
        divisor_override,
    ):
        window = Window(n, x.shape, kernel_size, stride, padding, 1, ceil_mode)
        divisors = _divisors(window, count_include_pad, divisor_override)
        return _pull(lambda v: _average(v, window, divisors), x, grad_output)


def _pull(forward, x, grad):
    """The gradient of a linear forward, in the compute dtype, rounded at the end."""
    wide = compute_dtype(x.dtype)
    like = jax.ShapeDtypeStruct(x.shape, wide)
    (out,) = jax.linear_transpose(forward, like)(cast(grad, wide))
    return cast(out, x.dtype)


_register_avg_pool(2, aten.avg_pool2d.default, aten.avg_pool2d_backward.default)
_register_avg_pool(3, aten.avg_pool3d.default, aten.avg_pool3d_backward.default)


@lowers(aten.avg_pool1d.default)
def avg_pool1d(x, kernel_size, stride=(), padding=0, ceil_mode=False, count_include_pad=True):
    window = Window(1, x.shape, kernel_size, stride, padding, 1, ceil_mode)
    divisors = _divisors(window, count_include_pad, None)
    return cast(_average(cast(x, compute_dtype(x.dtype)), window, divisors), x.dtype)


# ---- adaptive


def _bounds(size: int, out: int) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of each adaptive window."""
    i = np.arange(out)
    return (i * size) // out, -(-(i + 1) * size // out)


def _averaging_matrix(size: int, out: int, dtype) -> jax.Array:
    start, end = _bounds(size, out)
    at = np.arange(size)
    inside = (at >= start[:, None]) & (at < end[:, None])
    return jnp.asarray(inside / (end - start)[:, None], dtype)


def _adaptive_average(x, out: Sequence[int]):
    n = len(out)
    for d in range(n):
        axis = x.ndim - n + d
        if x.shape[axis] % out[d] == 0 if out[d] else False:
            split = (*x.shape[:axis], out[d], x.shape[axis] // out[d], *x.shape[axis + 1 :])
            x = x.reshape(split).mean(axis + 1)
        else:
            matrix = _averaging_matrix(x.shape[axis], out[d], x.dtype)
            x = jnp.moveaxis(
                jnp.tensordot(x, matrix, ((axis,), (1,)), precision=jax.lax.Precision.HIGHEST),
                -1,
                axis,
            )
    return x


def _register_adaptive_average(n, forward, backward):
    @lowers(forward)
    def adaptive_avg_pool(x, output_size):
        wide = compute_dtype(x.dtype)
        return cast(_adaptive_average(cast(x, wide), expand_list(output_size, n)), x.dtype)

    @lowers(backward)
    def adaptive_avg_pool_backward(grad_output, x):
        out = grad_output.shape[-n:]
        return _pull(lambda v: _adaptive_average(v, out), x, grad_output)


_register_adaptive_average(
    2, aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d_backward.default
)
_register_adaptive_average(
    3, aten._adaptive_avg_pool3d.default, aten._adaptive_avg_pool3d_backward.default
)


def _adaptive_max(x, out: Sequence[int]):
    """Gathers each window, padded to the widest by repeating its first element."""
    n = len(out)
    lead = x.ndim - n
    positions = np.zeros((1,) * (2 * n), np.int64)
    for d in range(n):
        size = x.shape[lead + d]
        start, end = _bounds(size, out[d])
        width = int((end - start).max()) if out[d] else 1
        at = start[:, None] + np.arange(width)
        at = np.where(at < end[:, None], at, start[:, None])
        shape = [1] * (2 * n)
        shape[d], shape[n + d] = at.shape
        positions = positions * size + at.reshape(shape)
    positions = positions.reshape(*out, -1)
    planes = x.reshape(*x.shape[:lead], -1)
    windows = planes[..., positions]
    best = jnp.argmax(windows, axis=-1, keepdims=True)
    values = jnp.take_along_axis(windows, best, axis=-1)[..., 0]
    flat = jnp.broadcast_to(jnp.asarray(positions), windows.shape)
    return values, jnp.take_along_axis(flat, best, axis=-1)[..., 0]


def _register_adaptive_max(n, forward, backward):
    @lowers(forward)
    def adaptive_max_pool(x, output_size):
        out = expand_list(output_size, n)
        if x.size == 0 or 0 in out:
            shape = (*x.shape[:-n], *out)
            return jnp.zeros(shape, x.dtype), jnp.zeros(shape, np.int64)
        return _adaptive_max(x, out)

    @lowers(backward)
    def adaptive_max_pool_backward(grad_output, x, indices):
        return scatter_planes(grad_output, indices, x.shape, n)


_register_adaptive_max(
    2, aten.adaptive_max_pool2d.default, aten.adaptive_max_pool2d_backward.default
)
_register_adaptive_max(
    3, aten.adaptive_max_pool3d.default, aten.adaptive_max_pool3d_backward.default
)
