"""Removes what computes nothing: dead ops, identities, chains of reshapes, repeated calls.

Runs first, so that the other passes see fewer shapes of the same thing, and again last.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from litert_export.graph import Graph, Op, Value

# Ops whose result may differ between equal calls, or that have effects.
_KEPT = frozenset({
    "ASSIGN_VARIABLE", "CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "RANDOM_UNIFORM",
    "RANDOM_STANDARD_NORMAL", "MULTINOMIAL", "UNIDIRECTIONAL_SEQUENCE_LSTM",
    "UNIDIRECTIONAL_SEQUENCE_RNN", "SVDF", "WHILE", "IF", "CUSTOM",
})  # fmt: skip
_EFFECTS = frozenset({
    "ASSIGN_VARIABLE", "CALL_ONCE", "CUSTOM",
})  # fmt: skip


def run(graph: Graph) -> Graph:
    """Clean until nothing changes."""
    for inner in graph.subgraphs:
        run(inner)
    while True:
        before = len(graph.ops)
        changed = _identities(graph)
        changed |= _reshape_chains(graph)
        changed |= _repeated(graph)
        dead(graph)
        if not changed and len(graph.ops) == before:
            return graph


def dead(graph: Graph) -> None:
    """Drop ops that no output depends on."""
    used: set[Value] = set(graph.outputs)
    kept: list[Op] = []
    for op in reversed(graph.ops):
        if op.code in _EFFECTS or any(v in used for v in op.outputs):
            kept.append(op)
            used.update(v for v in op.inputs if v is not None)
    graph.ops = kept[::-1]


def _is_identity(op: Op) -> bool:
    x, y = op.inputs[0], op.outputs[0]
    if x is None or x.shape != y.shape or x.dtype != y.dtype or len(op.outputs) != 1:
        return False
    if op.code in ("RESHAPE", "CAST", "BROADCAST_TO", "SQUEEZE", "EXPAND_DIMS", "SLICE", "TILE"):
        return True
    if op.code in ("PAD", "TRANSPOSE"):
        p = op.inputs[1]
        if p is None or p.data is None:
            return False
        still = np.zeros_like(p.data) if op.code == "PAD" else np.arange(len(p.data))
        return bool(np.array_equal(p.data, still))
    return op.code == "CONCATENATION" and len(op.inputs) == 1


def _identities(graph: Graph) -> bool:
    outputs = set(graph.outputs)
    mapping: dict[Value, Value] = {}
    for op in graph.ops:
        if not op.inputs or not _is_identity(op):
            continue
        x, y = op.inputs[0], op.outputs[0]
        assert x is not None
        # An output keeps a tensor of its own unless that tensor is one already made by an op.
        if y in outputs and (x in graph.inputs or x.is_const or x in outputs):
            continue
        mapping[y] = x
        if y in outputs:
            x.name, y.name = y.name, x.name
    graph.replace(mapping)
    removed = set(mapping)
    graph.ops = [op for op in graph.ops if op.outputs[0] not in removed]
    return bool(mapping)


def _reshape_chains(graph: Graph) -> bool:
    made = graph.producers()
    changed = False
    for op in graph.ops:
        if op.code != "RESHAPE" or op.inputs[0] is None:
            continue
        before = made.get(op.inputs[0])
        if before is not None and before.code in ("RESHAPE", "SQUEEZE", "EXPAND_DIMS"):
            op.inputs[0] = before.inputs[0]
            changed = True
    return changed


def _key(op: Op) -> Any:
    options = tuple(
        (k, v.tobytes() if isinstance(v, np.ndarray) else str(v))
        for k, v in sorted(op.options.items())
    )
    inputs = tuple(None if v is None else id(v) for v in op.inputs)
    outputs = tuple((v.shape, v.dtype, str(v.quantization)) for v in op.outputs)
    return op.code, inputs, options, outputs


def _repeated(graph: Graph) -> bool:
    """The same call on the same values is made once."""
    seen: dict[Any, Op] = {}
    outputs = set(graph.outputs)
    mapping: dict[Value, Value] = {}
    kept: list[Op] = []
    for op in graph.ops:
        op.inputs = [mapping.get(v, v) if v is not None else None for v in op.inputs]
        first = None if op.code in _KEPT else seen.setdefault(_key(op), op)
        if first is None or first is op or any(v in outputs for v in op.outputs):
            kept.append(op)
        else:
            mapping.update(zip(op.outputs, first.outputs, strict=True))
    graph.ops = kept
    return bool(mapping)
