"""LDL factors and pivots are LAPACK's; blocks of one and two rows, Hermitian and symmetric."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.op_cases.case import OpCase


def _matrix(*shape: int, dtype: torch.dtype, blocks: bool) -> Callable[[], tuple[Any, ...]]:
    def made() -> tuple[Any, ...]:
        a = torch.randn(shape, dtype=dtype)
        # Small diagonals make blocks of two rows.
        a = a * (1 - 0.9 * torch.eye(shape[-1])) if blocks else a
        return a + 0.2 * torch.eye(shape[-1]), torch.randn(*shape[:-1], 2, dtype=dtype)

    return made


def _factor_and_solve(hermitian: bool) -> Callable[..., Any]:
    def fn(a: torch.Tensor, b: torch.Tensor) -> Any:
        factors = torch.linalg.ldl_factor_ex(a, hermitian=hermitian)
        return *factors, torch.linalg.ldl_solve(factors[0], factors[1], b, hermitian=hermitian)

    return fn


CASES = [
    OpCase(
        f"{name}_{n}" + "_hermitian" * hermitian + "_blocks" * blocks,
        _factor_and_solve(hermitian),
        _matrix(*shape, dtype=dtype, blocks=blocks),
        tol=1e-4 if dtype == torch.float32 else None,
        halves=("cloud",),
    )
    for name, dtype in (("real", torch.float32), ("complex", torch.complex128))
    for n, shape in (("one", (5, 5)), ("batch", (2, 3, 4, 4)))
    for hermitian in (False, True)
    for blocks in (False, True)
] + [
    OpCase(
        "zero",
        lambda a: tuple(torch.linalg.ldl_factor_ex(a)),
        lambda: (torch.zeros(3, 3),),
        halves=("cloud",),
    ),
    OpCase(
        "empty_solve",
        lambda a, p, b: torch.linalg.ldl_solve(a, p, b),
        lambda: (torch.zeros(2, 0, 0), torch.zeros(2, 0, dtype=torch.int32), torch.zeros(2, 0, 3)),
        halves=("cloud",),
    ),
]
