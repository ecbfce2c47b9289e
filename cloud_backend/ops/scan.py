"""Running reductions along a dimension (cumsum and its kin) and order statistics (median, mode).

Results of running extremes come with indices; among equals the last one counts, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud_backend.dtypes import to_jax
from cloud_backend.ops import lowers
from cloud_backend.ops._shared import (
    canonical_dim,
    cast,
    compute_dtype,
    is_integral,
)
from cloud_backend.ops.arithmetic import logaddexp
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported


def _running(f: Callable[..., Any], x: jax.Array, dim: int, dtype: Any) -> jax.Array:
    if dtype is not None:
        dtype = to_jax(dtype)
    else:
        dtype = np.dtype(np.int64) if is_integral(x.dtype) else np.dtype(x.dtype)
    dim = canonical_dim(dim, x.ndim)
    wide = cast(x, compute_dtype(dtype))
    return cast(f(wide, axis=dim) if x.ndim else wide, dtype)


@lowers(aten.cumsum.default)
def cumsum(x, dim, *, dtype):
    return _running(jnp.cumsum, x, dim, dtype)


@lowers(aten.cumprod.default)
def cumprod(x, dim, *, dtype):
    return _running(jnp.cumprod, x, dim, dtype)


def _running_extreme(beats: Callable[[Any, Any], Any], x: jax.Array, dim: int) -> Any:
    dim = canonical_dim(dim, x.ndim)
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    positions = jax.lax.broadcasted_iota(np.int64, x.shape, dim)

    def later(left, right):
        value, index = left
        new_value, new_index = right
        if is_integral(x.dtype):
            take = beats(new_value, value)
        else:
            take = jnp.isnan(new_value) | (~jnp.isnan(value) & beats(new_value, value))
        return jnp.where(take, new_value, value), jnp.where(take, new_index, index)

    return jax.lax.associative_scan(later, (x, positions), axis=dim)


@lowers(aten.cummax.default)
def cummax(x, dim):
    return _running_extreme(jnp.greater_equal, x, dim)


@lowers(aten.cummin.default)
def cummin(x, dim):
    return _running_extreme(jnp.less_equal, x, dim)


@lowers(aten.logcumsumexp.default, aten._logcumsumexp.default)
def logcumsumexp(x, dim):
    dim = canonical_dim(dim, x.ndim)
    if x.ndim == 0:
        return x
    wide = cast(x, compute_dtype(x.dtype))
    return cast(jax.lax.associative_scan(logaddexp, wide, axis=dim), x.dtype)


def _order(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`x` sorted along its last dimension, NaNs last, and the positions it came from."""
    index = jnp.argsort(x, axis=-1, stable=True)
    return jnp.take_along_axis(x, index, axis=-1), index.astype(np.int64)


def _pick(x: jax.Array, rank: jax.Array | int, dim: int, keepdim: bool) -> Any:
    """The element of rank `rank` in each line along `dim`, and its position."""
    values, positions = _order(jnp.moveaxis(x, dim, -1))
    rank = jnp.broadcast_to(jnp.asarray(rank, np.int64), values.shape[:-1])[..., None]
    value = jnp.take_along_axis(values, rank, axis=-1)
    index = jnp.take_along_axis(positions, rank, axis=-1)
    if keepdim:
        return jnp.moveaxis(value, -1, dim), jnp.moveaxis(index, -1, dim)
    return value.squeeze(-1), index.squeeze(-1)


def _line(x: jax.Array, dim: int, keepdim: bool, pick: Callable[..., Any], name: str) -> Any:
    dim = canonical_dim(dim, x.ndim)
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    if x.shape[dim] == 0:
        raise IndexError(f"{name}(): Expected reduction dim {dim} to have non-zero size.")
    return pick(x, dim, keepdim)


def _nan_count(x: jax.Array, dim: int) -> Any:
    return 0 if is_integral(x.dtype) else jnp.sum(jnp.isnan(x), axis=dim)


def _median(x, dim, keepdim):
    n = x.shape[dim]
    # A line with a NaN has the median NaN: the first one in sorted order.
    nans = _nan_count(x, dim)
    return _pick(x, jnp.where(nans > 0, n - nans, (n - 1) // 2), dim, keepdim)


def _nanmedian(x, dim, keepdim):
    left = x.shape[dim] - _nan_count(x, dim)
    return _pick(x, jnp.maximum((left - 1) // 2, 0), dim, keepdim)


@lowers(aten.median.dim)
def median_dim(x, dim, keepdim):
    return _line(x, dim, keepdim, _median, "median")


@lowers(aten.nanmedian.dim)
def nanmedian_dim(x, dim, keepdim):
    return _line(x, dim, keepdim, _nanmedian, "nanmedian")


def _median_all(x: jax.Array, pick: Callable[..., Any]) -> jax.Array:
    if x.size == 0:
        # PyTorch gives NaN, or the smallest integer, which is what NaN converts to.
        lowest = jnp.nan if not is_integral(x.dtype) else np.iinfo(x.dtype).min
        return jnp.asarray(lowest, x.dtype)
    return pick(x.reshape(-1), 0, False)[0]


@lowers(aten.median.default)
def median(x):
    return _median_all(x, _median)


@lowers(aten.nanmedian.default)
def nanmedian(x):
    return _median_all(x, _nanmedian)


@lowers(aten.kthvalue.default)
def kthvalue(x, k, dim, keepdim):
    size = x.shape[dim] if x.ndim else 1
    if not 1 <= k <= size:
        raise Unsupported(f"kthvalue(): selected number k={k} out of range for dimension {dim}")
    return _line(x, dim, keepdim, lambda a, d, keep: _pick(a, k - 1, d, keep), "kthvalue")


def _mode(x, dim, keepdim):
    values, positions = _order(jnp.moveaxis(x, dim, -1))
    # The length of the run of equals that ends at each place; the first longest run wins.
    same = jnp.concatenate(
        [jnp.zeros_like(values[..., :1], np.bool_), values[..., 1:] == values[..., :-1]], axis=-1
    )
    place = jax.lax.broadcasted_iota(np.int64, values.shape, values.ndim - 1)
    start = jax.lax.associative_scan(jnp.maximum, jnp.where(same, 0, place), axis=-1)
    best = jnp.argmax(place - start, axis=-1, keepdims=True)
    value = jnp.take_along_axis(values, best, axis=-1)
    index = jnp.take_along_axis(positions, best, axis=-1)
    if keepdim:
        return jnp.moveaxis(value, -1, dim), jnp.moveaxis(index, -1, dim)
    return value.squeeze(-1), index.squeeze(-1)


@lowers(aten.mode.default)
def mode(x, dim, keepdim):
    return _line(x, dim, keepdim, _mode, "mode")
