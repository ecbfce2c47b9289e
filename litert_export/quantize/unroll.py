"""Writes out branches, and loops of a known number of steps: WHILE over a counter from a constant.

Integer kernels inside a loop would need one scale for all steps; written out, every step has its
own. The counter's arithmetic is done here, a row taken by it becomes a slice, and rows written one
after the other become a concatenation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from litert_export.graph import Graph, Op, Value
from torch_tpu_unified.core.errors import ConversionError

LIMIT = 4096  # steps; the file grows with each

_EVALUATED: dict[str, Callable[..., Any]] = {
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
    "MAXIMUM": np.maximum,
    "MINIMUM": np.minimum,
    "FLOOR_MOD": np.mod,
}


def run(graph: Graph) -> None:
    """Write out every loop and branch of the graph, the innermost first.

    Raises:
        ConversionError: the number of steps depends on data, or is beyond `LIMIT`.
    """
    if not any(op.code in ("WHILE", "IF") for op in graph.ops):
        return
    for inner in graph.subgraphs:
        run(inner)
    old, graph.ops = graph.ops, []
    mapping: dict[Value, Value] = {}
    for op in old:
        op.inputs = [None if v is None else mapping.get(v, v) for v in op.inputs]
        if op.code == "WHILE":
            mapping.update(zip(op.outputs, _loop(graph, op), strict=True))
        elif op.code == "IF":
            mapping.update(zip(op.outputs, _branches(graph, op), strict=True))
        else:
            graph.ops.append(op)
    graph.outputs = [mapping.get(v, v) for v in graph.outputs]
    _join_rows(graph)
    left = {i for op in graph.ops for k, i in op.options.items() if k.endswith("subgraph_index")}
    if not left:
        graph.subgraphs = []


def _loop(graph: Graph, op: Op) -> list[Value]:
    body = graph.subgraphs[op.options["body_subgraph_index"] - 1]
    condition = graph.subgraphs[op.options["cond_subgraph_index"] - 1]
    graph.source = op.source
    carried = [v for v in op.inputs if v is not None]
    for step in range(LIMIT + 1):
        probe = Graph("condition")
        (more,) = _inline(probe, condition, carried, "condition")
        if more.data is None:
            raise ConversionError(
                f"a loop ({op.outputs[0].name}) runs until a computed value says stop; its steps "
                "cannot be written out, which integer models need"
            )
        if not bool(np.all(more.data)):
            return carried
        carried = _inline(graph, body, carried, f"{op.outputs[0].name}/step_{step}")
    raise ConversionError(f"a loop ({op.outputs[0].name}) has more than {LIMIT} steps")


def _branches(graph: Graph, op: Op) -> list[Value]:
    graph.source = op.source
    condition, *given = [v for v in op.inputs if v is not None]
    name = op.outputs[0].name
    results = [
        _inline(graph, graph.subgraphs[op.options[f"{role}_subgraph_index"] - 1], given, scope)
        for role, scope in (("then", f"{name}/then"), ("else", f"{name}/else"))
    ]
    graph.scope = name
    return [
        graph.emit("SELECT_V2", condition, a, b, shape=a.shape, dtype=a.dtype)
        for a, b in zip(*results, strict=True)
    ]


def _inline(graph: Graph, inner: Graph, given: list[Value], scope: str) -> list[Value]:
    """Copy a subgraph's ops to the end of the graph; returns its outputs there."""
    values: dict[Value, Value] = dict(zip(inner.inputs, given, strict=True))

    def of(v: Value | None) -> Value | None:
        if v is None or v in values:
            return None if v is None else values[v]
        # A name inside the loop may be taken outside.
        return v if v.data is None else graph.const(v.data)

    graph.scope = scope
    for op in inner.ops:
        inputs = [of(v) for v in op.inputs]
        out = op.outputs[0]
        if (found := _evaluated(graph, op, inputs)) is not None:
            values[out] = found
            continue
        made = [
            Value(graph.unique(f"{scope}/{v.name}"), v.shape, v.dtype, source=op.source)
            for v in op.outputs
        ]
        graph.ops.append(Op(op.code, inputs, made, dict(op.options), op.source))
        values.update(zip(op.outputs, made, strict=True))
    return [v for v in map(of, inner.outputs) if v is not None]


def _evaluated(graph: Graph, op: Op, inputs: list[Value | None]) -> Value | None:
    """The result of a call as a constant, or of a row's look-up as a slice."""
    x, out = inputs[0], op.outputs[0]
    arrays = [v.data for v in inputs if v is not None]
    if all(a is not None for a in arrays) and out.dtype != "float32":
        if op.code in _EVALUATED:
            return graph.const(np.asarray(_EVALUATED[op.code](*arrays)))
        if op.code == "RESHAPE":
            return graph.const(np.reshape(np.asarray(arrays[0]), out.shape))
        if op.code == "CONCATENATION":
            parts: list[Any] = list(arrays)
            return graph.const(np.concatenate(parts, op.options["axis"]))
    if op.code != "GATHER" or x is None or op.options.get("batch_dims") or len(arrays) < 2:
        return None
    if x.data is not None or arrays[1] is None or arrays[1].size != 1:
        return None
    axis = op.options.get("axis", 0) % x.rank
    begin, size = [0] * x.rank, list(x.shape)
    begin[axis], size[axis] = int(arrays[1].reshape(-1)[0]), 1
    i32 = (graph.const(np.array(v, np.int32)) for v in (begin, size))
    return graph.reshape(graph.emit("SLICE", x, *i32, shape=size), out.shape)


def _join_rows(graph: Graph) -> None:
    """DYNAMIC_UPDATE_SLICE after DYNAMIC_UPDATE_SLICE, every row once: a CONCATENATION."""
    producers, readers = graph.producers(), graph.consumers()
    mapping: dict[Value, Value] = {}
    for op in list(graph.ops):
        following = readers.get(op.outputs[0], [])
        if op.code != "DYNAMIC_UPDATE_SLICE" or any(o.code == op.code for o in following):
            continue
        rows: dict[int, Value] = {}
        at: Op | None = op
        while at is not None and at.code == "DYNAMIC_UPDATE_SLICE":
            base, row, start = at.inputs
            assert base is not None and row is not None and start is not None
            if start.data is None or row.shape[0] != 1 or row.shape[1:] != base.shape[1:]:
                break
            rows.setdefault(int(start.data[0]), row)
            at = producers.get(base)
        count = op.outputs[0].shape[0]
        if set(rows) != set(range(count)):
            continue
        joined = Value(
            graph.unique(f"{op.outputs[0].name}/rows"), op.outputs[0].shape, op.outputs[0].dtype
        )
        options = {"axis": 0, "fused_activation_function": "NONE"}
        new = Op("CONCATENATION", [rows[i] for i in range(count)], [joined], options, op.source)
        graph.ops.insert(graph.ops.index(op) + 1, new)
        mapping[op.outputs[0]] = joined
    graph.replace(mapping)
