"""What an Edge TPU would run of a model: `precheck` of a module, `check_file` of any LiteRT file.

Predicted by the documented rules of the compiler, which is needed for neither.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch_tpu_unified.core.errors import OptionError, VerificationError
from torch_tpu_unified.tables import readable_bytes, text_table

if TYPE_CHECKING:
    from litert_export.edgetpu.check import Check, Verdict
    from litert_export.graph import Graph


@dataclasses.dataclass(frozen=True)
class OnChip:
    """The verdicts on the operators of one file; `str()` gives a page to read.

    Attributes:
        checks: signature -> verdicts and memory.
    """

    checks: dict[str, Check]

    @property
    def _counted(self) -> list[Verdict]:
        return [v for c in self.checks.values() for v in c.counted]

    @property
    def percent(self) -> float:
        """How many operators are mapped, of the signature with the fewest."""
        return min((c.percent for c in self.checks.values()), default=0.0)

    @property
    def mapped(self) -> list[str]:
        """Names of the operators on the Edge TPU."""
        return [v.op for v in self._counted if v.mapped]

    @property
    def unmapped(self) -> list[dict[str, Any]]:
        """Those on the CPU: `op`, `name`, `reason`, `remedy`, `source`; `later` says that an
        operator is there only because it follows one."""
        return [dataclasses.asdict(v) for v in self._counted if not v.mapped]

    @property
    def parameter_bytes(self) -> int:
        """Of all constant weights and biases."""
        return sum(c.memory.parameter_bytes for c in self.checks.values())

    @property
    def cached_bytes(self) -> int:
        """Of the parameters, what the chip keeps."""
        return sum(c.memory.cached_bytes for c in self.checks.values())

    @property
    def largest_activation(self) -> int:
        """Bytes of the largest one."""
        return max((c.memory.largest_activation for c in self.checks.values()), default=0)

    @property
    def peak_activation(self) -> int:
        """Bytes of the activations that live at one time, at most."""
        return max((c.memory.peak_activation for c in self.checks.values()), default=0)

    def __str__(self) -> str:
        return "\n\n".join(_page(name, check) for name, check in self.checks.items())

    def as_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        return {
            "percent": self.percent,
            "signatures": {name: check.as_json() for name, check in self.checks.items()},
        }


def _page(name: str, check: Check) -> str:
    if check.compiled:
        return f"{name}: compiled for the Edge TPU already (edgetpu-custom-op)"
    counted, on_chip = check.counted, sum(v.mapped for v in check.counted)
    lines = [
        f"{name}: {on_chip} of {len(counted)} operators on the Edge TPU ({check.percent:.1f} %)"
    ]
    lines += [f"  the compiler refuses the file: {text}" for text in check.refusals]
    rows = [
        [
            v.op,
            "Edge TPU" if v.mapped else "CPU",
            v.name,
            "; ".join(filter(None, (v.reason, v.remedy and f"next: {v.remedy}", v.note))),
            v.source,
        ]
        for v in check.verdicts
    ]
    lines.append(text_table(("operator", "runs on", "makes", "why", "source"), rows, "  "))
    if (first := check.first) is not None:
        lines.append(f"  the graph is cut at {first.op} ({first.name}): {first.reason}")
    m = check.memory
    lines.append(
        f"  parameters {readable_bytes(m.parameter_bytes)}, about "
        f"{readable_bytes(m.cached_bytes)} of them cached on the chip; activations at most "
        f"{readable_bytes(m.peak_activation)} at a time, {readable_bytes(m.largest_activation)} "
        "the largest"
    )
    if len(m.segments) > 1:
        lines.append(f"  on {len(m.segments)} chips each segment keeps its parameters:")
        lines += [
            f"    {n}: {s.operators} operators from {s.first}, {readable_bytes(s.parameter_bytes)}"
            for n, s in enumerate(m.segments, 1)
        ]
    return "\n".join(lines)


def of_graphs(graphs: Mapping[str, Graph]) -> OnChip:
    """The verdicts on graphs that were just quantised, by signature."""
    from litert_export.edgetpu.check import check

    return OnChip({name: check(g) for name, g in graphs.items()})


def check_file(model: bytes | bytearray | str | os.PathLike[str]) -> OnChip:
    """Judge the operators of a LiteRT file, whoever wrote it.

    Raises:
        InputError: there is no such file, it is no LiteRT file, or it is damaged.
    """
    from litert_export import reader
    from litert_export.edgetpu.check import check

    return OnChip({name: check(graph) for name, graph in reader.read(model).items()})


def demand(found: OnChip, percent: float | None) -> None:
    """Raise where fewer operators are mapped than asked for.

    Raises:
        VerificationError: names what runs on the CPU.
    """
    if percent is None or found.percent >= percent:
        return
    left = [v for v in found.unmapped if not v["later"]]
    told = "; ".join(f"{v['op']} ({v['name']}): {v['reason']}" for v in left[:5])
    refused = [text for c in found.checks.values() for text in c.refusals]
    raise VerificationError(
        f"{found.percent:.1f} % of the operators are mapped to the Edge TPU, {percent:g} % are "
        f"asked for: {'; '.join(refused) or told}"
    )


def precheck(
    module_or_program: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str = "edgetpu",
    quantize: Any = None,
    calibration: Any = None,
    require_mapped: float | None = None,
    io_layout: str = "nchw",
) -> OnChip:
    """What an Edge TPU would run of a model, before anything is deployed.

    Args:
        module_or_program, args, kwargs: as `convert` takes them.
        quantize: `int8` with options, as `convert` takes it.
        calibration: samples; default: the example inputs, which suffice to judge operators.
        require_mapped: the least percentage of mapped operators.

    Raises:
        OptionError: an unknown target.
        VerificationError: fewer operators are mapped than required.
        ConversionError: the model cannot be converted.
    """
    from torch_tpu_unified import conversion

    if target != "edgetpu":
        raise OptionError(f"precheck: the target {target!r} is unknown; give edgetpu")
    program = conversion.as_program(module_or_program, args, dict(kwargs or {}) or None)
    samples = [tuple(program.args)] if calibration is None else calibration
    made = conversion.convert_programs(
        {conversion.DEFAULT_SIGNATURE: program},
        to="edgetpu",
        quantize=quantize,
        calibration=samples,
        verify=False,
        io_layout=io_layout,
        # Operators that have no integer form are named among the others.
        allow_float=True,
    )
    assert made.report.edgetpu is not None
    demand(made.report.edgetpu, require_mapped)
    return made.report.edgetpu
