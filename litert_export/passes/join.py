"""Dynamic shapes, second half: graphs of one program at several sizes become one graph.

The graphs must have the same operators in the same order. A dimension that differs between them is
dynamic. A constant that differs is the result of a computation on sizes: RESHAPE's and SLICE's
become -1 where that says it all, the others are expressed by sizes of values made before (`sizes`),
computed in the file by SHAPE and a few int32 operators, or cut out of the constant at the largest
sizes. What cannot be expressed is refused with the operator and its line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from litert_export.graph import Graph, Op, Value
from litert_export.passes import sizes
from torch_tpu_unified.core.errors import ConversionError

MSG_DIFFERENT = (
    "the program's graph depends on its dynamic sizes: {what} at one size, {other} at another"
    "{where}. Export it with a narrower range of sizes, or once for each size."
)
MSG_CONSTANT = (
    "{op} reads values that depend on the dynamic sizes in a way that a LiteRT file cannot compute "
    "({what}){where}. {next}"
)
_NEXT_MAX = "Give the dimension a largest size (torch.export.Dim(name, max=...)); values are then "
_NEXT_MAX += "cut out of those at that size."
_NEXT_FIXED = "Export the program with this size fixed."
_VECTOR = 64  # integer constants up to this size are vectors of sizes
_ENDS_OPEN = {"RESHAPE": 1, "SLICE": 2, "STRIDED_SLICE": 2}


def alike(graphs: Sequence[Graph]) -> bool:
    """Whether the graphs differ in sizes only."""
    try:
        for family in _families(graphs):
            _check_same(family)
    except ConversionError:
        return False
    return True


def needs_limit(graphs: Sequence[Graph]) -> bool:
    """Whether constants can only be cut out of those at the largest sizes.

    Raises:
        ConversionError: the graphs differ in more than sizes.
    """
    for family in _families(graphs):
        _check_same(family)
    return any(
        _kind(tuple(_data(v) for v in values)) == "cut"
        for g in _families(graphs)
        for op in zip(*(x.ops for x in g), strict=False)
        for values in zip(*(o.inputs for o in op), strict=False)
        if all(v is not None and v.is_const for v in values)
    )


def _families(graphs: Sequence[Graph]) -> list[tuple[Graph, ...]]:
    return [tuple(graphs), *zip(*(g.subgraphs for g in graphs), strict=False)]


def join(
    graphs: Sequence[Graph],
    limit: Graph | None = None,
    usual: Sequence[tuple[int, ...]] | None = None,
) -> Graph:
    """One graph of dynamic shapes; the first graph is used up.

    Args:
        limit: the graph at the largest sizes, if the sizes have any.
        usual: shapes of the inputs that become the default ones; default: the first graph's.

    Raises:
        ConversionError: the graphs differ in more than sizes.
    """
    if len(graphs) == 1:
        return graphs[0]
    _check_same(graphs)
    # Only constants are taken from it, and only where they continue those of the others.
    if limit and [len(g.ops) for g in (limit, *limit.subgraphs)] != [
        len(g.ops) for g in (graphs[0], *graphs[0].subgraphs)
    ]:
        limit = None
    for k, inner in enumerate(zip(*(g.subgraphs for g in graphs), strict=True)):
        join(inner, limit.subgraphs[k] if limit else None)
    _Join(graphs, limit).run(usual)
    return graphs[0]


def _where(op: Op) -> str:
    return f", at {op.source}" if op.source else ""


def _check_same(graphs: Sequence[Graph]) -> None:
    """Same operators, wiring and options."""
    first = graphs[0]
    numbers = [_numbered(g) for g in graphs]
    for g, number in zip(graphs[1:], numbers[1:], strict=True):
        for a, b in zip(first.ops, g.ops, strict=False):
            what = other = ""
            if a.code != b.code:
                what, other = a.code, b.code
            elif _wiring(a, numbers[0]) != _wiring(b, number):
                what, other = f"{a.code} of other values", f"{b.code} of others again"
            elif _ranks(a) != _ranks(b):
                what, other = f"{a.code} of ranks {_ranks(a)}", f"of ranks {_ranks(b)}"
            elif (x := _plain_options(a)) != (y := _plain_options(b)):
                key = next(k for k in {**x, **y} if x.get(k) != y.get(k))
                what, other = f"{a.code} with {key}={x.get(key)}", f"with {key}={y.get(key)}"
            if what:
                message = MSG_DIFFERENT.format(what=what, other=other, where=_where(a))
                raise ConversionError(message)
        if len(first.ops) != len(g.ops) or len(first.subgraphs) != len(g.subgraphs):
            what, other = f"{len(first.ops)} operators", str(len(g.ops))
            raise ConversionError(MSG_DIFFERENT.format(what=what, other=other, where=""))


def _numbered(graph: Graph) -> dict[int, int]:
    made = [*graph.inputs, *(v for op in graph.ops for v in op.outputs)]
    return {id(v): i for i, v in enumerate(made)}


def _wiring(op: Op, number: dict[int, int]) -> list[Any]:
    return [v if v is None else number.get(id(v), "constant") for v in op.inputs]


def _ranks(op: Op) -> list[int]:
    return [v.rank for v in [*op.inputs, *op.outputs] if v is not None]


def _plain_options(op: Op) -> dict[str, Any]:
    return {k: v for k, v in op.options.items() if k != "new_shape"}


def _data(v: Value) -> np.ndarray[Any, Any]:
    assert v.data is not None
    return v.data


def _same(datas: Sequence[np.ndarray[Any, Any]]) -> bool:
    first = datas[0]
    return all(
        d is first
        or (d.shape == first.shape and d.ctypes.data == first.ctypes.data)
        or np.array_equal(d, first, equal_nan=d.dtype.kind == "f")
        for d in datas[1:]
    )


def _kind(datas: Sequence[np.ndarray[Any, Any]]) -> str:
    """How a constant with these data is made: `same`, `vector`, `number`, `range`, `cut`."""
    if _same(datas):
        return "same"
    if len({d.shape for d in datas}) == 1:
        if datas[0].dtype.kind in "iu" and datas[0].size <= _VECTOR:
            return "vector"
        return "number"
    cores = [_core(d, datas) for d in datas]
    if _same(cores):
        return "same"
    if all(_arithmetic(c) is not None for c in cores) and len({_arithmetic(c) for c in cores}) == 1:
        return "range"
    return "cut"


def _core(data: np.ndarray[Any, Any], datas: Sequence[np.ndarray[Any, Any]]) -> Any:
    """The data without the repetition along dimensions whose size differs."""
    for d in range(data.ndim):
        if len({x.shape[d] for x in datas}) > 1 and all(_repeats(x, d) for x in datas):
            data = np.take(data, [0], axis=d)
    return data


def _repeats(data: np.ndarray[Any, Any], axis: int) -> bool:
    return data.shape[axis] > 0 and bool((data == np.take(data, [0], axis=axis)).all())


def _arithmetic(data: np.ndarray[Any, Any]) -> tuple[float, float] | None:
    """(start, step) of numbers in equal steps along the one dimension that is not 1."""
    if data.dtype.kind not in "iuf" or sum(d != 1 for d in data.shape) > 1 or data.size < 2:
        return None
    flat = data.reshape(-1).astype(np.float64)
    start, step = float(flat[0]), float(flat[1] - flat[0])
    even = np.array_equal(flat, start + step * np.arange(flat.size))
    return (start, step) if even and start.is_integer() and step.is_integer() else None


class _Join:
    def __init__(self, graphs: Sequence[Graph], limit: Graph | None) -> None:
        self.graphs, self.limit, self.base = graphs, limit, graphs[0]
        self.sizes = sizes.Sizes(self.base)
        self.made: dict[tuple[int, ...], Value] = {}
        self.rows: dict[Value, dict[int, tuple[int, ...]]] = {}
        self.old: tuple[Op, ...] = ()

    def run(self, usual: Sequence[tuple[int, ...]] | None) -> None:
        ops = [list(g.ops) for g in self.graphs]
        last = list(self.limit.ops) if self.limit else None
        self.base.ops = []
        for i, values in enumerate(zip(*(g.inputs for g in self.graphs), strict=True)):
            self._mark(values, usual[i] if usual else None)
        for k, calls in enumerate(zip(*ops, strict=True)):
            self._call(calls, last[k] if last else None)
        for i, values in enumerate(zip(*(g.outputs for g in self.graphs), strict=True)):
            if self.base.outputs[i].is_const:
                self.old = (Op("the result", [], []),)
                top = self.limit.outputs[i] if self.limit else None
                self.base.outputs[i] = self._constant(values, top)
        self._usual()

    def _usual(self) -> None:
        """Give all values the sizes of the example, where every one of them is known."""
        if not self.sizes.settle():
            return
        for value, rows in self.rows.items():
            shape = list(value.shape)
            for d, row in rows.items():
                shape[d] = self.sizes.usual[row]  # type: ignore[assignment]
            value.shape = tuple(shape)

    def _mark(self, values: Sequence[Value], usual: Sequence[int] | None = None) -> None:
        shapes = [v.shape for v in values]
        value = values[0]
        value.dynamic = tuple(d for d in range(value.rank) if len({s[d] for s in shapes}) > 1)
        rows = {d: tuple(s[d] for s in shapes) for d in value.dynamic}
        for d, row in rows.items():
            self.sizes.add(value, d, row, usual[d] if usual else None)
        self.rows[value] = rows

    def _call(self, calls: Sequence[Op], last: Op | None) -> None:
        op = calls[0]
        self.old = tuple(calls)
        self.base.scope, self.base.source = op.outputs[0].name, op.source
        inputs = list(op.inputs)
        for i, values in enumerate(zip(*(c.inputs for c in calls), strict=True)):
            if values[0] is None or not values[0].is_const:
                continue
            if _same([_data(v) for v in values]):
                continue
            if _ENDS_OPEN.get(op.code) == i and (opened := self._open(calls, i)) is not None:
                inputs[i] = opened
                continue
            top = last.inputs[i] if last and i < len(last.inputs) else None
            inputs[i] = self._constant(values, top)
        op.inputs = inputs
        if op.code == "RESHAPE" and "new_shape" in op.options:
            shape = inputs[1]
            op.options = dict(op.options)
            if shape is not None and shape.data is not None:
                op.options["new_shape"] = shape.data
            else:
                del op.options["new_shape"]
        self.base.ops.append(op)
        for values in zip(*(c.outputs for c in calls), strict=True):
            self._mark(values)

    def _open(self, calls: Sequence[Op], i: int) -> Value | None:
        """The operand with -1, or with an end beyond all ends, where that is what it means."""
        rows = np.stack([_data(c.inputs[i]) for c in calls])  # type: ignore[arg-type]
        varies = (rows != rows[0]).any(0)
        result = rows[0].copy()
        if calls[0].code == "RESHAPE":
            if varies.sum() != 1:
                return None
            result[varies] = -1
            return self.base.const(result)
        dims = np.array([c.inputs[0].shape for c in calls])  # type: ignore[union-attr]
        begins = [c.inputs[1] for c in calls]
        if any(b is None or not b.is_const for b in begins):
            return None
        begin = np.stack([_data(b) for b in begins])  # type: ignore[arg-type]
        ends = begin + rows if calls[0].code == "SLICE" else rows
        if (begin[:, varies] != begin[0, varies]).any() or (ends != dims)[:, varies].any():
            return None
        result[varies] = -1 if calls[0].code == "SLICE" else np.iinfo(np.int32).max
        return self.base.const(result)

    def _constant(self, values: Sequence[Value], top: Value | None) -> Value:
        key = tuple(id(v.data) for v in values)
        if key not in self.made:
            self.made[key] = self._make(values, top)
        return self.made[key]

    def _make(self, values: Sequence[Value], top: Value | None) -> Value:
        datas = [_data(v) for v in values]
        kind = _kind(datas)
        if kind == "same" and datas[0].shape == datas[-1].shape:
            return values[0]
        if kind == "vector":
            rows = [tuple(map(int, d.reshape(-1))) for d in datas]
            flat = self._vector(rows)
            shaped = self.base.reshape(flat, datas[0].shape)
            return self.base.cast(shaped, values[0].dtype)
        if kind == "number":
            if any((d != d.flat[0]).any() for d in datas):
                raise self._error("an array", _NEXT_FIXED)
            found = self.sizes.real([float(d.flat[0]) for d in datas])
            if found is None:
                told = ", ".join(str(d.flat[0]) for d in datas)
                raise self._error(f"the numbers {told}", _NEXT_FIXED)
            shaped = self.base.reshape(self.base.cast(found, values[0].dtype), (1,) * datas[0].ndim)
            return self._spread(shaped, datas)
        cores = [_core(d, datas) for d in datas]
        core = self._cut(cores, top, datas) if kind != "same" else self.base.const(cores[0])
        return self._spread(core, datas)

    def _vector(self, rows: Sequence[Sequence[int]]) -> Value:
        found = self.sizes.vector(rows)
        if found is None:
            told = " and ".join(str(list(r)) for r in rows[:2])
            raise self._error(f"sizes such as {told}", _NEXT_FIXED)
        return found

    def _spread(self, x: Value, datas: Sequence[np.ndarray[Any, Any]]) -> Value:
        """`x`, of size 1 where it repeats, in the full shape."""
        if x.shape == datas[0].shape:
            return x
        shape = self._vector([d.shape for d in datas])
        if x.is_const and x.size == 1 and x.data is not None:
            scalar = self.base.const(x.data.reshape(()))
            return self._dynamic(
                self.base.emit("FILL", shape, scalar, shape=datas[0].shape, dtype=x.dtype), datas
            )
        return self._dynamic(
            self.base.emit("BROADCAST_TO", x, shape, shape=datas[0].shape, dtype=x.dtype), datas
        )

    def _dynamic(self, value: Value, datas: Sequence[np.ndarray[Any, Any]]) -> Value:
        shapes = [d.shape for d in datas]
        value.dynamic = tuple(d for d in range(value.rank) if len({s[d] for s in shapes}) > 1)
        self.rows[value] = {d: tuple(s[d] for s in shapes) for d in value.dynamic}
        return value

    def _cut(
        self,
        cores: Sequence[np.ndarray[Any, Any]],
        top: Value | None,
        datas: Sequence[np.ndarray[Any, Any]],
    ) -> Value:
        g, shape = self.base, cores[0].shape
        if _kind(cores) == "range":
            return self._range(cores)
        if top is None or top.data is None:
            raise self._error(f"an array {list(shape)}", _NEXT_MAX)
        whole = _core(top.data, [*datas, top.data])
        for c in cores:
            if c.ndim != whole.ndim or not np.array_equal(whole[tuple(map(slice, c.shape))], c):
                raise self._error(f"an array {list(shape)}", _NEXT_FIXED)
        begin = g.const(np.zeros(len(shape), np.int32))
        made: Value = g.emit(
            "SLICE", g.const(whole), begin, self._vector([c.shape for c in cores]), shape=shape
        )
        return self._dynamic(made, cores)

    def _range(self, cores: Sequence[np.ndarray[Any, Any]]) -> Value:
        g = self.base
        found = _arithmetic(cores[0])
        assert found is not None
        start, step = map(int, found)
        limit = self._vector([(start + step * c.size,) for c in cores])
        made: Value = g.emit(
            "RANGE",
            g.const(np.asarray(start, np.int32)),
            g.reshape(limit, ()),
            g.const(np.asarray(step, np.int32)),
            shape=(cores[0].size,),
            dtype="int32",
        )
        self.rows[made], made.dynamic = {0: tuple(c.size for c in cores)}, (0,)
        if len(cores[0].shape) > 1:
            shape = np.array([-1 if d != 1 else 1 for d in cores[0].shape], np.int32)
            made = g.emit("RESHAPE", made, g.const(shape), shape=cores[0].shape, new_shape=shape)
            self._dynamic(made, cores)
        return self._dynamic(g.cast(made, str(cores[0].dtype)), cores)

    def _error(self, what: str, following: str) -> ConversionError:
        op = self.old[0]
        message = MSG_CONSTANT.format(op=op.code, what=what, where=_where(op), next=following)
        return ConversionError(message)
