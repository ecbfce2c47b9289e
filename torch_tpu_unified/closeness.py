"""How near a quantised file is to its PyTorch model: similarity, not equality.

What rounding to integers costs depends on the model and on the data, so nothing here decides; the
numbers are for the report.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from torch_tpu_unified import agreement
from torch_tpu_unified.core.errors import InputError, VerificationError
from torch_tpu_unified.programs import Program
from torch_tpu_unified.tables import text_table


@dataclasses.dataclass(frozen=True)
class Near:
    """One output.

    Attributes:
        cosine: of the angle between the outputs as vectors; 1 is the same direction.
        sqnr: signal to quantisation noise in decibels.
        max_abs: the largest difference.
    """

    name: str
    type: str
    cosine: float
    sqnr: float
    max_abs: float


@dataclasses.dataclass(frozen=True)
class Closeness:
    """The rows of a comparison; `str()` gives the table."""

    rows: tuple[Near, ...]

    @property
    def ok(self) -> bool:
        """Whether all outputs are finite numbers."""
        return all(np.isfinite(row.max_abs) for row in self.rows)

    @property
    def cosine(self) -> float:
        """The least of all outputs."""
        return min((row.cosine for row in self.rows), default=1.0)

    def __str__(self) -> str:
        cells = [
            [r.name, r.type, f"{r.cosine:.5f}", f"{r.sqnr:.1f} dB", f"{r.max_abs:.2e}"]
            for r in self.rows
        ]
        return text_table(("output", "type", "cosine", "SQNR", "max abs"), cells)

    def as_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        return {"ok": self.ok, "outputs": [dataclasses.asdict(row) for row in self.rows]}


def near(name: str, found: Any, reference: Any) -> Near:
    """Compare one output with the reference's.

    Raises:
        VerificationError: their shapes differ.
    """
    given, wanted = np.asarray(found), np.asarray(reference)
    if given.shape != wanted.shape:
        raise VerificationError(
            f"output {name}: the file gives {list(given.shape)}, PyTorch {list(wanted.shape)}"
        )
    a, b = given.astype(np.float64).reshape(-1), wanted.astype(np.float64).reshape(-1)
    noise, signal = float(np.square(a - b).sum()), float(np.square(b).sum())
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float(a @ b) / length if length else float(not noise)
    sqnr = 10 * np.log10(signal / noise) if signal and noise else (0.0 if noise else np.inf)
    kind = f"{wanted.dtype}[{','.join(map(str, wanted.shape))}]"
    return Near(name, kind, cosine, float(sqnr), float(np.abs(a - b).max(initial=0.0)))


def of_file(
    program: Program,
    model: bytes | bytearray | str | os.PathLike[str],
    signature: str | None,
    names: Sequence[str],
    io_layout: str = "nchw",
) -> Closeness:
    """Run a quantised file on the program's example inputs beside eager PyTorch.

    Raises:
        VerificationError: the interpreter fails, or the outputs have other shapes.
    """
    from litert_export import verify

    inputs = [agreement.to_numpy(t) for t in program.flat_inputs()]
    if io_layout == "nhwc":
        inputs = [x.transpose(0, 2, 3, 1) if x.ndim == 4 else x for x in inputs]
    try:
        found = verify.run(model, inputs, signature, real=True)
    except InputError as error:
        raise VerificationError(
            f"LiteRT cannot run the file on the example inputs: {error}"
        ) from error
    if io_layout == "nhwc":
        found = [x.transpose(0, 3, 1, 2) if x.ndim == 4 else x for x in found]
    reference = [agreement.to_numpy(x) for x in program.reference()]
    if len(found) != len(reference):
        raise VerificationError(f"{len(found)} outputs for {len(reference)} of PyTorch")
    return Closeness(tuple(map(near, names, found, reference)))
