"""Describes a LiteRT file: signatures, operators, types, sizes. Any converter's file is read."""

from __future__ import annotations

import collections
import dataclasses
import os
from pathlib import Path
from typing import Any

from litert_export import reader
from litert_export.graph import Graph, Value
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
