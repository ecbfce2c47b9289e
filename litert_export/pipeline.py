"""The exporter's stages in order, with the reason for each one's place beside it.

Every stage leaves a graph that verifies. TTU_DUMP=folder writes the graph's text after each stage.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from litert_export import capture, dynamic, emit, ops, writer
from litert_export.graph import Graph
from litert_export.passes import cleanup, fuse, join, layout
from litert_export.quantize import QuantConfig
from litert_export.quantize.apply import Quantized, apply
from torch_tpu_unified.core import flags
from torch_tpu_unified.core.errors import InputError
from torch_tpu_unified.core.optable import OpTable

Progress = Callable[[str, int, int], None]


@dataclasses.dataclass
class Report:
    """What an export did.

    Attributes:
        seconds: stage -> seconds, summed over signatures.
        ops: operator -> calls in the file.
        parameters: elements of all constants, shared ones counted once.
        bytes: size of the file.
        signatures: name -> (input names, output names).
        quantized: signature -> what the quantisation did; empty without one.
    """

    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    ops: dict[str, int] = dataclasses.field(default_factory=dict)
    parameters: int = 0
    bytes: int = 0
    signatures: dict[str, tuple[list[str], list[str]]] = dataclasses.field(default_factory=dict)
    quantized: dict[str, Quantized] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Job:
    """One signature on its way through the stages.

    Attributes:
        sizes: those chosen for the dynamic sizes of the program as it was given.
        any_size: choose forms that hold for all sizes.
    """

    name: str
    program: ExportedProgram
    table: OpTable
    io_layout: str
    input_names: Sequence[str] | None
    output_names: Sequence[str] | None
    sizes: Mapping[Any, int] = dataclasses.field(default_factory=dict)
    any_size: bool = False
    graph: Graph | None = None


@dataclasses.dataclass(frozen=True)
class Stage:
    """A step: a function that changes the job."""

    name: str
    run: Callable[[Job], None]


def _decompose(job: Job) -> None:
    job.program = capture.decompose(job.program, job.table)


def _emit(job: Job) -> None:
    emitter = emit.Emitter(job.program, job.table, io_layout=job.io_layout, any_size=job.any_size)
    job.graph = emitter.run(job.input_names, job.output_names)
    job.graph.name = job.name


def _pass(run: Callable[[Graph], Graph]) -> Callable[[Job], None]:
    def stage(job: Job) -> None:
        assert job.graph is not None
        job.graph = run(job.graph)

    return stage


STAGES: tuple[Stage, ...] = (
    # Refusals come first: they are about the user's model and cost nothing.
    Stage("decompose", _decompose),
    # Only now is every operator known, so all that is missing is reported at once.
    Stage("lower", _emit),
    # Fewer ops for everything that follows.
    Stage("clean", _pass(cleanup.run)),
    # Before fusion: folding a batch norm needs it next to its convolution, without transposes.
    Stage("layout", _pass(layout.run)),
    # Layout's leftovers would stand between the operators that fuse.
    Stage("tidy", _pass(cleanup.run)),
    Stage("fuse", _pass(fuse.run)),
    # Fusion leaves ops without readers and new chains of reshapes.
    Stage("finish", _pass(cleanup.run)),
)
# Last, on what would else be written: the observed values are those of the finished float graph.
QUANTIZE = "quantize"
CALIBRATE = "calibrate"
JOIN, WRITE = "join", "write"


def stage_names() -> list[str]:
    """The names that a progress callback gets, in order."""
    return [*(s.name for s in STAGES), JOIN, WRITE]


def _dump(job: Job, number: int, stage: str, folder: str) -> None:
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    text = job.graph.text() if job.graph is not None else str(job.program)
    (path / f"{job.name}-{number:02d}-{stage}.txt").write_text(text, encoding="utf-8")


def run(
    programs: Mapping[str, ExportedProgram],
    *,
    table: OpTable | None = None,
    io_layout: str = "nchw",
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    quantize: Any = None,
    calibration: Mapping[str, Iterable[Sequence[Any]]] | None = None,
    progress: Progress | None = None,
    decomposed: bool = False,
) -> tuple[bytes | bytearray, Report, dict[str, Graph]]:
    """Take programs (by signature) through every stage; see `litert_export.export`.

    Args:
        decomposed: the programs went through `capture.decompose` with this table already.
    """
    if io_layout not in ("nchw", "nhwc"):
        raise InputError(f"io_layout={io_layout!r} is not one of nchw, nhwc")
    if not programs:
        raise InputError("no program to export")
    config = None if quantize is None else QuantConfig.of(quantize)
    table = table or ops.load()

    whole = [
        Job(name, program, table, io_layout, input_names, output_names)
        for name, program in programs.items()
    ]
    jobs = [(job, _instances(job)) for job in whole]
    report = Report()
    total = len(STAGES) + (3 if config else 2)
    for number, stage in enumerate(STAGES):
        if progress:
            progress(stage.name, number, total)
        start = time.perf_counter()
        for one in (j for _, group in jobs for j in group):
            if not (decomposed and stage.run is _decompose):
                _run_stage(one, stage, number)
        report.seconds[stage.name] = time.perf_counter() - start
    if progress:
        progress(JOIN, len(STAGES), total)
    start = time.perf_counter()
    graphs = {}
    for job, group in jobs:
        graphs[job.name] = _joined(job, group)
        graphs[job.name].verify()
    report.seconds[JOIN] = time.perf_counter() - start
    if config is not None:
        start = time.perf_counter()
        _quantize(graphs, config, calibration or {}, report, progress)
        report.seconds[QUANTIZE] = time.perf_counter() - start
    if progress:
        progress(WRITE, total - 1, total)
    start = time.perf_counter()
    model = writer.write(graphs)
    report.seconds[WRITE] = time.perf_counter() - start
    _count(report, graphs, len(model))
    return model, report, graphs


def _instances(job: Job) -> list[Job]:
    """The job, or one for each choice of sizes where its program leaves sizes open."""
    if not dynamic.symbols(job.program):
        return [job]
    return [
        dataclasses.replace(job, program=dynamic.at(job.program, sizes), sizes=sizes)
        for sizes in dynamic.choose(job.program)
    ]


def _run_stage(job: Job, stage: Stage, number: int) -> None:
    stage.run(job)
    if job.graph is not None:
        job.graph.verify()
    if flags.DUMP.value:
        _dump(job, number, stage.name, flags.DUMP.value)


def _all_stages(job: Job) -> Graph:
    for number, stage in enumerate(STAGES):
        _run_stage(job, stage, number)
    assert job.graph is not None
    return job.graph


def _joined(job: Job, group: Sequence[Job]) -> Graph:
    """The graph of a signature; of several sizes, one that holds for all."""
    graphs = [j.graph for j in group if j.graph is not None]
    if len(graphs) == 1:
        return graphs[0]
    if not join.alike(graphs):
        # Once more without the forms that hold for some sizes only.
        job = dataclasses.replace(job, any_size=True)
        graphs = [
            _all_stages(dataclasses.replace(job, program=dynamic.at(job.program, j.sizes)))
            for j in group
        ]
    largest = None
    if join.needs_limit(graphs) and (sizes := dynamic.limit(job.program)) is not None:
        program = dynamic.at(job.program, sizes)
        largest = _all_stages(dataclasses.replace(job, program=program))
    return join.join(graphs, largest, dynamic.usual_shapes(job.program, job.io_layout))


def _quantize(
    graphs: Mapping[str, Graph],
    config: QuantConfig,
    calibration: Mapping[str, Iterable[Sequence[Any]]],
    report: Report,
    progress: Progress | None,
) -> None:
    stage = CALIBRATE if config.is_static else QUANTIZE

    def told(done: int, samples: int) -> None:
        if progress:
            progress(stage, done, samples)

    for name, graph in graphs.items():
        told(0, 0)
        report.quantized[name] = apply(graph, config, calibration.get(name), told)
        graph.verify()
        if flags.DUMP.value:
            path = Path(flags.DUMP.value) / f"{name}-{len(STAGES):02d}-{QUANTIZE}.txt"
            path.write_text(graph.text(), encoding="utf-8")


def _count(report: Report, graphs: Mapping[str, Graph], size: int) -> None:
    seen: dict[Any, int] = {}
    for name, graph in graphs.items():
        for code, count in graph.histogram().items():
            report.ops[code] = report.ops.get(code, 0) + count
        report.signatures[name] = (list(graph.input_names), list(graph.output_names))
        for v in (v for part in graph.graphs for v in part.values):
            if v.data is not None and (v.data.dtype.kind == "f" or v.quantization is not None):
                seen[v.data.__array_interface__["data"][0], v.shape] = v.size
    report.parameters = sum(seen.values())
    report.bytes = size
