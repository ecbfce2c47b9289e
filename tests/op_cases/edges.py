"""Edges of pointwise operators that random samples miss: NaN, signed zero, overflow, promotion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.op_cases.case import OpCase

_CLOUD = ("cloud",)
_NAN, _INF = float("nan"), float("inf")


def _special(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = [_NAN, _INF, -_INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-30, 100.0]
    return torch.tensor(values, dtype=dtype)


def _pairs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    x = _special(dtype)
    return x[:, None].expand(-1, len(x)).contiguous(), x[None, :].expand(len(x), -1).contiguous()


def _ints(dtype: torch.dtype = torch.int32) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.tensor([-128, -7, -3, -2, -1, 1, 2, 3, 5, 127]).to(dtype)
    return x[:, None].expand(-1, len(x)).contiguous(), x[None, :].expand(len(x), -1).contiguous()


def _case(name: str, fn: Callable[..., Any], args: Callable[[], Any]) -> OpCase:
    def made() -> tuple[Any, ...]:
        values = args()
        return values if isinstance(values, tuple) else (values,)

    return OpCase(name, fn, made, halves=_CLOUD)


_UNARY = (
    "abs ceil floor round trunc sign sgn neg sqrt rsqrt reciprocal exp log log1p expm1 sigmoid "
    "tanh isnan isinf isfinite isposinf isneginf signbit relu frac nan_to_num erf cos atan"
)
_BINARY = {
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "floor_divide": torch.floor_divide,
    "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "div": torch.div,
    "pow": torch.pow,
    "atan2": torch.atan2,
    "copysign": torch.copysign,
    "eq": torch.eq,
    "lt": torch.lt,
    "ge": torch.ge,
    "xlogy": torch.xlogy,
    "logaddexp": torch.logaddexp,
    "hypot": torch.hypot,
    "nextafter": torch.nextafter,
    "heaviside": torch.heaviside,
    "logical_xor": torch.logical_xor,
}
_INTEGER = {
    "add": torch.add,
    "mul": torch.mul,
    "div": torch.div,
    "floor_divide": torch.floor_divide,
    "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "pow": lambda a, b: torch.pow(a, b.abs() % 5),
    "pow_negative": torch.pow,
    "left_shift": torch.bitwise_left_shift,
    "right_shift": torch.bitwise_right_shift,
    "gcd": torch.gcd,
    "lcm": lambda a, b: torch.lcm(a % 20, b % 20),
    "and": torch.bitwise_and,
    "atan2": torch.atan2,
}
_PROMOTION = {
    "int_float_scalar": (lambda x: x + 1.5, torch.int32),
    "int_int_scalar": (lambda x: x * 2, torch.int8),
    "int8_wraps": (lambda x: x * 100, torch.int8),
    "uint8_wraps": (lambda x: x - 100, torch.uint8),
    "bool_int_scalar": (lambda x: x + 2, torch.bool),
    "bool_bool_scalar": (lambda x: x + True, torch.bool),
    "half_float_scalar": (lambda x: x * 0.1, torch.bfloat16),
    "half_0d": (lambda x: x * torch.tensor(0.1, dtype=torch.float64), torch.float16),
    "int_0d_float": (lambda x: x * torch.tensor(0.5), torch.int64),
    "float_0d_int": (lambda x: x - torch.tensor(3), torch.float32),
    "int_true_div": (lambda x: x / 3, torch.int64),
    "int_rsub": (lambda x: 5 - x, torch.int16),
    "clamp_float_bounds": (lambda x: x.clamp(0.5, 2.5), torch.int32),
    "clamp_crossed": (lambda x: x.clamp(3, 1), torch.float32),
    "compare_float_scalar": (lambda x: x > 1.5, torch.int32),
    "where_scalars": (lambda x: torch.where(x > 1, 1, 2.5), torch.float32),
    "where_promotes": (lambda x: torch.where(x > 1, x, 2.5), torch.int64),
    "in_place_keeps": (lambda x: x.clone().add_(2.7), torch.float16),
    "in_place_int": (lambda x: x.clone().mul_(3), torch.int16),
    "sum_int8": (lambda x: x.sum(), torch.int8),
    "mean_half": (lambda x: x.mean(), torch.float16),
    "any_uint8": (lambda x: x.any(), torch.uint8),
    "all_uint8": (lambda x: x.all(0), torch.uint8),
    "to_uint8": (lambda x: (x - 3.5).to(torch.uint8), torch.float32),
    "to_int8": (lambda x: (x * 100).to(torch.int8), torch.float32),
    "to_bool": (lambda x: (x - 2).to(torch.bool), torch.float32),
    "bitwise_not": (lambda x: ~x, torch.uint8),
    "complex_scalar": (lambda x: x * 2j, torch.float32),
    "complex_parts": (lambda x: (torch.complex(x, x + 1) * 2).abs(), torch.float32),
    "complex_logaddexp": (lambda x: torch.logaddexp(x * (1 + 3j), x * 2j), torch.float32),
    "alpha": (lambda x: torch.add(x, x, alpha=3), torch.int32),
    "lerp": (lambda x: torch.lerp(x, x + 2, 0.75), torch.bfloat16),
    "var_zero_freedom": (lambda x: x[:1].var(), torch.float32),
    "logit_eps": (lambda x: torch.logit(x / 10, eps=0.2), torch.float32),
    "isin": (lambda x: torch.isin(x, torch.tensor([1, 3])), torch.int64),
    "round_decimals": (lambda x: torch.round(x / 7, decimals=2), torch.float32),
    "ldexp": (lambda x: torch.ldexp(x, x), torch.float32),
}


def _small(dtype: torch.dtype) -> Callable[[], torch.Tensor]:
    return lambda: torch.tensor([0, 1, 2, 3, 4, 5]).to(dtype)


def _float8(dtype: torch.dtype) -> OpCase:
    """Casts to an 8-bit float at and beyond its largest number; as bytes, which tell NaNs apart."""

    def make() -> torch.Tensor:
        largest = torch.finfo(dtype).max
        values = [_INF, -_INF, 0.0, -0.0, 1e-9, *(largest * f for f in (0.9, 1, 1.05, -1.1, 1e4))]
        return torch.tensor(values)

    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        found = [x.to(dtype), x.double().to(dtype), x[2:].long().to(dtype)]
        return [found[0].float().isnan(), *[y.view(torch.uint8) for y in found]]

    return _case(f"cast_{str(dtype).removeprefix('torch.')}", fn, make)


CASES = [
    _float8(torch.float8_e4m3fn),
    _float8(torch.float8_e5m2),
    _float8(torch.float8_e4m3fnuz),
    _float8(torch.float8_e5m2fnuz),
    *(_case(f"special_{n}", getattr(torch, n), _special) for n in _UNARY.split()),
    *(
        _case(f"special_{n}_bfloat16", getattr(torch, n), lambda: _special(torch.bfloat16))
        for n in ("abs", "round", "sign", "sqrt", "exp", "sigmoid", "relu", "neg")
    ),
    *(_case(f"pairs_{name}", fn, _pairs) for name, fn in _BINARY.items()),
    *(_case(f"ints_{name}", fn, _ints) for name, fn in _INTEGER.items()),
    *(
        _case(f"int8_{name}", _INTEGER[name], lambda: _ints(torch.int8))
        for name in ("add", "mul", "left_shift", "right_shift", "pow", "floor_divide")
    ),
    *(_case(name, fn, _small(dtype)) for name, (fn, dtype) in _PROMOTION.items()),
    _case(
        "zeta_ends",
        torch.special.zeta,
        lambda: (torch.tensor([0.0, 0.5, 1, 2, -1, _NAN, _INF])[:, None], _special()[None] * 2),
    ),
    _case("zeta_bool", torch.special.zeta, lambda: (torch.tensor([[True], [False]]),) * 2),
    _case(
        "trigamma_ends",
        lambda x: torch.polygamma(1, x),
        lambda: torch.tensor([_INF, -_INF, _NAN, 0.0, -0.0, -1.5, 0.5, 1e16, 1e30]),
    ),
    # 49 whole steps of -1, which a rounded reciprocal of 49 would miss.
    _case(
        "linspace_whole_steps",
        lambda a, b: torch.linspace(a, b, 50, dtype=torch.int64),
        lambda: (torch.tensor(50), torch.tensor(1)),
    ),
    _case("max_nan", lambda x: x.max(0), _special),
    _case("argmax_nan", lambda x: x.argmax(), _special),
    _case("amin_nan", lambda x: x.amin(), _special),
    _case("cummax_nan", lambda x: x[3:].flip(0).cummax(0), lambda: (_special(),)),
    _case("clamp_nan", lambda x: x.clamp(-1, 1), _special),
    _case("nansum", lambda x: x[:1].nansum(), _special),
    _case("median_nan", lambda x: (x.median(), x.nanmedian()), _special),
    _case("softmax_infinite", lambda x: x[2:].softmax(0), _special),
    _case("logsumexp_empty", lambda x: x.logsumexp(0), lambda: torch.zeros(0, 2)),
    _case("equal", lambda x: (torch.equal(x, x), torch.equal(x, x + 1)), lambda: torch.zeros(3)),
]
