"""A graph as text that is the same in every process: what its compiled program is found by on disk.

`GraphModule.code` will not do: it leaves out sizes, dtypes and strides, which decide what a
lowering makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from cloud_backend.interpret import attribute, parts


def graph_text(gm: GraphModule) -> str | None:
    """Every node of the graph and of those inside it, with its call and what it makes.

    None for a graph that only this process can name: it calls a user's own operator or function,
    or graphs inside it hold tensors, which become constants of the program.
    """
    lines: list[str] = []
    for part in parts(gm):
        lines.append(type(part).__name__)
        for node in part.graph.nodes:
            target = _target(node, part, part is gm)
            if target is None:
                return None
            args = _said([node.args, node.kwargs])
            lines.append(f"{node.op} {node.name} {target} {args} {_said(node.meta.get('val'))}")
    return "\n".join(lines)


def _target(node: Node, part: GraphModule, outermost: bool) -> str | None:
    from cloud_backend.ops import CUSTOM

    target: Any = node.target
    if node.op == "get_attr":
        value = attribute(part, str(target))
        if isinstance(value, GraphModule):
            return str(target)
        held = outermost and isinstance(value, torch.Tensor)
        return f"{target} {value.dtype} {tuple(value.shape)}" if held else None
    if isinstance(target, str):  # an input, the output
        return target
    if isinstance(target, torch._ops.OpOverload):
        return None if target in CUSTOM else str(target)
    module = getattr(target, "__module__", None) or ""
    known = module.partition(".")[0] in ("torch", "_operator", "math", "builtins")
    return f"{module}.{getattr(target, '__name__', target)}" if known else None


def _said(value: Any) -> str:
    return "".join(_pieces(value))


def _pieces(value: Any) -> Iterator[str]:
    if isinstance(value, torch.Tensor):
        yield f"{value.dtype}{list(value.shape)}{list(value.stride())}{value.device.type}"
    elif isinstance(value, (list, tuple)):
        yield "("
        for x in value:
            yield from _pieces(x)
            yield ","
        yield ")"
    elif isinstance(value, dict):
        yield from _pieces(list(value.items()))
    else:
        yield f"{type(value).__name__} {value!r}"
