"""Embedding bags: rows of a table, reduced per bag.

Bags of one known length become a GATHER and a reduction. All others become the product of a
membership matrix [bags, indices] with the gathered rows, which holds for offsets given as an input.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from litert_export.graph import Graph, Value
from litert_export.ops._dims import (
    LOWEST,
    binary,
    computes,
    concat,
    filled,
    scalar,
    slice_dim,
    take,
)
from litert_export.ops.index import choose
from litert_export.ops.matmul import matmul
from litert_export.ops.reduce import reduced
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported

_REDUCTIONS = ("SUM", "MEAN", "REDUCE_MAX")


def _length(offsets: Value, n: int, bags: int) -> int | None:
    """The common length of all bags, or None."""
    if offsets.data is None or not bags or n % bags:
        return None
    starts = offsets.data[:bags]
    return n // bags if np.array_equal(starts, np.arange(bags) * (n // bags)) else None


def _even(g: Graph, rows: Value, bags: int, length: int, mode: int, weights: Value | None) -> Value:
    if weights is not None:
        rows = binary(g, "MUL", rows, g.reshape(weights, (weights.size, 1)))
    rows = g.reshape(rows, (bags, length, rows.shape[1]))
    return reduced(g, _REDUCTIONS[mode], rows, [1], False)


def _membership(g: Graph, offsets: Value, n: int, bags: int, last: bool) -> Value:
    """bool [bags, n]: whether an index belongs to a bag."""
    at = g.const(np.arange(n, dtype=np.int32).reshape(1, n))
    offsets = g.cast(offsets, "int32")
    if offsets.data is not None:
        ends = offsets.data[1:] if last else np.append(offsets.data[1:], n)
        starts = offsets.data[:bags, None]
        assert at.data is not None
        return g.const((at.data >= starts) & (at.data < ends[:bags, None]))
    started = g.emit(
        "GREATER_EQUAL", at, g.reshape(offsets, (offsets.size, 1)), shape=(offsets.size, n),
        dtype="bool",
    )  # fmt: skip
    # A bag holds what has started with it and not with the next one.
    following = started
    if not last:
        never = g.const(np.zeros((1, n), bool))
        following = concat(g, [started, never], 0)
    mine = slice_dim(g, following, 0, 0, bags)
    next_ = slice_dim(g, following, 0, 1, bags + 1)
    return g.emit("LOGICAL_AND", mine, g.emit("LOGICAL_NOT", next_))


def _largest(g: Graph, rows: Value, member: Value) -> Value:
    """The largest of each bag's rows, zeros for an empty bag."""
    bags, n = member.shape
    wide = choose(
        g,
        g.reshape(member, (bags, n, 1)),
        g.reshape(rows, (1, *rows.shape)),
        scalar(g, LOWEST, rows.dtype),
    )
    top = reduced(g, "REDUCE_MAX", wide, [1], False)
    some = reduced(g, "REDUCE_ANY", member, [1], True)
    return choose(g, some, top, scalar(g, 0, rows.dtype))


def _uneven(g: Graph, rows: Value, member: Value, mode: int, weights: Value | None) -> Value:
    if mode == 2:
        return _largest(g, rows, member)
    share = g.cast(member, rows.dtype)
    if mode == 1:
        sizes = reduced(g, "SUM", share, [1], True)
        share = binary(g, "DIV", share, g.emit("MAXIMUM", sizes, scalar(g, 1, rows.dtype)))
    if weights is not None:
        share = binary(g, "MUL", share, g.reshape(weights, (1, weights.size)))
    return matmul(g, share, rows)


@computes(
    aten._embedding_bag.default,
    aten._embedding_bag_forward_only.default,
    aten.embedding_bag.padding_idx,
)
def embedding_bag(
    g: Graph,
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Value | None,
    include_last_offset: bool,
    padding_idx: Any,
) -> tuple[Value | None, ...]:
    if mode not in (0, 1, 2):
        raise Unsupported(f"mode={mode}")
    n, bags = indices.size, offsets.size - bool(include_last_offset)
    if not n or not bags:
        return filled(g, g.result[0].shape, 0, weight.dtype), None, None, None
    rows = take(g, weight, indices, 0)
    length = _length(offsets, n, bags)
    pads = padding_idx is not None and padding_idx >= 0
    if length and not pads:
        return _even(g, rows, bags, length, mode, per_sample_weights), None, None, None
    member = _membership(g, offsets, n, bags, include_last_offset)
    if pads:
        wanted = scalar(g, padding_idx, indices.dtype)
        kept = g.emit("NOT_EQUAL", g.reshape(indices, (1, n)), wanted, dtype="bool")
        member = g.emit("LOGICAL_AND", member, kept)
    return _uneven(g, rows, member, mode, per_sample_weights), None, None, None


@computes(aten.embedding_bag.default)
def embedding_bag_plain(
    g: Graph,
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Value | None,
    include_last_offset: bool,
) -> tuple[Value | None, ...]:
    return embedding_bag(
        g, weight, indices, offsets, False, mode, False, per_sample_weights,
        include_last_offset, None,
    )  # fmt: skip
