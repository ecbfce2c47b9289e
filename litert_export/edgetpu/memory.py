"""Parameters and activations of an Edge TPU model against its 8 MiB of memory on the chip.

Estimates: the compiler's allocation is not public. What does not fit is streamed from outside at
every run, which is slow; a model in several segments keeps each one's parameters on a chip.
"""

from __future__ import annotations

import dataclasses

from litert_export.graph import Graph, Op, Value

ON_CHIP = 8 << 20
# Logs of the compiler show 6.0 to 7.5 MiB left for parameters: code and buffers take the rest.
_RESERVED = 1 << 19


@dataclasses.dataclass(frozen=True)
class Segment:
    """Consecutive operators: the first one's result, their count and their parameters' bytes."""

    first: str
    operators: int
    parameter_bytes: int


@dataclasses.dataclass(frozen=True)
class Memory:
    """What a model keeps.

    Attributes:
        parameter_bytes: of all constant weights and biases.
        largest_activation: bytes of the largest one.
        peak_activation: bytes of those that live at one time, at most.
        cached_bytes: of the parameters that stay on the chip.
        segments: a split whose parts stay there whole; one part where nothing is gained.
    """

    parameter_bytes: int
    largest_activation: int
    peak_activation: int
    cached_bytes: int
    segments: tuple[Segment, ...]


def measure(graph: Graph) -> Memory:
    """The memory of a quantised graph."""
    largest, peak = _activations(graph)
    room = max(ON_CHIP - _RESERVED - min(peak, ON_CHIP // 4), 0)
    sizes = [(op, _parameters(op)) for op in graph.ops]
    total = _total(op for op in graph.ops)
    cached = 0
    for _, size in sizes:
        # A layer's parameters stay on the chip whole or not at all.
        if cached + size <= room:
            cached += size
    return Memory(total, largest, peak, min(cached, total), _segments(sizes, room, total))


def _weights(op: Op) -> list[Value]:
    found = (v for v in op.inputs if v is not None and v.data is not None)
    return [v for v in found if v.quantization is not None or v.dtype in ("int8", "uint8")]


def _parameters(op: Op) -> int:
    return sum(v.data.nbytes for v in _weights(op) if v.data is not None)


def _total(ops: object) -> int:
    shared: dict[int, int] = {}
    for op in ops:  # type: ignore[attr-defined]
        shared.update({id(v.data): v.data.nbytes for v in _weights(op) if v.data is not None})
    return sum(shared.values())


def _bytes(v: Value) -> int:
    from litert_export import schema

    return v.size * schema.numpy_dtype(v.dtype).itemsize


def _activations(graph: Graph) -> tuple[int, int]:
    """(the largest activation, the most that lives at once), in bytes."""
    last: dict[Value, int] = dict.fromkeys(graph.inputs, -1)
    for i, op in enumerate(graph.ops):
        last.update({v: i for v in op.inputs if v is not None and v.data is None})
        for v in op.outputs:
            last.setdefault(v, i)
    last.update(dict.fromkeys(graph.outputs, len(graph.ops)))
    sizes = {v: _bytes(v) for v in last if v.data is None}
    alive = {v for v in graph.inputs if v.data is None}
    peak = sum(sizes[v] for v in alive)
    for i, op in enumerate(graph.ops):
        alive.update(op.outputs)
        peak = max(peak, sum(sizes[v] for v in alive))
        alive = {v for v in alive if last[v] > i}
    return max(sizes.values(), default=0), peak


def _segments(sizes: list[tuple[Op, int]], room: int, total: int) -> tuple[Segment, ...]:
    """The fewest consecutive parts that fit, filled evenly."""
    if not sizes:
        return ()
    count = max(-(-total // room), 1) if room else 1
    while count < len(sizes):
        parts = _split(sizes, count)
        if max(p.parameter_bytes for p in parts) <= room:
            return parts
        # A single layer that does not fit is streamed in any split.
        if max(size for _, size in sizes) > room:
            return parts
        count += 1
    return _split(sizes, 1)


def _split(sizes: list[tuple[Op, int]], count: int) -> tuple[Segment, ...]:
    whole, done, parts = sum(size for _, size in sizes), 0, []
    at = 0
    for number in range(1, count + 1):
        start, held = at, 0
        while at < len(sizes) and (
            number == count or done + sizes[at][1] / 2 <= whole * number / count
        ):
            held, done = held + sizes[at][1], done + sizes[at][1]
            at += 1
        if at > start:
            parts.append(Segment(sizes[start][0].outputs[0].name, at - start, held))
    return tuple(parts)
