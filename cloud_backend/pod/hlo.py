"""What one chip's optimised program moves: bytes of memory and collectives, loops multiplied.

The compiler's own `cost_analysis` counts the body of a loop once; the text says how often it runs.
Arrays that the compiler keeps on the core (a memory space `S(n)` in their layout) are no traffic of
HBM. A fusion reads each operand once, or what it slices of it, and writes its results, or the slice
of a buffer that it updates; these are the rules of XLA's HloCostAnalysis (xla/service).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch_tpu_unified.core.errors import ConversionError

_ARRAY = re.compile(r"\b(pred|[subf]\w*?\d+\w*|c64|c128)\[([\d,]*)\](\{[^{}]*\})?")
_NAME = re.compile(r"%([\w.\-]+)")
_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_LINE = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_CALLED = re.compile(r"(?:calls|to_apply|body)=%?([\w.\-]+)")
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_NAMED = re.compile(
    r"replica_groups=mesh\[([^\]]*)\]"
    r"(?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([^}]*)\}"
)
# A part of an axis is 'name':(m)n, of size n, with m turns of it in the axis's major part.
_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")
_KNOWN = re.compile(r'known_trip_count":\{"n":"(\d+)"')
COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
)
_FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast after-all partition-id replica-id "
    "opt-barrier copy-done call-done async-done async-update slice-done add-dependency".split()
)
# Shapes change, bytes do not: what is read through these is read once, further on.
_THROUGH = frozenset("bitcast copy reshape convert transpose".split())


class Traffic(NamedTuple):
    """Collectives of one kind along the same axes of the mesh, on one device.

    Attributes:
        kind, axes: what, and between which devices.
        count: how often in a step.
        nbytes: of all results.
        moved: bytes that the device receives over links, as many as it sends: with n devices,
            result (n-1)/n of all-gather and all-to-all, twice that of all-reduce, result (n-1) of
            reduce-scatter (Patarasuk and Yuan, "Bandwidth optimal all-reduce", 2009).
    """

    kind: str
    axes: tuple[str, ...]
    count: int
    nbytes: int
    moved: float


@dataclasses.dataclass
class Instruction:
    """One line of a computation."""

    name: str
    type: str
    opcode: str
    operands: list[str]
    rest: str


@dataclasses.dataclass
class Computation:
    """A computation: its instructions by name; the last one is the result."""

    name: str
    instructions: dict[str, Instruction]
    root: str = ""


class Module:
    """An optimised HLO module.

    Args:
        text: as `compiled.as_text()` gives it.

    Attributes:
        unknown: loops whose number of turns the text does not tell; they count once.
    """

    def __init__(self, text: str) -> None:
        self.computations: dict[str, Computation] = {}
        self.entry = ""
        self.unknown = 0
        now: Computation | None = None
        for line in text.splitlines():
            if now is None:
                if head := _HEAD.match(line):
                    now = self.computations[head[1]] = Computation(head[1], {})
                    if line.startswith("ENTRY"):
                        self.entry = head[1]
            elif line.startswith("}"):
                now = None
            elif match := _LINE.match(line):
                found = _instruction(match[2], line[match.end() :])
                now.instructions[found.name] = found
                if match[1]:
                    now.root = found.name

    def turns(self, loop: Instruction) -> int:
        """How often the body of a `while` runs."""
        if known := _KNOWN.search(loop.rest):
            return int(known[1])
        condition = _CONDITION.search(loop.rest)
        inside = self.computations[condition[1]].instructions if condition else {}
        for one in inside.values():
            if one.opcode == "compare" and "direction=LT" in one.rest:
                for name in one.operands:
                    if (held := inside.get(name)) and held.opcode == "constant":
                        return int(held.rest.partition(")")[0])
        self.unknown += 1
        return 1

    def runs(
        self, name: str = "", times: int = 1
    ) -> Iterator[tuple[Computation, Instruction, int]]:
        """Each instruction that runs, with how often; those inside fusions are left out."""
        computation = self.computations[name or self.entry]
        for one in computation.instructions.values():
            yield computation, one, times
            if one.opcode == "while":
                body = _CALLED.search(one.rest)
                if body:
                    yield from self.runs(body[1], times * self.turns(one))
            elif one.opcode in ("call", "call-start", "async-start"):
                for called in _CALLED.findall(one.rest):
                    yield from self.runs(called, times)
            elif branches := _BRANCHES.search(one.rest):
                for called in _NAME.findall(branches[1]):
                    yield from self.runs(called, times)

    def hbm_bytes(self) -> float:
        """Bytes to and from HBM in one run of the program."""
        return float(sum(n * self._moved(c, one) for c, one, n in self.runs()))

    def traffic(self, axes: Mapping[str, int]) -> list[Traffic]:
        """The collectives, by kind and by the axes of a mesh (name -> size, major first)."""
        groups = _axis_groups(axes)
        found: dict[tuple[str, tuple[str, ...]], list[float]] = {}
        for computation, one, times in self.runs():
            for kind, inner in self._collectives(one):
                ids = _first_group(inner.rest, math.prod(axes.values()))
                along = groups.get(frozenset(ids)) or _apart(ids, axes)
                key = (kind, along)
                size = _result_bytes(kind, inner, computation)
                total = found.setdefault(key, [0, 0, 0.0])
                total[0] += times
                total[1] += times * size
                total[2] += times * _received(kind, size, len(ids))
        return [
            Traffic(kind, names, int(n), int(size), moved)
            for (kind, names), (n, size, moved) in sorted(found.items(), key=lambda i: -i[1][2])
        ]

    def _collectives(self, one: Instruction) -> Iterator[tuple[str, Instruction]]:
        kind = one.opcode.removesuffix("-start")
        if kind in COLLECTIVES:
            yield kind, one
        elif one.opcode == "fusion":
            # A reduce-scatter may stand as an all-reduce and a slice of it in one fusion.
            for called in _CALLED.findall(one.rest):
                inside = self.computations[called].instructions.values()
                sliced = any(i.opcode == "dynamic-slice" for i in inside)
                for inner in inside:
                    if inner.opcode in COLLECTIVES:
                        scattered = sliced and inner.opcode == "all-reduce"
                        kind = "reduce-scatter" if scattered else inner.opcode
                        shown = dataclasses.replace(inner, type=one.type) if scattered else inner
                        yield kind, shown

    # ---- bytes of one instruction

    def _moved(self, c: Computation, one: Instruction) -> int:
        code = one.opcode
        if code in _FREE or code in ("while", "call", "call-start", "conditional"):
            return 0
        if code == "custom-call" and not one.operands:
            return 0
        if code == "copy-start":  # destination, source, and a flag that is not in HBM
            return _hbm(one.type)
        operands = [c.instructions[o] for o in one.operands if o in c.instructions]
        if code in ("dynamic-slice", "gather"):
            return 2 * _hbm(one.type)
        if code in ("dynamic-update-slice", "scatter"):
            return 2 * _hbm(operands[-1 if code == "scatter" else 1].type)
        if code == "fusion":
            return self._fused(one, operands)
        if code.endswith("-done"):
            return 0
        return _hbm(one.type) + sum(_hbm(o.type) for o in operands)

    def _fused(self, one: Instruction, operands: list[Instruction]) -> int:
        called = _CALLED.search(one.rest)
        inside = self.computations[called[1]] if called else None
        if inside is None:
            return _hbm(one.type) + sum(_hbm(o.type) for o in operands)
        parameters = {
            int(i.rest.partition(")")[0]): i.name
            for i in inside.instructions.values()
            if i.opcode == "parameter"
        }
        users = _users(inside)
        total = sum(
            min(_hbm(o.type), _read(inside, users, parameters.get(k, "")))
            for k, o in enumerate(operands)
        )
        return total + min(_hbm(one.type), _written(inside, inside.root))


def _instruction(name: str, text: str) -> Instruction:
    if text.startswith("("):
        end = _closing(text, 0) + 1
    else:
        end = text.index(" ")
    kind, rest = text[:end], text[end:].strip()
    opcode = rest.partition("(")[0]
    close = _closing(rest, len(opcode))
    inside = rest[len(opcode) + 1 : close]
    operands = _NAME.findall(inside)
    after = rest[close + 1 :]
    # Constants and parameters say their value or number where others name operands.
    shown = inside + ")" + after if opcode in ("constant", "parameter") else after
    return Instruction(name, kind, opcode, operands, shown)


def _closing(text: str, start: int) -> int:
    depth = 0
    for i in range(start, len(text)):
        if text[i] == "(":
            depth += 1
        elif text[i] == ")":
            depth -= 1
            if not depth:
                return i
    return len(text) - 1


def array_bytes(dtype: str, size: str) -> int:
    """Bytes of `f32[8,128]`, given as `f32` and `8,128`."""
    count = math.prod(int(n) for n in size.split(",") if n)
    bits = re.search(r"\d+", dtype)
    wide = {"c64": 64, "c128": 128, "pred": 8}.get(dtype, int(bits[0]) if bits else 8)
    return count * wide // 8


def _hbm(kind: str) -> int:
    """Bytes of a type's arrays that are in HBM."""
    return sum(
        array_bytes(dtype, size)
        for dtype, size, layout in _ARRAY.findall(kind)
        if "S(" not in layout
    )


def _all(kind: str) -> int:
    return sum(array_bytes(dtype, size) for dtype, size, _ in _ARRAY.findall(kind))


def _users(c: Computation) -> dict[str, list[Instruction]]:
    users: dict[str, list[Instruction]] = {}
    for one in c.instructions.values():
        for name in one.operands:
            users.setdefault(name, []).append(one)
    return users


def _read(c: Computation, users: Mapping[str, list[Instruction]], name: str) -> int:
    """Bytes that a fusion reads of its parameter `name`."""
    total = 0
    for user in users.get(name, ()):
        same = name in c.instructions and _all(user.type) == _all(c.instructions[name].type)
        if user.opcode in ("dynamic-slice", "slice", "gather"):
            total += _all(user.type)
        elif user.opcode == "dynamic-update-slice" and user.operands[0] == name:
            continue  # in place: what is not written is not touched
        elif user.opcode in _THROUGH or (user.opcode == "fusion" and same):
            if user.name == c.root:
                return _all(c.instructions[name].type)
            total += _read(c, users, user.name)
        else:
            return _all(c.instructions[name].type) if name in c.instructions else 0
    return total


def _written(c: Computation, name: str) -> int:
    """Bytes that a fusion writes as its result `name`."""
    one = c.instructions.get(name)
    if one is None:
        return 0
    if one.opcode == "tuple":
        return sum(_written(c, o) for o in one.operands)
    if one.opcode == "dynamic-update-slice":
        update = c.instructions.get(one.operands[1])
        return _all(update.type if update else one.type)
    source = c.instructions.get(one.operands[0]) if one.operands else None
    if one.opcode in _THROUGH and source is not None and _all(source.type) == _all(one.type):
        return _written(c, source.name)
    return _all(one.type)


# ---- collectives


def _received(kind: str, size: float, n: int) -> float:
    if kind == "collective-permute":
        return size
    factor = {"all-reduce": 2 * (n - 1) / n, "reduce-scatter": n - 1.0}
    return size * factor.get(kind, (n - 1) / n)


def _result_bytes(kind: str, one: Instruction, c: Computation) -> int:
    sizes = [array_bytes(d, s) for d, s, _ in _ARRAY.findall(one.type)]
    if not one.opcode.endswith("-start") or kind == "all-reduce":
        return sum(sizes)
    # A start's type holds operands and results: the operands' share is known.
    operands = sum(_all(c.instructions[o].type) for o in one.operands if o in c.instructions)
    return max(sum(sizes) - operands, max(sizes, default=0) if kind == "all-gather" else 0)


def _numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",") if n]


def _first_group(rest: str, count: int) -> tuple[int, ...]:
    """The devices that share a collective with device 0 (or the first ones listed)."""
    import numpy as np

    if found := _IOTA.search(rest):
        shape, sizes = _numbers(found[1]), _numbers(found[2])
        order = _numbers(found[3]) if found[3] else list(range(len(sizes)))
        ids: Any = np.arange(math.prod(sizes)).reshape(sizes).transpose(order).reshape(shape)
        return tuple(int(i) for i in ids[0])
    if found := _NAMED.search(rest):
        return _named_group(found)
    if found := _LISTED.search(rest):
        return tuple(_numbers(found[1]))
    if listed := re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)+)\}", rest):
        pairs = [_numbers(pair) for pair in re.findall(r"\{([\d,]+)\}", listed[1])]
        return tuple(next((p for p in pairs if p[0] != p[1]), pairs[0]))
    if "replica_groups={}" in rest or "replica_groups" not in rest:
        return tuple(range(count))
    raise ConversionError(
        "the compiler's text groups devices in a form that is not known here: "
        f"{rest[rest.index('replica_groups') :][:80]}; please report this"
    )


def _named_group(found: re.Match[str]) -> tuple[int, ...]:
    import numpy as np

    sizes = [(name, int(n)) for name, n in re.findall(r"'([^']+)'=(\d+)", found[1])]
    count = math.prod(n for _, n in sizes)
    ids: Any = np.arange(count)
    if found[2]:
        dims = _numbers(found[2])
        order = _numbers(found[3]) if found[3] else list(range(len(dims)))
        ids = ids.reshape(dims).transpose(order)
    chosen = {name: (int(m or 1), int(n or 0)) for name, m, n in _AXIS.findall(found[4])}
    shape: list[int] = []
    index: list[Any] = []
    for name, size in sizes:  # each axis as its major part, the chosen one, and its minor part
        major, own = chosen.get(name, (size, 1))
        own = own or size
        shape += [major, own, size // (major * own)]
        index += [0, slice(None), 0]
    return tuple(int(i) for i in ids.reshape(shape)[tuple(index)].reshape(-1))


def _apart(ids: tuple[int, ...], axes: Mapping[str, int]) -> tuple[str, ...]:
    """The axes along which some devices lie apart, where they are no whole group of any."""
    import numpy as np

    places = np.array(np.unravel_index(ids, tuple(axes.values()))).T
    return tuple(n for n, column in zip(axes, places.T, strict=True) if len(set(column)) > 1)


def _axis_groups(axes: Mapping[str, int]) -> dict[frozenset[int], tuple[str, ...]]:
    """The group of device 0 along every choice of axes -> their names."""
    import numpy as np

    ids: Any = np.arange(math.prod(axes.values())).reshape(tuple(axes.values()))
    groups: dict[frozenset[int], tuple[str, ...]] = {}
    names = [name for name, n in axes.items() if n > 1]
    for length in range(len(names), 0, -1):
        for chosen in itertools.combinations(names, length):
            index = tuple(slice(None) if name in chosen else 0 for name in axes)
            groups[frozenset(int(i) for i in ids[index].reshape(-1))] = chosen
    return groups
