"""Padding in every mode, and the rearrangements between channels and space.

Constant padding is PAD or PADV2, reflection is MIRROR_PAD, the other modes are a GATHER with
constant positions per dimension. LiteRT's DEPTH_TO_SPACE wants channels as (block, block, C),
PyTorch has (C, block, block), so a constant permutation of channels stands beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from litert_export.graph import Graph, Value
from litert_export.ops import lowers
from litert_export.ops._dims import count, i32, pad, slice_dim, take
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported

_BLOCK_TYPES = ("float32", "int32", "int64", "int8", "uint8")


def _by_dim(x: Value, amounts: Sequence[int]) -> list[tuple[int, int]]:
    """PyTorch's list (last dimension first) as (before, after) per dimension."""
    pairs = list(zip(amounts[::2], amounts[1::2], strict=True))[::-1]
    return [(0, 0)] * (x.rank - len(pairs)) + pairs


def _constant(g: Graph, x: Value, amounts: Sequence[int], value: float | int | bool) -> Value:
    pads = _by_dim(x, amounts)
    for dim, (before, after) in enumerate(pads):  # negative amounts crop
        x = slice_dim(g, x, dim, max(0, -before), x.shape[dim] - max(0, -after))
    return pad(g, x, [(max(0, b), max(0, a)) for b, a in pads], value)


def _positions(mode: str, size: int, before: int, after: int) -> np.ndarray:
    """Where each element of the padded dimension comes from."""
    at = np.arange(-before, size + after)
    if mode == "circular":
        return at % size
    if mode == "replicate":
        return np.clip(at, 0, size - 1)
    period = max(1, 2 * (size - 1))
    at = np.abs(at) % period
    return np.where(at < size, at, period - at)


def _spread(g: Graph, x: Value, amounts: Sequence[int], mode: str) -> Value:
    pads = _by_dim(x, amounts)
    if mode == "reflect" and all(p >= 0 for pair in pads for p in pair) and x.rank <= 5:
        shape = [b + d + a for d, (b, a) in zip(x.shape, pads, strict=True)]
        return g.emit("MIRROR_PAD", x, i32(g, pads), shape=shape, mode="REFLECT")
    for dim, (before, after) in enumerate(pads):
        if before or after:
            x = take(g, x, i32(g, _positions(mode, x.shape[dim], before, after)), dim)
    return x


@lowers(aten.constant_pad_nd.default)
def constant_pad_nd(g: Graph, x: Value, pad: Sequence[int], value: float | int | bool) -> Value:
    return _constant(g, x, pad, value)


@lowers(aten.pad.default)
def pad_(g: Graph, x: Value, pad: Sequence[int], mode: str, value: float | None) -> Value:
    if mode == "constant":
        return _constant(g, x, pad, value or 0)
    if mode not in ("reflect", "replicate", "circular"):
        raise Unsupported(f"{mode!r} is not one of constant, reflect, replicate, circular")
    return _spread(g, x, pad, mode)


@lowers(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)
def reflection_pad(g: Graph, x: Value, padding: Sequence[int]) -> Value:
    return _spread(g, x, padding, "reflect")


@lowers(
    aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default
)
def replication_pad(g: Graph, x: Value, padding: Sequence[int]) -> Value:
    return _spread(g, x, padding, "replicate")


# channels and space


def _channel_order(channels: int, block: int) -> np.ndarray:
    """For each LiteRT channel (y, x, c) its place in PyTorch's order (c, y, x)."""
    order = np.arange(channels * block * block).reshape(channels, block, block)
    return order.transpose(1, 2, 0).ravel()


@lowers(aten.pixel_shuffle.default)
def pixel_shuffle(g: Graph, x: Value, upscale_factor: int) -> Value:
    r, shape = upscale_factor, g.result[0].shape
    channels, height, width = shape[-3], x.shape[-2], x.shape[-1]
    batch = count(shape[:-3])
    if x.dtype not in _BLOCK_TYPES or not x.size:
        x = g.reshape(x, (batch, channels, r, r, height, width))
        return g.reshape(g.transpose(x, (0, 1, 4, 2, 5, 3)), shape)
    x = g.transpose(g.reshape(x, (batch, channels * r * r, height, width)), (0, 2, 3, 1))
    if channels > 1:
        x = take(g, x, i32(g, _channel_order(channels, r)), 3)
    space = (batch, height * r, width * r, channels)
    x = g.emit("DEPTH_TO_SPACE", x, shape=space, block_size=r)
    return g.reshape(g.transpose(x, (0, 3, 1, 2)), shape)


@lowers(aten.pixel_unshuffle.default)
def pixel_unshuffle(g: Graph, x: Value, downscale_factor: int) -> Value:
    r, shape = downscale_factor, g.result[0].shape
    channels, height, width = x.shape[-3], shape[-2], shape[-1]
    batch = count(shape[:-3])
    if x.dtype not in _BLOCK_TYPES or not x.size:
        x = g.reshape(x, (batch, channels, height, r, width, r))
        return g.reshape(g.transpose(x, (0, 1, 3, 5, 2, 4)), shape)
    x = g.transpose(g.reshape(x, (batch, channels, height * r, width * r)), (0, 2, 3, 1))
    depth = (batch, height, width, channels * r * r)
    x = g.emit("SPACE_TO_DEPTH", x, shape=depth, block_size=r)
    if channels > 1:
        x = take(g, x, i32(g, np.argsort(_channel_order(channels, r))), 3)
    return g.reshape(g.transpose(x, (0, 3, 1, 2)), shape)


@lowers(aten.channel_shuffle.default)
def channel_shuffle(g: Graph, x: Value, groups: int) -> Value:
    order = np.arange(x.shape[1]).reshape(groups, -1).T.ravel()
    return take(g, x, i32(g, order), 1)
