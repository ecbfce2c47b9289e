"""Describes a LiteRT file: signatures, operators, types, sizes, times. Any converter's is read."""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from litert_export import reader, timing
from litert_export.graph import Graph, Value
from litert_export.timing import OpTime
from torch_tpu_unified.tables import readable_bytes, text_table


@dataclasses.dataclass(frozen=True)
class End:
    """An input or output: its name in the signature, LiteRT type and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True)
class SignatureInfo:
    """One callable part of a file."""

    name: str
    inputs: tuple[End, ...]
    outputs: tuple[End, ...]
    operators: dict[str, int]
    tensors: dict[str, int]
    constant_bytes: int


@dataclasses.dataclass(frozen=True)
class Description:
    """What a file holds; `str()` gives a page to read.

    Attributes:
        size: of the file in bytes.
        signatures: in the file's order; parts of control flow are listed too.
    """

    size: int
    signatures: tuple[SignatureInfo, ...]

    def __str__(self) -> str:
        parts = [f"LiteRT model, {readable_bytes(self.size)}"]
        for s in self.signatures:
            parts.append(f"\n{s.name}")
            parts += [f"  input   {end}" for end in s.inputs]
            parts += [f"  output  {end}" for end in s.outputs]
            types = ", ".join(f"{count} {dtype}" for dtype, count in s.tensors.items())
            parts.append(f"  tensors {types}; constants {readable_bytes(s.constant_bytes)}")
            rows = [[op, str(count)] for op, count in s.operators.items()]
            rows.append(["total", str(sum(s.operators.values()))])
            parts.append(text_table(("operator", "count"), rows, "  "))
        return "\n".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        return dataclasses.asdict(self)


def inspect(model: bytes | bytearray | str | os.PathLike[str]) -> Description:
    """Describe a LiteRT file, given by path or as bytes.

    Raises:
        InputError: there is no such file, it is no LiteRT file, or it is damaged.
    """
    graphs = reader.read(model)
    size = len(model) if isinstance(model, (bytes, bytearray)) else Path(model).stat().st_size
    return Description(size, tuple(_describe(name, g) for name, g in graphs.items()))


@dataclasses.dataclass(frozen=True)
class Profile:
    """Times of a file's first signature on this machine, one thread; `str()` gives a table.

    Attributes:
        seconds: median of a call of the whole graph.
        operators: each operator in order, timed alone (see `litert_export.timing.profile`).
    """

    seconds: float
    operators: tuple[OpTime, ...]

    @property
    def xnnpack(self) -> float:
        """The share of operators that XNNPACK takes, from 0 to 1."""
        return sum(op.xnnpack for op in self.operators) / max(len(self.operators), 1)

    def __str__(self) -> str:
        known = [op.seconds for op in self.operators if op.seconds is not None]
        total = sum(known)
        groups: dict[str, list[OpTime]] = {}
        for op in self.operators:
            groups.setdefault(op.code, []).append(op)
        rows = []
        for code, ops in groups.items():
            spent = sum(op.seconds or 0.0 for op in ops)
            alone = any(op.seconds is not None for op in ops)
            share = f"{spent / total:.1%}" if alone and total else "-"
            time = f"{spent * 1e6:.1f}" if alone else "-"
            rows.append([code, str(len(ops)), str(sum(op.xnnpack for op in ops)), time, share])
        rows.sort(key=lambda row: -float(row[3]) if row[3] != "-" else 1.0)
        head = ("operator", "count", "xnnpack", "us", "share")
        slowest = sorted(
            (op for op in self.operators if op.seconds), key=lambda op: -(op.seconds or 0.0)
        )
        lines = [
            f"one call {self.seconds * 1e6:.1f} us; operators alone {total * 1e6:.1f} us together; "
            f"XNNPACK takes {self.xnnpack:.0%} of them",
            text_table(head, rows, "  "),
            "slowest",
            *(f"  {(op.seconds or 0) * 1e6:8.1f} us  {op.code} {op.name}" for op in slowest[:5]),
        ]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`; seconds."""
        return {**dataclasses.asdict(self), "xnnpack": self.xnnpack}


def profile(
    model: bytes | bytearray | str | os.PathLike[str],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """Time a LiteRT file and its operators on this machine.

    Args:
        progress: called with (operators done, operators).

    Raises:
        InputError: there is no such file, it is damaged, or LiteRT cannot run it.
    """
    content = model if isinstance(model, (bytes, bytearray)) else bytes(reader.load_bytes(model))
    graph = next(iter(reader.read(content).values()))
    seconds, operators = timing.profile(content, graph, progress=progress)
    return Profile(seconds, tuple(operators))


def _values(graph: Graph) -> list[Value]:
    """Every tensor of a graph, once."""
    found = {id(v): v for v in [*graph.inputs, *graph.outputs]}
    for op in graph.ops:
        found.update({id(v): v for v in [*op.inputs, *op.outputs] if v is not None})
    return list(found.values())


def _ends(names: list[str], values: list[Value]) -> tuple[End, ...]:
    return tuple(End(n, v.dtype, v.shape) for n, v in zip(names, values, strict=True))


def _describe(name: str, graph: Graph) -> SignatureInfo:
    values = _values(graph)
    shared = {id(v.data): v.data.nbytes for v in values if v.data is not None}
    return SignatureInfo(
        name=name,
        inputs=_ends(graph.input_names, graph.inputs),
        outputs=_ends(graph.output_names, graph.outputs),
        operators=dict(collections.Counter(op.code for op in graph.ops).most_common()),
        tensors=dict(collections.Counter(v.dtype for v in values).most_common()),
        constant_bytes=sum(shared.values()),
    )
