"""Grid sampling: pixels at computed places, nearest or blended from the four around them.

Images become rows of channels, one GATHER fetches the pixels of one corner for all places, and the
weights are arithmetic on the grid. Places outside count as PyTorch's padding modes say.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from litert_export.graph import Graph, Value
from litert_export.ops._dims import binary, computes, count, scalar, slice_dim, take
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported

_ZEROS, _BORDER, _REFLECTION = range(3)
_BILINEAR, _NEAREST = range(2)


def _number(g: Graph, code: str, x: Value, value: float) -> Value:
    return binary(g, code, x, scalar(g, value, x.dtype))


def _clamp(g: Graph, x: Value, low: float, high: float) -> Value:
    x = g.emit("MAXIMUM", x, scalar(g, low, x.dtype))
    return g.emit("MINIMUM", x, scalar(g, high, x.dtype))


def _reflect(g: Graph, x: Value, low: float, high: float) -> Value:
    """Places folded back between the two ends, as often as needed."""
    span = high - low
    if span <= 0:
        return _number(g, "MUL", x, 0.0)
    x = g.emit("ABS", _number(g, "SUB", x, low))
    # Distance to the nearest multiple of two spans: down, then up again.
    turns = g.emit("FLOOR", _number(g, "DIV", x, 2 * span))
    rest = binary(g, "SUB", x, _number(g, "MUL", turns, 2 * span))
    far = binary(g, "SUB", scalar(g, 2 * span, x.dtype), rest)
    return _number(g, "ADD", g.emit("MINIMUM", rest, far), low)


def _places(g: Graph, grid: Value, k: int, size: int, padding: int, corners: bool) -> Value:
    """Pixel coordinates [N, P] along one axis, from grid coordinates in [-1, 1]."""
    n, p = grid.shape[0], count(grid.shape[1:3])
    at = g.reshape(slice_dim(g, grid, 3, k, k + 1), (n, p))
    if corners:
        at = _number(g, "MUL", _number(g, "ADD", at, 1.0), (size - 1) / 2)
        low, high = 0.0, size - 1.0
    else:
        at = _number(g, "MUL", _number(g, "ADD", at, 1.0), size / 2)
        at = _number(g, "SUB", at, 0.5)
        low, high = -0.5, size - 0.5
    if padding == _REFLECTION:
        at = _reflect(g, at, low, high)
    if padding != _ZEROS:
        at = _clamp(g, at, 0.0, size - 1.0)
    return at


def _inside(g: Graph, at: Value, size: int) -> Value:
    """1.0 where a whole coordinate lies in the image, else 0.0."""
    low = g.emit("GREATER_EQUAL", at, scalar(g, 0, at.dtype), dtype="bool")
    high = g.emit("LESS_EQUAL", at, scalar(g, size - 1, at.dtype), dtype="bool")
    return g.cast(g.emit("LOGICAL_AND", low, high), at.dtype)


class _Sampler:
    """Fetches pixels of an NCHW image by whole coordinates."""

    def __init__(self, g: Graph, image: Value, padding: int) -> None:
        self.g, self.padding = g, padding
        n, c, self.height, self.width = image.shape
        rows = g.transpose(image, (0, 2, 3, 1))
        self.rows = g.reshape(rows, (n * self.height * self.width, c))
        first = np.arange(n).reshape(n, 1) * self.height * self.width
        self.first = g.const(first.astype(np.int32))

    def pixels(self, y: Value, x: Value, weight: Value | None) -> Value:
        """[N, P, C] pixels at (y, x), times a weight [N, P]; zero outside with zero padding."""
        g = self.g
        if self.padding == _ZEROS:
            inside = binary(g, "MUL", _inside(g, y, self.height), _inside(g, x, self.width))
            weight = inside if weight is None else binary(g, "MUL", weight, inside)
        y = _clamp(g, y, 0.0, self.height - 1.0)
        x = _clamp(g, x, 0.0, self.width - 1.0)
        row = _number(g, "MUL", g.cast(y, "int32"), self.width)
        at = binary(g, "ADD", binary(g, "ADD", row, g.cast(x, "int32")), self.first)
        found = take(g, self.rows, at, 0)
        if weight is None:
            return found
        return binary(g, "MUL", found, g.reshape(weight, (*weight.shape, 1)))

    def blended(self, y: Value, x: Value) -> Value:
        """[N, P, C] bilinear samples."""
        g = self.g
        y0, x0 = g.emit("FLOOR", y), g.emit("FLOOR", x)
        y1, x1 = _number(g, "ADD", y0, 1.0), _number(g, "ADD", x0, 1.0)
        down, right = binary(g, "SUB", y, y0), binary(g, "SUB", x, x0)
        up, left = binary(g, "SUB", y1, y), binary(g, "SUB", x1, x)
        total: Value | None = None
        for yy, wy in ((y0, up), (y1, down)):
            for xx, wx in ((x0, left), (x1, right)):
                part = self.pixels(yy, xx, binary(g, "MUL", wy, wx))
                total = part if total is None else binary(g, "ADD", total, part)
        assert total is not None
        return total


@computes(aten.grid_sampler_2d.default)
def grid_sampler_2d(
    g: Graph,
    input: Value,
    grid: Value,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Value:
    if interpolation_mode not in (_BILINEAR, _NEAREST):
        raise Unsupported("bicubic grid sampling")
    n, c, height, width = input.shape
    x = _places(g, grid, 0, width, padding_mode, align_corners)
    y = _places(g, grid, 1, height, padding_mode, align_corners)
    sampler = _Sampler(g, input, padding_mode)
    if interpolation_mode == _NEAREST:
        found = sampler.pixels(g.emit("ROUND", y), g.emit("ROUND", x), None)
    else:
        found = sampler.blended(y, x)
    shape: Any = (n, grid.shape[1], grid.shape[2], c)
    return g.transpose(g.reshape(found, shape), (0, 3, 1, 2))
