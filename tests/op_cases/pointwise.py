"""Arithmetic, comparisons, logic and mathematics: promotion, scalars, broadcasting, edge ranges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.op_cases.case import OpCase


def _f(name: str, fn: Callable[..., Any], *shapes: tuple[int, ...]) -> OpCase:
    """On normal float32 tensors."""
    return OpCase(name, fn, lambda: tuple(3 * torch.randn(s) for s in shapes or ((3, 4),)))


def _positive(name: str, fn: Callable[..., Any], low: float, high: float) -> OpCase:
    """On one float32 tensor between two values."""
    return OpCase(name, fn, lambda: (torch.rand(3, 5) * (high - low) + low,))


def _i(name: str, fn: Callable[..., Any], dtype: torch.dtype, count: int = 2) -> OpCase:
    """On integers (never zero, so that they can divide) or bools."""

    def made() -> tuple[torch.Tensor, ...]:
        if dtype == torch.bool:
            return tuple(torch.rand(3, 4) < 0.5 for _ in range(count))
        low = 1 if dtype == torch.uint8 else -9
        values = [torch.randint(low, 10, (3, 4)) for _ in range(count)]
        return tuple(torch.where(v == 0, 3, v).to(dtype) for v in values)

    return OpCase(name, fn, made)


def _mixed(name: str, fn: Callable[..., Any], *dtypes: torch.dtype) -> OpCase:
    return OpCase(name, fn, lambda: tuple((torch.randn(3, 4) * 4).round().to(d) for d in dtypes))


_aten = torch.ops.aten
_INTS = {"i32": torch.int32, "i64": torch.int64, "i8": torch.int8, "u8": torch.uint8}
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "remainder": torch.remainder,
    "floor_divide": torch.floor_divide,
    "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmod": torch.fmod,
}
_COMPARE = {n: getattr(torch, n) for n in ("eq", "ne", "lt", "le", "gt", "ge")}
_LOGIC = {n: getattr(torch, n) for n in ("logical_and", "logical_or", "logical_xor")}
_BITS = {n: getattr(torch, n) for n in ("bitwise_and", "bitwise_or", "bitwise_xor")}
_ANY = [
    "exp",
    "expm1",
    "sin",
    "cos",
    "tan",
    "atan",
    "asinh",
    "sinh",
    "cosh",
    "erf",
    "floor",
    "ceil",
    "round",
    "trunc",
    "abs",
    "neg",
    "sign",
    "square",
]
_LIMITED = {
    "log": (0.01, 9), "log2": (0.01, 9), "log10": (0.01, 9), "log1p": (-0.9, 9), "sqrt": (0, 9),
    "rsqrt": (0.01, 9), "asin": (-1, 1), "acos": (-1, 1), "acosh": (1, 9), "atanh": (-0.95, 0.95),
    "reciprocal": (0.1, 9), "exp2": (-5, 5),
}  # fmt: skip

CASES = [
    *(_f(n, f, (3, 4), (3, 4)) for n, f in {**_ARITHMETIC, **_COMPARE}.items()),
    *(_i(f"{n}_{k}", f, d) for n, f in _ARITHMETIC.items() for k, d in _INTS.items()),
    *(_i(f"{n}_i64", f, torch.int64) for n, f in _COMPARE.items()),
    *(_i(f"{n}_bool", f, torch.bool) for n, f in _COMPARE.items()),
    *(_i(n, f, torch.bool) for n, f in _LOGIC.items()),
    *(_i(f"{n}_i32", f, torch.int32) for n, f in _LOGIC.items()),
    *(
        _i(f"{n}_{k}", f, d)
        for n, f in _BITS.items()
        for k, d in (("i32", torch.int32), ("bool", torch.bool))
    ),
    *(
        _i(f"{n}_i64", f, torch.int64, 1)
        for n, f in {"abs": torch.abs, "neg": torch.neg, "sign": torch.sign}.items()
    ),
    *(
        _i(f"{n}_i8", f, torch.int8, 1)
        for n, f in {"abs": torch.abs, "neg": torch.neg, "sign": torch.sign}.items()
    ),
    *(_f(n, getattr(torch, n)) for n in _ANY),
    *(_positive(n, getattr(torch, n), *r) for n, r in _LIMITED.items()),
    *(
        _i(f"{n}_i64", getattr(torch, n), torch.int64, 1)
        for n in ("exp", "sin", "floor", "round", "trunc", "expm1", "erf")
    ),
    _f("add_alpha", lambda a, b: torch.add(a, b, alpha=0.5), (3, 4), (4,)),
    _f("sub_alpha", lambda a, b: torch.sub(a, b, alpha=2), (3, 4), (3, 1)),
    _f("add_scalar", lambda a: a + 2.5),
    _f("rsub_scalar", lambda a: torch.rsub(a, 2.5, alpha=2)),
    _f("rsub", lambda a, b: torch.rsub(a, b), (3, 4), (4,)),
    _f("div", torch.div, (3, 4), (3, 4)),
    _f("div_scalar", lambda a: a / 3),
    _f("div_scalar_exact", lambda a: a / 8),
    _f("div_floor", lambda a, b: torch.div(a, b, rounding_mode="floor"), (3, 4), (3, 4)),
    _f("div_scalar_trunc", lambda a: torch.div(a, 0.7, rounding_mode="trunc")),
    _f("broadcast_ranks", lambda a, b: a * b + b, (2, 1, 3, 1), (4, 1, 5)),
    _f("zero_rank", lambda a, b: a + b, (), (2, 3)),
    _f("nothing", lambda a: a + 1, (0, 3)),
    _mixed("add_float_int", torch.add, torch.float32, torch.int64),
    _mixed("add_int_sizes", torch.add, torch.int8, torch.int32),
    _mixed("mul_bool_float", torch.mul, torch.bool, torch.float32),
    _mixed("div_ints", lambda a, b: a / (b.abs() + 1), torch.int64, torch.int64),
    _mixed("compare_mixed", torch.lt, torch.int64, torch.float32),
    _mixed("int_plus_float_scalar", lambda a: a + 0.5, torch.int32),
    _mixed("int_times_int_scalar", lambda a: a * 3, torch.int64),
    _mixed("bool_plus_int_scalar", lambda a: a + 1, torch.bool),
    _mixed("eq_scalar", lambda a: (a == 2, a != 2, a < 2, a >= 1.5), torch.int64),
    *(
        _f(f"pow_{k}", lambda a, e=e: a.abs().add(0.1).pow(e))
        for k, e in {
            "half": 0.5,
            "minus_half": -0.5,
            "minus_one": -1,
            "three": 3,
            "odd": 2.7,
        }.items()
    ),
    _f("pow_two", lambda a: a**2),
    _f("pow_int_exponent", lambda a: a**5),
    _f("pow_tensor", lambda a, b: torch.pow(a.abs() + 0.1, b), (3, 4), (4,)),
    _f("pow_scalar_base", lambda a: torch.pow(2.5, a)),
    _i("pow_ints", lambda a: a**3, torch.int64, 1),
    _i("pow_int_zero", lambda a: a**0, torch.int32, 1),
    _f("atan2", torch.atan2, (3, 1), (4,)),
    _f("fmax_fmin", lambda a, b: (torch.fmax(a, b), torch.fmin(a, b)), (3, 4), (4,)),
    _i("maximum_bool", lambda a, b: (torch.maximum(a, b), torch.minimum(a, b)), torch.bool),
    _i("add_bool", lambda a, b: (a + b, a * b), torch.bool),
    _f("clamp", lambda a: a.clamp(-0.7, 1.3)),
    _f("clamp_known", lambda a: (a.clamp(0, 6), a.clamp(-1, 1), a.clamp(min=0), a.clamp(max=0.5))),
    _f("clamp_tensors", lambda a, b, c: a.clamp(b.minimum(c), b.maximum(c)), (3, 4), (4,), (4,)),
    _f("clamp_min_max", lambda a: (torch.clamp_min(a, 0.2), torch.clamp_max(a, 0.2))),
    _f(
        "clamp_min_tensor",
        lambda a, b: (torch.clamp_min(a, b), torch.clamp_max(a, b)),
        (3, 4),
        (4,),
    ),
    _i("clamp_ints", lambda a: a.clamp(-2, 5), torch.int64, 1),
    _i("clamp_uint8", lambda a: a.clamp(-2, 5), torch.uint8, 1),
    _i("logical_not", torch.logical_not, torch.bool, 1),
    _f("logical_not_float", lambda a: torch.logical_not(a.relu())),
    _i("bitwise_not", torch.bitwise_not, torch.int32, 1),
    _i("bitwise_not_u8", torch.bitwise_not, torch.uint8, 1),
    _i("bitwise_not_bool", torch.bitwise_not, torch.bool, 1),
    _i("bitwise_scalar", lambda a: (a & 6, a | 1, a ^ 5), torch.int32, 1),
    _i("right_shift", lambda a: a >> 1, torch.int32, 1),
    _f("where", lambda a, b: torch.where(a > 0, a, b), (3, 4), (4,)),
    _f("where_scalar", lambda a: torch.where(a > 0, a, 2.0)),
    _mixed(
        "where_promotes",
        lambda c, a, b: torch.where(c, a, b),
        torch.bool,
        torch.int64,
        torch.float32,
    ),
    OpCase(
        "isnan_isinf",
        lambda a: (a.isnan(), a.isinf(), a.isfinite()),
        lambda: (torch.tensor([1.0, float("nan"), float("inf"), -float("inf")]),),
    ),
    _i("isnan_ints", lambda a: (a.isnan(), a.isinf()), torch.int64, 1),
    _f("addcmul", lambda a, b, c: torch.addcmul(a, b, c, value=0.3), (3, 4), (3, 4), (4,)),
    _f(
        "addcdiv", lambda a, b, c: torch.addcdiv(a, b, c.abs() + 1, value=0.3), (3, 4), (3, 4), (4,)
    ),
    _f(
        "scalar_overloads",
        lambda a: (_aten.add.Scalar(a, 2), _aten.sub.Scalar(a, 2), _aten.mul.Scalar(a, 2)),
    ),
    _f(
        "scalar_overloads_div",
        lambda a: (_aten.div.Scalar(a, 3), _aten.div.Scalar_mode(a, 3, rounding_mode="floor")),
    ),
    _i("shift_scalar", lambda a: _aten.bitwise_right_shift.Tensor_Scalar(a, 1), torch.int32, 1),
    _f("sgn", torch.sgn),
    _f("fmod_scalar", lambda a: (torch.fmod(a, 1.3), torch.remainder(a, 1.3))),
    _positive("small_log1p", lambda a: torch.log1p(a * 1e-6), 0, 1),
    _positive("small_expm1", lambda a: torch.expm1(a * 1e-6), -1, 1),
    _positive("small_erf", lambda a: torch.erf(a * 1e-4), -1, 1),
    _positive("large_sinh", lambda a: (torch.sinh(a), torch.cosh(a)), -60, 60),
    _positive("large_asinh", lambda a: (torch.asinh(a), torch.acosh(a)), 1e10, 1e30),
]
