"""What two LiteRT files have differently: size, signatures, types, operators."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from torch_tpu_unified.inspection import Description, SignatureInfo, inspect
from torch_tpu_unified.tables import text_table


@dataclasses.dataclass(frozen=True)
class Difference:
    """Two files beside each other; `str()` gives a page to read.

    Attributes:
        sizes: bytes of each file.
        ends: lines of inputs and outputs that only one file has, `-` the first, `+` the second.
        rows: signature -> what is counted there -> (count in the first, count in the second);
            operators by their name, tensors as `float32 tensors`, `constant bytes`.
    """

    sizes: tuple[int, int]
    ends: tuple[str, ...]
    rows: dict[str, dict[str, tuple[int, int]]]

    @property
    def same(self) -> bool:
        """Whether nothing that is counted differs."""
        counts = [c for row in self.rows.values() for c in row.values()]
        return not self.ends and all(a == b for a, b in counts)

    def __str__(self) -> str:
        a, b = self.sizes
        lines = [f"size {a} bytes, {b} bytes ({b - a:+d})", *self.ends]
        for name, counts in self.rows.items():
            changed = [
                [what, str(x), str(y), f"{y - x:+d}"] for what, (x, y) in counts.items() if x != y
            ]
            lines.append(f"\n{name}" + ("" if changed else ": the same operators and types"))
            if changed:
                lines.append(text_table(("", "first", "second", "change"), changed, "  "))
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        return {**dataclasses.asdict(self), "same": self.same}


def diff(
    first: bytes | bytearray | str | os.PathLike[str],
    second: bytes | bytearray | str | os.PathLike[str],
) -> Difference:
    """Compare two LiteRT files, given by paths or as bytes, by what they hold (not by results).

    Raises:
        InputError: a file does not exist, is no LiteRT file, or is damaged.
    """
    a, b = inspect(first), inspect(second)
    names = list(dict.fromkeys(s.name for d in (a, b) for s in d.signatures))
    pairs = {name: (_named(a, name), _named(b, name)) for name in names}
    ends = [line for name, pair in pairs.items() for line in _ends(name, *pair)]
    return Difference((a.size, b.size), tuple(ends), {n: _rows(*p) for n, p in pairs.items()})


def _named(description: Description, name: str) -> SignatureInfo | None:
    return next((s for s in description.signatures if s.name == name), None)


def _ends(name: str, a: SignatureInfo | None, b: SignatureInfo | None) -> list[str]:
    def listed(s: SignatureInfo | None) -> list[str]:
        if s is None:
            return []
        kinds = (("input", s.inputs), ("output", s.outputs))
        return [f"{name} {kind} {end}" for kind, ends in kinds for end in ends]

    first, second = listed(a), listed(b)
    gone = [f"- {line}" for line in first if line not in second]
    return gone + [f"+ {line}" for line in second if line not in first]


def _rows(a: SignatureInfo | None, b: SignatureInfo | None) -> dict[str, tuple[int, int]]:
    def counted(s: SignatureInfo | None) -> dict[str, int]:
        if s is None:
            return {}
        types = {f"{dtype} tensors": count for dtype, count in s.tensors.items()}
        total = sum(s.operators.values())
        return {
            **s.operators, "operators": total, **types, "constant bytes": s.constant_bytes
        }  # fmt: skip

    first, second = counted(a), counted(b)
    return {k: (first.get(k, 0), second.get(k, 0)) for k in dict.fromkeys([*first, *second])}
