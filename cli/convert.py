"""What `tpu-convert SOURCE` does: check the request, load, convert, verify, write, report.

Everything that can be refused cheaply is refused before torch is imported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from torch_tpu_unified.cli import edgetpu_compiler
from torch_tpu_unified.cli.progress import Stage, stages, without_native_notes

from torch_tpu_unified import factories, files, inputspec, opensizes, sources
from torch_tpu_unified.core.errors import OptionError
from torch_tpu_unified.inputspec import InputSpec
from torch_tpu_unified.opensizes import OpenSize
from torch_tpu_unified.targets import check_target

if TYPE_CHECKING:
    from torch_tpu_unified.conversion import Converted
    from torch_tpu_unified.parity_table import Parity


@dataclasses.dataclass(frozen=True)
class Request:
    """A checked command line."""

    to: str
    source: str
    output: Path
    inputs: tuple[InputSpec, ...]
    dynamic: tuple[OpenSize, ...]
    io_layout: str
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    verify: bool
    parity: bool
    trust_pickle: bool
    seed: int
    quantize: str | None
    calibration: str | None
    observer: str | None
    inference_type: str | None
    float_layers: tuple[str, ...]
    allow_float: bool
    require_mapped: float | None
    as_json: bool
    quiet: bool

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Request:
        """Check the options of the command.

        Raises:
            OptionError: an input is malformed, the source does not exist, or the output is it.
            InputError: the output cannot be written, or the source is no model.
            NotYetAvailable: a target of a later version.
        """
        check_target(options["to"])
        _check_quantization(options)
        source = options["source"]
        factory = factories.split(source)
        if not factory:
            sources.recognise(Path(source))
        elif factory[0].endswith(".py") and not Path(factory[0]).is_file():
            raise OptionError(f"{factory[0]} does not exist")
        default = factory[1].rpartition(".")[2] if factory else Path(source).stem
        output = Path(options["output"] or f"{default}.tflite")
        if output.exists() and not factory and output.samefile(source):
            raise OptionError(f"{output} is the source itself; name another file with -o")
        files.check_writable(output)
        return cls(
            source=source,
            output=output,
            inputs=tuple(inputspec.parse(text) for text in options["inputs"]),
            dynamic=tuple(opensizes.parse(text) for text in options["dynamic"]),
            **{
                f.name: options[f.name]
                for f in dataclasses.fields(cls)
                if f.name not in ("source", "output", "inputs", "dynamic")
            },
        )


def _check_quantization(options: Mapping[str, Any]) -> None:
    if options["to"] == "edgetpu":
        if options["calibration"] is None:
            raise OptionError(
                "--to edgetpu computes in int8, which needs --calibration: a folder, a .npz file, "
                "or file.py:callable"
            )
    elif options["require_mapped"] is not None:
        raise OptionError("--require-mapped belongs to --to edgetpu, and to tpu-convert check")
    elif options["quantize"] is None:
        for name in ("calibration", "observer", "inference_type", "float_layers", "allow_float"):
            if options[name]:
                flag = name.replace("_", "-").removesuffix("s")
                raise OptionError(f"--{flag} needs --quantize MODE")
    elif options["quantize"] in ("int8", "int16x8") and options["calibration"] is None:
        raise OptionError(
            f"--quantize {options['quantize']} needs --calibration: a folder, a .npz file, or "
            "file.py:callable"
        )


def run(request: Request) -> None:
    """Convert, write the file and print the report; a failure raises and writes nothing."""
    silent = request.quiet or request.as_json
    native = without_native_notes() if silent else contextlib.nullcontext()
    with stages(silent) as stage, native:
        # What the model's own code prints must not end up in the results.
        with contextlib.redirect_stdout(sys.stderr):
            converted, table = _work(request, stage)
        stage("save")
        written = converted.save(request.output)
    compiled = edgetpu_compiler.run(written) if request.to == "edgetpu" else None
    if request.as_json:
        told = _as_json(request, converted, table)
        if compiled is not None:
            told["compiler"] = dataclasses.asdict(compiled)
        click.echo(json.dumps(told, indent=2))
    elif not request.quiet:
        click.echo(f"{request.output}: {converted.report}")
        if compiled is not None:
            click.echo(f"{compiled.file or 'not compiled'}: {compiled.text}")
        if table is not None:
            click.echo(f"parity on the same inputs\n{table}")
    if table is not None and not table.ok:
        click.echo("error: the targets do not agree; see the table", err=True)
        sys.exit(1)


def _work(request: Request, stage: Stage) -> tuple[Converted, Parity | None]:
    stage("load")
    from torch_tpu_unified import calibration, conversion, edgetpu, parity_table, programs

    program = programs.load_program(
        request.source,
        request.inputs,
        trust_pickle=request.trust_pickle,
        seed=request.seed,
        dynamic=request.dynamic,
    )
    converted = conversion.convert_programs(
        {conversion.DEFAULT_SIGNATURE: program},
        to=request.to,
        io_layout=request.io_layout,
        verify=request.verify,
        quantize=_config(request),
        calibration=request.calibration and calibration.load(request.calibration, program),
        progress=stage,
        input_names=request.input_names or None,
        output_names=request.output_names or None,
    )
    if converted.report.edgetpu is not None:
        edgetpu.demand(converted.report.edgetpu, request.require_mapped)
    if not request.parity:
        return converted, None
    return converted, parity_table.parity(program, progress=stage)


def _config(request: Request) -> Any:
    """The quantisation that is asked for; None for float32."""
    mode = request.quantize or ("int8" if request.to == "edgetpu" else None)
    if mode is None:
        return None
    from litert_export.quantize import QuantConfig

    ends = (request.inference_type or "").replace("float32", "float").split(",")
    kinds = [None if not e else "float32" if e == "float" else e for e in (ends * 2)[:2]]
    if len(ends) > 2:
        raise OptionError(f"--inference-type {request.inference_type}: TYPE, or INPUT,OUTPUT")
    return QuantConfig(
        mode=mode,
        observer=request.observer or "minmax",
        input_type=kinds[0],
        output_type=kinds[1],
        float_layers=request.float_layers,
        allow_float=request.allow_float,
    )


def _as_json(request: Request, converted: Converted, table: Parity | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "ok": table is None or table.ok,
        "source": request.source,
        "output": str(request.output),
        "report": converted.report.as_json(),
    }
    if table is not None:
        told["parity"] = table.as_json()
    return told
