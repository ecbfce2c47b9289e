"""Operators whose result's shape depends on values: `unique`, `repeat_interleave`, `bincount`.

They run with concrete arrays outside jit. Results that were not asked for are empty, as in PyTorch.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import canonical_dim, cast
from torch_tpu_unified.core.aten import aten

INT64 = np.dtype(np.int64)


def _optional(wanted: bool, array: Any) -> Any:
    return array.astype(INT64) if wanted else jnp.zeros(0, INT64)


@lowers(aten._unique.default, host=True)
def unique_and_inverse(x, sorted=True, return_inverse=False):
    values, inverse, _ = unique2(x, sorted, return_inverse)
    return values, inverse


@lowers(aten._unique2.default, host=True)
def unique2(x, sorted=True, return_inverse=False, return_counts=False):
    if x.size == 0:
        return x.ravel(), _optional(return_inverse, jnp.zeros(x.shape)), jnp.zeros(0, INT64)
    values, inverse, counts = jnp.unique(
        x, return_inverse=True, return_counts=True, equal_nan=False
    )
    inverse = _optional(return_inverse, inverse.reshape(x.shape))
    return values, inverse, _optional(return_counts, counts)


@lowers(aten.unique_dim.default, host=True)
def unique_dim(x, dim, sorted=True, return_inverse=False, return_counts=False):
    dim = canonical_dim(dim, x.ndim)
    if x.shape[dim] == 0:
        return x, jnp.zeros(0, INT64), jnp.zeros(0, INT64)
    values, inverse, counts = jnp.unique(
        x, return_inverse=True, return_counts=True, axis=dim, equal_nan=False
    )
    return (
        values,
        _optional(return_inverse, inverse.reshape(-1)),
        _optional(return_counts, counts),
    )


def _runs(changed, return_inverse, return_counts, shape):
    """Starts of the runs, the run of each element, and the lengths of the runs."""
    starts = jnp.nonzero(jnp.concatenate([jnp.ones(1, bool), changed]))[0]
    inverse = jnp.concatenate([jnp.zeros(1, INT64), jnp.cumsum(changed, dtype=INT64)])
    counts = jnp.diff(starts, append=changed.shape[0] + 1)
    inverse = _optional(return_inverse, inverse.reshape(shape))
    return starts, inverse, _optional(return_counts, counts)


@lowers(aten.unique_consecutive.default, host=True)
def unique_consecutive(x, return_inverse=False, return_counts=False, dim=None):
    if dim is not None:
        return unique_dim_consecutive(x, dim, return_inverse, return_counts)
    flat = x.ravel()
    if flat.size == 0:
        return flat, _optional(return_inverse, jnp.zeros(x.shape)), jnp.zeros(0, INT64)
    changed = flat[1:] != flat[:-1]
    starts, inverse, counts = _runs(changed, return_inverse, return_counts, x.shape)
    return flat[starts], inverse, counts


@lowers(aten.unique_dim_consecutive.default, host=True)
def unique_dim_consecutive(x, dim, return_inverse=False, return_counts=False):
    if x.ndim == 0:
        one = jnp.ones(1, INT64)
        return x.reshape(1), _optional(return_inverse, one - 1), _optional(return_counts, one)
    rows = jnp.moveaxis(x, canonical_dim(dim, x.ndim), 0)
    if rows.shape[0] == 0:
        return x, jnp.zeros(0, INT64), jnp.zeros(0, INT64)
    flat = rows.reshape(rows.shape[0], -1)
    changed = jnp.any(flat[1:] != flat[:-1], axis=1)
    starts, inverse, counts = _runs(changed, return_inverse, return_counts, (-1,))
    return jnp.moveaxis(rows[starts], 0, canonical_dim(dim, x.ndim)), inverse, counts


def _size_unknown(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return (args[1] if len(args) > 1 else kwargs.get("output_size")) is None


@lowers(aten.repeat_interleave.Tensor, host=_size_unknown)
def repeat_interleave(repeats, output_size=None):
    size = int(repeats.sum()) if output_size is None else output_size
    positions = jnp.arange(repeats.shape[0], dtype=repeats.dtype)
    return jnp.repeat(positions, repeats, total_repeat_length=size)


@lowers(aten.bincount.default, host=True)
def bincount(x, weights=None, minlength=0):
    size = max(minlength, int(x.max()) + 1 if x.size else 0)
    if weights is None:
        return jnp.zeros(size, INT64).at[x].add(1)
    dtype = weights.dtype if weights.dtype == np.float32 else np.float64
    return jnp.zeros(size, dtype).at[x].add(cast(weights, dtype))
