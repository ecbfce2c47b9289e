"""Ranges to scales, numbers to integers.

After LiteRT's specification: int8 activations use the whole of [-128, 127] with any zero point,
int16 ones and weights are symmetric about zero, weights keep to [-127, 127]. Zero is always one of
the numbers, so that padding is exact.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from litert_export.graph import Quantization

Array = np.ndarray[Any, Any]
LIMITS = {
    "int4": (-8, 7),
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-32768, 32767),
    "int32": (-(2**31), 2**31 - 1),
}


class Range(NamedTuple):
    """The real numbers from `low` to `high`."""

    low: float
    high: float

    def union(self, other: Range) -> Range:
        """The least range that holds both."""
        return Range(min(self.low, other.low), max(self.high, other.high))

    @property
    def width(self) -> float:
        """Its length once zero is in it."""
        return max(self.high, 0.0) - min(self.low, 0.0)


def one(scale: float, zero_point: int = 0) -> Quantization:
    """One scale and zero point for a whole tensor."""
    return Quantization(np.array([scale], np.float32), np.array([zero_point], np.int64))


# Outputs whose parameters LiteRT's kernels fix.
FIXED: dict[tuple[str, str], Quantization] = {
    ("SOFTMAX", "int8"): one(1 / 256, -128),
    ("LOGISTIC", "int8"): one(1 / 256, -128),
    ("TANH", "int8"): one(1 / 128),
    ("L2_NORMALIZATION", "int8"): one(1 / 128),
    ("LOG_SOFTMAX", "int8"): one(16 / 256, 127),
    ("SOFTMAX", "int16"): one(1 / 32768),
    ("LOGISTIC", "int16"): one(1 / 32768),
    ("TANH", "int16"): one(1 / 32768),
}


def activation(found: Range, dtype: str) -> Quantization:
    """Scale and zero point of an activation with values in a range."""
    low, high = min(float(found.low), 0.0), max(float(found.high), 0.0)
    if dtype == "int16":
        widest = max(-low, high)
        return one(widest / 32767 if widest else 1.0)
    least, most = LIMITS[dtype]
    if high == low:
        return one(1.0)
    scale = np.float32((high - low) / (most - least))
    if not scale or not np.isfinite(scale):
        scale = np.float32(np.finfo(np.float32).tiny)
    return one(float(scale), int(np.clip(round(least - low / float(scale)), least, most)))


def weight(data: Array, axis: int | None, dtype: str = "int8") -> Quantization:
    """Symmetric scales of a weight: along an axis, or one for all (axis None)."""
    others = tuple(i for i in range(data.ndim) if i != axis)
    largest = np.abs(data).max(axis=None if axis is None else others, initial=0.0)
    most = LIMITS[dtype][1]
    scale = np.maximum(np.asarray(largest, np.float64).reshape(-1) / most, 1e-30)
    scale = np.where(np.asarray(largest).reshape(-1) == 0, 1.0, scale).astype(np.float32)
    return Quantization(scale, np.zeros(scale.size, np.int64), axis or 0)


def spread(q: Quantization, rank: int) -> tuple[Array, Array]:
    """(scale, zero point) in float64, shaped to broadcast with a tensor of the rank."""
    shape = [1] * rank
    if q.scale.size > 1:
        shape[q.axis] = -1
    if q.scale.size == 1:
        return np.float64(q.scale[0]), np.float64(q.zero_point[0])  # type: ignore[return-value]
    return q.scale.astype(np.float64).reshape(shape), q.zero_point.astype(np.float64).reshape(shape)


def quantized(data: Array, q: Quantization, dtype: str, *, narrow: bool = False) -> Array:
    """Numbers as integers, rounded to the nearest, saturating; infinities become the bounds.

    Args:
        narrow: leave out the lowest integer, as weights do.
    """
    from litert_export import schema

    scale, zero = spread(q, data.ndim)
    low, high = LIMITS[dtype]
    steps = np.clip(np.rint(data.astype(np.float64) / scale) + zero, low + narrow, high)
    return steps.astype(np.int32 if dtype == "int4" else np.int64).astype(schema.numpy_dtype(dtype))


def real(data: Array, q: Quantization) -> Array:
    """Integers as the float64 numbers that they stand for."""
    scale, zero = spread(q, data.ndim)
    return (data.astype(np.float64) - zero) * scale


def bias_scale(x: Quantization, w: Quantization) -> Quantization:
    """The scale of a bias: the float32 product of input and weight scales, exactly."""
    scale = (x.scale[0] * w.scale).astype(np.float32)
    return Quantization(scale, np.zeros(scale.size, np.int64), 0)
