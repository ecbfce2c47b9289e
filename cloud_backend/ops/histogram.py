"""Histograms of one and of several variables, with even bins or given edges.

A bin holds its left edge, the last one its right edge too. Edges are computed once, in the input's
dtype, and decide; `histc` works with positions instead, as PyTorch's does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast, rounded
from cloud_backend.ops.create import even_steps
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported


@lowers(aten.histc.default)
def histc(x, bins=100, min=0, max=0):
    flat = x.ravel()
    low, high = cast(min, x.dtype), cast(max, x.dtype)
    if flat.size:
        same = low == high
        low, high = jnp.where(same, flat.min(), low), jnp.where(same, flat.max(), high)
    wide = np.promote_types(x.dtype, np.float32) if x.dtype.itemsize <= 2 else np.float64
    low, high = cast(low, wide), cast(high, wide)
    flat_level = low == high
    low, high = jnp.where(flat_level, low - 1, low), jnp.where(flat_level, high + 1, high)
    values = cast(flat, wide)
    inside = (values >= low) & (values <= high)
    # Positions in half precision are PyTorch's, which rounds each step.
    scaled = rounded(rounded(values - low, x.dtype) * rounded(cast(bins, wide), x.dtype), x.dtype)
    at = jnp.floor(rounded(scaled / rounded(high - low, x.dtype), x.dtype)).astype(np.int32)
    at = jnp.where(inside, jnp.minimum(at, bins - 1), bins)
    return jnp.zeros(bins, x.dtype).at[at].add(jnp.ones((), x.dtype), mode="drop")


# ---- edges


def _limits(points: Any, dim: int, given: Sequence[float] | None) -> tuple[float, float]:
    """The finite, non-empty range of one variable."""
    if given is not None:
        low, high = float(given[2 * dim]), float(given[2 * dim + 1])
    elif points.shape[0]:
        low, high = float(points[:, dim].min()), float(points[:, dim].max())
    else:
        low, high = 0.0, 1.0
    if not (math.isfinite(low) and math.isfinite(high)):
        raise Unsupported(f"histogram: dimension {dim}'s range [{low}, {high}] is not finite")
    if low > high:
        raise Unsupported(f"histogram: min {low} exceeds max {high} in dimension {dim}")
    return (low - 0.5, high + 0.5) if low == high else (low, high)


def _even_edges(points: Any, bins: Sequence[int], given: Sequence[float] | None) -> list[Any]:
    if given is not None and len(given) != 2 * len(bins):
        raise Unsupported(f"histogram: range needs {2 * len(bins)} numbers, not {len(given)}")
    edges = []
    for dim, count in enumerate(bins):
        if count <= 0:
            raise Unsupported(f"histogram: bins must be > 0, but got {count} for dimension {dim}")
        low, high = _limits(points, dim, given)
        edges.append(cast(even_steps(low, high, count + 1, points.dtype), points.dtype))
    return edges


def _check_edges(points: Any, edges: Sequence[Any]) -> None:
    for dim, edge in enumerate(edges):
        if edge.ndim != 1 or edge.size < 2:
            raise Unsupported(
                f"histogram: the edges of dimension {dim} must be one list of two or more, "
                f"not {list(edge.shape)}"
            )
        if edge.dtype != points.dtype:
            raise Unsupported(
                f"histogram: input and edges need one dtype, not {points.dtype} and {edge.dtype}"
            )


# ---- counts


def _points(x: Any, dims: int) -> Any:
    if x.dtype not in (np.float32, np.float64):
        raise Unsupported(f"histogram of {x.dtype}; only float32 and float64")
    if x.shape[-1] != dims:
        raise Unsupported(f"histogramdd: {dims} lists of bins for {x.shape[-1]} variables")
    return x.reshape(-1, dims)


def _counted(x: Any, edges: Sequence[Any], weight: Any, density: bool) -> Any:
    """The histogram of `x` (..., variables)."""
    points = _points(x, len(edges))
    _check_edges(points, edges)
    if weight is not None and (weight.shape != x.shape[:-1] or weight.dtype != x.dtype):
        raise Unsupported(
            f"histogram: weights must be {x.dtype}{list(x.shape[:-1])}, "
            f"not {weight.dtype}{list(weight.shape)}"
        )
    shape = tuple(edge.size - 1 for edge in edges)
    inside = jnp.ones(points.shape[0], np.bool_)
    at = []
    for dim, edge in enumerate(edges):
        value = points[:, dim]
        inside &= (value >= edge[0]) & (value <= edge[-1])
        place = jnp.searchsorted(edge, value, side="right") - 1
        at.append(jnp.clip(place, 0, shape[dim] - 1))
    amount = jnp.ones(points.shape[0], x.dtype) if weight is None else weight.reshape(-1)
    counts = jnp.zeros(shape, x.dtype).at[tuple(at)].add(jnp.where(inside, amount, 0))
    if not density:
        return counts
    counts = counts / jnp.sum(counts)
    for dim, edge in enumerate(edges):
        width = jnp.diff(edge).reshape([-1 if d == dim else 1 for d in range(len(edges))])
        counts = counts / width
    return counts


def _range_unknown(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Without a range the values decide, and PyTorch refuses those that are not finite."""
    return kwargs.get("range") is None


@lowers(aten.histogram.bin_ct, host=_range_unknown)
def histogram(x, bins=100, *, range=None, weight=None, density=False):
    column = x.reshape(-1, 1)
    edges = _even_edges(_points(column, 1), [bins], range)
    weight = None if weight is None else weight.reshape(-1)
    return _counted(column, edges, weight, density), edges[0]


@lowers(aten.histogram.bins_tensor)
def histogram_of_edges(x, bins, *, weight=None, density=False):
    weight = None if weight is None else weight.reshape(-1)
    return _counted(x.reshape(-1, 1), [bins], weight, density), bins


@lowers(aten._histogramdd_bin_edges.default, host=_range_unknown)
def histogramdd_bin_edges(x, bins, *, range=None, weight=None, density=False):
    return _even_edges(_points(x, len(bins)), bins, range)


@lowers(aten._histogramdd_from_bin_cts.default, host=_range_unknown)
def histogramdd_from_bin_cts(x, bins, *, range=None, weight=None, density=False):
    edges = _even_edges(_points(x, len(bins)), bins, range)
    return _counted(x, edges, weight, density)


@lowers(aten._histogramdd_from_bin_tensors.default)
def histogramdd_from_bin_tensors(x, bins, *, weight=None, density=False):
    return _counted(x, bins, weight, density)
