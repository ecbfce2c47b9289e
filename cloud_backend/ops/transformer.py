"""The whole-layer operators that `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` call.

PyTorch takes them in eval mode without gradients. Masks are as its own kernels read them: anything
but zero hides a key, whatever the mask's dtype; `mask_type` 0 is (length, length), 1 is (batch,
keys), 2 is (batch, heads, length, keys).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import compute_dtype
from cloud_backend.ops.matmul import product
from cloud_backend.ops.norm import native_layer_norm
from torch_tpu_unified.core.aten import aten


def _linear(x, weight, bias):
    return product(x, weight.T) + bias


def _heads(x, count):
    """(batch, length, features) -> (batch, heads, length, features of a head)."""
    return x.reshape(*x.shape[:-1], count, -1).swapaxes(-2, -3)


def _hidden(mask, mask_type, scores):
    """Where a key is hidden, of a shape that broadcasts to the scores."""
    batch, _, length, keys = scores.shape
    mask = mask.astype(bool)
    if mask_type is None:
        mask_type = 1 if mask.shape == (batch, keys) and mask.shape != (length, keys) else 0
    if mask_type == 1:
        return mask[:, None, None, :]
    return jnp.broadcast_to(mask, scores.shape)


def _attention(query, key, value, heads, mask, mask_type):
    """The heads' outputs, joined, and the weights (batch, heads, length, keys)."""
    q, k, v = (_heads(x, heads) for x in (query, key, value))
    wide = compute_dtype(q.dtype)
    scores = product(q * (q.shape[-1] ** -0.5), k.swapaxes(-1, -2)).astype(wide)
    if mask is not None:
        scores = jnp.where(_hidden(mask, mask_type, scores), -jnp.inf, scores)
    weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
    joined = product(weights, v).swapaxes(-2, -3)
    return joined.reshape(*query.shape[:-1], -1), weights


def _projected(query, key, value, weight, bias):
    parts = zip((query, key, value), jnp.split(weight, 3), jnp.split(bias, 3), strict=True)
    return [_linear(x, w, b) for x, w, b in parts]


@lowers(aten._native_multi_head_attention.default)
def native_multi_head_attention(
    query,
    key,
    value,
    embed_dim,
    num_head,
    qkv_weight,
    qkv_bias,
    proj_weight,
    proj_bias,
    mask,
    need_weights,
    average_attn_weights,
    mask_type,
):
    q, k, v = _projected(query, key, value, qkv_weight, qkv_bias)
    joined, weights = _attention(q, k, v, num_head, mask, mask_type)
    if need_weights and average_attn_weights:
        weights = weights.mean(1)
    return _linear(joined, proj_weight, proj_bias), weights if need_weights else None


@lowers(aten._transformer_encoder_layer_fwd.default)
def transformer_encoder_layer(
    src,
    embed_dim,
    num_heads,
    qkv_weight,
    qkv_bias,
    proj_weight,
    proj_bias,
    use_gelu,
    norm_first,
    eps,
    norm_weight_1,
    norm_bias_1,
    norm_weight_2,
    norm_bias_2,
    ffn_weight_1,
    ffn_bias_1,
    ffn_weight_2,
    ffn_bias_2,
    mask,
    mask_type,
):
    def first_norm(x):
        return native_layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)[0]

    def second_norm(x):
        return native_layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)[0]

    def attend(x):
        q, k, v = _projected(x, x, x, qkv_weight, qkv_bias)
        joined, _ = _attention(q, k, v, num_heads, mask, mask_type)
        return _linear(joined, proj_weight, proj_bias)

    def feed(x):
        y = _linear(x, ffn_weight_1, ffn_bias_1)
        y = jax.nn.gelu(y, approximate=False) if use_gelu else jax.nn.relu(y)
        return _linear(y, ffn_weight_2, ffn_bias_2)

    if norm_first:
        src = src + attend(first_norm(src))
        return src + feed(second_norm(src))
    src = first_norm(src + attend(src))
    return second_norm(src + feed(src))
