"""Embedding look-ups and bags with their backward forms.

Bags follow PyTorch's kernels: `offset2bag` names the bag of each index, `bag_size` counts what is
not padding, and mode 2 (max) keeps the winning row of each column. Padding rows give no gradient.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast, compute_dtype
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported

SUM, MEAN, MAX = 0, 1, 2


@lowers(aten.embedding.default)
def embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    return jnp.take(weight, indices, axis=0, mode="clip")


def _row_counts(indices, num_weights):
    return jnp.zeros(num_weights, np.int32).at[indices].add(1)


@lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq):
    wide = compute_dtype(grad_output.dtype)
    rows = indices.ravel()
    grad = grad_output.reshape(rows.shape[0], grad_output.shape[-1]).astype(wide)
    if scale_grad_by_freq:
        counts = jnp.maximum(_row_counts(rows, num_weights), 1)
        grad = grad / counts[rows][:, None].astype(wide)
    if padding_idx >= 0:
        grad = jnp.where((rows == padding_idx)[:, None], 0, grad)
    out = jnp.zeros((num_weights, grad.shape[1]), wide).at[rows].add(grad)
    return cast(out, grad_output.dtype)


def _bags(indices, offsets, include_last_offset, padding_idx):
    """The bag of each index, the number of bags, and which indices count."""
    count = offsets.shape[0] - (1 if include_last_offset else 0)
    positions = jnp.arange(indices.shape[0], dtype=offsets.dtype)
    bag = jnp.searchsorted(offsets[:count], positions, side="right") - 1
    return bag.astype(indices.dtype), count, (indices != padding_idx)


def _embedding_bag(
    weight,
    indices,
    offsets,
    scale_grad_by_freq=False,
    mode=SUM,
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=-1,
):
    wide = compute_dtype(weight.dtype)
    padding_idx = padding_idx + weight.shape[0] if padding_idx < -1 else padding_idx
    bag, count, counts = _bags(indices, offsets, include_last_offset, padding_idx)
    # The sizes of the bags, padding left out, and the row that won each column (mode max).
    size = jnp.zeros(count, indices.dtype).at[bag].add(counts.astype(indices.dtype))
    rows = jnp.take(weight, indices, axis=0, mode="clip").astype(wide)
    if mode == MAX:
        out, winner = _bag_max(rows, indices, bag, counts, count, size)
    else:
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.astype(wide)[:, None]
        rows = jnp.where(counts[:, None], rows, 0)
        out = jnp.zeros((count, weight.shape[1]), wide).at[bag].add(rows)
        if mode == MEAN:
            out = out / jnp.maximum(size, 1)[:, None].astype(wide)
        winner = None
    return cast(out, weight.dtype), bag, size, winner


def _bag_max(rows, indices, bag, counts, count, size):
    """Maximum over each bag, and the index that gave it in each column (-1 for empty bags)."""
    columns = rows.shape[1]
    low = jnp.full((count, columns), -jnp.inf, rows.dtype)
    best = low.at[bag].max(jnp.where(counts[:, None], rows, -jnp.inf))
    n = indices.shape[0]
    hit = counts[:, None] & (rows == best[bag])
    position = jnp.where(hit, jnp.arange(n)[:, None], n)
    first = jnp.full((count, columns), n, position.dtype).at[bag].min(position)
    filled = (size > 0)[:, None]
    padded = jnp.concatenate([indices, jnp.full(1, -1, indices.dtype)])
    winner = jnp.where(filled, padded[first], -1).astype(indices.dtype)
    return jnp.where(filled, best, 0), winner


@lowers(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    weight,
    indices,
    offsets,
    scale_grad_by_freq=False,
    mode=SUM,
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=-1,
):
    out, bag, size, winner = _embedding_bag(
        weight,
        indices,
        offsets,
        scale_grad_by_freq,
        mode,
        sparse,
        per_sample_weights,
        include_last_offset,
        padding_idx,
    )
    # One size for each offset: the last one, where it only ends the last bag, has none.
    size = jnp.pad(size, (0, offsets.shape[0] - size.shape[0]))
    winner = jnp.zeros(0, size.dtype) if winner is None else winner
    return out, bag, size, winner


@lowers(aten._embedding_bag_dense_backward.default)
def embedding_bag_dense_backward(
    grad,
    indices,
    offset2bag,
    bag_size,
    maximum_indices,
    num_weights,
    scale_grad_by_freq,
    mode,
    per_sample_weights,
    padding_idx=-1,
):
    wide = compute_dtype(grad.dtype)
    grad_wide = grad.astype(wide)
    out = jnp.zeros((num_weights, grad.shape[1]), wide)
    if mode == MAX:
        filled = maximum_indices >= 0
        columns = jnp.arange(grad.shape[1])
        at = jnp.where(filled, maximum_indices, 0)
        return cast(out.at[at, columns].add(jnp.where(filled, grad_wide, 0)), grad.dtype)
    rows = grad_wide[offset2bag]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.astype(wide)[:, None]
    if mode == MEAN:
        rows = rows / jnp.maximum(bag_size, 1)[offset2bag][:, None].astype(wide)
    if scale_grad_by_freq:
        rows = rows / _row_counts(indices, num_weights)[indices][:, None].astype(wide)
    if padding_idx >= 0:
        rows = jnp.where((indices != padding_idx)[:, None], rows, 0)
    return cast(out.at[indices].add(rows), grad.dtype)


@lowers(aten._embedding_bag_backward.default)
def embedding_bag_backward(
    grad,
    indices,
    offsets,
    offset2bag,
    bag_size,
    maximum_indices,
    num_weights,
    scale_grad_by_freq,
    mode,
    sparse,
    per_sample_weights,
    padding_idx=-1,
):
    if sparse:
        raise Unsupported("sparse=True: gradients of embedding bags are dense on this device")
    return embedding_bag_dense_backward(
        grad,
        indices,
        offset2bag,
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


@lowers(aten._embedding_bag_per_sample_weights_backward.default)
def embedding_bag_per_sample_weights_backward(
    grad, weight, indices, offsets, offset2bag, mode, padding_idx=-1
):
    if mode != SUM:
        raise Unsupported("per_sample_weights needs mode='sum'")
    wide = compute_dtype(grad.dtype)
    rows = jnp.take(weight, indices, axis=0, mode="clip").astype(wide)
    out = (grad.astype(wide)[offset2bag] * rows).sum(1)
    return cast(jnp.where(indices == padding_idx, 0, out), grad.dtype)


@lowers(aten.embedding_renorm.default)
def embedding_renorm(x, indices, max_norm, norm_type):
    wide = compute_dtype(x.dtype)
    norm = jnp.linalg.norm(x.astype(wide), ord=norm_type, axis=1)
    used = jnp.zeros(x.shape[0], bool).at[indices.ravel()].set(True)
    scale = jnp.where(used & (norm > max_norm), max_norm / (norm + 1e-7), 1)
    return cast(x.astype(wide) * scale[:, None], x.dtype)
