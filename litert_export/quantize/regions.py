"""Runs of elementwise operators on one value, which integers compute by one look-up.

Rounding every step of `x * tanh(log(1 + exp(x)))` to 8 bits ruins it, and a table of the whole
function's 256 results is exact to half a step of the result. A run that LiteRT's kernels compute
well (a sigmoid and a product) keeps them: they are faster and accelerators know them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from litert_export.graph import Graph, Op, Value
from litert_export.quantize import traits

Array = np.ndarray[Any, Any]
# Steep functions: what rounding does to their operand or result grows in the steps that follow.
_STEEP = frozenset({"EXP", "LOG", "SQRT", "POW", "DIV", "SIN", "COS", "FLOOR_DIV", "FLOOR_MOD"})
_LONG = 4  # a run of more steps than this gathers too much rounding as well
_UNARY: dict[str, Callable[[dict[str, Any]], traits.Function]] = {
    **traits.FUNCTIONS,
    "RELU": lambda o: lambda x: np.maximum(x, 0),
    "RELU6": lambda o: lambda x: np.clip(x, 0, 6),
    "LEAKY_RELU": lambda o: lambda x: np.where(x > 0, x, x * o["alpha"]),
    "LOGISTIC": lambda o: lambda x: 1 / (1 + np.exp(-x)),
    "TANH": lambda o: np.tanh,
    "LOGICAL_NOT": lambda o: np.logical_not,
}
_SEVERAL: dict[str, Callable[..., Any]] = {
    **traits.BINARY,
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "SQUARED_DIFFERENCE": lambda a, b: np.square(a - b),
    "MAXIMUM": np.maximum,
    "MINIMUM": np.minimum,
    "EQUAL": np.equal,
    "NOT_EQUAL": np.not_equal,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
    "LOGICAL_AND": np.logical_and,
    "LOGICAL_OR": np.logical_or,
    "SELECT": np.where,
    "SELECT_V2": np.where,
}
_FUSED: dict[str, traits.Function] = {
    "RELU": lambda x: np.maximum(x, 0),
    "RELU6": lambda x: np.clip(x, 0, 6),
    "RELU_N1_TO_1": lambda x: np.clip(x, -1, 1),
}


@dataclasses.dataclass
class Regions:
    """What was found.

    Attributes:
        of: the last op of a run -> (the value that it is a function of, that float64 function).
        inside: ops that are in runs and that nothing else reads: they vanish.
    """

    of: dict[Op, tuple[Value, traits.Function]] = dataclasses.field(default_factory=dict)
    inside: set[Op] = dataclasses.field(default_factory=set)


def find(graph: Graph, kept: set[Op]) -> Regions:
    """The runs of a float graph that become tables.

    Args:
        kept: ops that stay as they are, and so end runs.
    """
    origin: dict[Value, Value] = {}
    makers = graph.producers()
    for op in graph.ops:
        if op not in kept and (x := _origin(op, origin)) is not None:
            origin[op.outputs[0]] = x
    readers, outputs, found = graph.consumers(), set(graph.outputs), Regions()
    for op in graph.ops:
        y = op.outputs[0]
        x = origin.get(y)
        if x is None or y.dtype != "float32":
            continue
        ends = y in outputs or any(origin.get(o.outputs[0]) is not x for o in readers.get(y, ()))
        steps = _slice(y, x, makers) if ends else []
        steep = any(o.code in _STEEP for o in steps)
        if len(steps) > (1 if steep else _LONG):
            found.of[op] = x, _function(steps, x, y)
            found.inside.update(steps[:-1])
    _keep_what_others_read(graph, found, readers, outputs)
    return found


def _keep_what_others_read(
    graph: Graph, found: Regions, readers: dict[Value, list[Op]], outputs: set[Value]
) -> None:
    found.inside -= set(found.of)
    for op in reversed(graph.ops):
        y = op.outputs[0]
        alone = all(o in found.inside or o in found.of for o in readers.get(y, ()))
        if op in found.inside and (y in outputs or not alone):
            found.inside.discard(op)


def _origin(op: Op, origin: dict[Value, Value]) -> Value | None:
    """The one value that an elementwise op is a function of, its constants being single numbers."""
    if (op.code not in _UNARY and op.code not in _SEVERAL) or len(op.outputs) != 1:
        return None
    sources = set()
    for v in op.inputs:
        if v is None:
            return None
        if v.data is not None:
            if v.size != 1:
                return None
            continue
        if v.shape != op.outputs[0].shape:
            return None
        sources.add(origin.get(v, v))
    if len(sources) != 1:
        return None
    (x,) = sources
    return x if x.dtype == "float32" else None


def _slice(y: Value, x: Value, makers: dict[Value, Op]) -> list[Op]:
    """The ops from x to y in order."""
    found: dict[Op, None] = {}

    def visit(v: Value | None) -> None:
        if v is None or v is x or v.data is not None or makers[v] in found:
            return
        op = makers[v]
        for w in op.inputs:
            visit(w)
        found[op] = None

    visit(y)
    return list(found)


def _function(steps: list[Op], x: Value, y: Value) -> traits.Function:
    def evaluate(given: Array) -> Array:
        known: dict[Value, Any] = {x: given}
        for op in steps:
            arguments = [
                known[v] if v.data is None else _number(v) for v in op.inputs if v is not None
            ]
            call = _UNARY[op.code](op.options) if op.code in _UNARY else _SEVERAL[op.code]
            result = call(*arguments)
            fused = op.options.get("fused_activation_function", "NONE")
            known[op.outputs[0]] = _FUSED[fused](result) if fused != "NONE" else result
        return np.broadcast_to(known[y], given.shape)

    return evaluate


def _number(v: Value) -> Any:
    assert v.data is not None
    number = v.data.reshape(-1)[0]
    return float(number) if v.dtype == "float32" else number
