"""Overloads that programs reach only through other layers (functionalisation, old graphs), called
by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.op_cases.case import OpCase

aten = torch.ops.aten


def _x(*size: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randn(*(size or (3, 4))),)


def _places() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(5, 3), torch.tensor([3, 0, 4])


_CALLS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "addmm_activation": (
        lambda x: aten._addmm_activation(x[0], x, x.T @ x, use_gelu=False),
        _x(3, 3),
    ),
    "int_mm": (
        lambda a: aten._int_mm(a, a.T.contiguous()),
        lambda: (torch.randint(-9, 9, (32, 32)).to(torch.int8),),
    ),
    "euclidean_dist": (lambda x: aten._euclidean_dist(x, x.flip(0) + 1), _x()),
    "unsafe_index": (lambda x, i: aten._unsafe_index(x, [i]), _places),
    "unsafe_index_put": (lambda x, i: aten._unsafe_index_put(x, [i], x[i] + 1), _places),
    "index_put_impl": (lambda x, i: aten._index_put_impl(x, [i], x[i] + 1, True), _places),
    "embedding_renorm": (lambda x, i: aten.embedding_renorm(x, i, 0.5, 2.0), _places),
    "bucketize_scalar": (
        lambda b: aten.bucketize.Scalar(0.5, b),
        lambda: (torch.tensor([0.1, 0.5, 0.9]),),
    ),
    "select_copy": (lambda x: aten.select_copy(x, 1, -1), _x()),
    "slice_copy": (lambda x: aten.slice_copy(x, 1, 1, 4, 2), _x()),
    "split_copy": (lambda x: aten.split_copy(x, 3, 1), _x()),
    "squeeze_copy_dims": (lambda x: aten.squeeze_copy.dims(x[None], [0, 1]), _x()),
    "detach_copy": (aten.detach_copy.default, _x()),
    "view_as_real_copy": (lambda x: aten.view_as_real_copy(torch.complex(x, x + 1)), _x()),
    "view_as_complex_copy": (lambda x: torch.view_as_real(aten.view_as_complex_copy(x)), _x(3, 2)),
    "view_copy_dtype": (lambda x: aten.view_copy.dtype(x, torch.int32), _x()),
    "reshape_alias": (lambda x: aten._reshape_alias(x, [4, 3], [3, 1]), _x()),
    "reshape_alias_copy": (lambda x: aten._reshape_alias_copy(x, [4, 3], [3, 1]), _x()),
    "reshape_copy": (lambda x: aten._reshape_copy(x, [4, 3]), _x()),
    "scatter_value_reduce": (
        lambda x, i: aten.scatter.value_reduce(x, 0, i[None, :3], 2.0, reduce="multiply"),
        _places,
    ),
    "reflection_pad3d_backward": (
        lambda g: aten.reflection_pad3d_backward(g, g[..., 1:-1, 1:-1, 1:-1], [1] * 6),
        _x(2, 5, 6, 5),
    ),
    "replication_pad3d_backward": (
        lambda g: aten.replication_pad3d_backward(g, g[..., 1:-1, 1:-1, 1:-1], [1] * 6),
        _x(2, 5, 6, 5),
    ),
    "unique_dim_consecutive": (
        lambda x: aten.unique_dim_consecutive(x, 0, True, True),
        lambda: (torch.tensor([[1, 2], [1, 2], [3, 4], [1, 2]]),),
    ),
}

CASES = [OpCase(name, fn, args, halves=("cloud",)) for name, (fn, args) in _CALLS.items()]
