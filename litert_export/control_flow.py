"""`torch.cond`, `while_loop`, `map` and `scan` as IF and WHILE over subgraphs.

A branch or body is emitted like the graph around it, into a graph of its own. Weights are constants
there too (the file holds them once); everything else arrives as an input. What repeats a known
small number of times is written out instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from litert_export.graph import Graph, Pair, ResultType, Value
from litert_export.ops._dims import UNROLLED, binary, concat, filled, i32, scalar, take
from torch_tpu_unified.core.errors import Unsupported

# Emits a graph of the program with these values of its placeholders; gives its results.
Emit = Callable[[torch.fx.Graph, Sequence[Any]], list[Any]]
_NAMES = ("cond", "while_loop", "map_impl", "scan")


def is_control_flow(node: torch.fx.Node) -> bool:
    """Whether the node is one of PyTorch's control-flow operators that LiteRT can express."""
    operator = isinstance(node.target, torch._ops.HigherOrderOperator)
    return operator and getattr(node.target, "__name__", None) in _NAMES


def inside(node: torch.fx.Node) -> list[tuple[torch.fx.Graph, list[Any]]]:
    """The graphs that a control-flow node runs, each with the nodes that its placeholders stand
    for; None for a value that only the loop knows."""
    graphs = [_graph(a) for a in node.args if isinstance(a, torch.fx.Node) and a.op == "get_attr"]
    name = node.target.__name__  # type: ignore[union-attr]
    rest = [a for a in node.args if isinstance(a, (list, tuple))]
    fixed = list(rest[0] if name == "cond" else rest[-1])
    found = []
    for graph in graphs:
        places = sum(n.op == "placeholder" for n in graph.nodes)
        found.append((graph, [None] * (places - len(fixed)) + fixed))
    return found


def _graph(owner: torch.fx.Node) -> torch.fx.Graph:
    module: Any = owner.graph.owning_module
    for part in str(owner.target).split("."):
        module = getattr(module, part)
    found: torch.fx.Graph = module.graph
    return found


def lower(node: torch.fx.Node, args: Any, emitter: Any) -> tuple[Value, ...]:
    """The results of a control-flow node.

    Args:
        args: the node's arguments; graph modules, Values and lists of Values.
        emitter: has `graph`, the Graph being built, and `emit_graph` (an `Emit`).

    Raises:
        Unsupported: results or carried values that are not real tensors, a loop over no rows.
    """
    recorded = node.meta["val"]
    kinds = recorded if isinstance(recorded, (tuple, list)) else (recorded,)
    if not all(isinstance(k, torch.Tensor) for k in kinds):
        raise Unsupported("a result is not a tensor")
    rule = {"cond": _cond, "while_loop": _while_loop, "map_impl": _map, "scan": _scan}
    flow = _Flow(emitter)
    return tuple(rule[node.target.__name__](flow, *args))  # type: ignore[union-attr]


class _Flow:
    """Where the results of a control-flow operator go: the graph, and emission into others."""

    def __init__(self, emitter: Any) -> None:
        self.emitter = emitter
        self.graph: Graph = emitter.graph

    def here(self, module: torch.fx.GraphModule, values: Sequence[Any]) -> list[Value]:
        """The results of a program's graph, in the graph that is being built."""
        found = self.emitter.emit_graph(module.graph, values)
        return [_value(self.emitter.graph, v) for v in found]

    def subgraph(
        self, role: str, like: Sequence[Value], fill: Callable[[Graph, list[Value]], list[Value]]
    ) -> int:
        """Add a graph with inputs like these values; returns the number that options name it by.

        Args:
            fill: takes the graph and its inputs, gives its outputs.
        """
        outer = self.graph
        inner = Graph(f"{outer.name}/{outer.scope}/{role}_{len(outer.subgraphs)}")
        inner.scope, inner.source = outer.scope, outer.source
        for i, v in enumerate(like):
            inner.input(f"input_{i}", v.shape, v.dtype)
        outer.subgraphs.append(inner)
        number = len(outer.subgraphs)
        self.emitter.graph = inner
        try:
            inner.outputs = _outputs(inner, fill(inner, list(inner.inputs)))
        finally:
            self.emitter.graph = outer
        inner.output_names = [f"output_{i}" for i in range(len(inner.outputs))]
        return number

    def loop(
        self,
        carried: Sequence[Value],
        more: Callable[[Graph, list[Value]], Value],
        step: Callable[[Graph, list[Value]], list[Value]],
    ) -> list[Value]:
        """WHILE over the carried values; a value that `step` returns as it got it stays."""
        body = self.subgraph("step", carried, step)
        condition = self.subgraph("more", carried, lambda g, inputs: [more(g, inputs)])
        found: list[Value] = self.graph.emit(
            "WHILE",
            *carried,
            outputs=[(v.shape, v.dtype) for v in carried],
            body_subgraph_index=body,
            cond_subgraph_index=condition,
        )
        return found


def _value(graph: Graph, value: Any) -> Value:
    if isinstance(value, Pair):
        raise Unsupported("a branch or a loop gives complex values; LiteRT has none")
    return value if isinstance(value, Value) else graph.const(np.asarray(value))


def _outputs(graph: Graph, values: list[Value]) -> list[Value]:
    """The values as outputs of a subgraph that the runtime can copy out.

    A tensor that stands there twice comes out wrong once, and one that an operator shares with a
    constant is freed as if it were the operator's own (both seen in LiteRT 2.1).
    """
    made = graph.producers()
    found: list[Value] = []
    for v in values:
        op = made.get(v)
        if op is not None and all(x is None or x.is_const for x in op.inputs):
            code, neutral = ("LOGICAL_OR", False) if v.dtype == "bool" else ("ADD", 0)
            v = graph.emit(code, v, scalar(graph, neutral, v.dtype))
        elif v in found and not v.is_const:
            v = graph.emit("RESHAPE", v, i32(graph, v.shape), shape=v.shape, new_shape=v.shape)
        found.append(v)
    return found


def _split(operands: Sequence[Any]) -> tuple[list[Value], Callable[..., list[Any]]]:
    """The operands that a subgraph gets as inputs, and a function of (graph, inputs) that gives
    what stands for all operands inside: constants are constants there as well."""
    given = [v for v in operands if isinstance(v, Value) and not v.is_const]

    def all_of(graph: Graph, inputs: Sequence[Value]) -> list[Any]:
        rest = iter(inputs)
        return [
            (graph.const(v.data, name=v.name) if v.is_const else next(rest))
            if isinstance(v, Value)
            else v
            for v in operands
        ]

    return given, all_of


def _cond(
    flow: _Flow, condition: Any, true: Any, false: Any, operands: Sequence[Any] = ()
) -> list[Value]:
    if not isinstance(condition, Value) or condition.data is not None:
        known = condition.data.item() if isinstance(condition, Value) else condition  # type: ignore
        return flow.here(true if known else false, operands)
    given, all_of = _split(operands)
    branches = [
        flow.subgraph(role, given, lambda g, x, m=module: flow.here(m, all_of(g, x)))  # type: ignore
        for role, module in (("then", true), ("else", false))
    ]
    graphs = [flow.graph.subgraphs[i - 1] for i in branches]
    kinds = [[(v.shape, v.dtype) for v in g.outputs] for g in graphs]
    if kinds[0] != kinds[1]:
        raise Unsupported(f"the branches give {kinds[0]} and {kinds[1]}")
    found: list[Value] = flow.graph.emit(
        "IF",
        condition,
        *given,
        outputs=kinds[0],
        then_subgraph_index=branches[0],
        else_subgraph_index=branches[1],
    )
    return found


def _while_loop(
    flow: _Flow, more: Any, step: Any, carried: Sequence[Any], fixed: Sequence[Any] = ()
) -> list[Value]:
    start = [_value(flow.graph, v) for v in carried]
    given, all_of = _split(fixed)
    count = len(start)
    found = flow.loop(
        [*start, *given],
        lambda g, x: flow.here(more, [*x[:count], *all_of(g, x[count:])])[0],
        lambda g, x: [*flow.here(step, [*x[:count], *all_of(g, x[count:])]), *x[count:]],
    )
    return found[:count]


def _map(flow: _Flow, module: Any, rows: Sequence[Value], fixed: Sequence[Any]) -> list[Value]:
    return _over_rows(flow, module, [], rows, fixed)


def _scan(
    flow: _Flow, module: Any, start: Sequence[Any], rows: Sequence[Value], fixed: Sequence[Any] = ()
) -> list[Value]:
    return _over_rows(flow, module, [_value(flow.graph, v) for v in start], rows, fixed)


def _over_rows(
    flow: _Flow, module: Any, state: list[Value], rows: Sequence[Value], fixed: Sequence[Any]
) -> list[Value]:
    """(state, x[t], fixed) -> (state, y[t]) for all t: the last state, and all y stacked."""
    steps, count = rows[0].shape[0], len(state)
    if not steps:
        raise Unsupported("there are no rows to go over")
    if steps <= UNROLLED:
        g = flow.graph
        made: list[list[Value]] = []
        for t in range(steps):
            now = [take(g, x, scalar(g, t, "int32"), 0) for x in rows]
            found = flow.here(module, [*state, *now, *fixed])
            state = found[:count]
            made.append([g.reshape(y, (1, *y.shape)) for y in found[count:]])
        return [*state, *(concat(g, list(ys), 0) for ys in zip(*made, strict=True))]
    results = _result_kinds(flow, module, count)
    given, all_of = _split(fixed)
    moving = [x for x in rows if not x.is_const]
    outputs = [filled(flow.graph, (steps, *k.shape), 0, k.dtype) for k in results]
    parts = (1, count, len(outputs), len(moving))
    ends = np.cumsum(parts)

    def step(g: Graph, x: list[Value]) -> list[Value]:
        (t,), now, ys, xs, more = (x[a:b] for a, b in zip([0, *ends], [*ends, len(x)], strict=True))
        rest = iter(xs)
        all_rows = [g.const(r.data, name=r.name) if r.is_const else next(rest) for r in rows]
        values = [take(g, r, t, 0) for r in all_rows]
        found = flow.here(module, [*now, *values, *all_of(g, more)])
        written = [_put(g, y, row, t) for y, row in zip(ys, found[count:], strict=True)]
        after = binary(g, "ADD", t, scalar(g, 1, "int32"))
        return [after, *found[:count], *written, *xs, *more]

    def more(g: Graph, x: list[Value]) -> Value:
        less: Value = g.emit("LESS", x[0], scalar(g, steps, "int32"), dtype="bool")
        return less

    first = scalar(flow.graph, 0, "int32")
    done = flow.loop([first, *state, *outputs, *moving, *given], more, step)
    return done[1 : ends[2]]


def _result_kinds(flow: _Flow, module: Any, count: int) -> list[ResultType]:
    """Shapes and dtypes of what one step gives beside the state."""
    from litert_export.emit import result_types

    leaves = module.graph.output_node().args[0]
    found = []
    for leaf in leaves[count:]:
        (kind,) = result_types(leaf.meta["val"]) if isinstance(leaf, torch.fx.Node) else (None,)
        if kind is None or "complex" in kind.dtype:
            raise Unsupported("a step gives something else than real tensors")
        found.append(kind)
    return found


def _put(g: Graph, rows: Value, row: Value, t: Value) -> Value:
    """`rows` with the one at index `t` replaced."""
    start = concat(g, [g.reshape(t, (1,)), i32(g, [0] * (rows.rank - 1))], 0)
    new = g.reshape(row, (1, *row.shape))
    found: Value = g.emit("DYNAMIC_UPDATE_SLICE", rows, new, start, shape=rows.shape)
    return found
