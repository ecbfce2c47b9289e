"""Sizes as values: a number that differs with the dynamic sizes, computed in the file.

A number is known by what it was at each of the sizes tried (a `Row`). It is looked for among the
dimensions of values made so far, then as a multiple plus a constant, a product or a quotient.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from litert_export.graph import Graph, Value

Row = tuple[int, ...]  # one number at every size tried
_WIDEST = 24  # dimensions that are tried in products
_DIVISORS = range(2, 65)


@dataclasses.dataclass(frozen=True)
class Formula:
    """(factor * product of dimensions + rest) // divisor + offset; with `modulo`, the remainder."""

    dimensions: tuple[Row, ...]
    factor: int = 1
    rest: int = 0
    divisor: int = 1
    modulo: bool = False
    offset: int = 0

    def of(self, numbers: Sequence[int]) -> int:
        """Its value for the given sizes of its dimensions."""
        number = self.factor * math.prod(numbers) + self.rest
        whole, part = divmod(number, self.divisor)
        return self.offset + (part if self.modulo else whole)

    def gives(self, row: Row) -> bool:
        """Whether it was `row` at every size tried."""
        return all(
            self.of(n) == r for n, r in zip(zip(*self.dimensions, strict=True), row, strict=True)
        )


class Sizes:
    """The dimensions that are known while a graph is walked, and expressions of them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.places: dict[Row, tuple[Value, int]] = {}
        self.usual: dict[Row, int | None] = {}
        self._values: dict[Row, Value] = {}
        self._shapes: dict[Value, Value] = {}

    def add(self, value: Value, axis: int, row: Row, usual: int | None = None) -> None:
        """A dimension of a value that exists from now on.

        Args:
            usual: its size at the sizes of the example; default: as a formula says.
        """
        if row in self.places:
            return
        if usual is None and (found := self._formula(row)) is not None:
            numbers = [self.usual[d] for d in found.dimensions]
            usual = None if None in numbers else found.of(numbers)  # type: ignore[arg-type]
        self.places[row] = (value, axis)
        self.usual[row] = usual

    def vector(self, rows: Sequence[Sequence[int]]) -> Value | None:
        """An int32 vector that was `rows[k]` at the k-th size; None: it cannot be expressed."""
        columns = [tuple(c) for c in zip(*rows, strict=True)]
        if any(len(set(c)) > 1 and self._formula(c) is None for c in columns):
            return None
        parts: list[Value] = []
        for fixed, group in itertools.groupby(columns, key=lambda c: len(set(c)) == 1):
            if fixed:
                parts.append(self.graph.const(np.array([c[0] for c in group], np.int32)))
            else:
                parts += [self._number(c) for c in group]
        if len(parts) == 1:
            return parts[0]
        shape = (sum(p.shape[0] for p in parts),)
        joined: Value = self.graph.emit("CONCATENATION", *parts, shape=shape, axis=0)
        return joined

    def real(self, row: Sequence[float]) -> Value | None:
        """A float32 of shape [1]: a multiple, quotient or root of a dimension."""
        g = self.graph
        for known in self.places:
            for power in (1.0, -1.0, 0.5, -0.5):
                ratio = np.asarray(row, np.float64) / np.array(known, np.float64) ** power
                if not np.allclose(ratio, ratio[0], rtol=1e-6, atol=0):
                    continue
                x = g.cast(self._dimension(known), "float32")
                if abs(power) == 0.5:
                    x = g.emit("SQRT", x)
                factor = g.const(np.array([ratio.mean()], np.float32))
                found: Value = g.emit("MUL", x, factor) if power > 0 else g.emit("DIV", factor, x)
                return found
        return None

    def settle(self) -> bool:
        """Find the usual sizes that only later dimensions tell; whether all are known now."""
        found = True
        while found:
            found = False
            known = [r for r, usual in self.usual.items() if usual is not None]
            for row in [r for r, usual in self.usual.items() if usual is None]:
                formula = next((f for f in self._candidates(row, known) if f.gives(row)), None)
                if formula is not None:
                    numbers = [self.usual[d] for d in formula.dimensions]
                    self.usual[row] = formula.of(numbers)  # type: ignore[arg-type]
                    found = True
        return None not in self.usual.values()

    # formulas

    def _formula(self, row: Row) -> Formula | None:
        if row in self.places:
            return Formula((row,))
        rows = list(self.places)
        return next((f for f in self._candidates(row, rows) if f.gives(row)), None)

    def _candidates(self, row: Row, places: Sequence[Row]) -> Iterator[Formula]:
        for known in places:
            far = next(i for i, size in enumerate(known) if size != known[0])
            factor, left = divmod(row[far] - row[0], known[far] - known[0])
            if not left:
                yield Formula((known,), factor, row[0] - factor * known[0])
        few = places[:_WIDEST]
        for count in (2, 3):
            for rows in itertools.combinations_with_replacement(few, count):
                whole = math.prod(r[0] for r in rows)
                if whole and not row[0] % whole:
                    yield Formula(rows, row[0] // whole)
        for known in places:
            for divisor in _DIVISORS:
                for rest in (0, divisor - 1, 1, -1):
                    yield Formula((known,), 1, rest, divisor)
        # What is left of a size that a stride does not divide, as padding at the end is.
        for known in places:
            for divisor in _DIVISORS[:7]:
                for factor, rest in itertools.product((1, -1), range(divisor)):
                    made = Formula((known,), factor, rest, divisor, modulo=True)
                    yield dataclasses.replace(made, offset=row[0] - made.of((known[0],)))

    # as operators

    def _const(self, number: int) -> Value:
        return self.graph.const(np.array([number], np.int32))

    def _number(self, row: Row) -> Value:
        """An int32 of shape [1]; `row` has a formula."""
        if row not in self._values:
            found = self._formula(row)
            assert found is not None
            g = self.graph
            x = self._dimension(found.dimensions[0])
            for other in found.dimensions[1:]:
                x = g.emit("MUL", x, self._dimension(other))
            if found.factor != 1:
                x = g.emit("MUL", x, self._const(found.factor))
            if found.rest:
                x = g.emit("ADD", x, self._const(found.rest))
            if found.divisor != 1:
                code = "FLOOR_MOD" if found.modulo else "FLOOR_DIV"
                x = g.emit(code, x, self._const(found.divisor))
            if found.offset:
                x = g.emit("ADD", x, self._const(found.offset))
            self._values[row] = x
        return self._values[row]

    def _dimension(self, row: Row) -> Value:
        if row not in self._values:
            (value, axis), g = self.places[row], self.graph
            if value not in self._shapes:
                self._shapes[value] = g.emit(
                    "SHAPE", value, shape=(value.rank,), dtype="int32", out_type="int32"
                )
            x = self._shapes[value]
            if value.rank > 1:
                x = g.emit("SLICE", x, self._const(axis), self._const(1), shape=(1,))
            self._values[row] = x
        return self._values[row]
