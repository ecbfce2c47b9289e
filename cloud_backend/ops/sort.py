"""Ordering: sort, topk, and binary search in sorted rows.

Sorts are stable in both directions and put NaN last (first when descending), as PyTorch does.
Indices are int64.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import canonical_dim, cast, is_complex, is_scalar, result_dtype
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported

INT64 = np.dtype(np.int64)


def sorted_with_indices(x, dim, descending):
    """Values and int64 positions along `dim`, stable."""
    if is_complex(x.dtype):
        raise RuntimeError("Sort does not support complex dtypes")
    if x.ndim == 0:
        return x, jnp.zeros((), INT64)
    dim = canonical_dim(dim, x.ndim)
    # A descending sort that stays stable: sort the reversed sequence and reverse the result.
    source = jnp.flip(x, dim) if descending else x
    at = jax.lax.broadcasted_iota(np.int32, x.shape, dim)
    at = jnp.flip(at, dim) if descending else at
    keys = source.astype(np.uint8) if x.dtype == np.bool_ else source
    values, at = jax.lax.sort((keys, at), dimension=dim, is_stable=True, num_keys=1)
    if descending:
        values, at = jnp.flip(values, dim), jnp.flip(at, dim)
    return values.astype(x.dtype), at.astype(INT64)


@lowers(aten.sort.default)
def sort(x, dim=-1, descending=False):
    return sorted_with_indices(x, dim, descending)


@lowers(aten.sort.stable)
def sort_stable(x, stable, dim=-1, descending=False):
    return sorted_with_indices(x, dim, descending)


@lowers(aten.argsort.default)
def argsort(x, dim=-1, descending=False):
    return sorted_with_indices(x, dim, descending)[1]


@lowers(aten.argsort.stable)
def argsort_stable(x, stable, dim=-1, descending=False):
    return sorted_with_indices(x, dim, descending)[1]


@lowers(aten.msort.default)
def msort(x):
    return sorted_with_indices(x, 0, False)[0]


@lowers(aten.topk.default)
def topk(x, k, dim=-1, largest=True, sorted=True):
    if x.ndim == 0:
        return x, jnp.zeros((), INT64)
    dim = canonical_dim(dim, x.ndim)
    if not 0 <= k <= x.shape[dim]:
        raise RuntimeError("selected index k out of range")
    values, at = sorted_with_indices(x, dim, largest)
    return (jax.lax.slice_in_dim(values, 0, k, axis=dim), jax.lax.slice_in_dim(at, 0, k, axis=dim))


# ---- search


def _search(sorted_sequence, values, right):
    """Insertion points of `values` in sorted rows, by counting what stands before."""
    dtype = result_dtype(sorted_sequence, values)
    rows, values = cast(sorted_sequence, dtype), cast(values, dtype)
    side = "right" if right else "left"
    if rows.ndim == 1:
        return jnp.searchsorted(rows, values.ravel(), side=side).reshape(values.shape)
    if values.size == 0:
        return jnp.zeros(values.shape, INT64)
    flat = rows.reshape(-1, rows.shape[-1]) if rows.size else rows.reshape(values.shape[0], 0)
    wanted = values.reshape(flat.shape[0], -1)
    found = jax.vmap(lambda r, v: jnp.searchsorted(r, v, side=side))(flat, wanted)
    return found.reshape(values.shape)


@lowers(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(sorted_sequence, x, out_int32=False, right=False, side=None, sorter=None):
    if side not in (None, "left", "right"):
        raise Unsupported(f"side={side!r} is not one of left, right")
    if side == "left" and right:
        raise RuntimeError("side and right can't be set to opposites")
    if sorter is not None:
        sorted_sequence = jnp.take_along_axis(sorted_sequence, sorter, axis=-1)
    x = cast(x, result_dtype(sorted_sequence, x)) if is_scalar(x) else x
    found = _search(sorted_sequence, x, right or side == "right")
    return found.astype(np.int32 if out_int32 else INT64)


@lowers(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(x, boundaries, out_int32=False, right=False):
    return searchsorted(boundaries, x, out_int32, right)
