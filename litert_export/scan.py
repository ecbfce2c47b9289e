"""Looks a program over before any lowering: all that cannot be converted, at once.

Finds which nodes are constant, also inside the blocks that `no_grad` and autocast leave, then the
operators without a lowering and those whose result has a size, or a number, that only a run knows.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._pytree import tree_leaves

from litert_export import control_flow
from torch_tpu_unified.core import report
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import LoweringError
from torch_tpu_unified.core.optable import OpTable

# Checks that torch.export adds; they hold for the example inputs and compute nothing.
CHECKS = frozenset(
    {
        "aten::_assert_tensor_metadata",
        "aten::_assert_async",
        "aten::_assert_scalar",
        "aten::sym_constrain_range",
        "aten::sym_constrain_range_for_size",
    }
)
# Read from a value's static shape.
SIZES = (aten.sym_size.int, aten.sym_numel.default)
_BLOCKS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
_MASKED = (aten.index.Tensor, aten._unsafe_index.Tensor)


def is_random(target: Any) -> bool:
    """Whether two calls may give different results."""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def is_block(node: torch.fx.Node) -> bool:
    """Whether the node runs a graph of its own under another grad or autocast mode."""
    return getattr(node.target, "__name__", None) in _BLOCKS


def block(node: torch.fx.Node) -> tuple[torch.fx.Graph, list[Any]]:
    """The graph that a block runs, and what its placeholders stand for."""
    position, owner = next(
        (i, a)
        for i, a in enumerate(node.args)
        if isinstance(a, torch.fx.Node) and a.op == "get_attr"
    )
    module: Any = owner.graph.owning_module
    for part in str(owner.target).split("."):
        module = getattr(module, part)
    return module.graph, list(node.args[position + 1 :])


def on_numbers(node: torch.fx.Node) -> bool:
    """Whether the node computes a Python number from others, such as one size from another."""
    number = (torch.SymInt, torch.SymFloat, torch.SymBool, bool, int, float)
    return not isinstance(node.target, OpOverload) and isinstance(node.meta.get("val"), number)


class _Scan:
    def __init__(self, constant: Iterable[torch.fx.Node]) -> None:
        self.constant = set(constant)
        self.results: dict[torch.fx.Node, Any] = {}
        self.calls: list[torch.fx.Node] = []

    def graph(self, graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            if node.op == "get_attr":
                self.constant.add(node)
            elif node.op == "call_function":
                self._call(node)

    def _call(self, node: torch.fx.Node) -> None:
        if is_block(node):
            inner, operands = block(node)
            places = (n for n in inner.nodes if n.op == "placeholder")
            for place, given in zip(places, operands, strict=True):
                if given in self.constant or not isinstance(given, torch.fx.Node):
                    self.constant.add(place)
            self.graph(inner)
            self.results[node] = inner.output_node().args[0]
        elif control_flow.is_control_flow(node):
            for inner, operands in control_flow.inside(node):
                places = (n for n in inner.nodes if n.op == "placeholder")
                known = (
                    p for p, given in zip(places, operands, strict=True) if given in self.constant
                )
                self.constant.update(known)
                self.graph(inner)
        elif node.target is operator.getitem and node.args[0] in self.results:
            source = self.results[node.args[0]][node.args[1]]  # type: ignore[index]
            if source in self.constant or not isinstance(source, torch.fx.Node):
                self.constant.add(node)
        elif not is_random(node.target) and self._all_constant(node.all_input_nodes):
            self.constant.add(node)
        else:
            self.calls.append(node)

    def _all_constant(self, nodes: Iterable[Any]) -> bool:
        return all(n in self.constant for n in nodes if isinstance(n, torch.fx.Node))

    def depends_on_values(self, node: torch.fx.Node) -> bool:
        """Whether a size or number among the results comes from values, here for the first time."""
        if node.target in _MASKED and self._all_constant(node.args[1]):  # type: ignore[arg-type]
            return False
        known = _unbacked(n.meta.get("val") for n in node.all_input_nodes)
        return bool(_unbacked([node.meta.get("val")]) - known)


def _unbacked(values: Iterable[Any]) -> set[Any]:
    kinds = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
    leaves = [v for v in tree_leaves(list(values)) if isinstance(v, kinds)]
    return set().union(*(free_unbacked_symbols(v) for v in leaves))


def check(graph: torch.fx.Graph, table: OpTable, constant: Iterable[torch.fx.Node]) -> None:
    """Refuse a graph with operators that no lowering takes.

    Args:
        constant: the placeholders whose values are known.

    Raises:
        LoweringError: names every such operator, with counts and source lines.
    """
    scan = _Scan(constant)
    scan.graph(graph)
    wanted, strange, valued = [], [], []
    for node in scan.calls:
        if isinstance(node.target, OpOverload):
            if node.target._schema.name in CHECKS or node.target in SIZES:
                continue
            (valued if scan.depends_on_values(node) else wanted).append(node)
        elif node.target is not operator.getitem and not on_numbers(node):
            strange.append(node)
    missing = report.missing_operators(wanted, table)
    parts = []
    if valued:
        parts.append(_unknown_sizes(valued))
    if missing or strange:
        parts.append(_without_lowering(missing, strange))
    if parts:
        raise LoweringError("\n".join(parts))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number > 1)}"


def _unknown_sizes(nodes: list[torch.fx.Node]) -> str:
    found = report.missing_operators(nodes, ())
    count = _counted(len(found), "operator")
    verb = "give" if len(found) > 1 else "gives"
    return (
        f"litert: {count} {verb} a size or a number that depends on the data; shapes in a LiteRT "
        f"file are fixed\n{report.as_text(found)}\n"
        "  next: keep the full shape (torch.where, a product with the mask, topk with a fixed k), "
        "or do this step outside the model"
    )


def _without_lowering(missing: list[report.Missing], strange: list[torch.fx.Node]) -> str:
    total = sum(m.count for m in missing) + len(strange)
    kinds = len(missing) + len({n.target for n in strange})
    lines = [report.as_text(missing)] if missing else []
    lines += [
        f"  {getattr(n.target, '__name__', n.target)}   from {report.source_line(n)}"
        for n in strange
    ]
    return (
        f"litert: {_counted(kinds, 'operator')} without a lowering, {_counted(total, 'call')}\n"
        + "\n".join(lines)
        + "\n  next: pass lowerings={op: function}, or write the model without them"
    )
