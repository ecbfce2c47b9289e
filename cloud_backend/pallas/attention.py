"""Flash attention as a Pallas kernel: softmax(q k^T) v without the matrix of scores in memory.

The algorithm is that of Dao et al., "FlashAttention" (2022) and "FlashAttention-2" (2023): keys
pass in blocks, with a running maximum and a running sum for each query; the backward computes the
scores again from the saved logarithm of that sum. Memory grows with the length, not its square.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from cloud_backend.custom import jax_op
from cloud_backend.pallas._calling import kernel_call, padded, product
from torch_tpu_unified.core.errors import Unsupported

_BLOCK = 128
_MASKED = -1e30  # finite: a difference of two infinities is no number
_NT, _NN, _TN = (1, 1), (1, 0), (0, 0)  # a b^T, a b, a^T b


def _scores(q, k, row, column, scale, length, offset, causal):
    """The block of scores whose corner is (row, column), masked."""
    scores = product(q[0], k[0], _NT) * jnp.float32(scale)
    rows = row + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 0)
    columns = column + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
    seen = columns < length
    if causal:
        seen &= columns <= rows + offset
    return jnp.where(seen, scores, jnp.float32(_MASKED))


def _forward_kernel(q, k, v, out, lse, acc, high, total, *, scale, length, offset, causal):
    row, column = pl.program_id(1) * _BLOCK, pl.program_id(2) * _BLOCK

    @pl.when(pl.program_id(2) == 0)
    def _start():
        acc[...] = jnp.zeros_like(acc)
        high[...] = jnp.full_like(high, _MASKED)
        total[...] = jnp.zeros_like(total)

    @pl.when(column <= row + _BLOCK - 1 + offset if causal else column >= 0)
    def _step():
        scores = _scores(q, k, row, column, scale, length, offset, causal)
        highest = jnp.maximum(high[...], scores.max(1, keepdims=True))
        shrink = jnp.exp(high[...] - highest)
        weights = jnp.where(scores > _MASKED / 2, jnp.exp(scores - highest), jnp.float32(0))
        total[...] = total[...] * shrink + weights.sum(1, keepdims=True)
        acc[...] = acc[...] * shrink + product(weights.astype(v.dtype), v[0], _NN)
        high[...] = highest

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _finish():
        some = total[...] > 0  # a query that sees no key gives zeros
        divisor = jnp.where(some, total[...], jnp.float32(1))
        out[0] = (acc[...] / divisor).astype(out.dtype)
        lse[0] = high[...] + jnp.log(divisor)


def _probabilities(q, k, lse, row, column, scale, length, offset, causal):
    scores = _scores(q, k, row, column, scale, length, offset, causal)
    return jnp.where(scores > _MASKED / 2, jnp.exp(scores - lse[0]), jnp.float32(0))


def _score_gradient(weights, v, grad, delta):
    products = product(grad[0], v[0], _NT)
    return weights * (products - delta[0])


def _query_kernel(q, k, v, grad, lse, delta, grad_q, acc, *, scale, length, offset, causal):
    """Gradients of the queries: keys pass by."""
    row, column = pl.program_id(1) * _BLOCK, pl.program_id(2) * _BLOCK

    @pl.when(pl.program_id(2) == 0)
    def _start():
        acc[...] = jnp.zeros_like(acc)

    @pl.when(column <= row + _BLOCK - 1 + offset if causal else column >= 0)
    def _step():
        weights = _probabilities(q, k, lse, row, column, scale, length, offset, causal)
        scores = _score_gradient(weights, v, grad, delta)
        acc[...] += product(scores.astype(k.dtype), k[0], _NN) * jnp.float32(scale)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _finish():
        grad_q[0] = acc[...].astype(grad_q.dtype)


def _key_kernel(
    q, k, v, grad, lse, delta, grad_k, grad_v, acc_k, acc_v, *, scale, length, offset, causal
):
    """Gradients of keys and values: queries pass by."""
    column, row = pl.program_id(1) * _BLOCK, pl.program_id(2) * _BLOCK

    @pl.when(pl.program_id(2) == 0)
    def _start():
        acc_k[...] = jnp.zeros_like(acc_k)
        acc_v[...] = jnp.zeros_like(acc_v)

    @pl.when(column <= row + _BLOCK - 1 + offset if causal else column >= 0)
    def _step():
        weights = _probabilities(q, k, lse, row, column, scale, length, offset, causal)
        acc_v[...] += product(weights.astype(grad.dtype), grad[0], _TN)
        scores = _score_gradient(weights, v, grad, delta)
        acc_k[...] += product(scores.astype(q.dtype), q[0], _TN) * jnp.float32(scale)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _finish():
        grad_k[0] = acc_k[...].astype(grad_k.dtype)
        grad_v[0] = acc_v[...].astype(grad_v.dtype)


class _Problem:
    """Sizes of one call, and the blocks that follow from them."""

    def __init__(self, q: Any, k: Any, v: Any, causal: bool, scale: float | None) -> None:
        _check(q, k, v)
        self.batch, self.heads, self.rows, self.depth = q.shape
        self.shared, self.length = self.heads // k.shape[1], k.shape[2]
        self.numbers = {
            "scale": 1 / math.sqrt(self.depth) if scale is None else scale,
            "length": self.length,
            "offset": 0,
            "causal": causal,
        }
        self.row_blocks = -(-self.rows // _BLOCK)
        self.key_blocks = -(-self.length // _BLOCK)
        self.groups = self.batch * self.heads
        self.parameters = pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        )

    def flat(self, x: Any) -> Any:
        """[batch, heads, length, depth] -> [batch * heads, blocks * 128, depth]."""
        return padded(x.reshape(-1, *x.shape[2:]), 1, _BLOCK)

    def row(self, width: int, by: int) -> Any:
        """Blocks of queries; `by` is the grid's axis that walks over them."""
        return pl.BlockSpec((1, _BLOCK, width), lambda g, i, j: (g, (i, j)[by - 1], 0))

    def column(self, by: int, shared: int = 1) -> Any:
        """Blocks of keys; `shared` heads of queries use the same one."""
        return pl.BlockSpec(
            (1, _BLOCK, self.depth),
            lambda g, i, j: (jax.lax.div(g, jnp.int32(shared)), (i, j)[by - 1], 0),
        )

    def shape(self, blocks: int, width: int, dtype: Any) -> Any:
        return jax.ShapeDtypeStruct((self.groups, blocks * _BLOCK, width), dtype)


def _check(q: Any, k: Any, v: Any) -> None:
    if not q.ndim == k.ndim == v.ndim == 4 or k.shape != v.shape:
        raise Unsupported("query, key and value are [batch, heads, length, depth], key like value")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or q.shape[1] % k.shape[1]:
        raise Unsupported(
            f"query {list(q.shape)} does not fit key {list(k.shape)}: batch and depth are equal, "
            "heads of the query a multiple of those of the key"
        )
    if not q.dtype == k.dtype == v.dtype or q.dtype not in (jnp.float32, jnp.bfloat16, jnp.float16):
        raise Unsupported(f"dtypes {q.dtype}, {k.dtype}, {v.dtype}; one of float32, bfloat16, half")
    if 0 in (*q.shape, *k.shape):
        raise Unsupported("a dimension of size 0")


def _attend(q: Any, k: Any, v: Any, causal: bool, scale: float | None) -> tuple[Any, Any]:
    p = _Problem(q, k, v, causal, scale)
    out, lse = kernel_call(
        functools.partial(_forward_kernel, **p.numbers),
        grid=(p.groups, p.row_blocks, p.key_blocks),
        in_specs=[p.row(p.depth, 1), p.column(2, p.shared), p.column(2, p.shared)],
        out_specs=[p.row(p.depth, 1), p.row(1, 1)],
        out_shape=[
            p.shape(p.row_blocks, p.depth, q.dtype),
            p.shape(p.row_blocks, 1, jnp.float32),
        ],
        scratch_shapes=[
            pltpu.VMEM((_BLOCK, p.depth), jnp.float32),
            pltpu.VMEM((_BLOCK, 1), jnp.float32),
            pltpu.VMEM((_BLOCK, 1), jnp.float32),
        ],
        compiler_params=p.parameters,
    )(p.flat(q), p.flat(k), p.flat(v))
    return out[:, : p.rows].reshape(q.shape), lse[:, : p.rows, 0].reshape(q.shape[:3])


def _gradients(q: Any, k: Any, v: Any, out: Any, lse: Any, grad: Any, **options: Any) -> Any:
    p = _Problem(q, k, v, **options)
    wide = jnp.float32
    delta = (out.astype(wide) * grad.astype(wide)).sum(-1)
    rows = [padded(x.reshape(p.groups, p.rows, 1), 1, _BLOCK) for x in (lse, delta)]
    arrays = (p.flat(q), p.flat(k), p.flat(v), p.flat(grad.astype(q.dtype)), *rows)

    def specs(row: int, column: int) -> list[Any]:
        keys = p.column(column, p.shared)
        ends = [p.row(p.depth, row), p.row(1, row), p.row(1, row)]
        return [p.row(p.depth, row), keys, keys, *ends]

    grad_q = kernel_call(
        functools.partial(_query_kernel, **p.numbers),
        grid=(p.groups, p.row_blocks, p.key_blocks),
        in_specs=specs(1, 2),
        out_specs=p.row(p.depth, 1),
        out_shape=p.shape(p.row_blocks, p.depth, q.dtype),
        scratch_shapes=[pltpu.VMEM((_BLOCK, p.depth), wide)],
        compiler_params=p.parameters,
    )(*arrays)
    grad_k, grad_v = kernel_call(
        functools.partial(_key_kernel, **p.numbers),
        grid=(p.groups, p.key_blocks, p.row_blocks),
        in_specs=specs(2, 1),
        out_specs=[p.column(1), p.column(1)],
        out_shape=[p.shape(p.key_blocks, p.depth, wide)] * 2,
        scratch_shapes=[pltpu.VMEM((_BLOCK, p.depth), wide)] * 2,
        compiler_params=p.parameters,
    )(*arrays)

    def shared(x: Any, like: Any) -> Any:
        """The gradient of a key is the sum over the queries' heads that use it."""
        x = x[:, : p.length].reshape(p.batch, -1, p.shared, p.length, p.depth)
        return x.sum(2).astype(like.dtype)

    return grad_q[:, : p.rows].reshape(q.shape), shared(grad_k, k), shared(grad_v, v)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _attention(q, k, v, causal, scale):
    return _attend(q, k, v, causal, scale)[0]


def _attention_forward(q, k, v, causal, scale):
    out, lse = _attend(q, k, v, causal, scale)
    return out, (q, k, v, out, lse)


def _attention_backward(causal, scale, saved, grad):
    return _gradients(*saved, grad, causal=causal, scale=scale)


_attention.defvjp(_attention_forward, _attention_backward)


def _torch_form(query, key, value, causal=False, scale=None):  # type: ignore[no-untyped-def]
    import torch

    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=causal, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )


@jax_op(name="flash_attention", torch_form=_torch_form)
def flash_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    causal: bool = False,
    scale: float | None = None,
) -> jax.Array:
    """softmax(scale query key^T) value, with memory linear in the length.

    Args:
        query: [batch, heads, queries, depth], float32, bfloat16 or float16.
        key, value: [batch, key heads, keys, depth]; key heads divide heads.
        causal: query i sees the keys 0 to i.
        scale: default 1 / sqrt(depth).

    Returns:
        Like query; sums are kept in float32.
    """
    return _attention(query, key, value, causal, scale)
