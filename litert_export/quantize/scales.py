"""Gives every float value of a graph its scale and zero point.

Values that a kernel moves without arithmetic share one scale: they form a group, found by
union-find. An operand that cannot join the group of its operator's result, because a kernel fixed
its scale or because its range is much narrower and others read it too, is requantised on its way
in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Set

import numpy as np

from litert_export.graph import Graph, Op, Quantization, Value
from litert_export.quantize import traits
from litert_export.quantize.calibrate import SOFTMAX_REACH, Observed, finite
from litert_export.quantize.config import QuantConfig
from litert_export.quantize.params import FIXED, LIMITS, Range, activation, one, real

_CLAMPS = frozenset({"MAXIMUM", "MINIMUM"})
# Ops whose kernels round and saturate to the scale of their result, and clamps before clamps.
_SATURATING = traits.FREE | _CLAMPS | frozenset(traits.WEIGHTED)
# Beyond these an 8-bit result no longer changes; the op before saturates there instead.
_REACH = {"LOGISTIC": 6.3, "TANH": 3.2}
_NOTHING = Range(0.0, 0.0)


@dataclasses.dataclass
class Scales:
    """What was decided.

    Attributes:
        of: value -> scale and zero point.
        requantised: operands (op, position) that do not share the scale of the op's result.
        ranges: value -> its own range, without its group's.
        floors: constant operands (op, position) -> below what their numbers may saturate.
        warnings: sentences for the user.
    """

    of: dict[Value, Quantization] = dataclasses.field(default_factory=dict)
    ranges: dict[Value, Range] = dataclasses.field(default_factory=dict)
    requantised: set[tuple[Op, int]] = dataclasses.field(default_factory=set)
    floors: dict[tuple[Op, int], float] = dataclasses.field(default_factory=dict)
    warnings: list[str] = dataclasses.field(default_factory=list)

    def constant(self, op: Op, position: int, dtype: str) -> Quantization:
        """The scale of a constant operand that has one of its own."""
        v = op.inputs[position]
        assert v is not None and v.data is not None
        found = finite(v.data) or _NOTHING
        low = max(found.low, self.floors.get((op, position), found.low))
        return activation(Range(low, max(found.high, low)), dtype)


class _Groups:
    """Union-find over values."""

    def __init__(self) -> None:
        self._parent: dict[Value, Value] = {}

    def root(self, v: Value) -> Value:
        parent = self._parent.setdefault(v, v)
        while parent is not self._parent[parent]:
            self._parent[parent] = parent = self._parent[self._parent[parent]]
        self._parent[v] = parent
        return parent

    def join(self, a: Value, b: Value) -> None:
        self._parent[self.root(b)] = self.root(a)


class _Assignment:
    def __init__(
        self, graph: Graph, observed: Observed, config: QuantConfig, floating: set[Op]
    ) -> None:
        self.graph, self.observed, self.config = graph, observed, config
        self.dtype = config.activations
        self.readers = graph.consumers()
        self.producers = graph.producers()
        self.outputs = set(graph.outputs)
        self.ops = [op for op in graph.ops if op not in floating and traits.touches_float(op)]
        self.groups = _Groups()
        self.result = Scales()
        self.fixed: dict[Value, Quantization] = {}
        self.lows: dict[Value, float] = {}
        self.highs: dict[Value, float] = {}
        self.shadowed: set[Value] = set()

    def run(self) -> Scales:
        self._fix()
        self._floors()
        several: list[tuple[Op, list[int]]] = []
        for op in self.ops:
            if op.code in traits.SAME:
                given = [i for i in traits.data_inputs(op) if not op.inputs[i].is_const]  # type: ignore[union-attr]
                made = [v for v in op.outputs if v.dtype == "float32"]
                for v in made[1:]:
                    self.groups.join(made[0], v)
                if made and len(traits.data_inputs(op)) == 1 and given:
                    self._join(op.inputs[given[0]], made[0])
                elif made and given:
                    several.append((op, given))
        self._clamps()
        for op, given in several:
            self._share(op, given)
        self._assign()
        return self.result

    def _join(self, a: Value | None, b: Value) -> None:
        assert a is not None
        found = self.fixed.get(self.groups.root(a)) or self.fixed.get(self.groups.root(b))
        self.groups.join(a, b)
        if found is not None:
            self.fixed[self.groups.root(a)] = found

    def _fix(self) -> None:
        for op in self.ops:
            out = op.outputs[0]
            if (fixed := FIXED.get((op.code, self.dtype))) is not None:
                self.fixed[out] = fixed
            elif op.code == "CAST" and op.inputs[0] is not None and op.inputs[0].dtype == "bool":
                self.fixed[out] = one(1.0)

    def _only_reader(self, v: Value, op: Op) -> bool:
        return v not in self.outputs and all(o is op for o in self.readers.get(v, ()))

    def _floors(self) -> None:
        """Numbers far below their row's maximum make no difference to a softmax: masks saturate."""
        for op in self.ops:
            v = op.inputs[0] if op.inputs else None
            if v is not None and op.code in _REACH and self.dtype == "int8":
                made = self.producers.get(v)
                free = made is not None and made.code in _SATURATING - _CLAMPS
                if free and self._only_reader(v, op):
                    self.lows[v], self.highs[v] = -_REACH[op.code], _REACH[op.code]
            if op.code == "SOFTMAX" and v in self.observed.row_maximum and v is not None:
                self._floor(v, op, self.observed.row_maximum[v] - SOFTMAX_REACH)

    def _floor(self, v: Value, reader: Op, low: float) -> None:
        if not self._only_reader(v, reader):
            return
        self.lows[v] = low
        op = self.producers.get(v)
        if op is None or op not in self.ops:
            return
        for i in traits.data_inputs(op):
            x = op.inputs[i]
            assert x is not None
            if op.code == "ADD":
                others = [self._range(w) for w in op.inputs if w is not None and w is not x]
                below = low - sum(r.high for r in others)
            elif op.code in traits.SAME and op.code not in _CLAMPS:
                below = low
            else:
                return
            if x.is_const:
                self.result.floors[op, i] = below
            else:
                self._floor(x, op, below)

    def _clamps(self) -> None:
        """What a clamp cuts off need not be represented: the op before it saturates as well."""
        for op in self.ops:
            if op.code not in _CLAMPS or not any(v is not None and v.is_const for v in op.inputs):
                continue
            for v in op.inputs:
                made = None if v is None else self.producers.get(v)
                if v is not None and made is not None and self._only_reader(v, op):
                    if made.code in _SATURATING:
                        self.shadowed.add(v)

    def _range(self, v: Value) -> Range:
        if v.data is not None:
            return finite(v.data) or _NOTHING
        found = self.observed.ranges.get(v, _NOTHING)
        low = max(found.low, self.lows.get(v, found.low))
        high = min(found.high, self.highs.get(v, found.high))
        return Range(low, max(high, low))

    def _values(self) -> Iterable[Value]:
        for v in self.graph.values:
            if v.dtype == "float32" and v.data is None:
                yield v

    def _share(self, op: Op, given: list[int]) -> None:
        """Join operands with the result, unless one must keep a scale of its own."""
        out = next(v for v in op.outputs if v.dtype == "float32")
        for i in given:
            x = op.inputs[i]
            assert x is not None
            if self._apart(op, x, out):
                self.result.requantised.add((op, i))
            else:
                self._join(x, out)

    def _apart(self, op: Op, x: Value, out: Value) -> bool:
        """Whether an operand cannot share the scale of the result."""
        mine = self.fixed.get(self.groups.root(x))
        theirs = self.fixed.get(self.groups.root(out))
        if mine is None and theirs is None:
            return self._too_narrow(op, x, self._range(out))
        if mine is None and theirs is not None:
            return not _covers(theirs, self._range(x), self.dtype)
        if mine is not None and theirs is None:
            return not _covers(mine, self._range(out), self.dtype)
        return str(mine) != str(theirs)

    def _too_narrow(self, op: Op, x: Value, whole: Range) -> bool:
        width = self._range(x).width
        if op.code in _CLAMPS or not width or whole.width / width <= self.config.ratio:
            return False
        alone = self._only_reader(x, op)
        self.result.warnings.append(
            f"{op.code} ({op.outputs[0].name}): {x.name} has a range of {width:.4g}, the result "
            f"{whole.width:.4g}, {whole.width / width:.0f} times as wide; "
            + (
                "they share a scale, which costs the narrow one precision: scale it up in the "
                "model, or give both as outputs"
                if alone
                else "the narrow one keeps its own scale for its other readers"
            )
        )
        return not alone

    def _assign(self) -> None:
        ranges: dict[Value, Range] = {}
        for v in self._values():
            root = self.groups.root(v)
            r = self.result.ranges[v] = self._range(v)
            if v not in self.shadowed:
                ranges[root] = r if root not in ranges else ranges[root].union(r)
        for v in self._values():
            root = self.groups.root(v)
            fixed = self.fixed.get(root)
            self.result.of[v] = (
                fixed if fixed is not None else activation(ranges.get(root, _NOTHING), self.dtype)
            )
        self._warn_sums()

    def _warn_sums(self) -> None:
        for op in self.ops:
            if op.code not in ("ADD", "SUB"):
                continue
            widths = [self._range(v).width for v in op.inputs if v is not None and not v.is_const]
            if len(widths) == 2 and min(widths) and max(widths) / min(widths) > 256:
                self.result.warnings.append(
                    f"{op.code} ({op.outputs[0].name}): one operand's range is "
                    f"{max(widths) / min(widths):.0f} times the other's, which vanishes in int8; "
                    "keep the layer in float (float_layers), or use int16x8"
                )


def _covers(fixed: Quantization, r: Range, dtype: str) -> bool:
    """Whether a fixed scale holds all numbers of a range, up to one step."""
    low, high = real(np.array(LIMITS[dtype]), fixed)
    step = float(fixed.scale[0])
    return bool(low - step <= r.low and r.high <= high + step)


def assign(
    graph: Graph,
    observed: Observed,
    config: QuantConfig,
    floating: set[Op],
    tabled: Set[Op] = frozenset(),
) -> Scales:
    """Scales for the float values of a graph.

    Args:
        floating: ops that are no integer ops of their own.
        tabled: ops whose results a table gives, at any scale.
    """
    return _Assignment(graph, observed, config, floating | tabled).run()
