"""`segment_reduce`: sums, means, products and extremes of runs of rows, and the gradient.

Lengths (or offsets, one more of them) have the data's leading dimensions and, last, one entry for
each segment; the data's dimension at that place is what the segments divide. Rows outside every
segment count for none.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import canonical_dim, cast, compute_dtype, is_integral
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported, one_of

_KIND = one_of(sum="sum", mean="mean", prod="prod", max="max", min="min", amax="max", amin="min")


def _offsets(data: Any, lengths: Any, offsets: Any, axis: int) -> Any:
    """Where segments start, and where the last one ends: (batch, segments + 1)."""
    given = offsets if offsets is not None else lengths
    if given is None:
        raise Unsupported("segment_reduce(): either lengths or offsets must be given")
    if not is_integral(given.dtype):
        raise Unsupported(f"segment_reduce(): lengths and offsets are integers, not {given.dtype}")
    if canonical_dim(axis, data.ndim) != given.ndim - 1:
        raise Unsupported("segment_reduce(): axis must be the last dimension of lengths or offsets")
    flat = cast(given, np.int64).reshape(-1, given.shape[-1])
    if offsets is not None:
        return flat
    return jnp.pad(jnp.cumsum(flat, axis=1), ((0, 0), (1, 0)))


class _Segments:
    """Data as (batch x rows, features), with the segment of each row."""

    def __init__(self, data: Any, lengths: Any, offsets: Any, axis: int) -> None:
        bounds = _offsets(data, lengths, offsets, axis)
        axis = canonical_dim(axis, data.ndim)
        batch, self.count = bounds.shape[0], bounds.shape[1] - 1
        self.lead, self.rest, rows = data.shape[:axis], data.shape[axis + 1 :], data.shape[axis]
        at = jax.vmap(lambda b: jnp.searchsorted(b, jnp.arange(rows), side="right"))(bounds) - 1
        outside = (at < 0) | (at >= self.count)
        self.total = batch * self.count
        first = jnp.arange(batch)[:, None] * self.count
        self.of = jnp.where(outside, self.total, at + first).reshape(-1)
        self.lengths = jnp.diff(bounds, axis=1).reshape(-1, 1)
        self.width = int(np.prod(self.rest))

    def flat(self, x: Any) -> Any:
        return x.reshape(-1, self.width)

    def folded(self, rows: Any, kind: str) -> Any:
        """(segments, features); a segment without rows holds the identity."""
        fold = getattr(jax.ops, f"segment_{kind}")
        return fold(rows, self.of, self.total + 1)[: self.total]

    def spread(self, x: Any) -> Any:
        """The value of its segment at each row."""
        outside = jnp.zeros((1, self.width), x.dtype)
        return jnp.concatenate([self.flat(x), outside])[self.of]

    def shaped(self, x: Any) -> Any:
        return x.reshape(*self.lead, self.count, *self.rest)


def _checks_lengths(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call asks that the lengths be checked, for which they must be known."""
    return kwargs.get("lengths") is not None and not kwargs.get("unsafe", False)


def _check(data: Any, lengths: Any, axis: int) -> None:
    if bool(jnp.any(lengths < 0)):
        raise Unsupported("segment_reduce(): lengths contains a negative value")
    rows = data.shape[canonical_dim(axis, data.ndim)]
    if bool(jnp.any(jnp.sum(lengths, axis=-1) != rows)):
        raise Unsupported(f"segment_reduce(): every row of lengths must sum to {rows}")


@lowers(aten.segment_reduce.default, host=_checks_lengths)
def segment_reduce(data, reduce, *, lengths=None, offsets=None, axis=0, unsafe=False, initial=None):
    if is_integral(data.dtype):
        raise Unsupported(f"segment_reduce() of {data.dtype}; only floating point data")
    kind = _KIND(reduce)
    segments = _Segments(data, lengths, offsets, axis)
    if lengths is not None and not unsafe:
        _check(data, lengths, axis)
    rows = segments.flat(cast(data, compute_dtype(data.dtype)))
    result = segments.folded(rows, "sum" if kind == "mean" else kind)
    if initial is not None:
        start = cast(initial, rows.dtype)
        combine = {"max": jnp.maximum, "min": jnp.minimum, "prod": jnp.multiply}.get(kind, jnp.add)
        result = combine(result, start)
    if kind == "mean":
        nothing = jnp.nan if initial is None else start
        result = jnp.where(segments.lengths > 0, result / segments.lengths, nothing)
    return cast(segments.shaped(result), data.dtype)


def _others(segments: _Segments, rows: Any, initial: Any) -> Any:
    """At each zero or NaN, the product of the rest of its segment; elsewhere nothing of use."""
    zero, nan = rows == 0, jnp.isnan(rows)
    plain = segments.folded(jnp.where(zero | nan, 1, rows), "prod")
    if initial is not None:
        plain = plain * cast(initial, rows.dtype)
    zeros = segments.spread(segments.folded(zero.astype(np.int32), "sum")) - zero
    nans = segments.spread(segments.folded(nan.astype(np.int32), "sum")) - nan
    product = segments.spread(plain) * jnp.where(zeros > 0, 0, 1)
    return jnp.where(nans > 0, jnp.nan, product)


@lowers(aten._segment_reduce_backward.default)
def segment_reduce_backward(
    grad, output, data, reduce, *, lengths=None, offsets=None, axis=0, initial=None
):
    kind = _KIND(reduce)
    segments = _Segments(data, lengths, offsets, axis)
    wide = compute_dtype(data.dtype)
    rows = segments.flat(cast(data, wide))
    above, result = segments.spread(cast(grad, wide)), segments.spread(cast(output, wide))
    if kind == "mean":
        count = jnp.broadcast_to(segments.lengths, (segments.total, segments.width))
        made = above / jnp.maximum(segments.spread(count), 1)
    elif kind in ("max", "min"):
        # Equal extremes share the gradient.
        chosen = (rows == result) | jnp.isnan(rows)
        shared = segments.spread(segments.folded(chosen.astype(wide), "sum"))
        made = jnp.where(chosen, above / jnp.maximum(shared, 1), 0)
    elif kind == "prod":
        special = (rows == 0) | jnp.isnan(rows)
        rest = jnp.where(special, _others(segments, rows, initial), result / rows)
        made = above * rest
    else:
        made = above
    made = jnp.where((segments.of == segments.total)[:, None], 0, made)
    return cast(made.reshape(data.shape), data.dtype)
