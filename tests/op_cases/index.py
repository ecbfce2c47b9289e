"""Reads and writes by position: constant and computed indices, masks, duplicates, negatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.op_cases.case import OpCase

_I = torch.tensor([2, 0, -1])
_J = torch.tensor([[1], [-2]])
_MASK = torch.tensor([True, False, True, True])


def _ints(high: int, *shape: int, low: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape)


def _case(name: str, fn: Callable[..., Any], *make: Callable[[], Any]) -> OpCase:
    return OpCase(name, fn, lambda: tuple(m() for m in make))


def _x(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(shape)


def _i(high: int, *shape: int, low: int = 0) -> Callable[[], torch.Tensor]:
    return lambda: _ints(high, *shape, low=low)


def _put(*positions: Any, accumulate: bool = False) -> Callable[..., torch.Tensor]:
    def fn(x: torch.Tensor, values: torch.Tensor, *indices: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.index_put(x, list(indices or positions), values, accumulate)

    return fn


def _masked_assign(x: torch.Tensor, value: float) -> torch.Tensor:
    y = x.clone()
    y[x > 0.5] = value
    return y


_READS = [
    _case("index_one", lambda x, i: x[i], _x(4, 3), _i(4, 5, low=-4)),
    _case("index_int32", lambda x, i: x[i], _x(4, 3), lambda: _ints(4, 5).int()),
    _case("index_second", lambda x, i: x[:, i], _x(2, 4, 3), _i(4, 2, 2, low=-4)),
    _case("index_pair", lambda x, i, j: x[i, j], _x(4, 3, 2), _i(4, 5, low=-4), _i(3, 5)),
    _case("index_broadcast", lambda x, i, j: x[i, j], _x(4, 3), _i(4, 5), _i(3, 2, 1, low=-3)),
    _case("index_gap", lambda x, i, j: x[i, :, j], _x(4, 2, 3), _i(4, 5), _i(3, 5, low=-3)),
    _case("index_inner", lambda x, i, j: x[:, i, j], _x(2, 4, 3, 2), _i(4, 2, 5), _i(3, 5)),
    _case("index_const", lambda x: x[:, _I], _x(2, 4, 3)),
    _case("index_const_pair", lambda x: x[_I, :, _J], _x(4, 2, 3)),
    _case("index_const_mixed", lambda x, i: x[i, _I], _x(4, 3), _i(4, 3)),
    _case("index_none", lambda x, i: x[i, None, 1], _x(4, 3, 2), _i(4, 5)),
    _case("index_empty", lambda x: x[torch.zeros(0, dtype=torch.int64)], _x(4, 3)),
    _case("index_int", lambda x, i: x[i], _i(9, 4, 3), _i(4, 5)),
    _case("index_bool", lambda x, i: (x > 0)[i], _x(4, 3), _i(4, 5)),
    _case("index_select", lambda x, i: x.index_select(-1, i), _x(2, 4), _i(4, 6)),
    _case("index_select_scalar", lambda x, i: x.index_select(0, i), _x(), _i(1, 1)),
    _case("take", lambda x, i: x.take(i), _x(3, 4), _i(12, 2, 2, low=-12)),
    _case("gather", lambda x, i: x.gather(1, i), _x(3, 4), _i(4, 3, 2)),
    _case("gather_smaller", lambda x, i: x.gather(0, i), _x(3, 4, 5), _i(3, 2, 3, 4)),
    _case("gather_last", lambda x, i: x.gather(-1, i), _x(2, 3, 4), _i(4, 2, 3, 1)),
    _case("gather_const", lambda x: x.gather(1, _J.abs()), _x(3, 4)),
    _case("gather_int", lambda x, i: x.gather(1, i), _i(9, 3, 4), _i(4, 3, 2)),
    _case("take_along_dim", lambda x, i: x.take_along_dim(i, 1), _x(3, 4), _i(4, 3, 2)),
    _case("embedding", lambda w, i: torch.nn.functional.embedding(i, w), _x(7, 3), _i(7, 2, 4)),
    _case("embedding_scalar", lambda w, i: torch.nn.functional.embedding(i, w), _x(7, 3), _i(7)),
    _case(
        "embedding_padding",
        lambda w, i: torch.nn.functional.embedding(i, w, padding_idx=0),
        _x(7, 3),
        _i(7, 5),
    ),
    _case("one_hot", lambda i: torch.nn.functional.one_hot(i, 5), _i(5, 2, 3)),
    _case("masked_fill", lambda x: x.masked_fill(x > 0, -1.5), _x(3, 4)),
    _case("masked_fill_infinite", lambda x: x.masked_fill(x > 0, float("-inf")), _x(3, 4)),
    _case(
        "masked_fill_broadcast",
        lambda x, m: x.masked_fill(m > 0, 2),
        _i(9, 2, 3, 4),
        _x(3, 1),
    ),
    _case("masked_fill_tensor", lambda x, v: x.masked_fill(x > 0, v), _x(3, 4), _x()),
    _case("masked_fill_grows", lambda x, m: x.masked_fill(m > 0, 2.0), _x(4), _x(3, 4)),
]
_WRITES = [
    _case("scatter_value", lambda x, i: x.scatter(1, i, 7.0), _x(3, 5), _i(5, 3, 2)),
    _case("scatter_src", lambda x, i, s: x.scatter(0, i, s), _x(3, 5), _i(3, 1, 5), _x(2, 5)),
    _case("scatter_last_wins", lambda x, i, s: x.scatter(0, i, s), _x(4), _i(4, 9), _x(9)),
    _case("scatter_const", lambda x, s: x.scatter(1, _J.abs(), s), _x(3, 5), _x(2, 3)),
    _case("scatter_int", lambda x, i: x.scatter(1, i, 3), _i(9, 3, 5), _i(5, 3, 2)),
    _case("scatter_bool", lambda x, i: (x > 0).scatter(1, i, True), _x(3, 5), _i(5, 3, 2)),
    _case("scatter_add", lambda x, i, s: x.scatter_add(1, i, s), _x(3, 5), _i(5, 3, 4), _x(3, 6)),
    _case("scatter_add_int", lambda x, i, s: x.scatter_add(0, i, s), _i(9, 3), _i(3, 5), _i(9, 5)),
    _case(
        "scatter_mean",
        lambda x, i, s: x.scatter_reduce(0, i, s, "mean"),
        _x(3),
        _i(3, 7),
        _x(7),
    ),
    _case("scatter_sum", lambda x, i, s: x.scatter_reduce(0, i, s, "sum"), _x(3), _i(3, 7), _x(7)),
    _case("index_copy", lambda x, s: x.index_copy(1, _I.abs(), s), _x(2, 4), _x(2, 3)),
    _case(
        "index_copy_computed", lambda x, i, s: x.index_copy(0, i, s), _x(4, 2), _i(4, 2), _x(2, 2)
    ),
    _case("index_add", lambda x, i, s: x.index_add(1, i, s, alpha=2), _x(2, 4), _i(4, 5), _x(2, 5)),
    _case(
        "scatter_reduce_add",
        lambda x, i, s: x.scatter(0, i, s, reduce="add"),
        _x(3),
        _i(3, 7),
        _x(7),
    ),
    _case("index_fill_tensor", lambda x, i, v: x.index_fill(0, i, v), _x(4, 2), _i(4, 2), _x()),
    _case("index_fill", lambda x, i: x.index_fill(-1, i, 3.0), _x(2, 4), _i(4, 2)),
    _case("put", _put(_I), _x(4, 2), _x(3, 2)),
    _case("put_scalar", _put(_I), _x(4, 2), _x()),
    _case("put_second", _put(None, _I), _x(2, 4), _x(2, 3)),
    _case("put_pair", _put(_I, _J), _x(4, 3), _x(2, 3)),
    _case("put_gap", _put(_I, None, _I), _x(4, 2, 4), _x(3, 2)),
    _case("put_inner", _put(None, _I, _I), _x(2, 4, 4), _x(2, 3)),
    _case("put_add", _put(_I, accumulate=True), _x(4, 2), _x(3, 2)),
    _case("put_computed", _put(), _x(4, 2), _x(6, 2), _i(4, 6, low=-4)),
    _case("put_computed_pair", _put(), _x(4, 3), _x(7), _i(4, 7), _i(3, 7, low=-3)),
    _case("put_add_computed", _put(accumulate=True), _x(4, 2), _x(6, 2), _i(4, 6)),
    _case("put_int_computed", _put(), _i(9, 4), _i(9, 3), _i(4, 3)),
    _case("put_mask", _put(_MASK), _x(4, 2), _x(3, 2)),
    _case("assign_mask", lambda x: _masked_assign(x, 2.0), _x(3, 4)),
]
CASES = [*_READS, *_WRITES]
