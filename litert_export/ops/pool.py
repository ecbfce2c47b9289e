"""Pooling: maximum, average and adaptive, in one to three dimensions.

Windows that LiteRT's kernels cannot express (dilation, three dimensions, uneven adaptive bins) are
built from slices and reductions, one dimension at a time. LiteRT's MAX_POOL_2D ignores NaN where
PyTorch hands it on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from litert_export.graph import Graph, Value
from litert_export.ops import lowers
from litert_export.ops._shared import (
    float32,
    ints,
    may_be_same,
    pad,
    same_padding,
    spatial,
    to_channels_first,
    to_channels_last,
)
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported


def _batched(g: Graph, x: Value, count: int, body: Callable[[Value], Value]) -> Value:
    """Runs `body` on [N, C, *spatial]; an input without N gets one for the time."""
    if x.rank == count + 1:
        y = body(g.reshape(x, (1, *x.shape)))
        return g.reshape(y, y.shape[1:])
    return body(x)


def _pool_2d(
    g: Graph, code: str, x: Value, window: Sequence[int], stride: Sequence[int], mode: str
) -> Value:
    """One pooling op on an NHWC value."""
    sizes = x.shape[1:3]
    if mode == "SAME":
        out = [-(-n // s) for n, s in zip(sizes, stride, strict=True)]
    else:
        out = [(n - k) // s + 1 for n, k, s in zip(sizes, window, stride, strict=True)]
    return g.emit(
        code,
        x,
        shape=(x.shape[0], *out, x.shape[3]),
        stride_h=stride[0],
        stride_w=stride[1],
        filter_height=window[0],
        filter_width=window[1],
        padding=mode,
        fused_activation_function="NONE",
    )


def _extent(size: int, window: int, stride: int, before: int, out: int) -> tuple[int, int]:
    """(before, after): the padding that `out` windows need; `after` is never negative."""
    return before, max((out - 1) * stride + window - size - before, 0)


def _output(size: int, window: int, stride: int, padding: int, ceil_mode: bool) -> int:
    """PyTorch's output size: with ceil_mode the last window must start inside input or padding."""
    span = size + 2 * padding - window
    out = (-(-span // stride) if ceil_mode else span // stride) + 1
    if ceil_mode and (out - 1) * stride >= size + padding:
        out -= 1
    return out


# maximum


def _max_2d(
    g: Graph,
    x: Value,
    window: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
) -> Value:
    """Maximum pooling of a channels-first value of rank 4."""
    x = to_channels_last(g, x)
    sizes = x.shape[1:3]
    effective = [d * (k - 1) + 1 for k, d in zip(window, dilation, strict=True)]
    out = [_output(*a, ceil_mode) for a in zip(sizes, effective, stride, padding, strict=True)]
    pads = [_extent(*a) for a in zip(sizes, effective, stride, padding, out, strict=True)]
    same = [same_padding(*a) for a in zip(sizes, effective, stride, strict=True)]
    if same == pads and dilation == [1, 1] and may_be_same(g, stride):
        return to_channels_first(g, _pool_2d(g, "MAX_POOL_2D", x, window, stride, "SAME"))
    x = pad(g, x, [(0, 0), *pads, (0, 0)], -math.inf)
    if dilation == [1, 1]:
        y = _pool_2d(g, "MAX_POOL_2D", x, window, stride, "VALID")
    else:
        y = _by_slices(g, x, window, stride, dilation, out)
    return to_channels_first(g, y)


def _by_slices(
    g: Graph,
    x: Value,
    window: list[int],
    stride: list[int],
    dilation: list[int],
    out: list[int],
) -> Value:
    """The maximum over the window's taps, one spatial dimension after the other (channels-last)."""
    for axis, (k, s, d, n) in enumerate(zip(window, stride, dilation, out, strict=True), start=1):
        taps = [_strided(g, x, axis, i * d, s, n) for i in range(k)]
        x = functools.reduce(lambda a, b: g.emit("MAXIMUM", a, b), taps)
    return x


def _strided(g: Graph, x: Value, axis: int, start: int, stride: int, count: int) -> Value:
    """`count` elements of an axis, every `stride`-th from `start`."""
    begin, end, strides = [0] * x.rank, list(x.shape), [1] * x.rank
    begin[axis], end[axis], strides[axis] = start, start + (count - 1) * stride + 1, stride
    shape = [count if i == axis else d for i, d in enumerate(x.shape)]
    return g.emit(
        "STRIDED_SLICE",
        x,
        ints(g, begin),
        ints(g, end),
        ints(g, strides),
        shape=shape,
        begin_mask=0,
        end_mask=0,
        ellipsis_mask=0,
        new_axis_mask=0,
        shrink_axis_mask=0,
    )


@lowers(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(
    g: Graph,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[Value, None]:
    window = spatial(kernel_size, 2)
    sizes = [spatial(v, 2) for v in (stride or window, padding, dilation)]
    dtype = x.dtype
    y = _batched(g, float32(g, x), 2, lambda v: _max_2d(g, v, window, *sizes, ceil_mode=ceil_mode))
    return g.cast(y, dtype), None


@lowers(aten.max_pool2d.default)
def max_pool2d(
    g: Graph,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Value:
    return max_pool2d_with_indices(g, x, kernel_size, stride, padding, dilation, ceil_mode)[0]


@lowers(aten.max_pool1d.default)
def max_pool1d(
    g: Graph,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Value:
    tall = g.reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
    y = max_pool2d(
        g,
        tall,
        [1, *kernel_size],
        [1, *(stride or kernel_size)],
        [0, *padding],
        [1, *dilation],
        ceil_mode,
    )
    return g.reshape(y, (*y.shape[:-2], y.shape[-1]))


@lowers(aten.max_pool3d.default)
def max_pool3d(
    g: Graph,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Value:
    window = spatial(kernel_size, 3)
    sizes = [spatial(v, 3) for v in (stride or window, padding, dilation)]

    def body(v: Value) -> Value:
        v = to_channels_last(g, v)
        effective = [d * (k - 1) + 1 for k, d in zip(window, sizes[2], strict=True)]
        dims = list(zip(v.shape[1:4], effective, sizes[0], sizes[1], strict=True))
        out = [_output(*a, ceil_mode) for a in dims]
        pads = [_extent(*a, n) for a, n in zip(dims, out, strict=True)]
        v = pad(g, v, [(0, 0), *pads, (0, 0)], -math.inf)
        return to_channels_first(g, _by_slices(g, v, window, sizes[0], sizes[2], out))

    return _batched(g, float32(g, x), 3, body)


@lowers(aten.max_pool3d_with_indices.default)
def max_pool3d_with_indices(
    g: Graph,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[Value, None]:
    return max_pool3d(g, x, kernel_size, stride, padding, dilation, ceil_mode), None


# average


def _divisors(
    sizes: Sequence[int],
    window: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    out: Sequence[int],
    count_include_pad: bool,
) -> np.ndarray:
    """What PyTorch divides each window's sum by, over the output's spatial dimensions."""
    result = np.ones((), np.float64)
    for n, k, s, p, o in zip(sizes, window, stride, padding, out, strict=True):
        start = np.arange(o) * s - p
        end = np.minimum(start + k, n + p)
        if not count_include_pad:
            start, end = np.maximum(start, 0), np.minimum(end, n)
        result = np.multiply.outer(result, (end - start).astype(np.float64))
    return result


def _avg_2d(
    g: Graph,
    x: Value,
    window: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Value:
    """Average pooling of a channels-first value of rank 4."""
    x = to_channels_last(g, x)
    sizes = x.shape[1:3]
    dims = list(zip(sizes, window, stride, padding, strict=True))
    out = [_output(*a, ceil_mode) for a in dims]
    pads = [_extent(*a, n) for a, n in zip(dims, out, strict=True)]
    counts = _divisors(sizes, window, stride, padding, out, count_include_pad)
    if divisor is not None:
        counts = np.full_like(counts, divisor)
    same = [same_padding(*a[:3]) for a in dims]
    inside = _divisors(sizes, window, stride, padding, out, False)
    if same == pads and np.array_equal(counts, inside) and may_be_same(g, stride):
        return to_channels_first(g, _pool_2d(g, "AVERAGE_POOL_2D", x, window, stride, "SAME"))
    x = pad(g, x, [(0, 0), *pads, (0, 0)])
    y = _pool_2d(g, "AVERAGE_POOL_2D", x, window, stride, "VALID")
    factor = window[0] * window[1] / counts
    if not np.all(factor == 1):
        values = np.full((), factor.flat[0]) if np.ptp(factor) == 0 else factor[None, :, :, None]
        scale = g.const(values.astype(np.float32))
        y = g.emit("MUL", y, scale, fused_activation_function="NONE")
    return to_channels_first(g, y)


@lowers(aten.avg_pool2d.default)
def avg_pool2d(
    g: Graph,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Value:
    window = spatial(kernel_size, 2)
    sizes = [spatial(v, 2) for v in (stride or window, padding)]
    rest = (ceil_mode, count_include_pad, divisor_override)
    y = _batched(g, float32(g, x), 2, lambda v: _avg_2d(g, v, window, *sizes, *rest))
    return g.cast(y, x.dtype)


@lowers(aten.avg_pool1d.default)
def avg_pool1d(
    g: Graph,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
) -> Value:
    tall = g.reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
    sizes = [[1, *kernel_size], [1, *(stride or kernel_size)], [0, *padding]]
    y = avg_pool2d(g, tall, *sizes, ceil_mode, count_include_pad, None)
    return g.reshape(y, (*y.shape[:-2], y.shape[-1]))


@lowers(aten.avg_pool3d.default)
def avg_pool3d(
    g: Graph,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Value:
    window = spatial(kernel_size, 3)
    step, edge = (spatial(v, 3) for v in (stride or window, padding))

    def body(v: Value) -> Value:
        v = to_channels_last(g, v)
        dims = list(zip(v.shape[1:4], window, step, edge, strict=True))
        out = [_output(*a, ceil_mode) for a in dims]
        counts = _divisors(v.shape[1:4], window, step, edge, out, count_include_pad)
        if divisor_override is not None:
            counts = np.full_like(counts, divisor_override)
        pads = [_extent(*a, n) for a, n in zip(dims, out, strict=True)]
        v = pad(g, v, [(0, 0), *pads, (0, 0)])
        for axis, (k, s, n) in enumerate(zip(window, step, out, strict=True), start=1):
            taps = [_strided(g, v, axis, i, s, n) for i in range(k)]
            add = functools.partial(g.emit, "ADD", fused_activation_function="NONE")
            v = functools.reduce(lambda a, b: add(a, b), taps)
        scale = g.const((1 / counts)[None, ..., None].astype(np.float32))
        return to_channels_first(g, g.emit("MUL", v, scale, fused_activation_function="NONE"))

    return _batched(g, float32(g, x), 3, body)


# adaptive


def bins(size: int, out: int) -> list[tuple[int, int]]:
    """PyTorch's adaptive windows: (start, end) of each of `out` bins."""
    return [((i * size) // out, -(-((i + 1) * size) // out)) for i in range(out)]


def _reduce_bins(g: Graph, x: Value, code: str, axis: int, out: int) -> Value:
    """Each bin of one axis reduced by MEAN or REDUCE_MAX; the axis has `out` elements then."""
    if x.shape[axis] == out:
        return x
    parts = []
    for start, end in bins(x.shape[axis], out):
        piece = _strided(g, x, axis, start, 1, end - start)
        shape = [1 if i == axis else d for i, d in enumerate(x.shape)]
        parts.append(g.emit(code, piece, ints(g, [axis]), shape=shape, keep_dims=True))
    if len(parts) == 1:
        return parts[0]
    shape = [out if i == axis else d for i, d in enumerate(x.shape)]
    return g.emit("CONCATENATION", *parts, shape=shape, axis=axis, fused_activation_function="NONE")


def _adaptive(g: Graph, x: Value, output_size: Sequence[int | None], code: str) -> Value:
    count = len(output_size)
    out = [n if n is not None else d for n, d in zip(output_size, x.shape[-count:], strict=True)]

    def body(v: Value) -> Value:
        v = to_channels_last(g, v)
        sizes = v.shape[1:-1]
        even = all(n % o == 0 for n, o in zip(sizes, out, strict=True))
        if even and count == 2 and out != [1, 1]:
            window = [n // o for n, o in zip(sizes, out, strict=True)]
            pool = "MAX_POOL_2D" if code == "REDUCE_MAX" else "AVERAGE_POOL_2D"
            return to_channels_first(g, _pool_2d(g, pool, v, window, window, "VALID"))
        for axis, o in enumerate(out, start=1):
            v = _reduce_bins(g, v, code, axis, o)
        return to_channels_first(g, v)

    if any(n == 0 for n in out):
        raise Unsupported("adaptive pooling to an empty result")
    return g.cast(_batched(g, float32(g, x), count, body), x.dtype)


@lowers(
    aten._adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool3d.default,
    aten.adaptive_avg_pool1d.default,
)
def adaptive_avg_pool(g: Graph, x: Value, output_size: Sequence[int]) -> Value:
    return _adaptive(g, x, output_size, "MEAN")


@lowers(
    aten.adaptive_max_pool1d.default,
    aten.adaptive_max_pool2d.default,
    aten.adaptive_max_pool3d.default,
)
def adaptive_max_pool(g: Graph, x: Value, output_size: Sequence[int]) -> tuple[Value, None]:
    return _adaptive(g, x, output_size, "REDUCE_MAX"), None
