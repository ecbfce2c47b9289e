"""Strided views of a flat storage, as XLA slices and transposes; gather only as the last resort.

A storage's content is the row-major flattening of its base array. `spec(...)` describes how a
tensor (size, stride, offset) lies in it; `read` and `write` are traceable. The start positions are
data, not part of the spec, so that `x[i]` compiles once for all i.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, NamedTuple

import numpy as np


class Spec(NamedTuple):
    """How a view lies in a flat storage of `length` elements.

    kind: 'whole' (the contiguous storage itself), 'box' (a slice of the storage reshaped to
    `shape`, of `sizes`, then permuted by `perm` and broadcast), or 'gather' (index arithmetic).
    """

    kind: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    length: int
    shape: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    perm: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()


def contiguous_stride(size: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, with PyTorch's rule that a zero-sized dimension counts as one."""
    out, step = [], 1
    for n in reversed(size):
        out.append(step)
        step *= max(n, 1)
    return tuple(reversed(out))


def is_contiguous(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """True when a tensor's elements lie in row-major order without gaps."""
    step = 1
    for n, s in zip(reversed(size), reversed(stride), strict=True):
        if n == 0:
            return True
        if n != 1:
            if s != step:
                return False
            step *= n
    return True


def extent(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """How many storage elements a view spans."""
    if 0 in size:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))


@functools.lru_cache(maxsize=65536)
def spec(
    size: tuple[int, ...], stride: tuple[int, ...], offset: int, length: int
) -> tuple[Spec, np.ndarray | None]:
    """The spec of a view and its start positions (int32 or int64, None when there are none)."""
    size, stride = tuple(size), tuple(stride)
    if offset == 0 and math.prod(size) == length and is_contiguous(size, stride):
        return Spec("whole", size, (), length), None
    box = _box(size, stride, offset, length)
    if box is not None:
        return box
    return Spec("gather", size, stride, length), np.array([offset], np.int64)


def _box(
    size: tuple[int, ...], stride: tuple[int, ...], offset: int, length: int
) -> tuple[Spec, np.ndarray] | None:
    if 0 in size or length == 0:
        return None
    kept = [d for d in range(len(size)) if size[d] != 1 and stride[d] != 0]
    order = sorted(kept, key=lambda d: -stride[d])
    strides = [stride[d] for d in order]
    if any(a % b for a, b in itertools.pairwise(strides)):
        return None
    shape, starts, rest = [], [], offset
    before = None
    for s in strides:
        shape.append(-(-length // s) if before is None else before // s)
        starts.append(rest // s)
        rest %= s
        before = s
    # The innermost axis holds the elements that a step skips.
    shape.append(length if before is None else before)
    starts.append(rest)
    sizes = [size[d] for d in order] + [1]
    if any(b + n > m for b, n, m in zip(starts, sizes, shape, strict=True)):
        return None
    perm = tuple(order.index(d) for d in kept)
    found = Spec("box", size, stride, length, tuple(shape), tuple(sizes), perm, tuple(kept))
    return found, np.array(starts, np.int64)


def flat_as(base: Any, dtype: np.dtype) -> Any:
    """The base array as a flat array of another dtype (a bitcast of the bytes)."""
    import jax
    import jax.numpy as jnp

    flat = base.reshape(-1)
    if flat.dtype == dtype:
        return flat
    if flat.size == 0:
        return jnp.zeros((0,), dtype)
    if flat.dtype == np.bool_:
        flat = flat.astype(np.uint8)
    if jnp.issubdtype(flat.dtype, jnp.complexfloating):
        part = jnp.float32 if flat.dtype == np.complex64 else jnp.float64
        flat = jnp.stack([flat.real, flat.imag], -1).reshape(-1).astype(part)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        part = np.dtype(np.float32 if dtype == np.complex64 else np.float64)
        parts = _bitcast(flat, part)
        pairs = parts[: parts.size // 2 * 2].reshape(-1, 2)
        return jax.lax.complex(pairs[:, 0], pairs[:, 1])
    if dtype == np.bool_:
        return _bitcast(flat, np.dtype(np.uint8)) != 0
    return _bitcast(flat, dtype)


def _bitcast(flat: Any, dtype: np.dtype) -> Any:
    import jax

    old, new = flat.dtype.itemsize, dtype.itemsize
    if new > old:
        flat = flat[: flat.size // (new // old) * (new // old)].reshape(-1, new // old)
    return jax.lax.bitcast_convert_type(flat, dtype).reshape(-1)


def read(base: Any, view: Spec, starts: Any, dtype: np.dtype) -> Any:
    """The view's values, shape `view.size`."""
    import jax
    import jax.numpy as jnp

    # Arrays of their own dtype are not flattened on the way: a mesh's partition would be lost.
    held = base if base.dtype == dtype else flat_as(base, dtype)
    if view.kind == "whole":
        return held.reshape(view.size)
    if view.kind == "gather":
        if 0 in view.size:
            return jnp.zeros(view.size, dtype)
        return held.reshape(-1)[_positions(view, starts)]
    cut = _padded(held, view.shape)
    if view.sizes != view.shape:
        whole = [n == m for n, m in zip(view.sizes, view.shape, strict=True)]
        places = [0 if w else s for w, s in zip(whole, starts, strict=True)]
        cut = jax.lax.dynamic_slice(cut, places, view.sizes)
    cut = cut.reshape(view.sizes[:-1]).transpose(view.perm)
    ones = tuple(n if d in view.kept else 1 for d, n in enumerate(view.size))
    return jnp.broadcast_to(cut.reshape(ones), view.size)


def write(base: Any, view: Spec, starts: Any, dtype: np.dtype, value: Any) -> Any:
    """A new base array whose view holds `value` (cast to `dtype`, broadcast to the view's size)."""
    import jax
    import jax.numpy as jnp

    value = jnp.broadcast_to(value, view.size)
    # The bytes of bools are 0 and 1 only while nothing else is written through another dtype.
    if dtype == np.bool_ and base.dtype != np.bool_:
        dtype, value = np.dtype(np.uint8), value.astype(np.uint8)
    elif base.dtype == np.bool_ and dtype != np.bool_:
        base = base.astype(np.uint8)
    if view.kind == "whole" and base.dtype == dtype:
        return value.reshape(base.shape)
    flat = flat_as(base, dtype)
    if 0 in view.size:
        return base
    if view.kind == "whole":
        flat = value.reshape(-1)
    elif view.kind == "gather":
        flat = flat.at[_positions(view, starts)].set(value, unique_indices=False)
    else:
        order = np.argsort(view.perm)
        # Repeated elements (only `fill_` and `zero_` write those) are all the same.
        one_each = (slice(None) if d in view.kept else slice(0, 1) for d in range(value.ndim))
        value = value[tuple(one_each)]
        block = value.reshape([view.size[d] for d in view.kept]).transpose(order)
        full = _padded(flat, view.shape)
        full = jax.lax.dynamic_update_slice(full, block.reshape(view.sizes), list(starts))
        flat = full.reshape(-1)[: view.length]
    back, old = flat_as(flat, base.dtype), base.reshape(-1)
    if back.size < old.size:  # a wider dtype leaves out what does not fill an element
        back = jnp.concatenate([back, old[back.size :]])
    return back.reshape(base.shape)


def _padded(held: Any, shape: tuple[int, ...]) -> Any:
    import jax.numpy as jnp

    missing = math.prod(shape) - held.size
    return (jnp.pad(held.reshape(-1), (0, missing)) if missing else held).reshape(shape)


def _positions(view: Spec, starts: Any) -> Any:
    import jax

    position = starts[0]
    for d, (n, s) in enumerate(zip(view.size, view.stride, strict=True)):
        if n != 1 and s:
            position = position + s * jax.lax.broadcasted_iota(np.int64, view.size, d)
    return jax.numpy.broadcast_to(position, view.size)


def lay_out(value: Any, size: tuple[int, ...], stride: tuple[int, ...]) -> Any:
    """The base array of a fresh tensor with these strides (offset 0) that holds `value`."""
    import jax.numpy as jnp

    if is_contiguous(size, stride):
        return value
    order = sorted(range(len(size)), key=lambda d: (-stride[d], d))
    ordered = tuple(size[d] for d in order)
    if is_contiguous(ordered, tuple(stride[d] for d in order)):
        return value.transpose(order)
    length = extent(size, stride)
    view, starts = spec(size, stride, 0, length)
    return write(jnp.zeros((length,), value.dtype), view, starts, value.dtype, value)
