"""How near a quantised file is to its PyTorch model: similarity, not equality.

What rounding to integers costs depends on the model and on the data, so the numbers are for the
report; only a file whose outputs are no longer the model's is refused.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from torch_tpu_unified import agreement, calibration
from torch_tpu_unified.core.errors import InputError, VerificationError
from torch_tpu_unified.programs import Program
from torch_tpu_unified.tables import text_table

# The cosine at which the noise is half as strong as the signal (a ratio of 6 dB), which no use of a
# quantised model survives; what rounding costs a model that works is far from it.
LEAST_COSINE = 0.9


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

    @property
    def ok(self) -> bool:
        """Finite, and if its numbers are floats, still like the reference."""
        similar = self.cosine >= LEAST_COSINE or not self.type.startswith("float")
        return bool(np.isfinite(self.max_abs)) and similar


@dataclasses.dataclass(frozen=True)
class Closeness:
    """The rows of a comparison; `str()` gives the table."""

    rows: tuple[Near, ...]

    @property
    def ok(self) -> bool:
        """Whether all outputs are finite numbers like the reference's."""
        return all(row.ok for row in self.rows)

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


def refuse(closeness: Closeness, what: str) -> None:
    """Raise where the file no longer gives the model's outputs.

    Raises:
        VerificationError: with the table of all outputs.
    """
    if not closeness.ok:
        bad = [row.name for row in closeness.rows if not row.ok]
        raise VerificationError(
            f"{what} no longer gives PyTorch's outputs: {', '.join(bad)} not finite, or below a "
            f"cosine of {LEAST_COSINE:g}\n{closeness}\n"
            "next: calibrate with samples like the data that the model meets, keep layers in "
            "float32 (--float-layer), or take --quantize int16x8; "
            "--no-verify (verify=False) keeps the file all the same"
        )


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
    # A reference of zeros has no direction to differ from.
    cosine = float(a @ b) / length if length else float(not signal or not noise)
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

    They should be like the data that it was calibrated with: it knows no other ranges.

    Raises:
        VerificationError: the interpreter fails, or the outputs have other shapes.
    """
    from litert_export import verify

    try:
        found = verify.run(model, calibration.arrays(program, io_layout), signature, real=True)
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
