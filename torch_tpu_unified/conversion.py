"""`convert`: a PyTorch program becomes a LiteRT file, checked beside PyTorch at once.

export -> lower -> passes -> write (all by `litert_export`) -> verify. The file exists in memory
until `Converted.save`, which writes it by an atomic rename.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from torch_tpu_unified import agreement, closeness, edgetpu, files, programs
from torch_tpu_unified import calibration as calibrating
from torch_tpu_unified.agreement import Agreement
from torch_tpu_unified.closeness import Closeness
from torch_tpu_unified.core.errors import NotYetAvailable, OptionError, VerificationError
from torch_tpu_unified.edgetpu import OnChip
from torch_tpu_unified.programs import Program
from torch_tpu_unified.tables import readable_bytes
from torch_tpu_unified.targets import check_target

Progress = Callable[[str, int, int], None]
_LATER = ("int64", "max_rank", "target", "unroll")
_LAYOUTS = ("nchw", "nhwc")
DEFAULT_SIGNATURE = "serving_default"


@dataclasses.dataclass(frozen=True)
class Report:
    """What a conversion did; `str()` gives a summary to read.

    Attributes:
        seconds: stage -> seconds.
        operators: LiteRT operator -> number of calls.
        parameters: elements of all constants.
        size: of the file in bytes.
        signatures: name -> (input names, output names).
        verified: signature -> the comparison with PyTorch; empty when it was not asked for. Of a
            quantised file it tells similarity, which decides nothing.
        quantized: signature -> mode, samples, what stayed in float32, warnings; empty in float32.
        edgetpu: what an Edge TPU would run, of a file for it.
    """

    seconds: dict[str, float]
    operators: dict[str, int]
    parameters: int
    size: int
    signatures: dict[str, tuple[list[str], list[str]]]
    verified: dict[str, Agreement | Closeness]
    quantized: dict[str, Any] = dataclasses.field(default_factory=dict)
    edgetpu: OnChip | None = None

    @property
    def ok(self) -> bool:
        """Whether every output that was compared agrees."""
        return all(a.ok for a in self.verified.values())

    def __str__(self) -> str:
        count = sum(self.operators.values())
        lines = [
            f"{readable_bytes(self.size)}, {self.parameters:,} parameters, {count} operators: "
            + ", ".join(f"{op} {n}" for op, n in sorted(self.operators.items()))
        ]
        for name, told in self.quantized.items():
            left = ", ".join(f"{code} ({made})" for code, made in told.float_ops) or "nothing"
            samples = f", {told.samples} calibration samples" if told.samples else ""
            lines.append(f"{name}: {told.mode}{samples}; left in float32: {left}")
            lines += [f"  warning: {text}" for text in told.warnings]
        for name, table in self.verified.items():
            quantised = isinstance(table, Closeness) and self.quantized[name].samples
            on = "the first calibration sample" if quantised else "the example inputs"
            lines.append(f"{name}: LiteRT beside PyTorch on {on}")
            lines.append(str(table))
        if not self.verified:
            lines.append("not verified")
        if self.edgetpu is not None:
            lines.append(str(self.edgetpu))
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain["signatures"] = {
            k: {"inputs": i, "outputs": o} for k, (i, o) in self.signatures.items()
        }
        plain["quantized"] = {k: dataclasses.asdict(q) for k, q in self.quantized.items()}
        plain["edgetpu"] = self.edgetpu and self.edgetpu.as_json()
        plain["verified"] = {k: a.as_json() for k, a in self.verified.items()}
        return plain


@dataclasses.dataclass(frozen=True)
class Converted:
    """A finished model: `model` is the file's content, `report` what was done."""

    model: bytes | bytearray
    report: Report

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file by an atomic rename; returns its real path.

        Raises:
            InputError: the folder is missing or not writable.
            WriteError: the disk is full; an older file survives.
        """
        return files.write(path, self.model)

    def __repr__(self) -> str:
        return f"Converted({readable_bytes(len(self.model))}, {', '.join(self.report.signatures)})"


def convert(
    module_or_program: torch.nn.Module | ExportedProgram | Program | None = None,
    args: Sequence[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    *,
    to: str = "litert",
    dynamic_shapes: Any = None,
    quantize: Any = None,
    calibration: Any = None,
    signatures: Mapping[str, Any] | None = None,
    io_layout: str = "nchw",
    verify: bool = True,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    lowerings: Mapping[Any, Callable[..., Any]] | None = None,
    progress: Progress | None = None,
    **later: Any,
) -> Any:
    """Convert a PyTorch model to a LiteRT file, or to a program for XLA.

    A module in training mode or on another device is exported in eval mode on the CPU; it is left
    as it is. Shapes are those of the example inputs where `dynamic_shapes` leaves none open.

    Args:
        module_or_program: an nn.Module, or an ExportedProgram.
        args, kwargs: example inputs of the module, tensors of the shapes and dtypes to deploy; an
            ExportedProgram has its own.
        to: `litert`, which gives a `Converted`; `edgetpu`, the same in int8 and in operators that
            the Edge TPU's compiler maps, with its verdict in the report; or `stablehlo` or `tpu`,
            which give an `XlaProgram` and take the options of `xla_targets.convert`: `topology`,
            `shard`, `train`, `text`, `stablehlo_version`.
        dynamic_shapes: sizes that callers of the file may choose, as torch.export takes it; the
            example's are the default ones. The file is verified at three choices of sizes.
        quantize: `int8`, `int16x8`, `int8-dynamic`, `int8-weight`, `int4-weight`, `float16`, or a
            `litert_export.quantize.QuantConfig`; None: float32.
        calibration: for the first two: an iterable of argument tuples (or of dicts of keyword
            arguments) like the inputs that the model will see; with `signatures` a mapping of their
            names to such.
        signatures: instead of all three: name -> (module, args), (module, args, kwargs) or an
            ExportedProgram; one file with several entries, equal weights stored once.
        io_layout: `nchw` keeps the shapes of the PyTorch model; `nhwc` makes rank-4 inputs and
            outputs channels-last.
        verify: run the file in the LiteRT interpreter beside PyTorch on the example inputs, a
            calibrated file on its first sample.
        input_names, output_names: names in the file's signature; default: those of `forward`'s
            parameters, and the keys of a dict result or `output`, `output_0`, `output_1`, ….
        lowerings: operator overload -> function, for operators of your own.
        progress: called with (stage, its number, count of stages) as each stage starts.

    Raises:
        OptionError: inputs are missing, or an option is wrong.
        InputError: the model fails on the inputs in PyTorch itself.
        ConversionError: torch.export cannot trace it, or LiteRT cannot express it.
        LoweringError: operators have no lowering; all of them are listed.
        VerificationError: the file's outputs are not PyTorch's.
        NotYetAvailable: another `to`.
    """
    if to in ("stablehlo", "tpu"):
        litert = (dynamic_shapes, quantize, calibration, signatures, input_names, output_names)
        if any(x is not None for x in (*litert, lowerings)) or io_layout != "nchw":
            raise OptionError(f"an option of the LiteRT target was given with to={to!r}")
        from torch_tpu_unified import xla_targets

        return xla_targets.convert(
            to, module_or_program, args, kwargs, verify=verify, progress=progress, **later
        )
    _check_options(to, io_layout, later)
    start = time.perf_counter()
    if progress:
        progress("export", 0, 0)
    found = _programs(module_or_program, args, kwargs, dynamic_shapes, signatures)
    seconds = {"export": time.perf_counter() - start}
    return convert_programs(
        found,
        to=to,
        io_layout=io_layout,
        quantize=quantize,
        calibration=calibration,
        verify=verify,
        seconds=seconds,
        progress=progress,
        input_names=input_names,
        output_names=output_names,
        lowerings=lowerings,
    )


def _programs(
    given: Any,
    args: Sequence[Any] | None,
    kwargs: dict[str, Any] | None,
    dynamic_shapes: Any,
    signatures: Mapping[str, Any] | None,
) -> dict[str, Program]:
    """The programs that `convert` is asked for, by signature."""
    if signatures is None:
        if given is None:
            raise OptionError("give a module and args, an ExportedProgram, or signatures")
        return {DEFAULT_SIGNATURE: as_program(given, args, kwargs, dynamic_shapes)}
    if dynamic_shapes is not None:
        raise OptionError(
            "dynamic_shapes goes with one module; export those of signatures yourself"
        )
    if given is not None or args is not None or kwargs:
        raise OptionError("give either a module with its inputs, or signatures")
    return {name: _signature(name, program) for name, program in signatures.items()}


def _check_options(to: str, io_layout: str, later: Mapping[str, Any]) -> None:
    check_target(to)
    if to == "tpu-cache":
        raise OptionError("tpu-cache makes no file; call torch_tpu_unified.xla_targets.warm_cache")
    if io_layout not in _LAYOUTS:
        raise OptionError(f"io_layout={io_layout!r} is unknown; one of {', '.join(_LAYOUTS)}")
    for name in later:
        if name not in _LATER:
            raise TypeError(f"convert() got an unexpected keyword argument {name!r}")
        raise NotYetAvailable(f"convert({name}=...) is not available yet; leave it out")


def as_program(
    given: Any,
    args: Sequence[Any] | None,
    kwargs: dict[str, Any] | None,
    dynamic_shapes: Any = None,
) -> Program:
    """A module or an ExportedProgram with example inputs as a `Program`.

    Raises:
        OptionError: it is neither, or a program that was exported already gets `dynamic_shapes`.
    """
    if isinstance(given, torch.nn.Module) and not isinstance(given, ExportedProgram):
        return programs.from_module(given, args, kwargs, dynamic_shapes=dynamic_shapes)
    if dynamic_shapes is not None and isinstance(given, (Program, ExportedProgram)):
        raise OptionError("dynamic_shapes goes with a module; export the program with it instead")
    if isinstance(given, Program):
        return given
    if isinstance(given, ExportedProgram):
        return programs.from_exported(given, args, kwargs)
    raise OptionError(
        f"a {type(given).__name__} cannot be converted; give an nn.Module with example inputs, or "
        "an ExportedProgram"
    )


def _signature(name: str, given: Any) -> Program:
    if isinstance(given, tuple) and 2 <= len(given) <= 3:
        module, args, kwargs = (*given, None)[:3]
        return as_program(module, args, kwargs)
    if isinstance(given, (ExportedProgram, Program)):
        return as_program(given, None, None)
    raise OptionError(f"signature {name!r}: give (module, args), or an ExportedProgram")


def convert_programs(
    found: Mapping[str, Program],
    *,
    to: str = "litert",
    io_layout: str = "nchw",
    quantize: Any = None,
    calibration: Any = None,
    allow_float: bool = False,
    verify: bool = True,
    seconds: dict[str, float] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Converted:
    """Convert programs, one signature each; as `convert`, which prepares them."""
    import litert_export

    if to == "edgetpu":
        quantize = _for_edgetpu(found, quantize, allow_float)
    if calibration is not None and quantize is None:
        raise OptionError("calibration without quantize has no use; give quantize='int8'")
    samples = calibrating.of_programs(found, calibration) if calibration is not None else {}
    if len(found) == 1 and not options.get("input_names"):
        options["input_names"] = next(iter(found.values())).input_names
    made = litert_export.export(
        {name: p.exported for name, p in found.items()},
        io_layout=io_layout,
        quantize=quantize,
        calibration={
            name: [calibrating.arrays(p, io_layout) for p in given]
            for name, given in samples.items()
        },
        progress=progress,
        **options,
    )
    seconds = {**(seconds or {}), **made.report.seconds}
    verified: dict[str, Agreement | Closeness] = {}
    if verify:
        start = time.perf_counter()
        if progress:
            progress("verify", 0, 0)
        for name, program in found.items():
            outputs = made.report.signatures[name][1]
            judge = compare_with_file if quantize is None else closeness.of_file
            # Example inputs may be random numbers, outside the ranges that calibration saw.
            shown = samples[name][0] if samples.get(name) else program
            verified[name] = judge(shown, made.model, name, outputs, io_layout)
        seconds["verify"] = time.perf_counter() - start
    report = Report(
        seconds,
        dict(made.report.ops),
        made.report.parameters,
        len(made.model),
        dict(made.report.signatures),
        verified,
        dict(made.report.quantized),
        edgetpu.of_graphs(made.graphs) if to == "edgetpu" else None,
    )
    _refuse(verified)
    return Converted(made.model, report)


def _refuse(verified: Mapping[str, Agreement | Closeness]) -> None:
    for name, table in verified.items():
        if isinstance(table, Closeness):
            closeness.refuse(table, f"the quantised LiteRT file ({name})")
        else:
            agreement.refuse(table, f"the LiteRT file ({name})")


def _for_edgetpu(found: Mapping[str, Program], quantize: Any, allow_float: bool) -> Any:
    """The quantisation for the Edge TPU.

    Raises:
        OptionError: a mode other than int8, or sizes that are left open.
    """
    from litert_export import dynamic
    from litert_export.quantize import QuantConfig

    for name, program in found.items():
        if dynamic.symbols(program.exported):
            raise OptionError(
                f"the Edge TPU needs static shapes; {name} has open sizes (a dynamic batch or "
                "length): leave out dynamic_shapes (--dynamic)"
            )
    config = QuantConfig.of("int8" if quantize is None else quantize)
    kept = allow_float or config.allow_float
    return dataclasses.replace(config, target="edgetpu", allow_float=kept)


def compare_with_file(
    program: Program,
    model: bytes | bytearray | str | os.PathLike[str],
    signature: str | None,
    names: Sequence[str],
    io_layout: str = "nchw",
) -> Agreement:
    """Run a file on the program's example inputs and compare it with eager PyTorch.

    Where the program leaves sizes open, at two more choices of them as well: the least ones, and
    some that nothing was made for.

    Raises:
        VerificationError: the interpreter fails, or outputs have other shapes or dtypes.
    """
    from litert_export import dynamic

    tables = [_compare(program, model, signature, names, io_layout)]
    for shapes in dynamic.trials(program.exported):
        table = _compare(program.resized(shapes), model, signature, names, io_layout)
        where = " ".join("x".join(map(str, s)) for s in shapes)
        tables.append(agreement.labelled(table, f"at {where}"))
    return agreement.together(tables)


def _compare(
    program: Program,
    model: bytes | bytearray | str | os.PathLike[str],
    signature: str | None,
    names: Sequence[str],
    io_layout: str,
) -> Agreement:
    """`compare_with_file` at the sizes of the program's inputs alone."""
    from litert_export import verify
    from torch_tpu_unified.core.errors import InputError

    inputs = [agreement.to_numpy(t) for t in program.flat_inputs()]
    if io_layout == "nhwc":
        inputs = [x.transpose(0, 2, 3, 1) if x.ndim == 4 else x for x in inputs]
    try:
        found = verify.run(model, inputs, signature)
    except InputError as error:
        raise VerificationError(
            f"LiteRT cannot run the file on the example inputs: {error}"
        ) from error
    if io_layout == "nhwc":
        found = [x.transpose(0, 3, 1, 2) if x.ndim == 4 else x for x in found]
    wide = (lambda: program.reference(torch.float64)) if program.module is not None else None
    return agreement.judge(found, program.reference(), names, wide=wide)
