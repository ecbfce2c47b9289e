"""Complex numbers as pairs of real values, which is all that LiteRT's kernels take.

A complex result is a `Pair`. Operators that move elements or are linear run once on each part;
products, quotients and magnitudes have rules of their own; Fourier transforms are products with the
matrix of cosines and sines, taken from PyTorch by transforming the identity. Ends of a program
must be real.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from litert_export.graph import Graph, Pair, ResultType, Value
from litert_export.ops import TABLE, lowers
from litert_export.ops._dims import axis, concat, filled, slice_dim
from litert_export.ops._shared import float32
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported

_NONE = {"fused_activation_function": "NONE"}

# Once on each part: a number or real tensor as an operand has the imaginary part 0.
_PARTWISE = frozenset(
    f"aten::{name}"
    for name in (
        "add", "sub", "neg", "sum", "mean", "view", "reshape", "_unsafe_view", "permute",
        "transpose", "t", "unsqueeze", "squeeze", "slice", "select", "cat", "stack", "expand",
        "clone", "alias", "roll", "flip", "index_select", "unbind", "split", "split_with_sizes",
        "where", "repeat", "constant_pad_nd", "unfold", "unflatten", "flatten", "cumsum",
    )
)  # fmt: skip


def binary(g: Graph, code: str, a: Value, b: Value) -> Value:
    made: Value = g.emit(code, a, b, **_NONE)
    return made


def _pair(g: Graph, x: Any, like: Value | None = None) -> Pair:
    """A complex operand from what a call gives."""
    if isinstance(x, Pair):
        return x
    if isinstance(x, Value):
        if x.data is not None and x.data.dtype.kind == "c":
            parts = (np.ascontiguousarray(p, np.float32) for p in (x.data.real, x.data.imag))
            return Pair(*(g.const(p) for p in parts))
        return Pair(float32(g, x), filled(g, x.shape, 0, "float32"))
    number = complex(x)
    return Pair(*(g.const(np.float32(n)) for n in (number.real, number.imag)))


def is_complex(tree: Any) -> bool:
    """Whether an argument, in lists too, is complex."""
    if isinstance(tree, (list, tuple)):
        return any(is_complex(part) for part in tree)
    return isinstance(tree, (Pair, complex)) or (
        isinstance(tree, Value) and "complex" in tree.dtype
    )


Rule = Callable[..., Any]
_RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for calls with complex arguments: (graph, *arguments)."""

    def register(function: Rule) -> Rule:
        _RULES.update({f"aten::{name}": function for name in names})
        return function

    return register


def lower(g: Graph, target: Any, arguments: dict[str, Any]) -> Any:
    """Emit a call with complex arguments, given by the lowering's parameter names.

    Raises:
        Unsupported: there is no rule for it.
    """
    name = target._schema.name
    entry = TABLE.get(target)
    if target in _OWN and entry is not None:
        return entry.function(g, **arguments)
    if name in _RULES:
        return _RULES[name](g, *arguments.values())
    if name not in _PARTWISE or entry is None:
        raise Unsupported("complex numbers; compute with their real and imaginary parts instead")
    expected = g.result
    g.result = tuple(ResultType(r.shape, r.dtype.replace("complex64", "float32")) for r in expected)
    operands = ("x", "other", "tensors")
    whole = {k: _pairs(g, v) for k, v in arguments.items() if k in operands and v is not None}
    sides = []
    for side in ("re", "im"):
        given = {k: _side(whole[k], side) if k in whole else v for k, v in arguments.items()}
        if "dtype" in given:
            given["dtype"] = None
        sides.append(entry.function(g, **given))
    g.result = expected
    re, im = sides
    return tuple(map(Pair, re, im)) if isinstance(re, (tuple, list)) else Pair(re, im)


def _pairs(g: Graph, x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return [_pair(g, part) for part in x]
    return _pair(g, x)


def _side(x: Any, side: str) -> Any:
    return [getattr(p, side) for p in x] if isinstance(x, list) else getattr(x, side)


# Operators that exist for complex numbers only.
_OWN = (
    aten.view_as_real.default, aten._fft_c2c.default, aten._fft_c2r.default,
    aten.angle.default, aten._conj.default, aten._fft_r2c.default, aten.view_as_complex.default,
    aten.complex.default, aten.polar.default,
)  # fmt: skip


# products and magnitudes


@rule("mul")
def mul(g: Graph, x: Any, other: Any) -> Pair:
    for a, b in ((x, other), (other, x)):
        if not is_complex(b):
            p = _pair(g, a)
            factor = float32(g, b) if isinstance(b, Value) else g.const(np.float32(b))
            return Pair(binary(g, "MUL", p.re, factor), binary(g, "MUL", p.im, factor))
    return _product(g, _pair(g, x), _pair(g, other))


def _product(g: Graph, a: Pair, b: Pair) -> Pair:
    re = binary(g, "SUB", binary(g, "MUL", a.re, b.re), binary(g, "MUL", a.im, b.im))
    im = binary(g, "ADD", binary(g, "MUL", a.re, b.im), binary(g, "MUL", a.im, b.re))
    return Pair(re, im)


@rule("div")
def div(g: Graph, x: Any, other: Any) -> Pair:
    a, b = _pair(g, x), _pair(g, other)
    if not is_complex(other):
        return Pair(binary(g, "DIV", a.re, b.re), binary(g, "DIV", a.im, b.re))
    whole = _product(g, a, _conjugate(g, b))
    square = _squared(g, b)
    return Pair(binary(g, "DIV", whole.re, square), binary(g, "DIV", whole.im, square))


def _squared(g: Graph, x: Pair) -> Value:
    return binary(g, "ADD", binary(g, "MUL", x.re, x.re), binary(g, "MUL", x.im, x.im))


def _conjugate(g: Graph, x: Pair) -> Pair:
    return Pair(x.re, g.emit("NEG", x.im))


@rule("square")
def square(g: Graph, x: Any) -> Pair:
    return _product(g, _pair(g, x), _pair(g, x))


@rule("abs")
def magnitude(g: Graph, x: Any) -> Value:
    made: Value = g.emit("SQRT", _squared(g, _pair(g, x)))
    return made


@lowers(aten.angle.default)
def angle(g: Graph, x: Any) -> Value:
    if not is_complex(x):
        raise Unsupported("the angle of a real number; use torch.where(x < 0, pi, 0)")
    p = _pair(g, x)
    made: Value = g.emit("ATAN2", p.im, p.re)
    return made


@lowers(aten._conj.default)
def conj(g: Graph, x: Any) -> Pair:
    return _conjugate(g, _pair(g, x))


@rule("resolve_conj", "_to_copy")
def same(g: Graph, x: Any, *rest: Any) -> Pair:
    if g.result[0].dtype != "complex64":
        raise Unsupported(f"a complex value as {g.result[0].dtype}")
    return _pair(g, x)


@rule("mm", "bmm", "matmul")
def matmul(g: Graph, x: Any, other: Any) -> Pair:
    from litert_export.ops.matmul import matmul as real

    a, b = _pair(g, x), _pair(g, other)
    re = binary(g, "SUB", real(g, a.re, b.re), real(g, a.im, b.im))
    return Pair(re, binary(g, "ADD", real(g, a.re, b.im), real(g, a.im, b.re)))


# between real and complex


@lowers(aten.view_as_real.default)
def view_as_real(g: Graph, x: Any) -> Value:
    p = _pair(g, x)
    return concat(g, [g.reshape(v, (*v.shape, 1)) for v in (p.re, p.im)], p.re.rank)


@lowers(aten.view_as_complex.default)
def view_as_complex(g: Graph, x: Value) -> Pair:
    last, x = x.rank - 1, float32(g, x)
    parts = (g.reshape(slice_dim(g, x, last, k, k + 1), x.shape[:-1]) for k in (0, 1))
    return Pair(*parts)


@lowers(aten.complex.default)
def complex_(g: Graph, real: Value, imag: Value) -> Pair:
    shape = g.result[0].shape
    return Pair(*(g.broadcast_to(float32(g, v), shape) for v in (real, imag)))


@lowers(aten.polar.default)
def polar(g: Graph, abs: Value, angle: Value) -> Pair:
    parts = (binary(g, "MUL", abs, g.emit(code, angle)) for code in ("COS", "SIN"))
    return Pair(*parts)


# Fourier transforms


def _times(g: Graph, x: Value, dim: int, matrix: np.ndarray[Any, Any]) -> Value:
    """`x` with the [in, out] matrix applied along a dimension."""
    order = [*(d for d in range(x.rank) if d != dim), dim]
    y = g.transpose(x, order)
    weight = g.const(np.ascontiguousarray(matrix.T, np.float32))
    shape = (*y.shape[:-1], matrix.shape[1])
    y = g.emit("FULLY_CONNECTED", y, weight, shape=shape, keep_num_dims=True, **_NONE)
    return g.transpose(y, np.argsort(order).tolist())


def _transformed(op: Any, given: Any, *rest: Any) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        found: np.ndarray[Any, Any] = op(given, [1], *rest).numpy()
    return found


def _complex_dft(g: Graph, x: Pair, dim: int, normalization: int, forward: bool) -> Pair:
    eye = torch.eye(x.re.shape[dim], dtype=torch.complex128)
    matrix = _transformed(aten._fft_c2c.default, eye, normalization, forward)
    parts = [[_times(g, v, dim, m) for m in (matrix.real, matrix.imag)] for v in (x.re, x.im)]
    re = binary(g, "SUB", parts[0][0], parts[1][1])
    return Pair(re, binary(g, "ADD", parts[0][1], parts[1][0]))


@lowers(aten._fft_r2c.default)
def fft_r2c(g: Graph, x: Value, dim: Sequence[int], normalization: int, onesided: bool) -> Pair:
    dims = [axis(d, x.rank) for d in dim]
    eye = torch.eye(x.shape[dims[-1]], dtype=torch.float64)
    matrix = _transformed(aten._fft_r2c.default, eye, normalization, onesided)
    x = float32(g, x)
    found = Pair(*(_times(g, x, dims[-1], m) for m in (matrix.real, matrix.imag)))
    for d in dims[:-1]:
        found = _complex_dft(g, found, d, normalization, True)
    return found


@lowers(aten._fft_c2c.default)
def fft_c2c(g: Graph, x: Any, dim: Sequence[int], normalization: int, forward: bool) -> Pair:
    found = _pair(g, x)
    for d in dim:
        found = _complex_dft(g, found, axis(d, found.re.rank), normalization, forward)
    return found


@lowers(aten._fft_c2r.default)
def fft_c2r(g: Graph, x: Any, dim: Sequence[int], normalization: int, last_dim_size: int) -> Value:
    found = _pair(g, x)
    dims = [axis(d, found.re.rank) for d in dim]
    for d in dims[:-1]:
        found = _complex_dft(g, found, d, normalization, False)
    eye = torch.eye(found.re.shape[dims[-1]], dtype=torch.complex128)
    parts = [
        _times(g, v, dims[-1], _transformed(aten._fft_c2r.default, e, normalization, last_dim_size))
        for v, e in ((found.re, eye), (found.im, eye * 1j))
    ]
    return binary(g, "ADD", parts[0], parts[1])
