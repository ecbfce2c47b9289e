"""Element-wise gather and scatter along one dimension, flat `take`/`put`, and the masked operators.

`index` may be smaller than the operand in every other dimension, as in PyTorch. Where two elements
land on one place, `scatter` keeps one of them, undefined which.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import canonical_dim, cast
from cloud_backend.ops.index import put as put_at
from cloud_backend.ops.index import reduce_at
from torch_tpu_unified.core.aten import aten


def _along(index, dim):
    """The NumPy index of the elements `index` names along `dim`."""
    grid = jnp.ogrid[tuple(slice(0, s) for s in index.shape)]
    slots = [jnp.asarray(g, np.int32) for g in grid]
    slots[dim] = index.astype(np.int32)
    return tuple(slots)


def _cut(src, index):
    """The part of `src` that has index's shape."""
    return src[tuple(slice(0, s) for s in index.shape)]


@lowers(aten.gather.default)
def gather(x, dim, index, sparse_grad=False):
    dim = canonical_dim(dim, x.ndim)
    if index.size == 0:
        return jnp.zeros(index.shape, x.dtype)
    if x.ndim == 0 or index.ndim == 0:
        return jnp.broadcast_to(x.reshape(-1)[0], index.shape)
    return x.at[_along(index, dim)].get(mode="clip")


def _scatter(x, dim, index, values, reduce=None, include_self=True):
    dim = canonical_dim(dim, x.ndim)
    if index.size == 0:
        return x
    target = x.reshape(1) if x.ndim == 0 else x
    index = index.reshape(1) if index.ndim == 0 else index
    values = jnp.broadcast_to(values, index.shape)
    slots = _along(index, dim)
    if reduce is None:
        return target.at[slots].set(cast(values, x.dtype)).reshape(x.shape)
    return reduce_at(target, slots, values, reduce, include_self).reshape(x.shape)


def _source(src, index):
    src = src.reshape((1,) * (index.ndim - src.ndim) + src.shape)
    return _cut(src, index) if index.ndim else src.reshape(())


@lowers(aten.scatter.src)
def scatter(x, dim, index, src):
    return _scatter(x, dim, index, _source(src, index))


@lowers(aten.scatter.value)
def scatter_value(x, dim, index, value):
    return _scatter(x, dim, index, cast(value, x.dtype))


@lowers(aten.scatter.reduce)
def scatter_with_reduce(x, dim, index, src, reduce):
    return _scatter(x, dim, index, _source(src, index), reduce)


@lowers(aten.scatter.value_reduce)
def scatter_value_reduce(x, dim, index, value, reduce):
    return _scatter(x, dim, index, cast(value, x.dtype), reduce)


@lowers(aten.scatter_add.default)
def scatter_add(x, dim, index, src):
    return _scatter(x, dim, index, _source(src, index), "sum")


@lowers(aten.scatter_reduce.two)
def scatter_reduce(x, dim, index, src, reduce, include_self=True):
    return _scatter(x, dim, index, _source(src, index), reduce, include_self)


@lowers(aten.take.default)
def take(x, index):
    if index.size == 0:
        return jnp.zeros(index.shape, x.dtype)
    return x.ravel().at[index].get(mode="clip")


@lowers(aten.put.default)
def put(x, index, source, accumulate=False):
    if index.size == 0:
        return x
    values = source.reshape(index.shape)
    return put_at(x.ravel(), (index,), values, accumulate).reshape(x.shape)


# ---- masks


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(x, mask, value):
    return jnp.where(mask != 0, cast(value, x.dtype), x)


def _order(mask):
    """The rank of each chosen element among the chosen ones."""
    return (jnp.cumsum(mask.ravel(), dtype=np.int32) - 1).reshape(mask.shape)


@lowers(aten.masked_scatter.default)
def masked_scatter(x, mask, source):
    shape = jnp.broadcast_shapes(x.shape, mask.shape)
    x, mask = jnp.broadcast_to(x, shape), jnp.broadcast_to(mask, shape)
    if source.size == 0 or x.size == 0:
        return x
    picked = source.ravel().at[_order(mask)].get(mode="clip")
    return jnp.where(mask, cast(picked, x.dtype), x)


@lowers(aten.masked_scatter_backward.default)
def masked_scatter_backward(grad_output, mask, sizes):
    size = int(np.prod(sizes, dtype=np.int64))
    mask = jnp.broadcast_to(mask, grad_output.shape)
    at = jnp.where(mask, _order(mask), size)
    flat = jnp.zeros(size, grad_output.dtype).at[at.ravel()].set(grad_output.ravel(), mode="drop")
    return flat.reshape(tuple(sizes))


@lowers(aten.masked_select.default, host=True)
def masked_select(x, mask):
    shape = jnp.broadcast_shapes(x.shape, mask.shape)
    return jnp.broadcast_to(x, shape)[jnp.broadcast_to(mask, shape) != 0].reshape(-1)


@lowers(aten.nonzero.default, host=True)
def nonzero(x):
    if x.ndim == 0:
        return jnp.zeros((int(bool(x)), 0), np.int64)
    return jnp.stack(jnp.nonzero(x), axis=1).astype(np.int64)


@lowers(aten.nonzero_static.default)
def nonzero_static(x, size, fill_value=-1):
    if x.ndim == 0:
        return jnp.zeros((size, 0), np.int64)
    if x.size == 0:
        return jnp.full((size, x.ndim), fill_value, np.int64)
    return jnp.stack(jnp.nonzero(x, size=size, fill_value=fill_value), axis=1).astype(np.int64)


@lowers(aten.value_selecting_reduction_backward.default)
def value_selecting_reduction_backward(grad, dim, indices, sizes, keepdim):
    zeros = jnp.zeros(tuple(sizes), grad.dtype)
    if not keepdim and sizes:
        dim = canonical_dim(dim, len(sizes))
        grad, indices = jnp.expand_dims(grad, dim), jnp.expand_dims(indices, dim)
    return _scatter(zeros, dim, indices, grad)
