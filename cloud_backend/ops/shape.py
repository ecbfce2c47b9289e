"""Views as value ops: the result of a view operator as an array of its own.

The eager device keeps PyTorch's view metadata and rarely comes here; graphs that are interpreted as
a whole use these. Invariant: values and shapes are those of the view; strides do not exist here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from cloud_backend.dtypes import to_jax
from cloud_backend.ops import lowers
from cloud_backend.ops._shared import canonical_dim, cast
from torch_tpu_unified.core.aten import aten


def resolved_size(size: Sequence[int], numel: int) -> tuple[int, ...]:
    """`size` with its -1, if any, worked out."""
    sizes = list(size)
    if -1 in sizes:
        at = sizes.index(-1)
        known = math.prod(s for i, s in enumerate(sizes) if i != at)
        if known == 0 or numel % known:
            raise RuntimeError(f"shape '{sizes}' is invalid for input of size {numel}")
        sizes[at] = numel // known
    return tuple(sizes)


@lowers(
    aten.view.default, aten.view_copy.default, aten._unsafe_view.default, aten._reshape_copy.default
)
def view(x, size):
    return x.reshape(resolved_size(size, x.size))


@lowers(aten.reshape.default)
def reshape(x, shape):
    return x.reshape(resolved_size(shape, x.size))


@lowers(aten._reshape_alias.default, aten._reshape_alias_copy.default)
def reshape_alias(x, size, stride):
    return x.reshape(tuple(size))


def bitcast(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """The bytes of `x` read as `dtype`; the last dimension shrinks or grows with the item size."""
    if x.dtype == dtype:
        return x
    if x.dtype == np.bool_:
        return bitcast(x.astype(np.uint8), dtype)
    if dtype == np.bool_:
        return bitcast(x, np.dtype(np.uint8)) != 0
    if x.dtype.kind == "c":
        return bitcast(view_as_real(x).reshape(*x.shape[:-1], -1), dtype)
    if dtype.kind == "c":
        parts = bitcast(x, np.dtype(f"f{dtype.itemsize // 2}"))
        return view_as_complex(parts.reshape(*parts.shape[:-1], -1, 2))
    narrow, wide = x.dtype.itemsize, dtype.itemsize
    if narrow < wide:
        x = x.reshape(*x.shape[:-1], -1, wide // narrow)
    out = jax.lax.bitcast_convert_type(x, dtype)
    return out.reshape(*out.shape[:-2], -1) if narrow > wide else out


@lowers(aten.view.dtype, aten.view_copy.dtype)
def view_dtype(x, dtype):
    target = to_jax(dtype)
    if x.ndim == 0:
        return bitcast(x[None], target).reshape(())
    return bitcast(x, target)


@lowers(aten.view_as_real.default, aten.view_as_real_copy.default)
def view_as_real(x):
    return jnp.stack([x.real, x.imag], axis=-1)


@lowers(aten.view_as_complex.default, aten.view_as_complex_copy.default)
def view_as_complex(x):
    return jax.lax.complex(x[..., 0], x[..., 1])


@lowers(aten.expand.default, aten.expand_copy.default)
def expand(x, size, implicit=False):
    lead = len(size) - x.ndim
    shape = tuple(x.shape[i - lead] if s == -1 else s for i, s in enumerate(size))
    return jnp.broadcast_to(x, shape)


@lowers(aten.permute.default, aten.permute_copy.default)
def permute(x, dims):
    return jnp.transpose(x, [canonical_dim(d, x.ndim) for d in dims])


@lowers(aten.transpose.int, aten.transpose_copy.int)
def transpose(x, dim0, dim1):
    return jnp.swapaxes(x, dim0, dim1) if x.ndim else x


@lowers(aten.t.default, aten.t_copy.default)
def t(x):
    return x.T


@lowers(aten.movedim.int, aten.movedim.intlist)
def movedim(x, source, destination):
    return jnp.moveaxis(x, source, destination) if x.ndim else x


@lowers(aten.squeeze.default, aten.squeeze_copy.default)
def squeeze(x):
    return jnp.squeeze(x)


@lowers(aten.squeeze.dim, aten.squeeze_copy.dim, aten.squeeze.dims, aten.squeeze_copy.dims)
def squeeze_dims(x, dim):
    dims = (dim,) if isinstance(dim, int) else dim
    dims = {canonical_dim(d, x.ndim) for d in dims}
    return x.reshape([s for d, s in enumerate(x.shape) if d not in dims or s != 1])


@lowers(aten.unsqueeze.default, aten.unsqueeze_copy.default)
def unsqueeze(x, dim):
    return jnp.expand_dims(x, canonical_dim(dim, x.ndim + 1))


def slice_at(x, dim, start, end, step) -> tuple[slice, ...]:
    """The index of `x` that `slice.Tensor` reads."""
    dim = canonical_dim(dim, x.ndim)
    return (slice(None),) * dim + (slice(start, end, step),)


@lowers(aten.slice.Tensor, aten.slice_copy.Tensor)
def slice_(x, dim=0, start=None, end=None, step=1):
    return x[slice_at(x, dim, start, end, step)]


@lowers(aten.select.int, aten.select_copy.int)
def select(x, dim, index):
    dim = canonical_dim(dim, x.ndim)
    size = x.shape[dim]
    if not -size <= index < size:
        raise IndexError(
            f"select(): index {index} out of range for tensor of size {list(x.shape)}"
            f" at dimension {dim}"
        )
    return jax.lax.index_in_dim(x, index % size, dim, keepdims=False)


@lowers(aten.narrow.default, aten.narrow_copy.default)
def narrow(x, dim, start, length):
    dim = canonical_dim(dim, x.ndim)
    start = start + x.shape[dim] if start < 0 else start
    return jax.lax.slice_in_dim(x, start, start + length, axis=dim)


def split_at(x, sizes: Sequence[int], dim: int) -> tuple[jax.Array, ...]:
    """Consecutive parts of `x` along `dim`."""
    ends = np.cumsum([0, *sizes]).tolist()
    dim = canonical_dim(dim, x.ndim)
    return tuple(jax.lax.slice_in_dim(x, a, b, axis=dim) for a, b in itertools.pairwise(ends))


@lowers(aten.split.Tensor, aten.split_copy.Tensor, aten.unsafe_split.Tensor)
def split(x, split_size, dim=0):
    total = x.shape[canonical_dim(dim, x.ndim)]
    if total == 0 or split_size == 0:
        return (x,)
    count = -(-total // split_size)
    sizes = [split_size] * (count - 1) + [total - split_size * (count - 1)]
    return split_at(x, sizes, dim)


@lowers(
    aten.split_with_sizes.default,
    aten.split_with_sizes_copy.default,
    aten.unsafe_split_with_sizes.default,
)
def split_with_sizes(x, split_sizes, dim=0):
    return split_at(x, split_sizes, dim)


@lowers(aten.unbind.int, aten.unbind_copy.int)
def unbind(x, dim=0):
    dim = canonical_dim(dim, x.ndim)
    return tuple(jax.lax.index_in_dim(x, i, dim, keepdims=False) for i in range(x.shape[dim]))


@lowers(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(x, offset=0, dim1=0, dim2=1):
    return jnp.diagonal(x, offset, dim1, dim2)


@lowers(aten.unfold.default, aten.unfold_copy.default)
def unfold(x, dimension, size, step):
    if x.ndim == 0:
        return jnp.broadcast_to(x, (size,))
    dim = canonical_dim(dimension, x.ndim)
    starts = np.arange(0, x.shape[dim] - size + 1, step)
    at = starts[:, None] + np.arange(size)
    return jnp.moveaxis(jnp.take(x, at, axis=dim), dim + 1, -1)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in items."""
    strides, step = [], 1
    for s in reversed(shape):
        strides.append(step)
        step *= max(s, 1)
    return tuple(reversed(strides))


def strided_positions(size: Sequence[int], stride: Sequence[int], offset: int) -> np.ndarray:
    """The flat positions that a strided view reads."""
    at = np.full(tuple(size), offset, np.int64)
    for d, (n, step) in enumerate(zip(size, stride, strict=True)):
        at += (np.arange(n) * step).reshape((n,) + (1,) * (len(size) - d - 1))
    return at


@lowers(aten.as_strided.default, aten.as_strided_copy.default)
def as_strided(x, size, stride, storage_offset=None):
    offset = storage_offset or 0
    if offset == 0 and tuple(size) == x.shape and tuple(stride) == contiguous_strides(size):
        return x
    if tuple(stride) == contiguous_strides(size):
        return x.ravel()[offset : offset + math.prod(size)].reshape(tuple(size))
    if all(s for s in size):
        order = sorted(range(len(size)), key=lambda d: -stride[d])
        ordered = [size[d] for d in order]
        if [stride[d] for d in order] == list(contiguous_strides(ordered)):
            flat = x.ravel()[offset : offset + math.prod(size)].reshape(ordered)
            return jnp.transpose(flat, np.argsort(order).tolist())
    return x.ravel()[strided_positions(size, stride, offset)]


def _same(x):
    return x


for _op in (
    aten.alias_copy.default,
    aten.detach_copy.default,
    aten.contiguous.default,
):
    lowers(_op)(_same)


@lowers(aten._to_copy.default)
def to_copy(x, dtype=None):
    return x if dtype is None else cast(x, to_jax(dtype))


@lowers(aten.slice_scatter.default)
def slice_scatter(x, src, dim=0, start=None, end=None, step=1):
    return x.at[slice_at(x, dim, start, end, step)].set(src.astype(x.dtype))


@lowers(aten.select_scatter.default)
def select_scatter(x, src, dim, index):
    return x.at[(slice(None),) * canonical_dim(dim, x.ndim) + (index,)].set(src.astype(x.dtype))


def _diagonal_index(shape, offset, dim1, dim2):
    """Axes order with the two diagonal dimensions last, and the positions on the diagonal."""
    dim1, dim2 = canonical_dim(dim1, len(shape)), canonical_dim(dim2, len(shape))
    order = [d for d in range(len(shape)) if d not in (dim1, dim2)] + [dim1, dim2]
    rows, columns = shape[dim1], shape[dim2]
    length = max(min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns), 0)
    i = np.arange(length)
    return order, (i - min(offset, 0), i + max(offset, 0))


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(x, src, offset=0, dim1=0, dim2=1):
    order, (i, j) = _diagonal_index(x.shape, offset, dim1, dim2)
    out = jnp.transpose(x, order).at[..., i, j].set(src.astype(x.dtype))
    return jnp.transpose(out, np.argsort(order).tolist())


@lowers(aten.as_strided_scatter.default)
def as_strided_scatter(x, src, size, stride, storage_offset=None):
    at = strided_positions(size, stride, storage_offset or 0).ravel()
    return x.ravel().at[at].set(src.astype(x.dtype).ravel()).reshape(x.shape)


@lowers(aten.diag_embed.default)
def diag_embed(x, offset=0, dim1=-2, dim2=-1):
    n = x.shape[-1] + abs(offset)
    dim1, dim2 = canonical_dim(dim1, x.ndim + 1), canonical_dim(dim2, x.ndim + 1)
    if dim1 > dim2:
        dim1, dim2, offset = dim2, dim1, -offset
    i = np.arange(x.shape[-1])
    out = jnp.zeros((*x.shape[:-1], n, n), x.dtype)
    out = out.at[..., i - min(offset, 0), i + max(offset, 0)].set(x)
    return jnp.moveaxis(out, (-2, -1), (dim1, dim2))


@lowers(aten.diagonal_backward.default)
def diagonal_backward(grad_output, input_sizes, offset, dim1, dim2):
    zeros = jnp.zeros(tuple(input_sizes), grad_output.dtype)
    return diagonal_scatter(zeros, grad_output, offset, dim1, dim2)


@lowers(aten.select_backward.default)
def select_backward(grad_output, input_sizes, dim, index):
    return select_scatter(jnp.zeros(tuple(input_sizes), grad_output.dtype), grad_output, dim, index)


@lowers(aten.slice_backward.default)
def slice_backward(grad_output, input_sizes, dim, start, end, step):
    zeros = jnp.zeros(tuple(input_sizes), grad_output.dtype)
    return slice_scatter(zeros, grad_output, dim, start, end, step)


@lowers(aten.unfold_backward.default)
def unfold_backward(grad_in, input_sizes, dim, size, step):
    shape = tuple(input_sizes)
    if not shape:
        return grad_in.sum().astype(grad_in.dtype)
    dim = canonical_dim(dim, len(shape))
    at = np.arange(0, shape[dim] - size + 1, step)[:, None] + np.arange(size)
    windows = jnp.moveaxis(grad_in, -1, dim + 1)
    zeros = jnp.zeros(shape, grad_in.dtype)
    return zeros.at[(slice(None),) * dim + (at,)].add(windows)
