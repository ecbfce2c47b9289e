"""What `tpu-convert SOURCE --to stablehlo|tpu|tpu-cache` does."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from torch_tpu_unified.cli.progress import stages, without_native_notes

from torch_tpu_unified import factories, files, inputspec
from torch_tpu_unified.core.errors import OptionError
from torch_tpu_unified.targets import FILES

_SUFFIX = {"stablehlo": ".mlir", "tpu": ".tpu"}
# Options of the LiteRT target, and what they hold when they are not given.
_LITERT = {
    "parity": False,
    "io_layout": "nchw",
    "input_names": (),
    "output_names": (),
    "quantize": None,
    "calibration": None,
    "observer": None,
    "inference_type": None,
    "float_layers": (),
    "allow_float": False,
    "require_mapped": None,
}
_OURS = {"topology": None, "shard": "none", "train": False, "stablehlo_version": None}


def refuse_foreign(options: Mapping[str, Any]) -> None:
    """Refuse options that belong to another target.

    Raises:
        OptionError: names the first one.
    """
    litert = options["to"] in FILES
    for name, default in (_OURS if litert else _LITERT).items():
        if options[name] != default:
            target = "stablehlo and tpu" if litert else "litert"
            raise OptionError(
                f"--{name.replace('_', '-').removesuffix('s')} belongs to the target {target}"
            )


def run(options: Mapping[str, Any]) -> None:
    """Convert, write the file and print the report; a failure raises and writes nothing."""
    refuse_foreign(options)
    silent = options["quiet"] or options["as_json"]
    output = _output(options)
    # libtpu writes notes of its own past Python.
    notes, redirected = without_native_notes(), contextlib.redirect_stdout(sys.stderr)
    with stages(silent) as stage, notes, redirected:
        told, text = _work(options, output, stage)
    if options["as_json"]:
        click.echo(json.dumps(told, indent=2))
    elif not options["quiet"]:
        click.echo(text)


def _output(options: Mapping[str, Any]) -> Path | None:
    if options["to"] == "tpu-cache":
        if options["output"]:
            raise OptionError("the target tpu-cache writes no file; leave -o out")
        return None
    source = options["source"]
    factory = factories.split(source)
    stem = factory[1].rpartition(".")[2] if factory else Path(source).stem
    output = Path(options["output"] or stem + _SUFFIX[options["to"]])
    files.check_writable(output)
    return output


def _work(options: Mapping[str, Any], output: Path | None, stage: Any) -> tuple[Any, str]:
    stage("load")
    from torch_tpu_unified import programs, xla_targets

    specs = tuple(inputspec.parse(text) for text in options["inputs"])
    program = programs.load_program(
        options["source"], specs, trust_pickle=options["trust_pickle"], seed=options["seed"]
    )
    told = {"ok": True, "source": options["source"]}
    if output is None:
        stage("compile")
        counts = xla_targets.warm_cache(program)
        text = f"tpu-cache: {counts['made']} programs made, {counts['found']} found"
        return {**told, **counts}, text
    made = xla_targets.convert(
        options["to"],
        program.exported if options["train"] else program,
        train=options["train"],
        text=output.suffix != ".mlirbc",
        stablehlo_version=options["stablehlo_version"],
        topology=options["topology"],
        shard=options["shard"],
        verify=options["verify"],
        progress=lambda name, number, total: stage(name),
    )
    stage("save")
    made.save(output)
    return {**told, "output": str(output), **made.as_json()}, f"{output}: {made}"
