"""Scans a graph against an op table: every operator without a lowering, at once.

Both halves run the scan before any lowering, so that a user sees all that is missing in one error,
with counts and source lines. `source_line` is also what other messages use to name a node's origin.
"""

from __future__ import annotations

import dataclasses
import re
import traceback
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_TORCH = torch.__path__[0]
_OURS = tuple(
    str(Path(__file__).parents[2] / package)
    for package in ("torch_tpu_unified", "cloud_backend", "litert_export")
)


@dataclasses.dataclass(frozen=True)
class SourceLine:
    """Where in the user's program a node comes from."""

    file: str
    line: int
    function: str
    code: str

    def __str__(self) -> str:
        text = f"{self.file}:{self.line} in {self.function}"
        return f"{text}   {self.code}" if self.code else text


@dataclasses.dataclass(frozen=True)
class Missing:
    """An operator without a lowering: how often the graph has it, and its first place."""

    op: str
    count: int
    nodes: tuple[str, ...]
    source: SourceLine | None

    def as_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        source = dataclasses.asdict(self.source) if self.source else None
        return {"op": self.op, "count": self.count, "nodes": list(self.nodes), "source": source}


def source_line(node: torch.fx.Node) -> SourceLine | None:
    """The innermost line outside PyTorch that made the node; PyTorch's own when there is none."""
    found = None
    lines = (node.meta.get("stack_trace") or "").splitlines()
    for position, line in enumerate(lines):
        if not (match := _FRAME.search(line)):
            continue
        code = lines[position + 1].strip() if position + 1 < len(lines) else ""
        code = "" if _FRAME.search(code) else code
        frame = SourceLine(match["file"], int(match["line"]), match["function"], code)
        theirs = (_TORCH, "<")  # "<" begins the name of code that PyTorch has made
        if found is None or not frame.file.startswith(theirs) or found.file.startswith(theirs):
            found = frame
    return found


def is_foreign(filename: str) -> bool:
    """Whether a file is PyTorch's, this project's or none at all, and not the user's."""
    return filename.startswith((_TORCH, *_OURS, "<"))


def innermost_frame(error: BaseException) -> SourceLine | None:
    """The innermost line outside PyTorch and this project that an error passed through.

    Errors of torch.export tell the user's line in their text only, so that is read too.
    """
    frames = [
        SourceLine(f.filename, f.lineno or 0, f.name, f.line or "")
        for f in traceback.extract_tb(error.__traceback__)
        if not is_foreign(f.filename)
    ]
    told = [m for m in _FRAME.finditer(str(error)) if not is_foreign(m["file"])]
    if told:
        return SourceLine(told[-1]["file"], int(told[-1]["line"]), told[-1]["function"], "")
    return frames[-1] if frames else None


def missing_operators(nodes: Iterable[torch.fx.Node], table: Container[Any]) -> list[Missing]:
    """Every operator of the nodes that the table lacks, the most frequent first.

    Args:
        nodes: of one graph or of several.
        table: an `OpTable`, or any container of overloads.
    """
    found: dict[OpOverload, list[torch.fx.Node]] = {}
    for node in nodes:
        if isinstance(node.target, OpOverload) and node.target not in table:
            found.setdefault(node.target, []).append(node)
    missing = [
        Missing(
            op=str(op),
            count=len(uses),
            nodes=tuple(n.name for n in uses),
            source=next((s for n in uses if (s := source_line(n)) is not None), None),
        )
        for op, uses in found.items()
    ]
    return sorted(missing, key=lambda m: (-m.count, m.op))


def as_text(missing: Iterable[Missing]) -> str:
    """One line an operator: name, count, and where it first appears."""
    lines = []
    for m in missing:
        count = f" x{m.count}" if m.count > 1 else ""
        lines.append(f"  {m.op}{count}" + (f"   from {m.source}" if m.source else ""))
    return "\n".join(lines)
