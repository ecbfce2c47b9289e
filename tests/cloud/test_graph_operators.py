"""Operators that eager mode runs by hand-written kernels: their lowerings, which graphs use.

Views are metadata in eager mode, and some constants and copies never start a program there, so the
operator tests do not reach what stands in the table for them. Each runs here as a graph of one
operator, through the backend of `torch.compile`.
"""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule
from torch.utils import _pytree as pytree

from cloud_backend import kernels, ops
from cloud_backend.compiled_graph import CompiledGraph
from torch_tpu_unified.core import schema

aten = torch.ops.aten
X = torch.arange(24.0).reshape(2, 3, 4) - 7
WIDE = torch.arange(12.0).reshape(1, 3, 1, 4, 1)
COMPLEX = torch.complex(X, X.flip(0))
NAN = torch.tensor([1.0, float("nan"), float("inf"), -float("inf")])

# Overload -> its calls; tensors are the graph's inputs.
CALLS: dict[Any, list[tuple[Any, ...]]] = {
    aten.alias.default: [(X,)],
    aten.detach.default: [(X,)],
    aten.lift_fresh.default: [(X,)],
    aten.contiguous.default: [(X.mT,)],
    aten.clone.default: [(X,), (X.mT,)],
    aten.view.default: [(X, [4, 6]), (X, [-1, 2])],
    aten._unsafe_view.default: [(X, [4, 6]), (X, [-1, 2])],
    aten.reshape.default: [(X.mT, [4, -1])],
    aten._reshape_alias.default: [(X, [6, 4], [4, 1])],
    aten.view.dtype: [(X, torch.int32), (X, torch.int16), (X, torch.float64)],
    aten.view_as_real.default: [(COMPLEX,)],
    aten.view_as_complex.default: [(X.reshape(2, 3, 2, 2),)],
    aten.expand.default: [(WIDE, [2, 3, 5, 4, -1]), (X, [2, -1, 3, 4])],
    aten.permute.default: [(X, [2, 0, 1]), (X, [-1, 0, -2])],
    aten.transpose.int: [(X, 0, 2), (X, -1, 1)],
    aten.t.default: [(X[0],), (X[0, 0],)],
    aten.movedim.int: [(X, 0, -1)],
    aten.movedim.intlist: [(X, [0, 1], [2, 0])],
    aten.squeeze.default: [(WIDE,)],
    aten.squeeze.dim: [(WIDE, 0), (WIDE, -1), (WIDE, 1)],
    aten.squeeze.dims: [(WIDE, [0, 2]), (WIDE, [1, -1])],
    aten.unsqueeze.default: [(X, 0), (X, -1)],
    aten.slice.Tensor: [(X, 2, 1, 4, 2), (X, 0, -1), (X, 1, 5, 9)],
    aten.select.int: [(X, 1, 2), (X, -1, -2)],
    aten.narrow.default: [(X, 1, 1, 2), (X, 2, -3, 2)],
    aten.split.Tensor: [(X, 3, 2), (X, 2)],
    aten.split_with_sizes.default: [(X, [1, 3, 0], 2)],
    aten.unbind.int: [(X,), (X, -1)],
    aten.diagonal.default: [(X, 1, 1, 2), (X, -1, 0, 1)],
    aten.unfold.default: [(X, 2, 3, 1), (X, 1, 2, 2)],
    aten.as_strided.default: [(X, [2, 2], [5, 3], 4)],
    aten.full.default: [([2, 3], 7), ([], 1.5)],
    aten.full_like.default: [(X, 3), (X, True)],
    aten.scalar_tensor.default: [(2.5,)],
    aten.fill.Scalar: [(X, 3)],
    aten.masked_fill.Scalar: [(X, X > 0, -1)],
    aten.index_fill.int_Scalar: [(X, 1, torch.tensor([2, 0]), 9)],
    aten.scatter.value: [(X, 2, torch.tensor([[[3]], [[0]]]), 5)],
    aten.nan_to_num.default: [(NAN,), (NAN, 1.0, 2.0, 3.0)],
    aten._to_copy.default: [(X.mT,)],
}
# Of no defined value; or with a value that Python waits for, so that no graph holds them.
NOT_IN_GRAPHS = {
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.equal.default,
    aten.nonzero.default,
}


def _program(op: Any, call: tuple[Any, ...]) -> tuple[CompiledGraph, list[torch.Tensor]]:
    """A graph that calls `op` and returns its results, and its inputs on tpu."""
    graph, inputs = Graph(), []

    def placeholder(t: torch.Tensor) -> Any:
        node = graph.placeholder(f"x{len(inputs)}")
        node.meta["val"] = t.to("meta")
        inputs.append(t.to("tpu"))
        return node

    args = pytree.tree_map_only(torch.Tensor, placeholder, call)
    node = graph.call_function(op, args)
    fake = op(*pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), call))
    node.meta["val"] = fake
    outputs = [node]
    if isinstance(fake, (tuple, list)):
        outputs = []
        for i, part in enumerate(fake):
            item = graph.call_function(operator.getitem, (node, i))
            item.meta["val"] = part
            outputs.append(item)
    graph.output(tuple(outputs))
    return CompiledGraph(GraphModule({}, graph)), inputs


@pytest.mark.parametrize("op", CALLS, ids=str)
def test_graph_of_one_operator(op: Any) -> None:
    for call in CALLS[op]:
        program, inputs = _program(op, call)
        wanted = op(*call)
        wanted = list(wanted) if isinstance(wanted, (tuple, list)) else [wanted]
        found = [t.cpu() for t in program(inputs)]
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_all_such_operators_have_a_call() -> None:
    table = ops.load()
    by_hand = {op for op in table if schema.is_view(op) or op in kernels.KERNELS}
    assert by_hand == CALLS.keys() | NOT_IN_GRAPHS, sorted(
        map(str, by_hand ^ (CALLS.keys() | NOT_IN_GRAPHS))
    )
