"""nn.LSTM, nn.GRU and nn.RNN under `torch.compile`: one loop of XLA a layer and direction.

PyTorch's tracer refuses recurrent layers unless told otherwise, and its decomposition writes every
time step out. For modules on this device the tracer is told, and the layer's call is composed of
`recurrent`, an operator made of a JAX scan. Packed sequences keep PyTorch's decomposition.
"""

from __future__ import annotations

from typing import Any

import torch

from cloud_backend.custom import jax_op
from torch_tpu_unified.core.aten import Absent

Tensor = torch.Tensor
_SCHEMA = (
    "(Tensor x, Tensor h, Tensor? c, Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh, "
    "Tensor? w_hr, str mode, bool reverse) -> (Tensor, Tensor, Tensor)"
)


def _scan(x, h, c, w_ih, w_hh, b_ih, b_hh, w_hr, mode, reverse):  # type: ignore[no-untyped-def]
    """One layer in one direction: x [time, batch, features] -> all h, the last h, the last c."""
    import jax
    import jax.numpy as jnp

    inputs = x @ w_ih.T if b_ih is None else x @ w_ih.T + b_ih
    bias = 0 if b_hh is None else b_hh

    def lstm(state, gates):
        h, c = state
        i, f, g, o = jnp.split(gates + h @ w_hh.T + bias, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        h = h if w_hr is None else h @ w_hr.T
        return (h, c), h

    def gru(state, gates):
        h, c = state
        ir, iz, new = jnp.split(gates, 3, axis=-1)
        hr, hz, hn = jnp.split(h @ w_hh.T + bias, 3, axis=-1)
        z = jax.nn.sigmoid(iz + hz)
        new = jnp.tanh(new + jax.nn.sigmoid(ir + hr) * hn)
        h = (h - new) * z + new
        return (h, c), h

    def simple(state, gates):
        h, c = state
        activation = jnp.tanh if mode == "rnn_tanh" else jax.nn.relu
        h = activation(gates + h @ w_hh.T + bias)
        return (h, c), h

    step = {"lstm": lstm, "gru": gru}.get(mode, simple)
    (h, c), ys = jax.lax.scan(step, (h, jnp.zeros_like(h) if c is None else c), inputs,
                              reverse=reverse)  # fmt: skip
    return ys, h, c


recurrent = jax_op(_scan, name="recurrent", schema=_SCHEMA)


def _layers(
    mode: str, x: Tensor, hs: Tensor, cs: Tensor | None, params: Any, has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    x = x.transpose(0, 1) if batch_first else x
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)
    projected = each == (5 if has_biases else 3)
    last_h, last_c = [], []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            number = layer * directions + direction
            own = list(params[number * each : (number + 1) * each])
            w_hr = own.pop() if projected else None
            w_ih, w_hh, b_ih, b_hh = own if has_biases else (*own, None, None)
            c = None if cs is None else cs[number]
            y, h, c = recurrent(
                x, hs[number], c, w_ih, w_hh, b_ih, b_hh, w_hr, mode, bool(direction)
            )
            outputs.append(y)
            last_h.append(h)
            last_c.append(c)
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout and train and layer < num_layers - 1:
            x = torch.nn.functional.dropout(x, dropout, True)
    x = x.transpose(0, 1) if batch_first else x
    return x, torch.stack(last_h), torch.stack(last_c)


def _lstm(input: Tensor, hx: Any, params: Any, *options: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _layers("lstm", input, hx[0], hx[1], params, *options)


def _without_cell(mode: str) -> Any:
    def call(input: Tensor, hx: Tensor, params: Any, *options: Any) -> tuple[Tensor, Tensor]:
        return _layers(mode, input, hx, None, params, *options)[:2]

    return call


def install() -> None:
    """Let graphs that are traced for this device compose recurrent layers as above."""
    from torch_tpu_unified.core.aten import aten

    forms = {"lstm": _lstm}
    forms |= {mode: _without_cell(mode) for mode in ("gru", "rnn_tanh", "rnn_relu")}
    for name, form in forms.items():
        op = getattr(aten, name).input
        if isinstance(op, Absent):
            continue
        for key in (torch._C.DispatchKey.AutogradPrivateUse1, torch._C.DispatchKey.PrivateUse1):
            if key not in op.py_kernels:
                op.py_impl(key)(form)


def allow_in_dynamo(builder: Any) -> None:
    """Lets the tracer into recurrent modules whose parameters are on this device."""
    theirs = builder.VariableBuilder.wrap_module

    def wrap_module(self: Any, value: torch.nn.Module) -> Any:
        if isinstance(value, torch.nn.RNNBase) and _on_tpu(value):
            with torch._dynamo.config.patch(allow_rnn=True):
                return theirs(self, value)
        return theirs(self, value)

    builder.VariableBuilder.wrap_module = wrap_module


def _on_tpu(module: torch.nn.Module) -> bool:
    return any(p.device.type == "tpu" for p in module.parameters())
