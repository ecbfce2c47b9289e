"""Which operators of a LiteRT file an Edge TPU runs, and why not the others.

The compiler makes one piece for the Edge TPU: what depends on an operator that it does not map
runs on the CPU as well. Conversions from and to float belong to the CPU and do not count: what has
to be float is named instead.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from litert_export import versions
from litert_export.edgetpu import memory, rules
from litert_export.edgetpu.memory import Memory
from litert_export.graph import Graph, Op


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One operator.

    Attributes:
        op: LiteRT's name of it.
        name: of what it makes.
        mapped: it runs on the Edge TPU.
        later: it would, did it not depend on one that does not.
        border: a conversion between float and integers, which counts neither way.
        reason, remedy: why it runs on the CPU, and what to do about it.
        note: what the operator table leaves open.
        source: the line of the model, where the file tells it.
    """

    op: str
    name: str
    mapped: bool
    later: bool = False
    border: bool = False
    reason: str = ""
    remedy: str = ""
    note: str = ""
    source: str = ""


@dataclasses.dataclass(frozen=True)
class Check:
    """All operators of a graph, in order, and its memory.

    Attributes:
        refusals: why the compiler would refuse the whole file; empty when it does not.
        compiled: the file went through the compiler already.
    """

    verdicts: tuple[Verdict, ...]
    refusals: tuple[str, ...]
    memory: Memory
    compiled: bool = False

    @property
    def counted(self) -> tuple[Verdict, ...]:
        """The verdicts that count: not the borders."""
        return tuple(v for v in self.verdicts if not v.border)

    @property
    def percent(self) -> float:
        """How many of the operators are mapped; 0 when the file is refused."""
        if self.compiled:
            return 100.0
        if self.refusals or not self.counted:
            return 0.0
        return 100 * sum(v.mapped for v in self.counted) / len(self.counted)

    @property
    def first(self) -> Verdict | None:
        """The operator at which the graph is cut first."""
        return next((v for v in self.counted if not v.mapped and not v.later), None)

    def as_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        return {
            "percent": self.percent,
            "compiled": self.compiled,
            "refusals": list(self.refusals),
            "operators": [dataclasses.asdict(v) for v in self.verdicts],
            "memory": dataclasses.asdict(self.memory),
        }


def check(graph: Graph) -> Check:
    """Judge every operator of a graph."""
    blocked: set[Any] = set()
    verdicts, refusals = [], []
    for op in graph.ops:
        name = op.outputs[0].name if op.outputs else ""
        source = op.source or ""
        if op.code == "CUSTOM" and op.options.get("custom_code") == "edgetpu-custom-op":
            verdicts.append(Verdict(op.code, name, True, source=source))
            continue
        refused = rules.refusal(op, op.version or versions.version(op))
        if refused and refused not in refusals:
            refusals.append(refused)
        found = rules.reason(op)
        later = found is None and any(v in blocked for v in op.inputs)
        mapped = found is None and not later
        border = _is_border(op)
        if not mapped and (not border or any(v in blocked for v in op.inputs)):
            blocked.update(op.outputs)
        reason = found.text if found else "an operator before it runs on the CPU" if later else ""
        verdicts.append(
            Verdict(
                op.code,
                name,
                mapped,
                later,
                border,
                "between float and integers" if border else reason,
                found.remedy if found else "",
                (rules.note(op) or "") if mapped else "",
                source,
            )
        )
    compiled = any(op.options.get("custom_code") == "edgetpu-custom-op" for op in graph.ops)
    return Check(tuple(verdicts), tuple(refusals), memory.measure(graph), compiled)


def _is_border(op: Op) -> bool:
    """Whether it goes between float32 and integers, for an op in float or at the file's end."""
    if op.code not in ("QUANTIZE", "DEQUANTIZE"):
        return False
    ends = [v for v in (*op.inputs, *op.outputs) if v is not None]
    return any(v.dtype == "float32" for v in ends)
