"""Matrix products: ranks, broadcasting, constants on either side, scaling factors, integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests.op_cases.case import OpCase

_W = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
_B = torch.randn(4, generator=torch.Generator().manual_seed(2))


def _case(name: str, fn: Callable[..., Any], *shapes: tuple[int, ...]) -> OpCase:
    return OpCase(name, fn, lambda: tuple(torch.randn(s) for s in shapes))


def _ints(name: str, dtype: torch.dtype, *shapes: tuple[int, ...]) -> OpCase:
    return OpCase(
        name, torch.matmul, lambda: tuple(torch.randint(-9, 9, s).to(dtype) for s in shapes)
    )


def _half(dtype: torch.dtype) -> OpCase:
    """Half precision inside a float32 program; every sum is rounded once, at its end."""

    def fn(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        a, b = a.to(dtype), b.to(dtype)
        results = [a @ b, a.sum(1), a.sort().values, a.cumsum(0), a.amax(0)]
        return [r.float() for r in results]

    label = str(dtype).removeprefix("torch.")
    shapes = ((3, 4), (4, 2))
    return OpCase(
        f"half_{label}",
        fn,
        lambda: tuple(torch.randn(s) for s in shapes),
        tol=1e-2,
        halves=("litert",),
    )


CASES = [
    _case("mm", torch.mm, (2, 3), (3, 5)),
    _case("mm_const_right", lambda x: x @ _W.t(), (2, 3)),
    _case("mm_const_left", lambda x: _W @ x, (3, 2)),
    _case("mm_transposed", lambda a, b: a.t() @ b, (3, 2), (3, 5)),
    _case("mm_nothing", torch.mm, (2, 0), (0, 5)),
    _case("mm_no_rows", torch.mm, (0, 3), (3, 5)),
    _case("bmm", torch.bmm, (2, 3, 4), (2, 4, 5)),
    _case("bmm_transposed", lambda a, b: a @ b.transpose(1, 2), (2, 3, 4), (2, 5, 4)),
    _case("matmul_vectors", torch.matmul, (3,), (3,)),
    _case("matmul_vector_left", torch.matmul, (3,), (2, 3, 5)),
    _case("matmul_vector_right", torch.matmul, (2, 5, 3), (3,)),
    _case("matmul_broadcast", torch.matmul, (2, 1, 3, 4), (5, 4, 2)),
    _case("matmul_right_matrix", torch.matmul, (2, 3, 4), (4, 5)),
    _case("matmul_left_matrix", torch.matmul, (3, 4), (2, 4, 5)),
    _case("matmul_5d", torch.matmul, (2, 1, 2, 3, 4), (1, 3, 1, 4, 2)),
    _case("matmul_6d", torch.matmul, (1, 2, 1, 2, 3, 4), (2, 1, 3, 1, 4, 2)),
    _case("linear", F.linear, (2, 5, 3), (4, 3), (4,)),
    _case("linear_const", lambda x: F.linear(x, _W, _B), (2, 5, 3)),
    _case("linear_const_no_bias", lambda x: F.linear(x, _W), (2, 3)),
    _case("linear_vector", lambda x: F.linear(x, _W, _B), (3,)),
    _case("linear_4d", lambda x: F.linear(x, _W, _B), (1, 2, 5, 3)),
    _case("linear_no_rows", lambda x: F.linear(x, _W, _B), (0, 3)),
    _case("linear_computed_bias", lambda x, b: F.linear(x, _W, b), (2, 3), (4,)),
    _case("addmm", torch.addmm, (5,), (2, 3), (3, 5)),
    _case("addmm_const", lambda x: torch.addmm(_B, x, _W.t()), (2, 3)),
    _case("addmm_column", torch.addmm, (2, 1), (2, 3), (3, 5)),
    _case("addmm_scaled", lambda *t: torch.addmm(*t, beta=0.5, alpha=-2), (5,), (2, 3), (3, 5)),
    _case("addmm_beta_0", lambda *t: torch.addmm(*t, beta=0), (5,), (2, 3), (3, 5)),
    _case("baddbmm", lambda *t: torch.baddbmm(*t, beta=2, alpha=0.5), (3, 5), (2, 3, 4), (2, 4, 5)),
    _case("addbmm", torch.addbmm, (3, 5), (2, 3, 4), (2, 4, 5)),
    _case("addmv", lambda *t: torch.addmv(*t, beta=2), (2,), (2, 3), (3,)),
    _case("addr", lambda *t: torch.addr(*t, alpha=3), (2, 3), (2,), (3,)),
    _case("mv", torch.mv, (2, 3), (3,)),
    _case("dot", torch.dot, (5,), (5,)),
    _case("vdot", torch.vdot, (5,), (5,)),
    _case("outer", torch.outer, (2,), (3,)),
    _case("einsum", lambda a, b: torch.einsum("bij,bjk->bik", a, b), (2, 3, 4), (2, 4, 5)),
    _case(
        "einsum_two",
        lambda a, b: torch.einsum("abcde,abced->abc", a, b),
        (1, 2, 2, 3, 4),
        (1, 2, 2, 4, 3),
    ),
    _case(
        "einsum_heads",
        lambda a, b: torch.einsum("bqhd,bkhd->bhqk", a, b),
        (2, 3, 2, 4),
        (2, 5, 2, 4),
    ),
    _case("tensordot", lambda a, b: torch.tensordot(a, b, dims=2), (2, 3, 4), (3, 4, 5)),
    *(_half(dtype) for dtype in (torch.float16, torch.bfloat16)),
    _ints("int64", torch.int64, (2, 3), (3, 5)),
    _ints("int32_batch", torch.int32, (2, 4, 3), (2, 3, 5)),
    _ints("int8", torch.int8, (2, 3), (3, 5)),
    _ints("int_vector", torch.int64, (3,), (3,)),
]
