"""Lists of tensors as optimisers use them: `_foreach_*` in every overload, in place too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.op_cases.case import OpCase

_CLOUD = ("cloud",)
_UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 "
    "neg reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
)


def _list(low: float = -2.0, high: float = 2.0, dtype: Any = torch.float32) -> list[torch.Tensor]:
    shapes = ((3, 2), (4,), ())
    return [(torch.rand(s) * (high - low) + low).to(dtype) for s in shapes]


def _case(name: str, fn: Callable[..., Any], args: Callable[[], tuple[Any, ...]]) -> OpCase:
    return OpCase(name, fn, args, halves=_CLOUD)


def _unary(name: str) -> OpCase:
    fn = getattr(torch, f"_foreach_{name}")
    return _case(name, lambda *x: fn(list(x)), lambda: tuple(_list(0.1, 0.9)))


def _in_place(name: str, *rest: Any) -> OpCase:
    fn = getattr(torch, f"_foreach_{name}_")

    def run(*x: torch.Tensor) -> list[torch.Tensor]:
        given = [v.clone() for v in x]
        fn(given, *rest)
        return given

    return _case(f"{name}_in_place", run, lambda: tuple(_list(0.1, 0.9)))


def _binary(name: str, alpha: bool = False, tensor: bool = False) -> list[OpCase]:
    fn = getattr(torch, f"_foreach_{name}")
    made = [
        _case(f"{name}_scalar", lambda x: fn(x, 1.5), lambda: (_list(0.5),)),
        _case(f"{name}_scalars", lambda x: fn(x, [1.5, 2.0, 0.5]), lambda: (_list(0.5),)),
        _case(f"{name}_list", lambda x, y: fn(x, y), lambda: (_list(0.5), _list(0.5))),
        _case(f"{name}_half", lambda x: fn(x, 1.3), lambda: (_list(0.5, dtype=torch.bfloat16),)),
    ]
    if alpha:
        made.append(
            _case(
                f"{name}_alpha",
                lambda x, y: fn(x, y, alpha=0.3),
                lambda: (_list(), _list()),
            )
        )
    if tensor:
        made.append(
            _case(f"{name}_tensor", lambda x, y: fn(x, y), lambda: (_list(), torch.tensor(1.7)))
        )
    return made


def _ternary(name: str) -> list[OpCase]:
    fn = getattr(torch, f"_foreach_{name}")

    def three() -> tuple[Any, ...]:
        return _list(), _list(), _list(0.5)

    return [
        _case(f"{name}_scalar", lambda x, a, b: fn(x, a, b, value=0.7), three),
        _case(f"{name}_scalars", lambda x, a, b: fn(x, a, b, [0.1, 0.2, 0.3]), three),
        _case(
            f"{name}_tensor",
            lambda x, a, b: fn(x, a, b, torch.tensor([0.1, 0.2, 0.3], device="cpu")),
            three,
        ),
    ]


CASES = [
    *(_unary(name) for name in _UNARY.split()),
    _in_place("sqrt"),
    _in_place("zero"),
    _in_place("add", 2),
    _in_place("mul", 0.5),
    *_binary("add", alpha=True, tensor=True),
    *_binary("sub", alpha=True),
    *_binary("mul", tensor=True),
    *_binary("div", tensor=True),
    *_binary("maximum"),
    *_binary("minimum"),
    *_binary("clamp_min"),
    *_binary("clamp_max"),
    *_binary("pow"),
    _case("pow_of_scalar", lambda x: torch._foreach_pow(0.9, x), lambda: (_list(0, 5),)),
    *_ternary("addcmul"),
    *_ternary("addcdiv"),
    _case(
        "lerp_list",
        lambda x, y, w: torch._foreach_lerp(x, y, w),
        lambda: (_list(), _list(), _list(0, 1)),
    ),
    _case("lerp_scalar", lambda x, y: torch._foreach_lerp(x, y, 0.1), lambda: (_list(), _list())),
    _case(
        "lerp_scalars",
        lambda x, y: torch._foreach_lerp(x, y, [0.1, 0.9, 0.5]),
        lambda: (_list(), _list()),
    ),
    _case(
        "mm",
        lambda x, y: torch.ops.aten._foreach_mm(x, y),
        lambda: ([torch.randn(2, 3), torch.randn(4, 2)], [torch.randn(3, 4), torch.randn(2, 2)]),
    ),
    _case("norm", lambda x: torch._foreach_norm(x), lambda: (_list(),)),
    _case("norm_1", lambda x: torch._foreach_norm(x, 1), lambda: (_list(),)),
    _case("norm_inf", lambda x: torch._foreach_norm(x, float("inf")), lambda: (_list(),)),
    _case("powsum", lambda x: torch._foreach_powsum(x, 3), lambda: (_list(),)),
    _case("max", lambda x: torch._foreach_max(x), lambda: (_list(),)),
    _case("clone", lambda x: torch._foreach_clone(x), lambda: (_list(),)),
    _case("zero", lambda x: torch.ops.aten._foreach_zero(x), lambda: (_list(),)),
    _case(
        "copy_cast",
        lambda x, y: torch.ops.aten._foreach_copy(x, y),
        lambda: (_list(dtype=torch.bfloat16), _list()),
    ),
    _case(
        "add_integers_and_float",
        lambda x: torch._foreach_add(x, 1.5),
        lambda: ([torch.arange(3), torch.ones(2, dtype=torch.bool)],),
    ),
]
