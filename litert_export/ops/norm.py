"""Normalisation: batch norm with stored statistics, layer, group, instance and RMS norm.

Batch norm becomes one scale and one shift, which the fusion pass folds into the convolution or
linear layer before it. The others reduce over axes and stay in the layout of their input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from litert_export.graph import Graph, Value
from litert_export.ops import lowers
from litert_export.ops._shared import (
    float32,
    ints,
    is_float,
    to_channels_first,
    to_channels_last,
)
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported

NONE = {"fused_activation_function": "NONE"}


def _per_channel(g: Graph, x: Value | None, rank: int) -> Value | None:
    """[C] -> [1, C, 1, …] of the given rank."""
    if x is None:
        return None
    return g.reshape(float32(g, x), (1, x.shape[0], *(1,) * (rank - 2)))


def _affine(g: Graph, y: Value, weight: Value | None, bias: Value | None) -> Value:
    if weight is not None:
        y = g.emit("MUL", y, weight, shape=y.shape, **NONE)
    if bias is not None:
        y = g.emit("ADD", y, bias, shape=y.shape, **NONE)
    return y


@lowers(aten._native_batch_norm_legit_no_training.default)
def batch_norm(
    g: Graph,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[Value, None, None]:
    y = _stored(g, input, weight, bias, running_mean, running_var, eps)
    return y, None, None


@lowers(aten.batch_norm.default)
def batch_norm_layer(
    g: Graph,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Value:
    if training:
        raise Unsupported("a batch norm in training mode; call model.eval() before exporting")
    if running_mean is None or running_var is None:
        raise Unsupported("a batch norm without statistics")
    return _stored(g, input, weight, bias, running_mean, running_var, eps)


def _stored(
    g: Graph,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    var: Value,
    eps: float,
) -> Value:
    given = [v for v in (weight, bias, mean, var) if v is not None]
    if any(v.data is None for v in given):
        return _stored_dynamic(g, x, weight, bias, mean, var, eps)
    m, v = (np.asarray(a.data, np.float64) for a in (mean, var))
    scale = 1 / np.sqrt(v + eps)
    if weight is not None:
        scale = scale * np.asarray(weight.data, np.float64)
    shift = -m * scale
    if bias is not None:
        shift = shift + np.asarray(bias.data, np.float64)
    shape = (1, x.shape[1], *(1,) * (x.rank - 2))
    a, b = (g.const(c.astype(np.float32).reshape(shape)) for c in (scale, shift))
    return g.cast(_affine(g, float32(g, x), a, b), x.dtype)


def _stored_dynamic(
    g: Graph,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    var: Value,
    eps: float,
) -> Value:
    w, b, m, v = (_per_channel(g, a, x.rank) for a in (weight, bias, mean, var))
    assert m is not None and v is not None
    scale = g.emit("RSQRT", g.emit("ADD", v, g.const(np.float32(eps)), **NONE))
    y = g.emit("MUL", g.emit("SUB", float32(g, x), m, shape=x.shape, **NONE), scale, **NONE)
    return g.cast(_affine(g, y, w, b), x.dtype)


def moments(g: Graph, x: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """(mean, variance) over axes, which keep size 1; the variance is that of the population."""
    shape = [1 if i in axes else d for i, d in enumerate(x.shape)]
    where = ints(g, axes)
    mean = g.emit("MEAN", x, where, shape=shape, keep_dims=True)
    spread = g.emit("SQUARED_DIFFERENCE", x, mean)
    return mean, g.emit("MEAN", spread, where, shape=shape, keep_dims=True)


def normalised(g: Graph, x: Value, axes: Sequence[int], eps: float) -> tuple[Value, Value, Value]:
    """((x - mean) * rstd, mean, rstd) over axes."""
    mean, var = moments(g, x, axes)
    rstd = g.emit("RSQRT", g.emit("ADD", var, g.const(np.float32(eps)), **NONE))
    centred = g.emit("SUB", x, mean, **NONE)
    return g.emit("MUL", centred, rstd, **NONE), mean, rstd


@lowers(aten.native_layer_norm.default)
def native_layer_norm(
    g: Graph,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> tuple[Value, Value, Value]:
    axes = list(range(input.rank - len(normalized_shape), input.rank))
    y, mean, rstd = normalised(g, float32(g, input), axes, eps)
    w, b = (None if v is None else float32(g, v) for v in (weight, bias))
    kinds = [r.dtype for r in g.result]
    y = g.cast(_affine(g, y, w, b), kinds[0])
    return y, g.cast(mean, kinds[1]), g.cast(rstd, kinds[2])


@lowers(aten.native_group_norm.default)
def native_group_norm(
    g: Graph,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[Value, Value, Value]:
    x = float32(g, input)
    w, b = (_per_channel(g, v, x.rank) for v in (weight, bias))
    if x.rank == 4:
        # Channels-last, as the convolutions around it are, and never beyond rank 4.
        last = to_channels_last(g, x)
        parts = g.reshape(last, (N, HxW, group, C // group))
        y, mean, rstd = normalised(g, parts, [1, 3], eps)
        y = to_channels_first(g, g.reshape(y, last.shape))
    else:
        parts = g.reshape(x, (N, group, C // group * HxW))
        y, mean, rstd = normalised(g, parts, [2], eps)
        y = g.reshape(y, x.shape)
    y = g.cast(_affine(g, y, w, b), input.dtype)
    rest = [g.cast(g.reshape(v, (N, group)), input.dtype) for v in (mean, rstd)]
    return y, rest[0], rest[1]


@lowers(aten.instance_norm.default)
def instance_norm(
    g: Graph,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Value:
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise Unsupported("an instance norm without statistics")
        return _stored(g, input, weight, bias, running_mean, running_var, eps)
    x = float32(g, input)
    y, _, _ = normalised(g, x, list(range(2, x.rank)), eps)
    w, b = (_per_channel(g, v, x.rank) for v in (weight, bias))
    return g.cast(_affine(g, y, w, b), input.dtype)


def _rms(
    g: Graph, x: Value, count: int, weight: Value | None, eps: float | None
) -> tuple[Value, Value]:
    if not is_float(x):
        raise Unsupported(f"RMS norm of {x.dtype}")
    a = float32(g, x)
    # PyTorch's default is the machine epsilon of the type it computes in.
    eps = float(np.finfo(np.float32).eps) if eps is None else eps
    axes = list(range(x.rank - count, x.rank))
    shape = [1 if i in axes else d for i, d in enumerate(x.shape)]
    squares = g.emit("MUL", a, a, **NONE)
    mean = g.emit("MEAN", squares, ints(g, axes), shape=shape, keep_dims=True)
    rstd = g.emit("RSQRT", g.emit("ADD", mean, g.const(np.float32(eps)), **NONE))
    y = g.emit("MUL", a, rstd, **NONE)
    w = None if weight is None else float32(g, weight)
    return _affine(g, y, w, None), rstd


@lowers(aten.rms_norm.default)
def rms_norm(
    g: Graph, input: Value, normalized_shape: Sequence[int], weight: Value | None, eps: float | None
) -> Value:
    y, _ = _rms(g, input, len(normalized_shape), weight, eps)
    return g.cast(y, g.result[0].dtype)


@lowers(aten._fused_rms_norm.default)
def fused_rms_norm(
    g: Graph, input: Value, normalized_shape: Sequence[int], weight: Value | None, eps: float | None
) -> tuple[Value, Value]:
    y, rstd = _rms(g, input, len(normalized_shape), weight, eps)
    kinds: list[Any] = [r.dtype for r in g.result]
    return g.cast(y, kinds[0]), g.cast(rstd, kinds[1])
