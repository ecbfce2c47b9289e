"""Ragged matrix product as a Pallas kernel: consecutive groups of rows, each with its own matrix.

The core of a mixture of experts: rows are sorted by expert, `group_sizes` says how many each has. A
list of visits (block of rows, group), made from the sizes and known to the kernel before it starts,
walks over the blocks; a block where groups meet is visited once for each of them. The number of
visits has a static bound, so sizes may change without another program.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from cloud_backend.custom import jax_op
from cloud_backend.pallas._calling import kernel_call, padded, product
from torch_tpu_unified.core.errors import Unsupported

_BLOCK = 128


def _visits(group_sizes: Any, rows: int) -> tuple[Any, Any, Any, Any]:
    """(group, block of rows) of each visit, the first row of each group, and the visits in use.

    Unused visits at the end repeat the last one, so that they fetch nothing new.
    """
    groups, blocks = group_sizes.shape[0], rows // _BLOCK
    ends = jnp.cumsum(group_sizes.astype(jnp.int32))
    starts = jnp.concatenate([jnp.zeros(1, jnp.int32), ends])
    first, last = starts[:-1] // _BLOCK, (ends - 1) // _BLOCK
    counts = jnp.where(group_sizes > 0, last - first + 1, 0).astype(jnp.int32)
    total = counts.sum(dtype=jnp.int32)
    bound = blocks + groups
    before = jnp.cumsum(counts, dtype=jnp.int32) - counts
    visit = jnp.minimum(jnp.arange(bound, dtype=jnp.int32), jnp.maximum(total - 1, 0))
    group = jnp.searchsorted(before + counts, visit, side="right").astype(jnp.int32)
    group = jnp.minimum(group, groups - 1)
    block = jnp.minimum(first[group] + visit - before[group], blocks - 1)
    return group, block.astype(jnp.int32), starts.astype(jnp.int32), total[None]


def _in_group(group: Any, block: Any, starts: Any) -> Any:
    """Which rows of a block belong to the group, as a column."""
    rows = block * _BLOCK + jax.lax.broadcasted_iota(jnp.int32, (_BLOCK, 1), 0)
    return (rows >= starts[group]) & (rows < starts[group + 1])


def _product_kernel(group, block, starts, total, left, right, out, acc, *, turned):
    visit, step = pl.program_id(1), pl.program_id(2)
    used = visit < total[0]

    @pl.when(step == 0)
    def _start():
        acc[...] = jnp.zeros_like(acc)

    @pl.when(used)
    def _add():
        acc[...] += product(left[...], right[0], (1, 1 if turned else 0))

    @pl.when(step == pl.num_programs(2) - 1)
    def _finish():
        fresh = (visit == 0) | (block[visit] != block[jnp.maximum(visit - 1, 0)])
        old = jnp.where(fresh, jnp.float32(0), out[...].astype(jnp.float32))
        inside = _in_group(group[visit], block[visit], starts) & used
        out[...] = jnp.where(inside, acc[...], old).astype(out.dtype)


def _outer_kernel(group, block, starts, total, left, right, out, acc):
    """Of each group: left^T right over its rows."""
    visit = pl.program_id(2)
    fresh = (visit == 0) | (group[visit] != group[jnp.maximum(visit - 1, 0)])

    @pl.when(fresh)
    def _start():
        acc[...] = jnp.zeros_like(acc)

    @pl.when(visit < total[0])
    def _add():
        inside = _in_group(group[visit], block[visit], starts)
        rows = jnp.where(inside, left[...], jnp.zeros((), left.dtype))
        acc[...] += product(rows, right[...], (0, 0))
        out[0] = acc[...].astype(out.dtype)


def _scalars(group_sizes: Any, rows: int) -> tuple[Any, ...]:
    with jax.enable_x64(False):
        return _visits(group_sizes.astype(jnp.int32), rows)


def _product(left: Any, right: Any, group_sizes: Any, turned: bool) -> Any:
    """Rows of `left` times their group's matrix (or its transpose)."""
    rows, columns = left.shape[0], right.shape[1 if turned else 2]
    a = padded(padded(left, 0, _BLOCK), 1, _BLOCK)
    b = padded(padded(right, 1, _BLOCK), 2, _BLOCK)
    across = b.shape[1 if turned else 2] // _BLOCK
    scalars = _scalars(group_sizes, a.shape[0])

    def right_block(n: Any, v: Any, k: Any, group: Any, *_: Any) -> Any:
        return (group[v], n, k) if turned else (group[v], k, n)

    out = kernel_call(
        functools.partial(_product_kernel, turned=turned),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(across, scalars[0].shape[0], a.shape[1] // _BLOCK),
            in_specs=[
                pl.BlockSpec((_BLOCK, _BLOCK), lambda n, v, k, group, block, *_: (block[v], k)),
                pl.BlockSpec((1, _BLOCK, _BLOCK), right_block),
            ],
            out_specs=pl.BlockSpec(
                (_BLOCK, _BLOCK), lambda n, v, k, group, block, *_: (block[v], n)
            ),
            scratch_shapes=[pltpu.VMEM((_BLOCK, _BLOCK), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((a.shape[0], across * _BLOCK), left.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary")
        ),
    )(*scalars, a, b)
    # Blocks behind the last group are never visited.
    covered = jax.lax.broadcasted_iota(jnp.int32, (rows, 1), 0) < group_sizes.sum()
    return jnp.where(covered, out[:rows, :columns], jnp.zeros((), out.dtype))


def _outer(left: Any, right: Any, group_sizes: Any, dtype: Any) -> Any:
    a = padded(padded(left, 0, _BLOCK), 1, _BLOCK)
    b = padded(padded(right, 0, _BLOCK), 1, _BLOCK)
    groups, depth, columns = group_sizes.shape[0], left.shape[1], right.shape[1]
    scalars = _scalars(group_sizes, a.shape[0])
    out = kernel_call(
        _outer_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(a.shape[1] // _BLOCK, b.shape[1] // _BLOCK, scalars[0].shape[0]),
            in_specs=[
                pl.BlockSpec((_BLOCK, _BLOCK), lambda k, n, v, group, block, *_: (block[v], k)),
                pl.BlockSpec((_BLOCK, _BLOCK), lambda k, n, v, group, block, *_: (block[v], n)),
            ],
            out_specs=pl.BlockSpec(
                (1, _BLOCK, _BLOCK), lambda k, n, v, group, *_: (group[v], k, n)
            ),
            scratch_shapes=[pltpu.VMEM((_BLOCK, _BLOCK), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((groups, a.shape[1], b.shape[1]), dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(*scalars, a, b)
    # Groups without rows are never visited.
    some = (group_sizes > 0)[:, None, None]
    return jnp.where(some, out[:, :depth, :columns], jnp.zeros((), dtype))


@jax.custom_vjp
def _ragged(left, right, group_sizes):
    return _product(left, right, group_sizes, False)


def _forward(left, right, group_sizes):
    return _ragged(left, right, group_sizes), (left, right, group_sizes)


def _backward(saved, grad):
    left, right, group_sizes = saved
    grad = grad.astype(left.dtype)
    grad_right = _outer(left, grad, group_sizes, right.dtype)
    return _product(grad, right, group_sizes, True), grad_right, None


_ragged.defvjp(_forward, _backward)


@jax_op(name="ragged_matmul")
def ragged_matmul(left: jax.Array, right: jax.Array, group_sizes: jax.Array) -> jax.Array:
    """Rows in groups, each group times its own matrix.

    Args:
        left: [rows, depth], float32, bfloat16 or float16; the rows of group 0 first, and so on.
        right: [groups, depth, columns] of the same dtype.
        group_sizes: int32 or int64 [groups], not negative, together at most the rows.

    Returns:
        [rows, columns]; rows behind the last group are zero.
    """
    shapes = left.ndim == 2 and right.ndim == 3 and group_sizes.shape == right.shape[:1]
    if not shapes or left.shape[1] != right.shape[1]:
        raise Unsupported(
            f"left {list(left.shape)}, right {list(right.shape)}, group_sizes "
            f"{list(group_sizes.shape)}; give [rows, depth], [groups, depth, columns], [groups]"
        )
    if left.dtype != right.dtype or left.dtype not in (jnp.float32, jnp.bfloat16, jnp.float16):
        raise Unsupported(f"dtypes {left.dtype}, {right.dtype}; one of float32, bfloat16, half")
    if 0 in (*left.shape, *right.shape):
        raise Unsupported("a dimension of size 0")
    return _ragged(left, right, group_sizes)
