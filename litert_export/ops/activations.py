"""Activation functions. LiteRT's own operator where it has one, else a stable composition.

LiteRT's RELU family turns NaN into a bound on some kernels where PyTorch hands NaN on; everything
else here keeps NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from litert_export.graph import Graph, Value
from litert_export.ops import lowers
from litert_export.ops._shared import Number, float32, unary
from litert_export.ops.pointwise import clamp
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import one_of

NONE = {"fused_activation_function": "NONE"}


def _const(g: Graph, value: float) -> Value:
    return g.const(np.float32(value))


def _one_to_one(code: str, *ops: Any) -> None:
    @lowers(*ops)
    def lowering(g: Graph, x: Value) -> Value:
        return unary(g, code, x)


_one_to_one("LOGISTIC", aten.sigmoid.default)
_one_to_one("TANH", aten.tanh.default)
_one_to_one("HARD_SWISH", aten.hardswish.default)
_one_to_one("RELU6", aten.relu6.default)


@lowers(aten.relu.default)
def relu(g: Graph, x: Value) -> Value:
    if "float" in x.dtype:
        return unary(g, "RELU", x)
    inner = x.dtype if x.dtype in ("int32", "int64") else "int32"
    zero = g.const(np.zeros((), inner))
    return g.cast(g.emit("MAXIMUM", g.cast(x, inner), zero), x.dtype)


@lowers(aten.hardtanh.default)
def hardtanh(g: Graph, x: Value, min_val: Number, max_val: Number) -> Value:
    return clamp(g, x, min_val, max_val)


@lowers(aten.gelu.default)
def gelu(g: Graph, x: Value, *, approximate: str) -> Value:
    return unary(g, "GELU", x, approximate=one_of(none=False, tanh=True)(approximate))


@lowers(aten.silu.default)
def silu(g: Graph, x: Value) -> Value:
    a = float32(g, x)
    return g.cast(g.emit("MUL", a, g.emit("LOGISTIC", a), **NONE), x.dtype)


@lowers(aten.hardsigmoid.default)
def hardsigmoid(g: Graph, x: Value) -> Value:
    a = g.emit("RELU6", g.emit("ADD", float32(g, x), _const(g, 3), **NONE))
    return g.cast(g.emit("MUL", a, _const(g, 1 / 6), **NONE), x.dtype)


@lowers(aten.leaky_relu.default)
def leaky_relu(g: Graph, x: Value, negative_slope: Number) -> Value:
    return unary(g, "LEAKY_RELU", x, alpha=float(negative_slope))


@lowers(aten._prelu_kernel.default)
def prelu(g: Graph, x: Value, weight: Value) -> Value:
    a, slope = float32(g, x), float32(g, weight)
    if slope.size == 1:
        slope = g.reshape(slope, (1,) * max(x.rank, 1))
    return g.cast(g.emit("PRELU", a, slope, shape=x.shape), x.dtype)


@lowers(aten.elu.default)
def elu(g: Graph, x: Value, alpha: Number, scale: Number, input_scale: Number) -> Value:
    a = float32(g, x)
    if alpha == 1 and input_scale == 1:
        y = g.emit("ELU", a)
    else:
        # ELU computes exp(x) - 1 without cancellation below zero; above, RELU takes over.
        low = g.emit("MINIMUM", a, _const(g, 0))
        if input_scale != 1:
            low = g.emit("MUL", low, _const(g, input_scale), **NONE)
        low = g.emit("MUL", g.emit("ELU", low), _const(g, alpha), **NONE)
        y = g.emit("ADD", g.emit("RELU", a), low, **NONE)
    if scale != 1:
        y = g.emit("MUL", y, _const(g, scale), **NONE)
    return g.cast(y, x.dtype)


def log_one_plus_exp(g: Graph, x: Value) -> Value:
    """log(1 + exp(-|x|)) in float32, which never overflows."""
    small = g.emit("EXP", g.emit("NEG", g.emit("ABS", x)))
    return g.emit("LOG", g.emit("ADD", small, _const(g, 1), **NONE))


@lowers(aten.softplus.default)
def softplus(g: Graph, x: Value, beta: Number, threshold: Number) -> Value:
    a = float32(g, x)
    z = a if beta == 1 else g.emit("MUL", a, _const(g, beta), **NONE)
    y = g.emit("ADD", g.emit("RELU", z), log_one_plus_exp(g, z), **NONE)
    if beta != 1:
        y = g.emit("MUL", y, _const(g, 1 / beta), **NONE)
    if threshold < 15:
        # Beyond 15 the two forms agree in float32.
        linear = g.emit("GREATER", z, _const(g, threshold), dtype="bool")
        y = g.emit("SELECT_V2", linear, a, y, dtype="float32")
    return g.cast(y, x.dtype)


@lowers(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(g: Graph, x: Value) -> tuple[Value, None]:
    a = float32(g, x)
    y = g.emit("SUB", g.emit("MINIMUM", a, _const(g, 0)), log_one_plus_exp(g, a), **NONE)
    return g.cast(y, x.dtype), None


@lowers(aten.mish.default)
def mish(g: Graph, x: Value) -> Value:
    # tanh(softplus(x)) = n / (n + 2) with n = e^x (e^x + 2); it is 1 in float32 beyond 20.
    a = float32(g, x)
    e = g.emit("EXP", g.emit("MINIMUM", a, _const(g, 20)))
    n = g.emit("MUL", e, g.emit("ADD", e, _const(g, 2), **NONE), **NONE)
    ratio = g.emit("DIV", n, g.emit("ADD", n, _const(g, 2), **NONE), **NONE)
    return g.cast(g.emit("MUL", a, ratio, **NONE), x.dtype)


def over_axis(g: Graph, code: str, x: Value, dim: int, **options: Any) -> Value:
    """An op of the last axis, along any axis."""
    if x.rank == 0:
        return g.reshape(over_axis(g, code, g.reshape(x, (1,)), 0, **options), ())
    dim %= x.rank
    order = [*(d for d in range(x.rank) if d != dim), dim]
    y = g.emit(code, g.transpose(x, order), **options)
    return g.transpose(y, np.argsort(order).tolist())


@lowers(aten._softmax.default)
def softmax(g: Graph, x: Value, dim: int, half_to_float: bool) -> Value:
    return g.cast(over_axis(g, "SOFTMAX", float32(g, x), dim, beta=1.0), g.result[0].dtype)


@lowers(aten._log_softmax.default)
def log_softmax(g: Graph, x: Value, dim: int, half_to_float: bool) -> Value:
    return g.cast(over_axis(g, "LOG_SOFTMAX", float32(g, x), dim), g.result[0].dtype)


@lowers(aten._safe_softmax.default)
def safe_softmax(g: Graph, x: Value, dim: int, dtype: Any) -> Value:
    # Rows that are -inf throughout give zeros instead of NaN.
    a = float32(g, x)
    axis = g.const(np.array([dim % max(x.rank, 1)], np.int32))
    top_shape = [1 if i == dim % x.rank else d for i, d in enumerate(x.shape)]
    top = g.emit("REDUCE_MAX", a, axis, shape=top_shape, keep_dims=True)
    empty = g.emit("EQUAL", top, _const(g, -np.inf), dtype="bool")
    y = over_axis(g, "SOFTMAX", a, dim, beta=1.0)
    y = g.emit("SELECT_V2", empty, _const(g, 0), y, shape=x.shape, dtype="float32")
    return g.cast(y, g.result[0].dtype)
