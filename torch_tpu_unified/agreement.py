"""Whether two sets of outputs agree, and by how much they differ.

A floating output agrees when its largest error is at most `TOLERANCE` of the output's own range.
Where it is not, and a float64 reference can be had, the output is judged by its distance to that,
against PyTorch's own distance: rounding that float32 cannot avoid is no fault. Integers must be
equal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torch_tpu_unified.core.errors import VerificationError
from torch_tpu_unified.tables import text_table

TOLERANCE = 1e-4
_FACTOR = 4.0  # how much further from float64 than PyTorch's float32 an output may be
HEADERS = ("output", "type", "max abs", "mean abs", "relative", "")


@dataclasses.dataclass(frozen=True)
class Row:
    """One output: its largest and mean absolute error, and the largest relative to its range."""

    name: str
    type: str
    max_abs: float
    mean_abs: float
    relative: float
    ok: bool
    note: str = ""

    @property
    def max_units(self) -> float:
        """The largest difference in the units of the file."""
        return self.max_abs

    def cells(self) -> list[str]:
        """As texts, in the order of `HEADERS`."""
        verdict = ("ok" if self.ok else "DIFFERS") + (f" ({self.note})" if self.note else "")
        numbers = [f"{x:.2e}" for x in (self.max_abs, self.mean_abs, self.relative)]
        return [self.name, self.type, *numbers, verdict]


@dataclasses.dataclass(frozen=True)
class Agreement:
    """The rows of a comparison; `str()` gives the table."""

    rows: tuple[Row, ...]
    tolerance: float = TOLERANCE

    @property
    def ok(self) -> bool:
        """Whether every output agrees."""
        return all(row.ok for row in self.rows)

    @property
    def max_abs(self) -> float:
        """The largest absolute error of all outputs."""
        return max((row.max_abs for row in self.rows), default=0.0)

    @property
    def relative(self) -> float:
        """The largest relative error of all outputs."""
        return max((row.relative for row in self.rows), default=0.0)

    def __str__(self) -> str:
        return text_table(HEADERS, [row.cells() for row in self.rows])

    def as_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        rows = [dataclasses.asdict(row) for row in self.rows]
        return {"ok": self.ok, "tolerance": self.tolerance, "outputs": rows}


def to_numpy(value: Any) -> Any:
    """A tensor of any device and dtype (bfloat16 included), or an array, as an ndarray."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        from litert_export.emit import to_numpy as convert

        return convert(value.detach().cpu().resolve_conj().resolve_neg())
    return np.asarray(value)


def judge(
    found: Sequence[Any],
    reference: Sequence[Any],
    names: Sequence[str] | None = None,
    *,
    wide: Callable[[], Sequence[Any]] | None = None,
    tolerance: float = TOLERANCE,
) -> Agreement:
    """Compare outputs with those of the reference, in order.

    Args:
        found, reference: tensors or arrays.
        names: of the outputs.
        wide: computes the outputs in float64, asked for only when something differs.

    Raises:
        VerificationError: the number of outputs, a shape or a dtype is not the reference's.
    """
    from litert_export import verify

    ours, theirs = [to_numpy(x) for x in found], [to_numpy(x) for x in reference]
    errors = verify.compare(ours, theirs, names)
    rows = []
    better: Sequence[Any] | None = None
    for position, error in enumerate(errors):
        ok, note = error.ok(tolerance), ""
        if not ok and not error.exact and wide is not None:
            better = better if better is not None else _wide(wide)
            if better and _rounding_only(ours, theirs, better, position, tolerance):
                ok, note = True, "as near to float64 as PyTorch"
        shape = ",".join(map(str, error.shape))
        rows.append(
            Row(
                error.name,
                f"{error.dtype}[{shape}]",
                error.max_abs,
                error.mean_abs,
                error.relative,
                ok,
                note,
            )
        )
    return Agreement(tuple(rows), tolerance)


def _wide(wide: Callable[[], Sequence[Any]]) -> Sequence[Any]:
    try:
        return [to_numpy(x) for x in wide()]
    except Exception:  # a model that insists on float32 has no float64 reference: judged without
        return []


def _rounding_only(
    ours: list[Any], theirs: list[Any], wide: Sequence[Any], position: int, tolerance: float
) -> bool:
    import numpy as np

    a, b, exact = ours[position], theirs[position], wide[position]
    if a.shape != exact.shape or not np.isfinite(a).all() or not np.isfinite(exact).all():
        return False
    range_ = float(np.abs(exact).max(initial=0.0))
    budget = _FACTOR * float(np.abs(b - exact).max(initial=0.0)) + tolerance * range_
    # The budget is for rounding: a reference that is itself far off excuses nothing.
    return float(np.abs(a - exact).max(initial=0.0)) <= min(budget, 0.01 * range_)


def labelled(agreement: Agreement, label: str) -> Agreement:
    """The same rows with a word after each output's name."""
    rows = tuple(dataclasses.replace(r, name=f"{r.name} {label}") for r in agreement.rows)
    return Agreement(rows, agreement.tolerance)


def together(agreements: Sequence[Agreement]) -> Agreement:
    """One table of several comparisons with the same tolerance."""
    return Agreement(tuple(r for a in agreements for r in a.rows), agreements[0].tolerance)


def refuse(agreement: Agreement, what: str) -> None:
    """Raise unless everything agrees.

    Raises:
        VerificationError: with the table of all outputs.
    """
    if not agreement.ok:
        bad = [row.name for row in agreement.rows if not row.ok]
        raise VerificationError(
            f"{what} does not give PyTorch's outputs: {', '.join(bad)} beyond "
            f"{agreement.tolerance:g} of the range\n{agreement}\n"
            "next: --parity (torch_tpu_unified.parity) names the first operator that differs; "
            "--no-verify (verify=False) keeps the file all the same"
        )
