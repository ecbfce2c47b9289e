"""The range of an integer value, from the operators that make it.

Conservative interval arithmetic over the graph: what is not known has its type's whole range. It
proves where a narrower kernel gives the same numbers.
"""

from __future__ import annotations

import numpy as np

from litert_export import schema
from litert_export.graph import Graph, Op, Value

Bounds = tuple[int, int]

# Operators whose result holds elements of these inputs only.
_MOVES = {
    "RESHAPE": slice(0, 1),
    "TRANSPOSE": slice(0, 1),
    "SLICE": slice(0, 1),
    "STRIDED_SLICE": slice(0, 1),
    "GATHER": slice(0, 1),
    "GATHER_ND": slice(0, 1),
    "EXPAND_DIMS": slice(0, 1),
    "SQUEEZE": slice(0, 1),
    "BROADCAST_TO": slice(0, 1),
    "TILE": slice(0, 1),
    "UNPACK": slice(0, 1),
    "REVERSE_V2": slice(0, 1),
    "REDUCE_MAX": slice(0, 1),
    "REDUCE_MIN": slice(0, 1),
    "SPLIT": slice(1, 2),
    "SPLIT_V": slice(0, 1),
    "SELECT_V2": slice(1, 3),
    "CONCATENATION": slice(None),
    "PACK": slice(None),
}
_ARITHMETIC = ("ADD", "SUB", "MUL", "MINIMUM", "MAXIMUM", "FLOOR_MOD", "FLOOR_DIV", "DIV")
# Deeper than any index computation; a longer chain counts as unknown.
_DEPTH = 64


def bounds(g: Graph, x: Value) -> Bounds:
    """The least and the greatest value that the integer (or bool) value can hold, inclusive."""
    return _Ranges(g).of(x, _DEPTH)


def _whole(x: Value) -> Bounds:
    if x.dtype == "bool":
        return 0, 1
    limits = np.iinfo(schema.numpy_dtype(x.dtype))
    return int(limits.min), int(limits.max)


class _Ranges:
    """The ranges found so far in one graph."""

    def __init__(self, g: Graph) -> None:
        self.producers = g.producers()
        self.known: dict[Value, Bounds] = {}

    def of(self, x: Value, depth: int) -> Bounds:
        if x not in self.known:
            self.known[x] = self._find(x, depth)
        return self.known[x]

    def _find(self, x: Value, depth: int) -> Bounds:
        if x.data is not None:
            return (int(x.data.min()), int(x.data.max())) if x.data.size else (0, 0)
        op = self.producers.get(x)
        whole = _whole(x)
        if op is None or depth == 0:
            return whole
        found = self._result(op, x, depth - 1)
        # One that leaves the type's range wraps around.
        inside = found is not None and whole[0] <= found[0] and found[1] <= whole[1]
        return found if found is not None and inside else whole

    def _result(self, op: Op, x: Value, depth: int) -> Bounds | None:
        inputs = [v for v in op.inputs if v is not None]
        if op.code in ("ARG_MAX", "ARG_MIN") or (op.code == "TOPK_V2" and x is op.outputs[1]):
            return 0, max(*inputs[0].shape, 1) - 1
        if op.code in _MOVES:
            parts = [self.of(v, depth) for v in inputs[_MOVES[op.code]]]
            return min(p[0] for p in parts), max(p[1] for p in parts)
        if any("float" in v.dtype for v in inputs):
            return None
        if op.code == "CAST":
            return self.of(inputs[0], depth)
        if op.code in _ARITHMETIC:
            return _arithmetic(op.code, *(self.of(v, depth) for v in inputs))
        return None


def _arithmetic(code: str, a: Bounds, b: Bounds) -> Bounds:
    if code == "ADD":
        return a[0] + b[0], a[1] + b[1]
    if code == "SUB":
        return a[0] - b[1], a[1] - b[0]
    if code == "MUL":
        products = [p * q for p in a for q in b]
        return min(products), max(products)
    if code in ("MINIMUM", "MAXIMUM"):
        pick = min if code == "MINIMUM" else max
        return pick(a[0], b[0]), pick(a[1], b[1])
    if code == "FLOOR_MOD":  # it has the divisor's sign
        return min(0, b[0] + 1), max(0, b[1] - 1)
    if b[0] > 0 and a[0] >= 0:
        return 0, a[1] // b[0]
    size = max(-a[0], a[1], 0)
    return -size, size
