"""Fused LSTM and GRU cells and their gradients.

A cell's workspace holds the activated gates, gate after gate, as the backward needs them. Gate
order is PyTorch's: LSTM input, forget, cell, output; GRU reset, input, new.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast, compute_dtype
from torch_tpu_unified.core.aten import aten


def _biased(gates, bias, wide):
    return cast(gates, wide) if bias is None else cast(gates, wide) + cast(bias, wide)


# The meta kernel fails where there is no bias.
@lowers(aten._thnn_fused_lstm_cell.default, meta=False)
def lstm_cell(input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None):
    wide = compute_dtype(input_gates.dtype)
    gates = _biased(input_gates, input_bias, wide) + _biased(hidden_gates, hidden_bias, wide)
    i, f, g, o = jnp.split(gates, 4, axis=1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    cy = f * cast(cx, wide) + i * g
    hy = o * jnp.tanh(cy)
    workspace = jnp.concatenate([i, f, g, o], axis=1)
    return cast(hy, cx.dtype), cast(cy, cx.dtype), cast(workspace, input_gates.dtype)


@lowers(aten._thnn_fused_lstm_cell_backward_impl.default)
def lstm_cell_backward(grad_hy, grad_cy, cx, cy, workspace, has_bias):
    wide = compute_dtype(workspace.dtype)
    i, f, g, o = jnp.split(cast(workspace, wide), 4, axis=1)
    squashed = jnp.tanh(cast(cy, wide))
    grad_h = 0 if grad_hy is None else cast(grad_hy, wide)
    grad_c = 0 if grad_cy is None else cast(grad_cy, wide)
    grad_c = grad_c + grad_h * o * (1 - squashed * squashed)
    grads = [
        grad_c * g * i * (1 - i),
        grad_c * cast(cx, wide) * f * (1 - f),
        grad_c * i * (1 - g * g),
        grad_h * squashed * o * (1 - o),
    ]
    gates = jnp.concatenate([jnp.broadcast_to(v, i.shape) for v in grads], axis=1)
    bias = cast(gates.sum(0), workspace.dtype) if has_bias else None
    return cast(gates, workspace.dtype), cast(grad_c * f, cx.dtype), bias


@lowers(aten._thnn_fused_gru_cell.default)
def gru_cell(input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None):
    wide = compute_dtype(input_gates.dtype)
    ir, ii, inn = jnp.split(_biased(input_gates, input_bias, wide), 3, axis=1)
    hr, hi, hn = jnp.split(_biased(hidden_gates, hidden_bias, wide), 3, axis=1)
    hx_wide = cast(hx, wide)
    r, z = jax.nn.sigmoid(ir + hr), jax.nn.sigmoid(ii + hi)
    n = jnp.tanh(inn + r * hn)
    hy = (hx_wide - n) * z + n
    workspace = jnp.concatenate([r, z, n, hx_wide, hn], axis=1)
    return cast(hy, hx.dtype), cast(workspace, hx.dtype)


@lowers(aten._thnn_fused_gru_cell_backward.default)
def gru_cell_backward(grad_hy, workspace, has_bias):
    wide = compute_dtype(workspace.dtype)
    r, z, n, hx, hn = jnp.split(cast(workspace, wide), 5, axis=1)
    grad = cast(grad_hy, wide)
    grad_n = grad * (1 - z) * (1 - n * n)
    grad_z = grad * (hx - n) * z * (1 - z)
    grad_r = grad_n * hn * r * (1 - r)
    dtype = workspace.dtype
    inputs = cast(jnp.concatenate([grad_r, grad_z, grad_n], axis=1), dtype)
    hidden = cast(jnp.concatenate([grad_r, grad_z, grad_n * r], axis=1), dtype)
    biases = (inputs.sum(0), hidden.sum(0)) if has_bias else (None, None)
    return inputs, hidden, cast(grad * z, dtype), *biases
