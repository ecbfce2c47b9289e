"""Convolutions: 1-d, 2-d and 3-d, grouped, depthwise, dilated, transposed.

`aten.convolution` is what every convolution decomposes to. LiteRT's kernels are channels-last, so
each lowering transposes at its borders and leaves it to the layout pass to remove that. Padding is
SAME where that means the same, else an explicit PAD before VALID.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from litert_export.graph import Graph, Value
from litert_export.ops import lowers
from litert_export.ops._shared import (
    float32,
    ints,
    may_be_same,
    pad,
    same_padding,
    slice_,
    spatial,
    to_channels_first,
    to_channels_last,
)
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported


@lowers(aten.convolution.default)
def convolution(
    g: Graph,
    input: Value,
    weight: Value,
    bias: Value | None,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    x, count = input, weight.rank - 2
    if x.rank != weight.rank or count not in (1, 2, 3):
        raise Unsupported(f"a convolution of rank {x.rank} with a weight of rank {weight.rank}")
    dtype = x.dtype
    x, weight = float32(g, x), float32(g, weight)
    bias = None if bias is None else float32(g, bias)
    sizes = [spatial(v, count) for v in (stride, padding, dilation, output_padding)]
    if count == 1:
        # One-dimensional: a height of 1 in front of the width.
        x, weight = (g.reshape(v, (*v.shape[:2], 1, v.shape[2])) for v in (x, weight))
        sizes = [[fill, *v] for v, fill in zip(sizes, (1, 0, 1, 0), strict=True)]
    if transposed:
        y = _transposed(g, x, weight, bias, *sizes, groups)
    else:
        y = _forward(g, x, weight, bias, *sizes[:3], groups)
    y = to_channels_first(g, y)
    if count == 1:
        y = g.reshape(y, (y.shape[0], y.shape[1], y.shape[3]))
    return g.cast(y, dtype)


def zeros(g: Graph, count: int) -> Value:
    """A bias of zeros: LiteRT's convolutions always take one."""
    return g.const(np.zeros(count, np.float32))


def _forward(
    g: Graph,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Value:
    """Channels-last result of a channels-first input."""
    bias = zeros(g, weight.shape[0]) if bias is None else bias
    x = to_channels_last(g, x)
    windows = [d * (k - 1) + 1 for k, d in zip(weight.shape[2:], dilation, strict=True)]
    same = [same_padding(*a) for a in zip(x.shape[1:-1], windows, stride, strict=True)]
    alike = same == [(p, p) for p in padding] and may_be_same(g, stride)
    mode = "SAME" if alike else "VALID"
    if mode == "VALID":
        x = pad(g, x, [(0, 0), *((p, p) for p in padding), (0, 0)])
    out = [
        -(-n // s) if mode == "SAME" else (n - w) // s + 1
        for n, w, s in zip(x.shape[1:-1], windows, stride, strict=True)
    ]
    if len(out) == 3:
        return _conv_3d(g, x, weight, bias, stride, dilation, groups, mode, out)
    return conv_2d(g, x, weight, bias, stride, dilation, groups, mode, out)


def conv_2d(
    g: Graph,
    x: Value,
    weight: Value,
    bias: Value,
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    mode: str,
    out: Sequence[int],
) -> Value:
    """CONV_2D or DEPTHWISE_CONV_2D of an NHWC input with an OIHW weight."""
    channels = weight.shape[0]
    options = {
        "stride_h": stride[0],
        "stride_w": stride[1],
        "dilation_h_factor": dilation[0],
        "dilation_w_factor": dilation[1],
        "padding": mode,
        "fused_activation_function": "NONE",
    }
    shape = (x.shape[0], *out, channels)
    if groups > 1 and groups == x.shape[3]:
        kernel = g.transpose(weight, (1, 2, 3, 0))
        multiplier = channels // groups
        return g.emit(
            "DEPTHWISE_CONV_2D",
            x,
            kernel,
            bias,
            shape=shape,
            dtype=x.dtype,
            depth_multiplier=multiplier,
            **options,
        )
    return g.emit("CONV_2D", x, g.transpose(weight, (0, 2, 3, 1)), bias, shape=shape, **options)


def _conv_3d(
    g: Graph,
    x: Value,
    weight: Value,
    bias: Value,
    stride: list[int],
    dilation: list[int],
    groups: int,
    mode: str,
    out: list[int],
) -> Value:
    options = {
        "stride_d": stride[0],
        "stride_h": stride[1],
        "stride_w": stride[2],
        "dilation_d_factor": dilation[0],
        "dilation_h_factor": dilation[1],
        "dilation_w_factor": dilation[2],
        "padding": mode,
        "fused_activation_function": "NONE",
    }
    parts = []
    for a, w, b in _groups(g, x, weight, bias, groups, weight_axis=0):
        kernel = g.transpose(w, (2, 3, 4, 1, 0))
        shape = (x.shape[0], *out, w.shape[0])
        parts.append(g.emit("CONV_3D", a, kernel, b, shape=shape, **options))
    return _concat(g, parts)


def _groups(
    g: Graph, x: Value, weight: Value, bias: Value | None, groups: int, weight_axis: int
) -> list[tuple[Value, Value, Value | None]]:
    """(input, weight, bias) of each group; the input is split by its last axis."""
    if groups == 1:
        return [(x, weight, bias)]
    xs, ws = split(g, x, groups, x.rank - 1), split(g, weight, groups, weight_axis)
    bs = [None] * groups if bias is None else split(g, bias, groups, 0)
    return list(zip(xs, ws, bs, strict=True))


def split(g: Graph, x: Value, count: int, axis: int) -> list[Value]:
    """Equal parts along an axis; constants are cut at once."""
    if x.data is not None:
        parts = np.split(x.data, count, axis)
        return [g.const(np.ascontiguousarray(p), name=f"{x.name}.{i}") for i, p in enumerate(parts)]
    shape = [d // count if i == axis else d for i, d in enumerate(x.shape)]
    axis_value = g.const(np.asarray(axis, np.int32))
    outputs = [(shape, x.dtype)] * count
    result: list[Value] = g.emit("SPLIT", axis_value, x, outputs=outputs, num_splits=count)
    return result


def _concat(g: Graph, parts: list[Value]) -> Value:
    if len(parts) == 1:
        return parts[0]
    axis = parts[0].rank - 1
    shape = (*parts[0].shape[:-1], sum(p.shape[-1] for p in parts))
    return g.emit("CONCATENATION", *parts, shape=shape, axis=axis, fused_activation_function="NONE")


def _transposed(
    g: Graph,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    output_padding: list[int],
    groups: int,
) -> Value:
    """Channels-last result: the full result, cropped by the padding, extended by output_padding."""
    weight = _dilated(g, weight, dilation)
    x = to_channels_last(g, x)
    kernel = weight.shape[2:]
    full = [(n - 1) * s + k for n, s, k in zip(x.shape[1:-1], stride, kernel, strict=True)]
    out = [f - 2 * p + o for f, p, o in zip(full, padding, output_padding, strict=True)]
    if any(n < 1 for n in out):
        raise Unsupported(f"a transposed convolution with the empty result {out}")
    if groups > 1 and x.rank == 4:
        parts = [_by_dilation(g, x, weight, bias, stride, padding, out, groups)]
        return parts[0]
    parts = []
    for a, w, b in _groups(g, x, weight, bias, groups, weight_axis=0):
        parts.append(_one_transposed(g, a, w, b, stride, padding, full, out))
    return _concat(g, parts)


def _dilated(g: Graph, weight: Value, dilation: list[int]) -> Value:
    """The weight with zeros between its taps: LiteRT's transposed kernels know no dilation."""
    if all(d == 1 for d in dilation):
        return weight
    if weight.data is None:
        raise Unsupported("a dilated transposed convolution whose weight is computed")
    sizes = [d * (k - 1) + 1 for k, d in zip(weight.shape[2:], dilation, strict=True)]
    data = np.zeros((*weight.shape[:2], *sizes), np.float32)
    data[(slice(None), slice(None), *(slice(None, None, d) for d in dilation))] = weight.data
    return g.const(data, name=weight.name)


def _one_transposed(
    g: Graph,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: list[int],
    padding: list[int],
    full: list[int],
    out: list[int],
) -> Value:
    same = all(
        -(-n // s) == i and same_padding(n, k, s)[0] == p and f - n == sum(same_padding(n, k, s))
        for i, n, k, s, p, f in zip(
            x.shape[1:-1], out, weight.shape[2:], stride, padding, full, strict=True
        )
    )
    short = [max(n + p - f, 0) for n, p, f in zip(out, padding, full, strict=True)]
    channels = weight.shape[1]
    late_bias = bias if any(short) else None
    made = _kernel(g, x, weight, None if any(short) else bias, stride, same, out if same else full)
    if not same:
        sizes = [n - s for n, s in zip(out, short, strict=True)]
        made = slice_(g, made, [0, *padding, 0], [x.shape[0], *sizes, channels])
        made = pad(g, made, [(0, 0), *((0, s) for s in short), (0, 0)])
    if late_bias is not None:
        made = g.emit("ADD", made, late_bias, fused_activation_function="NONE")
    return made


def _kernel(
    g: Graph,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: list[int],
    same: bool,
    out: list[int],
) -> Value:
    shape = (x.shape[0], *out, weight.shape[1])
    mode = "SAME" if same else "VALID"
    inputs = [ints(g, shape)]
    if x.rank == 4:
        inputs += [g.transpose(weight, (1, 2, 3, 0)), x] + ([] if bias is None else [bias])
        return g.emit(
            "TRANSPOSE_CONV",
            *inputs,
            shape=shape,
            dtype=x.dtype,
            stride_h=stride[0],
            stride_w=stride[1],
            padding=mode,
        )
    inputs += [g.transpose(weight, (2, 3, 4, 1, 0)), x]
    inputs.append(zeros(g, weight.shape[1]) if bias is None else bias)
    return g.emit(
        "CONV_3D_TRANSPOSE",
        *inputs,
        shape=shape,
        dtype=x.dtype,
        stride_d=stride[0],
        stride_h=stride[1],
        stride_w=stride[2],
        dilation_d_factor=1,
        dilation_h_factor=1,
        dilation_w_factor=1,
        padding=mode,
        fused_activation_function="NONE",
    )


def _by_dilation(
    g: Graph,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: list[int],
    padding: list[int],
    out: list[int],
    groups: int,
) -> Value:
    """Grouped: zeros between the input's elements, then a plain convolution with flipped taps.

    TRANSPOSE_CONV knows no groups, and one call per group would be thousands for depthwise ones.
    """
    if weight.data is None:
        raise Unsupported("a grouped transposed convolution whose weight is computed")
    size_in, per_group = weight.shape[:2]
    kernel = weight.shape[2:]
    flipped = weight.data[:, :, ::-1, ::-1]
    flipped = flipped.reshape(groups, size_in // groups, per_group, *kernel).swapaxes(1, 2)
    flipped = flipped.reshape(groups * per_group, size_in // groups, *kernel)
    taps = g.const(np.ascontiguousarray(flipped), name=weight.name)
    if any(s > 1 for s in stride):
        sizes = [(n - 1) * s + 1 for n, s in zip(x.shape[1:-1], stride, strict=True)]
        zero = g.const(np.float32(0))
        shape = (x.shape[0], *sizes, x.shape[3])
        x = g.emit("DILATE", x, ints(g, [1, *stride, 1]), zero, shape=shape)
    begin = [k - 1 - p for k, p in zip(kernel, padding, strict=True)]
    end = [n + k - 1 - d - b for n, k, d, b in zip(out, kernel, x.shape[1:-1], begin, strict=True)]
    crop = [max(-b, 0) for b in begin], [max(-e, 0) for e in end]
    sizes = [d - a - b for d, a, b in zip(x.shape[1:-1], *crop, strict=True)]
    x = slice_(g, x, [0, *crop[0], 0], [x.shape[0], *sizes, x.shape[3]])
    amounts = [(max(b, 0), max(e, 0)) for b, e in zip(begin, end, strict=True)]
    x = pad(g, x, [(0, 0), *amounts, (0, 0)])
    bias = zeros(g, groups * per_group) if bias is None else bias
    return conv_2d(g, x, taps, bias, [1, 1], [1, 1], groups, "VALID", out)
