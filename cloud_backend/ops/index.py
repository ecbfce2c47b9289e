"""Advanced indexing: `x[i, j]`, `x[i, j] = v`, bool masks included, and the `index_*` operators.

Integer indices gather and scatter directly. Reading with a bool mask has a result whose shape
depends on values and runs outside jit. Writing through masks never does: values are chosen by
`where`, or by positions padded to the mask's size, whose surplus falls outside and is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import canonical_dim, cast, compute_dtype
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported


def is_mask(index: Any) -> bool:
    """bool and uint8 indices select by value, not by position."""
    return index is not None and str(index.dtype) in ("bool", "uint8", "torch.bool", "torch.uint8")


def reads_mask(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True when the call `index(x, indices)` has a mask among its indices."""
    indices = args[1] if len(args) > 1 else kwargs["indices"]
    return any(is_mask(i) for i in indices)


def _check_mask(x, mask, dim):
    if mask.shape != x.shape[dim : dim + mask.ndim]:
        raise IndexError(
            f"The shape of the mask {list(mask.shape)} at index {dim} does not match the shape of "
            f"the indexed tensor {list(x.shape)} at index {dim}"
        )


def _integer(index):
    """32-bit positions are enough for any dimension here and much faster on a TPU."""
    return index if index.dtype == np.int32 else index.astype(np.int32)


def _slots(indices) -> tuple[Any, ...]:
    return tuple(slice(None) if i is None else _integer(i) for i in indices)


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor, host=reads_mask)
def index(x, indices):
    positions: list[Any] = []
    for i in indices:
        if is_mask(i):
            _check_mask(x, i, len(positions))
            positions.extend(jnp.nonzero(i) if i.ndim else ())
        else:
            positions.append(i)
    return _read(x, positions)


def _read(x, indices):
    slots = _slots(indices)
    if all(isinstance(s, slice) for s in slots):
        return x
    if any(s == 0 for s in x.shape):
        # Nothing to read; positions into an empty dimension cannot be clipped.
        return jnp.zeros(_read_shape(x, slots), x.dtype)
    return x.at[slots].get(mode="clip")


def _read_shape(x, slots):
    view = np.broadcast_to(np.zeros((), np.bool_), tuple(max(s, 1) for s in x.shape))
    shapes = [np.zeros(s.shape, np.intp) if not isinstance(s, slice) else s for s in slots]
    kept = iter(s for s in view[tuple(shapes)].shape)
    out = list(kept)
    indexed = [d for d, s in enumerate(slots) if not isinstance(s, slice)]
    width = len(np.broadcast_shapes(*(slots[d].shape for d in indexed)))
    adjacent = indexed == list(range(indexed[0], indexed[-1] + 1))
    first = indexed[0] if adjacent else 0
    rest = [x.shape[d] for d in range(x.ndim) if d not in indexed]
    return tuple(rest[:first] + out[first : first + width] + rest[first:])


@lowers(aten._unsafe_masked_index.default)
def unsafe_masked_index(x, mask, indices, fill):
    picked = x.at[_slots(indices)].get(mode="clip")
    return jnp.where(mask, picked, cast(fill, x.dtype))


@lowers(aten._unsafe_masked_index_put_accumulate.default)
def unsafe_masked_index_put_accumulate(x, mask, indices, values):
    bounded = [
        None if i is None else jnp.clip(i, -x.shape[d], x.shape[d] - 1)
        for d, i in enumerate(indices)
    ]
    return put(x, _slots(bounded), jnp.where(mask, values, 0), True)


def put(x, slots, values, accumulate):
    """`x` with `values` stored or added at a NumPy index; positions outside are dropped."""
    if not accumulate:
        return x.at[slots].set(cast(values, x.dtype), mode="drop")
    if x.dtype == np.bool_:
        return x.at[slots].max(values, mode="drop")
    wide = compute_dtype(x.dtype)
    return cast(cast(x, wide).at[slots].add(cast(values, wide), mode="drop"), x.dtype)


def _check_values(values, shape):
    """Raises RuntimeError unless the values expand to the shape that the indices select."""
    given = values.shape
    if len(given) > len(shape) or any(
        a not in (1, b) for a, b in zip(given[::-1], shape[::-1], strict=False)
    ):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(given)} cannot be broadcast to indexing "
            f"result of shape {list(shape)}"
        )


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(x, indices, values, accumulate=False):
    # One value for a mask fills, and is converted.
    fills = values.size == 1 and any(is_mask(i) for i in indices)
    if values.dtype != x.dtype and not fills:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, got "
            f"{x.dtype} for the destination and {values.dtype} for the source."
        )
    masks = [i for i in indices if is_mask(i)]
    if not masks:
        slots = _slots(indices)
        _check_values(values, _read_shape(x, slots))
        return x if x.size == 0 else put(x, slots, values, accumulate)
    if len(masks) == 1 and all(i is None or is_mask(i) for i in indices):
        return _put_mask(x, indices, values, accumulate)
    return put(x, *_padded(x, indices, values), accumulate)


@lowers(aten._index_put_impl.default)
def index_put_impl(x, indices, values, accumulate=False, unsafe=False):
    return index_put(x, indices, values, accumulate)


def _put_mask(x, indices, values, accumulate):
    """`x[:, mask] = values`: no position is needed, only which value each element takes."""
    lead = next(d for d, i in enumerate(indices) if i is not None)
    mask = indices[lead] != 0
    _check_mask(x, mask, lead)
    width = mask.ndim
    rest = x.ndim - lead - width
    if mask.size == 0:
        _check_values(values, (*x.shape[:lead], 0, *x.shape[lead + width :]))
        return x
    values = cast(values, x.dtype)
    values = values.reshape((1,) * (lead + 1 + rest - values.ndim) + values.shape)
    if values.shape[lead] == 1:
        values = values.reshape(values.shape[:lead] + (1,) * width + values.shape[lead + 1 :])
    elif values.size == 0:
        return x
    else:
        order = (jnp.cumsum(mask.ravel(), dtype=np.int32) - 1).reshape(mask.shape)
        values = jnp.take(values, order, axis=lead, mode="clip")
    chosen = mask.reshape(mask.shape + (1,) * rest)
    if accumulate:
        wide = compute_dtype(x.dtype)
        summed = x | values if x.dtype == np.bool_ else cast(cast(x, wide) + values, x.dtype)
        return jnp.where(chosen, summed, x)
    return jnp.where(chosen, values, x)


def _padded(x, indices, values):
    """Slots and values of a put that mixes masks with positions, padded to the largest mask."""
    size = max(i.size for i in indices if is_mask(i))
    positions: list[Any] = []
    for i in indices:
        if is_mask(i):
            _check_mask(x, i, len(positions))
            found = jnp.nonzero(i, size=size, fill_value=np.iinfo(np.int32).max)
            positions.extend(found)
        else:
            positions.append(_stretched(i, -1, size) if i is not None and i.ndim else i)
    given = [d for d, i in enumerate(positions) if i is not None]
    adjacent = given == list(range(given[0], given[-1] + 1))
    width = max(positions[d].ndim for d in given)
    # The mask's dimension is the last of the index dimensions in the result.
    after = (x.ndim - 1 - given[-1]) if adjacent else x.ndim - len(given)
    axis = values.ndim - 1 - after
    if width and axis >= 0:
        values = _stretched(values, axis, size)
    return _slots(positions), values


def _stretched(array, axis, size):
    if array.shape[axis] in (1, size):
        return array
    at = jnp.minimum(jnp.arange(size), array.shape[axis] - 1)
    return jnp.take(array, at, axis=axis)


# ---- along one dimension


def _at(x, dim, index):
    """The NumPy index of whole slices at `index` along `dim`; x has at least one dimension."""
    return (slice(None),) * dim + (_integer(index.reshape(-1)),)


def _one_dim(x):
    return x.reshape(1) if x.ndim == 0 else x


@lowers(aten.index_select.default)
def index_select(x, dim, index):
    dim = canonical_dim(dim, x.ndim)
    if x.ndim == 0:
        if index.size != 1:
            raise RuntimeError(
                f"index_select(): Index to scalar can have only 1 value, got {index.size} value(s)"
            )
        return x
    if x.shape[dim] == 0:
        return jnp.zeros((*x.shape[:dim], index.size, *x.shape[dim + 1 :]), x.dtype)
    return jnp.take(x, _integer(index.reshape(-1)), axis=dim, mode="clip")


@lowers(aten.index_add.default)
def index_add(x, dim, index, source, alpha=1):
    dim = canonical_dim(dim, x.ndim)
    wide = np.dtype(np.int32) if x.dtype == np.bool_ else compute_dtype(x.dtype)
    target = cast(_one_dim(x), wide)
    values = cast(_one_dim(source), wide) * cast(alpha, wide)
    out = target.at[_at(x, dim, index)].add(values)
    return cast(out, x.dtype).reshape(x.shape)


@lowers(aten.index_copy.default)
def index_copy(x, dim, index, source):
    if index.dtype != np.int64:
        raise RuntimeError(f"index_copy_(): Expected a long tensor for index, not {index.dtype}")
    dim = canonical_dim(dim, x.ndim)
    target = _one_dim(x)
    return target.at[_at(x, dim, index)].set(_one_dim(source)).reshape(x.shape)


@lowers(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(x, dim, index, value):
    if index.dtype != np.int64:
        raise IndexError("index_fill_(): Expected dtype int64 for index.")
    dim = canonical_dim(dim, x.ndim)
    target = _one_dim(x)
    return target.at[_at(x, dim, index)].set(cast(value, x.dtype)).reshape(x.shape)


def lowest(dtype: np.dtype) -> Any:
    """The identity of max."""
    if dtype == np.bool_:
        return False
    return -np.inf if dtype.kind not in "iu" else np.iinfo(dtype).min


def highest(dtype: np.dtype) -> Any:
    """The identity of min."""
    if dtype == np.bool_:
        return True
    return np.inf if dtype.kind not in "iu" else np.iinfo(dtype).max


def reduce_at(
    x: jax.Array, slots: Sequence[Any], values: jax.Array, reduce: str, include_self: bool
) -> jax.Array:
    """`x` with `values` combined in at a NumPy index; `include_self` counts x there too."""
    kind = {"add": "sum", "multiply": "prod"}.get(reduce, reduce)
    slots = tuple(slots)
    wide = compute_dtype(x.dtype)
    target = cast(x, wide)
    if not include_self:
        neutral = {"sum": 0, "mean": 0, "prod": 1}.get(kind)
        if neutral is None:
            neutral = {"amax": lowest, "amin": highest}[kind](wide)
        target = target.at[slots].set(jnp.asarray(neutral, wide))
    values = cast(values, wide)
    if kind in ("sum", "mean"):
        out = target.at[slots].max(values) if wide == np.bool_ else target.at[slots].add(values)
    elif kind == "prod":
        out = (
            target.at[slots].min(values) if wide == np.bool_ else target.at[slots].multiply(values)
        )
    elif kind in ("amax", "amin"):
        out = getattr(target.at[slots], kind[1:])(values)
    else:
        raise Unsupported(f"reduce={reduce!r} is not one of sum, prod, mean, amax, amin")
    if kind == "mean":
        out = _divided(out, slots, values.shape, include_self)
    return cast(out, x.dtype)


def _divided(total, slots, shape, include_self):
    start = jnp.full(total.shape, int(include_self), np.int32)
    counts = start.at[slots].add(jnp.ones(shape, np.int32))
    counts = jnp.maximum(counts, 1).astype(total.dtype)
    if total.dtype.kind in "iu":
        return jnp.floor_divide(total, counts)
    return total / counts


@lowers(aten.index_reduce.default)
def index_reduce(x, dim, index, source, reduce, include_self=True):
    dim = canonical_dim(dim, x.ndim)
    target = _one_dim(x)
    out = reduce_at(target, _at(x, dim, index), _one_dim(source), reduce, include_self)
    return out.reshape(x.shape)
