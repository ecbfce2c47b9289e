"""Scaled dot-product attention as one operator, with its own backward.

Queries are (batch, heads, length, features); keys and values may have fewer heads (grouped
queries). Scores and softmax are float32 for float16 and bfloat16. The backward recomputes the
weights, so that no (length x length) matrix is kept; not from the saved logsumexp, in which a row
of scores at the lowest float, as masks have them, is no longer told from its size. Dropout draws
its mask from the key whose words travel as `philox_seed`.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast, compute_dtype
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported


def _repeated(x, heads):
    """Keys or values with one head for each query head."""
    return x if x.shape[-3] == heads else jnp.repeat(x, heads // x.shape[-3], axis=-3)


def _summed(grad, like):
    """The gradient of `_repeated`, and of batch broadcasting in a mask."""
    if grad.shape[-3] != like.shape[-3]:
        groups = like.shape[-3]
        split = (*grad.shape[:-3], groups, grad.shape[-3] // groups, *grad.shape[-2:])
        grad = grad.reshape(split).sum(-3)
    return grad


def _scores(query, key, bias, causal, scale):
    """Masked scores in the compute dtype."""
    wide = compute_dtype(query.dtype)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = jnp.einsum("...qd,...kd->...qk", query, key, preferred_element_type=wide)
    scores = scores * jnp.asarray(scale, wide)
    if causal:
        rows, columns = scores.shape[-2:]
        scores = jnp.where(np.tril(np.ones((rows, columns), bool)), scores, -jnp.inf)
    if bias is None:
        return scores
    if bias.dtype == np.bool_:
        return jnp.where(bias, scores, -jnp.inf)
    return scores + cast(bias, wide)


def _weights(scores):
    """Softmax over the keys; rows in which everything is masked are zeros."""
    top = jnp.max(scores, axis=-1, keepdims=True, initial=-jnp.inf)
    shifted = jnp.exp(scores - jnp.where(jnp.isfinite(top), top, 0))
    total = jnp.sum(shifted, axis=-1, keepdims=True)
    return shifted / jnp.where(total == 0, 1, total)


def _dropped(shape, seed, p, dtype):
    """The dropout multiplier: 0 or 1 / (1 - p)."""
    key = jax.random.wrap_key_data(seed.astype(np.uint32))
    keep = jax.random.bernoulli(key, 1 - p, shape)
    return keep.astype(dtype) / (1 - p)


def attend(query, key, value, bias, dropout_p, causal, scale, seed):
    """Output and logsumexp, the latter in the compute dtype."""
    key, value = (_repeated(v, query.shape[-3]) for v in (key, value))
    scores = _scores(query, key, bias, causal, scale)
    logsumexp = jax.nn.logsumexp(scores, axis=-1)
    weights = _weights(scores)
    if dropout_p:
        weights = weights * _dropped(weights.shape, seed, dropout_p, weights.dtype)
    out = jnp.einsum(
        "...qk,...kd->...qd",
        cast(weights, query.dtype),
        value,
        preferred_element_type=weights.dtype,
    )
    return cast(out, query.dtype), logsumexp


def attend_backward(grad, query, key, value, bias, out, dropout_p, causal, scale, seed):
    """Gradients of query, key, value and of the scores before masking."""
    wide = compute_dtype(query.dtype)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    full_key, full_value = (_repeated(v, query.shape[-3]) for v in (key, value))
    weights = _weights(_scores(query, full_key, bias, causal, scale))
    grad, out = cast(grad, wide), cast(out, wide)
    query_w, key_w, value_w = (cast(v, wide) for v in (query, full_key, full_value))
    grad_weights = jnp.einsum("...qd,...kd->...qk", grad, value_w)
    kept = weights
    if dropout_p:
        factor = _dropped(weights.shape, seed, dropout_p, wide)
        grad_weights, kept = grad_weights * factor, weights * factor
    # Each row's mean gradient: the sum over keys of weight x gradient equals grad . out.
    delta = jnp.sum(grad * out, axis=-1, keepdims=True)
    grad_scores = weights * (grad_weights - delta)
    grad_q = jnp.einsum("...qk,...kd->...qd", grad_scores, key_w) * scale
    grad_k = jnp.einsum("...qk,...qd->...kd", grad_scores, query_w) * scale
    grad_v = jnp.einsum("...qk,...qd->...kd", kept, grad)
    return (
        cast(grad_q, query.dtype),
        cast(_summed(grad_k, key), key.dtype),
        cast(_summed(grad_v, value), value.dtype),
        grad_scores,
    )


def _reduced_to(grad, like):
    """`grad` summed over the dimensions along which `like` was broadcast."""
    lead = grad.ndim - like.ndim
    axes = [d for d in range(grad.ndim) if d < lead or like.shape[d - lead] != grad.shape[d]]
    return cast(jnp.sum(grad, axis=tuple(axes), keepdims=True).reshape(like.shape), like.dtype)


@lowers(aten._scaled_dot_product_fused_attention_overrideable.default, random=True)
def fused_attention(
    query,
    key_,
    value,
    attn_bias=None,
    dropout_p=0.0,
    is_causal=False,
    return_debug_mask=False,
    scale=None,
    *,
    key,
):
    seed = jax.random.key_data(key)
    out, logsumexp = attend(query, key_, value, attn_bias, dropout_p, is_causal, scale, seed)
    logsumexp = logsumexp.astype(np.float32)
    if query.ndim == 3:
        logsumexp = logsumexp[None]
    high, low = (seed[i].astype(np.int64) for i in (0, 1))
    lengths = (query.shape[-2], key_.shape[-2])
    zero = jnp.zeros((), np.int64)
    return out, logsumexp, None, None, *lengths, (high << 32) | low, zero, None


def _seed(packed):
    """The key words that `fused_attention` packed into one int64."""
    return jnp.stack([(packed >> 32) & 0xFFFFFFFF, packed & 0xFFFFFFFF]).astype(np.uint32)


@lowers(aten._scaled_dot_product_fused_attention_overrideable_backward.default)
def fused_attention_backward(
    grad_out,
    query,
    key,
    value,
    attn_bias,
    grad_input_mask,
    out,
    logsumexp,
    cum_seq_q,
    cum_seq_k,
    max_q,
    max_k,
    dropout_p,
    is_causal,
    philox_seed,
    philox_offset,
    scale=None,
):
    *grads, grad_scores = attend_backward(
        grad_out,
        query,
        key,
        value,
        attn_bias,
        out,
        dropout_p,
        is_causal,
        scale,
        _seed(philox_seed),
    )
    grads = [g if wanted else None for g, wanted in zip(grads, grad_input_mask[:3], strict=True)]
    grad_bias = None
    if attn_bias is not None and grad_input_mask[3] and attn_bias.dtype != np.bool_:
        grad_bias = _reduced_to(grad_scores, attn_bias)
    return *grads, grad_bias


@lowers(aten._scaled_dot_product_flash_attention_for_cpu.default)
def flash_attention_for_cpu(
    query, key, value, dropout_p=0.0, is_causal=False, attn_mask=None, scale=None
):
    """What a graph that was traced on the CPU holds; the logsumexp is float32 for half inputs."""
    if dropout_p:
        raise Unsupported("dropout inside the CPU's flash attention")
    return attend(query, key, value, attn_mask, 0.0, is_causal, scale, None)


@lowers(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def flash_attention_for_cpu_backward(
    grad_out,
    query,
    key,
    value,
    out,
    logsumexp,
    dropout_p,
    is_causal,
    attn_mask=None,
    scale=None,
):
    if dropout_p:
        raise Unsupported("dropout inside the CPU's flash attention")
    return attend_backward(
        grad_out,
        query,
        key,
        value,
        attn_mask,
        out,
        0.0,
        is_causal,
        scale,
        None,
    )[:3]
