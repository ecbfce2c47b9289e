"""Upsampling and downsampling: nearest, linear, cubic and antialiased, in one to three dimensions.

Every such map is separable and linear, with weights that depend on sizes only: one matrix (or one
list of indices) per axis, taken from PyTorch itself by resizing the identity. Where LiteRT's own
RESIZE operator means the same, it is used instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from litert_export.graph import Graph, Value
from litert_export.ops import lowers
from litert_export.ops._shared import float32, ints, to_channels_first, to_channels_last
from torch_tpu_unified.core.aten import aten


def _along(
    op: Any, count: int, axis: int, n: int, out: int, flags: tuple[Any, ...], scale: Any
) -> np.ndarray:
    """The [n, out] matrix of one axis: column j holds the weights of output j."""
    # The other axes have length 2: PyTorch's antialiased kernels go wrong on an axis of length 1.
    shape, size, scales = [2] * count, [2] * count, [None] * count
    shape[axis], size[axis], scales[axis] = n, out, scale
    eye = torch.eye(n, dtype=torch.float64)
    eye = eye.reshape(n, 1, *(n if i == axis else 1 for i in range(count))).expand(n, 1, *shape)
    with torch.no_grad():
        made = op(eye.contiguous(), size, *flags, *scales)
    return made.movedim(axis + 2, 1).flatten(2)[..., 0].numpy()


def _sizes(g: Graph, x: Value, count: int, scales: Sequence[float] | None) -> list[Any]:
    """(axis, size, output size, scale) of the spatial dimensions."""
    out = g.result[0].shape[2:]
    given = list(scales) if scales else [None] * count
    return list(zip(range(count), x.shape[2:], out, given, strict=True))


def _matrix(g: Graph, x: Value, axis: int, weights: np.ndarray) -> Value:
    """Apply an [in, out] matrix along one axis by FULLY_CONNECTED."""
    order = [*(d for d in range(x.rank) if d != axis), axis]
    y = g.transpose(x, order)
    w = g.const(np.ascontiguousarray(weights.T.astype(np.float32)))
    y = g.emit(
        "FULLY_CONNECTED",
        y,
        w,
        shape=(*y.shape[:-1], weights.shape[1]),
        keep_num_dims=True,
        fused_activation_function="NONE",
    )
    return g.transpose(y, np.argsort(order).tolist())


def _select(g: Graph, x: Value, axis: int, index: np.ndarray) -> Value:
    shape = [len(index) if i == axis else d for i, d in enumerate(x.shape)]
    return g.emit("GATHER", x, ints(g, index.tolist()), shape=shape, axis=axis, batch_dims=0)


def _nearest(g: Graph, x: Value, op: Any, count: int, scales: Sequence[float] | None) -> Value:
    plans = []
    for axis, n, out, scale in _sizes(g, x, count, scales):
        plans.append((axis, n, out, _along(op, count, axis, n, out, (), scale).argmax(0)))
    whole = all(
        out % n == 0 and np.array_equal(i, np.arange(out) // (out // n)) for _, n, out, i in plans
    )
    if count == 2 and whole and x.dtype == "float32":
        return _resize(g, x, "RESIZE_NEAREST_NEIGHBOR", align_corners=False)
    for axis, n, _, index in plans:
        if not np.array_equal(index, np.arange(n)):
            x = _select(g, x, axis + 2, index)
    return x


def _resize(g: Graph, x: Value, code: str, **options: bool) -> Value:
    out = g.result[0].shape
    y = to_channels_last(g, x)
    y = g.emit(
        code, y, ints(g, out[2:]), shape=(out[0], *out[2:], out[1]), dtype=x.dtype, **options
    )
    return to_channels_first(g, y)


def _weighted(
    g: Graph, input: Value, op: Any, count: int, flags: tuple[Any, ...], scales: Any
) -> Value:
    x = float32(g, input)
    for axis, n, out, scale in _sizes(g, x, count, scales):
        weights = _along(op, count, axis, n, out, flags, scale)
        if n != out or not np.array_equal(weights, np.eye(n)):
            x = _matrix(g, x, axis + 2, weights)
    return g.cast(x, input.dtype)


def _bilinear(g: Graph, input: Value, align_corners: bool, scales: Any) -> Value:
    dims = _sizes(g, input, 2, scales)
    # With a scale of its own PyTorch maps coordinates by it, LiteRT always by the sizes.
    same = all(s is None or out == n * s for _, n, out, s in dims)
    # One output element with aligned corners is the first input in PyTorch.
    if not same or (align_corners and any(out == 1 for _, _, out, _ in dims)):
        op = torch.ops.aten.upsample_bilinear2d.default
        return _weighted(g, input, op, 2, (align_corners,), scales)
    x = float32(g, input)
    options = {"align_corners": align_corners, "half_pixel_centers": not align_corners}
    return g.cast(_resize(g, x, "RESIZE_BILINEAR", **options), input.dtype)


@lowers(aten.upsample_bilinear2d.vec)
def upsample_bilinear2d(
    g: Graph, input: Value, output_size: Any, align_corners: bool, scale_factors: Any
) -> Value:
    return _bilinear(g, input, align_corners, scale_factors)


def _register_nearest(count: int, name: str) -> None:
    packet = getattr(torch.ops.aten, name)

    @lowers(getattr(aten, name).vec)
    def lowering(g: Graph, input: Value, output_size: Any, scale_factors: Any) -> Value:
        return _nearest(g, input, packet.default, count, scale_factors)

    if count == 1:

        @lowers(getattr(aten, name).default)
        def one(g: Graph, x: Value, output_size: Any, scales: Any) -> Value:
            return _nearest(g, x, packet.default, 1, [scales])

    elif count == 2:

        @lowers(getattr(aten, name).default)
        def two(g: Graph, x: Value, output_size: Any, scales_h: Any, scales_w: Any) -> Value:
            return _nearest(g, x, packet.default, 2, [scales_h, scales_w])

    else:

        @lowers(getattr(aten, name).default)
        def three(
            g: Graph, x: Value, output_size: Any, scales_d: Any, scales_h: Any, scales_w: Any
        ) -> Value:
            return _nearest(g, x, packet.default, 3, [scales_d, scales_h, scales_w])


for _count, _name in ((1, "nearest1d"), (2, "nearest2d"), (3, "nearest3d")):
    _register_nearest(_count, f"upsample_{_name}")
    _register_nearest(_count, f"_upsample_{_name.replace('nearest', 'nearest_exact')}")


def _register_weighted(count: int, name: str) -> None:
    packet = getattr(torch.ops.aten, name)

    @lowers(getattr(aten, name).vec)
    def lowering(
        g: Graph, input: Value, output_size: Any, align_corners: bool, scale_factors: Any
    ) -> Value:
        return _weighted(g, input, packet.default, count, (align_corners,), scale_factors)


for _count, _name in (
    (1, "upsample_linear1d"),
    (3, "upsample_trilinear3d"),
    (2, "upsample_bicubic2d"),
    (2, "_upsample_bilinear2d_aa"),
    (2, "_upsample_bicubic2d_aa"),
):
    _register_weighted(_count, _name)
