"""Finds the first node of a program at which a target departs from CPU PyTorch.

The exported program, functionalised, is rebuilt to give every intermediate value as an output, and
run on both sides: by PyTorch on the CPU, and on the target. The first node out of bounds is named.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from torch_tpu_unified import agreement, programs
from torch_tpu_unified.core.report import SourceLine, source_line
from torch_tpu_unified.core.schema import format_call
from torch_tpu_unified.programs import Program

Runner = Callable[[GraphModule, Sequence[Any]], Sequence[Any]]


@dataclasses.dataclass(frozen=True)
class Departure:
    """The first node that differs: its name, call, source line, and error."""

    node: str
    call: str
    source: SourceLine | None
    max_abs: float
    relative: float

    def __str__(self) -> str:
        text = (
            f"{self.node} = {self.call}: max abs {self.max_abs:.2e}, relative {self.relative:.2e}"
        )
        return f"{text}\n    from {self.source}" if self.source else text


@dataclasses.dataclass(frozen=True)
class Opened:
    """A program with every floating or integer intermediate as an output, and what they are."""

    module: GraphModule
    nodes: tuple[Node, ...]
    inputs: tuple[Any, ...]


def open_up(program: Program) -> Opened:
    """Rebuild the program so that every intermediate tensor is an output."""
    with programs.quiet():
        functional = program.exported.run_decompositions({})
        module: Any = functional.module(check_guards=False)
    graph = module.graph
    graph.set_codegen(torch.fx.graph.CodeGen())
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and "_assert" in str(node.target) and not node.users:
            graph.erase_node(node)
    (output,) = (n for n in graph.nodes if n.op == "output")
    nodes = tuple(n for n in graph.nodes if _is_tensor_result(n))
    with graph.inserting_before(output):
        graph.output(nodes)
    graph.erase_node(output)
    graph.eliminate_dead_code()
    # A plain module: an exported one checks its inputs and cannot be exported again.
    return Opened(GraphModule(module, graph), nodes, tuple(program.flat_leaves()))


def _is_tensor_result(node: Node) -> bool:
    value = node.meta.get("val")
    known = isinstance(node.target, OpOverload) or node.target is operator.getitem
    return node.op == "call_function" and known and isinstance(value, torch.Tensor)


def on_device(module: GraphModule, device: str) -> GraphModule:
    """A copy of a graph module with its state and its factory calls on another device."""
    with programs.quiet():
        moved = copy.deepcopy(module).to(device)
    for node in moved.graph.nodes:
        if "device" in node.kwargs:
            node.update_kwarg("device", torch.device(device))
        if node.op == "get_attr":
            *path, name = node.target.split(".")
            owner = moved.get_submodule(".".join(path))
            value = getattr(owner, name)
            if isinstance(value, torch.Tensor) and value.device.type != device:
                setattr(owner, name, value.to(device))
    moved.recompile()
    return moved


def find(program: Program, run: Runner, tolerance: float) -> Departure | None:
    """The first node whose value differs by more than the tolerance of its range, if any does.

    Args:
        run: runs the opened module on the target; gives its outputs in order.
    """
    opened = open_up(program)
    with torch.no_grad():
        reference = opened.module(*[_clone(x) for x in opened.inputs])
        found = run(opened.module, opened.inputs)
    for node, ours, theirs in zip(opened.nodes, found, reference, strict=True):
        names = [node.name]
        row = agreement.judge([ours], [theirs], names, tolerance=tolerance).rows[0]
        if not row.ok or math.isnan(row.max_abs):
            return Departure(node.name, _call(node), source_line(node), row.max_abs, row.relative)
    return None


def _clone(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _call(node: Node) -> str:
    if not isinstance(node.target, OpOverload):
        return str(node.args)
    args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), _value)
    return format_call(node.target, args, kwargs)


def _value(node: Node) -> Any:
    return node.meta.get("val", node)
