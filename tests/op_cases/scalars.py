"""Overloads with a number where a tensor may stand, and operators that no database entry calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.op_cases.case import OpCase

_CLOUD = ("cloud",)
aten = torch.ops.aten
_POLYNOMIALS = (
    *(f"{shifted}chebyshev_polynomial_{k}" for shifted in ("", "shifted_") for k in "tuvw"),
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
)


def _case(name: str, fn: Callable[..., Any], args: Callable[[], Any]) -> OpCase:
    def made() -> tuple[Any, ...]:
        values = args()
        return values if isinstance(values, tuple) else (values,)

    return OpCase(name, fn, made, halves=_CLOUD)


def _integers() -> torch.Tensor:
    return torch.randint(-9, 9, (4, 5))


def _floats() -> torch.Tensor:
    return torch.randn(4, 5)


def _positive() -> torch.Tensor:
    return torch.rand(4, 5) + 0.1


def _degrees() -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 4) - 1


def _polynomial(name: str) -> list[OpCase]:
    op = getattr(aten, f"special_{name}")
    return [
        _case(f"{name}_n_scalar", lambda x: op.n_scalar(x, 5), lambda: torch.rand(6) * 2 - 1),
        _case(f"{name}_x_scalar", lambda n: op.x_scalar(0.3, n), _degrees),
    ]


_ON_INTEGERS: dict[str, Callable[[Any], Any]] = {
    "and_scalar": lambda x: aten.bitwise_and.Scalar(x, 6),
    "or_scalar": lambda x: aten.bitwise_or.Scalar(x, 6),
    "xor_scalar": lambda x: aten.bitwise_xor.Scalar(x, 6),
    "and_of_scalar": lambda x: aten.bitwise_and.Scalar_Tensor(6, x),
    "or_of_scalar": lambda x: aten.bitwise_or.Scalar_Tensor(6, x),
    "xor_of_scalar": lambda x: aten.bitwise_xor.Scalar_Tensor(6, x),
    "left_shift_scalar": lambda x: aten.bitwise_left_shift.Tensor_Scalar(x, 3),
    "right_shift_scalar": lambda x: aten.bitwise_right_shift.Tensor_Scalar(x, 3),
    "left_shift_of_scalar": lambda x: aten.bitwise_left_shift.Scalar_Tensor(3, x.abs()),
    "right_shift_of_scalar": lambda x: aten.bitwise_right_shift.Scalar_Tensor(300, x.abs()),
    "lshift": lambda x: (x << 2, x << x.abs()),
    "rshift": lambda x: (x >> 2, x >> x.abs()),
    "isin_scalar": lambda x: aten.isin.Tensor_Scalar(x, 3),
    "isin_of_scalar": lambda x: aten.isin.Scalar_Tensor(3, x, invert=True),
    "remainder_of_scalar": lambda x: aten.remainder.Scalar_Tensor(17, x.abs() + 1),
    "all_true": lambda x: aten._is_all_true(x > -100),
    "any_true": lambda x: aten._is_any_true(x > 100),
}
_ON_FLOATS: dict[str, Callable[[Any], Any]] = {
    "add_relu": lambda x: aten._add_relu.Tensor(x, x - 1, alpha=2),
    "add_relu_scalar": lambda x: aten._add_relu.Scalar(x, -0.5),
    "div_scalar_mode": lambda x: aten.div.Scalar_mode(x, 0.3, rounding_mode="floor"),
    "floor_divide_scalar": lambda x: aten.floor_divide.Scalar(x, 0.3),
    "fmod_scalar": lambda x: aten.fmod.Scalar(x, 0.3),
    "clamp_max": lambda x: aten.clamp_max(x, 0.5),
    "aminmax": aten._aminmax.default,
    "aminmax_dim": lambda x: aten._aminmax.dim(x, 1, True),
    "norm_scalar": lambda x: aten.norm.Scalar(x, 3),
    "norm_dtype": lambda x: aten.norm.ScalarOpt_dtype(x, 2, dtype=torch.float64),
    "norm_dim_dtype": lambda x: aten.norm.ScalarOpt_dim_dtype(x, 1, [0], True, dtype=torch.float64),
    "logcumsumexp": lambda x: aten._logcumsumexp(x, 1),
    "glu_jvp": lambda x: aten.glu_jvp(torch.nn.functional.glu(x[:, :4], 1), x[:, :4], x[:, 1:], 1),
    "lift": lambda x: aten.lift(x) + aten.lift_fresh_copy(x),
    "dropout_backward": lambda x: aten.native_dropout_backward(x, x > 0, 2.0),
    "dropout_inference": lambda x: aten.native_dropout(x, 0.5, False),
}
_ON_POSITIVE: dict[str, Callable[[Any], Any]] = {
    "xlogy_scalar": lambda x: (aten.xlogy.Scalar_Other(x, 2.5), aten.xlogy.Scalar_Self(2.5, x)),
    "xlog1py_scalar": lambda x: (
        aten.special_xlog1py.other_scalar(x, 2.5),
        aten.special_xlog1py.self_scalar(2.5, x),
    ),
    "zeta_scalar": lambda x: (
        aten.special_zeta.other_scalar(x + 1.5, 2.0),
        aten.special_zeta.self_scalar(2.5, x),
    ),
    "silu_backward": lambda x: aten.silu_backward(x - 0.5, x - 0.3),
    "mish_backward": lambda x: aten.mish_backward(x - 0.5, x - 0.3),
}


def _creation() -> dict[str, Callable[[], Any]]:
    return {
        "bartlett": lambda: (torch.bartlett_window(9), torch.bartlett_window(9, periodic=False)),
        "blackman": lambda: (torch.blackman_window(9), torch.blackman_window(9, periodic=False)),
        "hann": lambda: (torch.hann_window(9), torch.hann_window(9, periodic=False)),
        "hamming": lambda: (torch.hamming_window(9), torch.hamming_window(9, periodic=False)),
        "hamming_alpha": lambda: (
            torch.hamming_window(9, periodic=False, alpha=0.5),
            torch.hamming_window(9, periodic=True, alpha=0.5, beta=0.4),
        ),
        "kaiser": lambda: (torch.kaiser_window(9), torch.kaiser_window(9, periodic=False)),
        "kaiser_beta": lambda: torch.kaiser_window(9, periodic=False, beta=5.0),
        "window_of_one": lambda: (torch.hann_window(1), torch.hann_window(0)),
        "fftfreq": lambda: (torch.fft.fftfreq(9, 0.5), torch.fft.fftfreq(8, 0.5)),
        "rfftfreq": lambda: (torch.fft.rfftfreq(9, 0.5), torch.fft.rfftfreq(8)),
        "range": lambda: (aten.range.default(0, 5), aten.range.step(1, 2, 0.25)),
        "linspace_tensors": lambda: (
            torch.linspace(0.0, torch.tensor(2.0), 5),
            torch.linspace(torch.tensor(0.0), 2.0, 5),
            torch.logspace(0.0, torch.tensor(2.0), 5),
            torch.logspace(torch.tensor(0.0), 2.0, 5, base=2.0),
        ),
        "linspace_integers": lambda: torch.linspace(-3, 8, 5, dtype=torch.int64),
        "arange_float_step": lambda: torch.arange(0, 1, 0.1),
        "arange_down": lambda: torch.arange(5, -5, -3),
        "arange_half": lambda: torch.arange(0, 20, 0.5, dtype=torch.bfloat16),
        "indices": lambda: (torch.tril_indices(4, 3, -1), torch.triu_indices(3, 4, 1)),
        "eye": lambda: (torch.eye(3), torch.eye(2, 4, dtype=torch.int8)),
    }


CASES = [
    *(_case(name, fn, _integers) for name, fn in _ON_INTEGERS.items()),
    *(_case(name, fn, _floats) for name, fn in _ON_FLOATS.items()),
    *(_case(name, fn, _positive) for name, fn in _ON_POSITIVE.items()),
    *(case for name in _POLYNOMIALS for case in _polynomial(name)),
    *(_case(name, fn, lambda: ()) for name, fn in _creation().items()),
    _case(
        "dirichlet_grad",
        aten._dirichlet_grad.default,
        lambda: (torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0.7, 1.5, 3.0]), torch.tensor(5.2)),
    ),
    OpCase(
        "gamma_grad",
        aten._standard_gamma_grad.default,
        lambda: (_positive() + 0.5, _positive()),
        tol=1e-4,  # a series in float32 on both sides
        halves=_CLOUD,
    ),
    _case(
        "rrelu_backward",
        lambda g, x, n: aten.rrelu_with_noise_backward(g, x, n, 0.1, 0.3, True, False),
        lambda: (_floats(), _floats(), _positive()),
    ),
]
