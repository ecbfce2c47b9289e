"""Sorting, top-k and searching: both directions, ties in order, every dimension and type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.op_cases.case import OpCase

_EDGES = torch.tensor([-1.0, 0.0, 0.5, 2.0])


def _case(name: str, fn: Callable[..., Any], *make: Callable[[], torch.Tensor]) -> OpCase:
    return OpCase(name, fn, lambda: tuple(m() for m in make))


def _x(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(shape)


def _ties(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(-2, 3, shape).to(dtype)


def _extreme() -> torch.Tensor:
    low, high = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
    return torch.tensor([3, low, high, 0, low, -1])


CASES = [
    _case("topk", lambda x: x.topk(3), _x(2, 7)),
    _case("topk_smallest", lambda x: x.topk(3, largest=False), _x(2, 7)),
    _case("topk_dim", lambda x: x.topk(2, dim=0), _x(5, 3)),
    _case("topk_middle", lambda x: x.topk(2, dim=1), _x(2, 5, 3)),
    _case("topk_zero", lambda x: x.topk(0), _x(2, 7)),
    _case("topk_all_int", lambda x: x.topk(4).values, _ties(2, 4, dtype=torch.int64)),
    _case("sort", lambda x: x.sort(), _x(3, 6)),
    _case("sort_descending", lambda x: x.sort(descending=True), _x(3, 6)),
    _case("sort_dim", lambda x: x.sort(0), _x(6, 3)),
    _case("sort_middle", lambda x: x.sort(1, descending=True), _x(2, 6, 3)),
    _case("sort_stable", lambda x: x.sort(stable=True), _ties(2, 12)),
    _case("sort_stable_down", lambda x: x.sort(stable=True, descending=True), _ties(2, 12)),
    _case("sort_long", lambda x: x.sort(stable=True), _ties(300)),
    _case("sort_scalar", lambda x: x.sort(), _x()),
    _case("sort_int64", lambda x: x.sort(stable=True), _extreme),
    _case("sort_int32", lambda x: x.sort(stable=True), _ties(9, dtype=torch.int32)),
    _case("sort_int8", lambda x: x.sort(stable=True), _ties(9, dtype=torch.int8)),
    _case("sort_bool", lambda x: (x > 0).sort(stable=True), _x(9)),
    _case("sort_nothing", lambda x: x.sort(), _x(3, 0)),
    _case("argsort", lambda x: x.argsort(1), _x(3, 6)),
    _case("argsort_stable", lambda x: x.argsort(dim=0, descending=True, stable=True), _ties(9, 2)),
    _case("msort", torch.msort, _x(5, 2)),
    _case("kthvalue", lambda x: x.kthvalue(2), _x(3, 5)),
    _case("kthvalue_keep", lambda x: x.kthvalue(3, 0, keepdim=True), _x(5, 2)),
    _case("median", lambda x: x.median(), _x(4, 3)),
    _case("median_dim", lambda x: x.median(1, keepdim=True), _x(4, 6)),
    _case("bucketize", lambda x: torch.bucketize(x, _EDGES), _ties(3, 5)),
    _case("bucketize_right", lambda x: torch.bucketize(x, _EDGES, right=True), _ties(3, 5)),
    _case("bucketize_int32", lambda x: torch.bucketize(x, _EDGES, out_int32=True), _ties(3, 5)),
    _case("searchsorted", lambda e, x: torch.searchsorted(e.sort().values, x), _x(6), _x(2, 3)),
    _case(
        "searchsorted_rows",
        lambda e, x: torch.searchsorted(e.sort().values, x, side="right"),
        _ties(2, 6),
        _ties(2, 3),
    ),
    _case(
        "searchsorted_int",
        lambda e, x: torch.searchsorted(e.sort().values, x),
        _ties(6, dtype=torch.int64),
        _ties(4, dtype=torch.int64),
    ),
]
