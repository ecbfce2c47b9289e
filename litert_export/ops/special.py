"""Mathematical functions without an operator of their own in LiteRT, composed in float32.

Each form avoids cancellation where the plain one would lose digits: ELU is LiteRT's exp(x) - 1
below zero, ATAN2 gives every inverse trigonometric function.
"""

from __future__ import annotations

import math

import numpy as np

from litert_export.graph import Graph, Value
from litert_export.ops import lowers
from litert_export.ops._shared import float32
from torch_tpu_unified.core.aten import aten

NONE = {"fused_activation_function": "NONE"}
# -log(1 - erf(a)) / a on [0, 4] as a polynomial in a: our own least-squares fit, relative error of
# erf below 4e-9 before rounding.
_ERF = (
    1.12837917, 0.636619383, 0.102777819, -0.0191530126, -0.000160502763, 0.00166714443,
    -0.000632905972, 0.000117662, -9.25872979e-06,
)  # fmt: skip


def _k(g: Graph, value: float) -> Value:
    return g.const(np.float32(value))


def _op(g: Graph, code: str, a: Value, b: Value) -> Value:
    made: Value = g.emit(code, a, b, **NONE)
    return made


def _select(g: Graph, condition: Value, a: Value, b: Value, like: Value) -> Value:
    made: Value = g.emit("SELECT_V2", condition, a, b, shape=like.shape, dtype="float32")
    return made


def _start(g: Graph, x: Value) -> Value:
    """The argument in float32; integers become floating as PyTorch's do."""
    dtype = g.result[0].dtype
    return float32(g, g.cast(x, dtype))


def _end(g: Graph, y: Value) -> Value:
    return g.cast(y, g.result[0].dtype)


def expm1_value(g: Graph, a: Value) -> Value:
    """exp(a) - 1: ELU below zero, -ELU(-a) exp(a) above."""
    up = _op(g, "MUL", g.emit("NEG", g.emit("ELU", g.emit("NEG", a))), g.emit("EXP", a))
    positive = g.emit("GREATER", a, _k(g, 0), dtype="bool")
    return _select(g, positive, up, g.emit("ELU", a), a)


def log1p_value(g: Graph, a: Value) -> Value:
    """log(1 + a): its series near zero, where 1 + a and the kernel's LOG lose digits."""
    series = _k(g, -1 / 6)
    for c in (1 / 5, -1 / 4, 1 / 3, -1 / 2, 1.0):
        series = _op(g, "ADD", _op(g, "MUL", series, a), _k(g, c))
    log = g.emit("LOG", _op(g, "ADD", a, _k(g, 1)))
    near = g.emit("LESS", g.emit("ABS", a), _k(g, 0.06), dtype="bool")
    return _select(g, near, _op(g, "MUL", series, a), log, a)


def _sign_of(g: Graph, a: Value, magnitude: Value) -> Value:
    """The magnitude with the sign of `a`."""
    negative = g.emit("LESS", a, _k(g, 0), dtype="bool")
    return _select(g, negative, g.emit("NEG", magnitude), magnitude, a)


@lowers(aten.expm1.default)
def expm1(g: Graph, x: Value) -> Value:
    return _end(g, expm1_value(g, _start(g, x)))


@lowers(aten.log1p.default)
def log1p(g: Graph, x: Value) -> Value:
    return _end(g, log1p_value(g, _start(g, x)))


def erf_value(g: Graph, a: Value) -> Value:
    """erf as 1 - exp(-|a| P(|a|)), with its sign put back."""
    size = g.emit("MINIMUM", g.emit("ABS", a), _k(g, 4))
    series = _k(g, _ERF[-1])
    for c in reversed(_ERF[:-1]):
        series = _op(g, "ADD", _op(g, "MUL", series, size), _k(g, c))
    exponent = g.emit("NEG", _op(g, "MUL", series, size))
    return _sign_of(g, a, g.emit("NEG", g.emit("ELU", exponent)))


@lowers(aten.erf.default)
def erf(g: Graph, x: Value) -> Value:
    return _end(g, erf_value(g, _start(g, x)))


@lowers(aten.tan.default)
def tan(g: Graph, x: Value) -> Value:
    a = _start(g, x)
    return _end(g, _op(g, "DIV", g.emit("SIN", a), g.emit("COS", a)))


@lowers(aten.sinh.default)
def sinh(g: Graph, x: Value) -> Value:
    a = _start(g, x)
    # By halves, e = exp(|x|/2) - 1: neither overflows before the result does.
    e = expm1_value(g, g.emit("ABS", a))
    half = g.emit("EXP", _op(g, "MUL", g.emit("ABS", a), _k(g, 0.5)))
    large = _op(g, "MUL", _op(g, "MUL", half, _k(g, 0.5)), half)
    small = _op(
        g, "MUL", _op(g, "ADD", e, _op(g, "DIV", e, _op(g, "ADD", e, _k(g, 1)))), _k(g, 0.5)
    )
    far = g.emit("GREATER", g.emit("ABS", a), _k(g, 15), dtype="bool")
    return _end(g, _sign_of(g, a, _select(g, far, large, small, a)))


@lowers(aten.cosh.default)
def cosh(g: Graph, x: Value) -> Value:
    half = g.emit("EXP", _op(g, "MUL", g.emit("ABS", _start(g, x)), _k(g, 0.5)))
    scaled = _op(g, "MUL", half, _k(g, 0.5))
    return _end(
        g, _op(g, "ADD", _op(g, "MUL", scaled, half), _op(g, "DIV", scaled, _cube(g, half)))
    )


def _cube(g: Graph, a: Value) -> Value:
    return _op(g, "MUL", a, _op(g, "MUL", a, a))


def _atan2(g: Graph, y: Value, x: Value) -> Value:
    shape = y.shape if y.rank >= x.rank else x.shape
    made: Value = g.emit("ATAN2", g.broadcast_to(y, shape), g.broadcast_to(x, shape))
    return made


def _complement(g: Graph, a: Value) -> Value:
    """sqrt(1 - a²), by its factors."""
    low, high = _op(g, "SUB", _k(g, 1), a), _op(g, "ADD", _k(g, 1), a)
    made: Value = g.emit("SQRT", _op(g, "MUL", low, high))
    return made


@lowers(aten.atan.default)
def atan(g: Graph, x: Value) -> Value:
    return _end(g, _atan2(g, _start(g, x), _k(g, 1)))


@lowers(aten.asin.default)
def asin(g: Graph, x: Value) -> Value:
    a = _start(g, x)
    return _end(g, _atan2(g, a, _complement(g, a)))


@lowers(aten.acos.default)
def acos(g: Graph, x: Value) -> Value:
    a = _start(g, x)
    return _end(g, _atan2(g, _complement(g, a), a))


@lowers(aten.asinh.default)
def asinh(g: Graph, x: Value) -> Value:
    a = _start(g, x)
    size = g.emit("ABS", a)
    capped = g.emit("MINIMUM", size, _k(g, 1e9))
    square = _op(g, "MUL", capped, capped)
    root = g.emit("SQRT", _op(g, "ADD", square, _k(g, 1)))
    extra = _op(g, "DIV", square, _op(g, "ADD", root, _k(g, 1)))
    near = log1p_value(g, _op(g, "ADD", capped, extra))
    far = _op(g, "ADD", g.emit("LOG", size), _k(g, math.log(2)))
    large = g.emit("GREATER", size, _k(g, 1e9), dtype="bool")
    return _end(g, _sign_of(g, a, _select(g, large, far, near, a)))


@lowers(aten.acosh.default)
def acosh(g: Graph, x: Value) -> Value:
    a = _start(g, x)
    t = _op(g, "SUB", a, _k(g, 1))
    capped = g.emit("MINIMUM", t, _k(g, 1e9))
    root = g.emit("SQRT", _op(g, "MUL", capped, _op(g, "ADD", capped, _k(g, 2))))
    near = log1p_value(g, _op(g, "ADD", capped, root))
    far = _op(g, "ADD", g.emit("LOG", a), _k(g, math.log(2)))
    large = g.emit("GREATER", t, _k(g, 1e9), dtype="bool")
    return _end(g, _select(g, large, far, near, a))


@lowers(aten.atanh.default)
def atanh(g: Graph, x: Value) -> Value:
    a = _start(g, x)
    difference = _op(g, "SUB", log1p_value(g, a), log1p_value(g, g.emit("NEG", a)))
    return _end(g, _op(g, "MUL", difference, _k(g, 0.5)))
