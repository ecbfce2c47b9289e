"""`parity`: one model, the same inputs, every target, one table.

CPU PyTorch is the reference. The `tpu` device, eager and compiled, and the LiteRT file are compared
with it; where one differs, the first node that does is looked for and named.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from torch_tpu_unified import agreement, conversion, parity_search, programs
from torch_tpu_unified.agreement import Agreement
from torch_tpu_unified.core.errors import OptionError
from torch_tpu_unified.parity_search import Departure
from torch_tpu_unified.programs import Program
from torch_tpu_unified.tables import text_table

TARGETS = ("tpu eager", "tpu compiled", "litert")
REFERENCE = "cpu"
_HEADERS = ("target", "output", "type", "max abs", "mean abs", "relative", "")


@dataclasses.dataclass(frozen=True)
class TargetResult:
    """One target beside CPU PyTorch.

    Attributes:
        agreement: the comparison of its outputs, None when it could not run.
        error: why it could not run.
        departure: the first node that differs, when an output does.
    """

    target: str
    agreement: Agreement | None
    error: str = ""
    departure: Departure | None = None

    @property
    def ok(self) -> bool:
        """Whether it ran and every output agrees."""
        return self.agreement is not None and self.agreement.ok


@dataclasses.dataclass(frozen=True)
class Parity:
    """The table of all targets; `str()` prints it."""

    name: str
    results: tuple[TargetResult, ...]
    outputs: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether all targets agree with CPU PyTorch."""
        return all(r.ok for r in self.results)

    def __str__(self) -> str:
        rows = [[REFERENCE, name, "", "", "", "", "reference"] for name in self.outputs]
        for r in self.results:
            if r.agreement is None:
                rows.append([r.target, "", "", "", "", "", "FAILED"])
            else:
                rows += [[r.target, *row.cells()] for row in r.agreement.rows]
        lines = [text_table(_HEADERS, rows)]
        for r in self.results:
            if r.error:
                lines.append(f"{r.target} failed: {r.error}")
            elif not r.ok:
                where = r.departure or "no single node does; the outputs drift apart by rounding"
                lines.append(f"{r.target} differs first at {where}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        targets = {}
        for r in self.results:
            first = dataclasses.asdict(r.departure) if r.departure else None
            table = r.agreement.as_json() if r.agreement else {"ok": False, "outputs": []}
            targets[r.target] = {**table, "error": r.error, "first_difference": first}
        return {"ok": self.ok, "reference": REFERENCE, "targets": targets}


def parity(
    model: torch.nn.Module | ExportedProgram | Program,
    args: Sequence[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    *,
    targets: Sequence[str] = TARGETS,
    tolerance: float = agreement.TOLERANCE,
    progress: Callable[[str, int, int], None] | None = None,
) -> Parity:
    """Run a model on CPU PyTorch, tpu eager, tpu compiled and LiteRT on the same inputs.

    Args:
        args, kwargs: example inputs; an ExportedProgram has its own.
        targets: which to compare with CPU PyTorch.
        tolerance: of a floating output, relative to the output's range.

    Returns:
        A table with a row for every target and output. A target that fails is a row too; where one
        differs, the first node that does is named with its source line.

    Raises:
        OptionError: a target is unknown, or inputs are missing.
        InputError: the model fails in PyTorch itself.
    """
    for target in targets:
        if target not in TARGETS:
            raise OptionError(f"target {target!r} is unknown; one of {', '.join(TARGETS)}")
    program = conversion.as_program(model, args, kwargs)
    reference = program.reference()
    names = _output_names(program, len(reference))
    results = []
    for number, target in enumerate(targets):
        if progress:
            progress(target, number, len(targets))
        results.append(_compare(target, program, reference, names, tolerance))
    return Parity(program.name, tuple(results), tuple(names))


def _output_names(program: Program, count: int) -> list[str]:
    from litert_export import emit

    labels = emit.output_labels(program.exported)
    return labels if len(labels) == count else [f"output_{i}" for i in range(count)]


def _compare(
    target: str, program: Program, reference: list[Any], names: list[str], tolerance: float
) -> TargetResult:
    try:
        outputs = _OUTPUTS[target](program)
        wide = (lambda: program.reference(torch.float64)) if program.module is not None else None
        table = agreement.judge(outputs, reference, names, wide=wide, tolerance=tolerance)
    except Exception as error:  # any failure of a target is a result of the comparison
        return TargetResult(target, None, programs.brief(error))
    if table.ok:
        return TargetResult(target, table)
    try:
        departure = parity_search.find(program, _RUNNERS[target], tolerance)
    except Exception as error:
        told = f"the search for the first node that differs failed: {programs.brief(error)}"
        return TargetResult(target, table, told)
    return TargetResult(target, table, "", departure)


def _tpu(value: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: t.to("tpu"), value)


def _tpu_module(program: Program) -> Any:
    if program.module is not None:
        return copy.deepcopy(program.module).to("tpu").eval()
    return parity_search.on_device(_unlifted(program), "tpu")


def _unlifted(program: Program) -> Any:
    return program.exported.module(check_guards=False)


def _outputs_on_tpu(program: Program, compiled: bool) -> list[Any]:
    module = _tpu_module(program)
    args, kwargs = _tpu((program.args, program.kwargs))
    run = torch.compile(module) if compiled else module
    with torch.no_grad():
        return programs.leaves(run(*args, **kwargs))


def _outputs_of_file(program: Program) -> list[Any]:
    from litert_export import verify

    made = conversion.convert_programs({conversion.DEFAULT_SIGNATURE: program}, verify=False)
    return verify.run(made.model, [agreement.to_numpy(t) for t in program.flat_inputs()])


_OUTPUTS: dict[str, Callable[[Program], list[Any]]] = {
    "tpu eager": lambda program: _outputs_on_tpu(program, compiled=False),
    "tpu compiled": lambda program: _outputs_on_tpu(program, compiled=True),
    "litert": _outputs_of_file,
}


def _run_eager(module: GraphModule, inputs: Sequence[Any]) -> Sequence[Any]:
    found: Sequence[Any] = parity_search.on_device(module, "tpu")(*_tpu(tuple(inputs)))
    return found


def _run_compiled(module: GraphModule, inputs: Sequence[Any]) -> Sequence[Any]:
    moved = parity_search.on_device(module, "tpu")
    found: Sequence[Any] = torch.compile(moved)(*_tpu(tuple(inputs)))
    return found


def _run_file(module: GraphModule, inputs: Sequence[Any]) -> Sequence[Any]:
    return _outputs_of_file(programs.from_module(module, inputs))


_RUNNERS = {"tpu eager": _run_eager, "tpu compiled": _run_compiled, "litert": _run_file}
