"""`tpu-convert`: the options, and nothing heavier than click.

The work is in `convert.py`, imported when there is something to do, so that `--help` and a misspelt
option answer at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click
from torch_tpu_unified.cli import failures

from torch_tpu_unified import __version__
from torch_tpu_unified.targets import XLA, check_target

EPILOG = """\b
Examples:
  tpu-convert model.pt2 -o model.tflite
  tpu-convert nets.py:make_resnet --input 1x3x224x224 -o resnet.tflite
  tpu-convert my.package:llm --input ids=int64[1,16]:0..31999 --parity
  tpu-convert model.pt2 --to tpu --topology v6e:2x4
  tpu-convert module.pt --trust-pickle --input float32[1,3,224,224]
  tpu-convert model.pt2 --quantize int8 --calibration images/
  tpu-convert model.pt2 --to edgetpu --calibration images/
  tpu-convert check model.tflite --target edgetpu --require-mapped 95

\b
Exit codes: 0 done, 1 failed, 2 the command line is wrong.
TTU_DEBUG=1 shows tracebacks; TTU_DUMP=folder writes the graph after each stage."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.argument("source")
@click.option("--to", default="litert", show_default=True, metavar="TARGET", help="What to make.")
@click.option("-o", "--output", metavar="FILE", help="The file to write; default: SOURCE.tflite.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="SPEC",
    help="An example input, in order: float32[1,3,224,224], ids=int64[1,16]:0..999 or 1x3x224x224.",
)
@click.option(
    "--dynamic",
    "dynamic",
    multiple=True,
    metavar="NAME=AXIS",
    help="A size that callers choose: batch=0, length=ids.1, or length=1@2..512 with its range.",
)
@click.option(
    "--verify/--no-verify",
    default=True,
    show_default=True,
    help="Run the file beside PyTorch; fail when they differ.",
)
@click.option(
    "--parity",
    is_flag=True,
    help="Compare CPU PyTorch, tpu eager and compiled, and LiteRT; name the first differing node.",
)
@click.option(
    "--io-layout",
    type=click.Choice(["nchw", "nhwc"]),
    default="nchw",
    show_default=True,
    help="Of rank-4 inputs and outputs of the file.",
)
@click.option("--input-name", "input_names", multiple=True, help="Name of an input, in order.")
@click.option("--output-name", "output_names", multiple=True, help="Name of an output, in order.")
@click.option(
    "--trust-pickle",
    is_flag=True,
    help="Unpickle SOURCE, which can run any code in it.",
)
@click.option("--seed", default=0, show_default=True, help="Of the random example inputs.")
@click.option("--topology", metavar="NAME", help="Of the target tpu, such as v6e:2x4.")
@click.option(
    "--shard",
    type=click.Choice(["none", "batch", "weights"]),
    default="none",
    show_default=True,
    help="Of the target tpu: what is spread over the devices; weights: the batch as well.",
)
@click.option("--train", is_flag=True, help="SOURCE gives a loss: add the gradients (XLA targets).")
@click.option("--stablehlo-version", metavar="X.Y.Z", help="That shall read -o FILE.mlirbc.")
@click.option(
    "--quantize",
    metavar="MODE",
    help="int8, int16x8 (with --calibration), int8-dynamic, int8-weight, int4-weight, float16.",
)
@click.option(
    "--calibration",
    "--calib",
    metavar="SAMPLES",
    help="A folder of .npy, .npz or image files, a .npz file, or file.py:callable.",
)
@click.option("--observer", metavar="NAME", help="Of ranges: minmax (default), percentile, mse.")
@click.option(
    "--inference-type",
    metavar="TYPE",
    help="Of a quantised file's inputs and outputs: int8, uint8, int16 or float; or INPUT,OUTPUT.",
)
@click.option(
    "--float-layer",
    "float_layers",
    multiple=True,
    metavar="PATTERN",
    help="Layers that stay in float32, by name, such as '*softmax*'.",
)
@click.option("--allow-float", is_flag=True, help="Let operators without integer form be float32.")
@click.option(
    "--require-mapped",
    type=float,
    metavar="PERCENT",
    help="Of the target edgetpu: fail, and write nothing, when fewer operators are mapped.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.version_option(__version__, prog_name="tpu-convert")
def command(**options: Any) -> None:
    """Convert a PyTorch model to a LiteRT file, or to a program for XLA.

    SOURCE is a .pt2 file of torch.export.save, package.module:factory or file.py:factory (a
    function that gives an nn.Module, or a tuple of it with its example inputs), a TorchScript .pt,
    or a pickled nn.Module with --trust-pickle.

    TARGET is litert; edgetpu (in int8, in operators that its compiler maps); stablehlo (text, or
    portable bytecode as FILE.mlirbc); tpu (an executable and a report for --topology, without a
    TPU); or tpu-cache (compiled programs on disk).

    About LiteRT files: tpu-convert inspect FILE [--profile], tpu-convert diff FIRST SECOND, and
    tpu-convert check FILE --target edgetpu.
    """
    check_target(options["to"])
    from torch_tpu_unified.cli import convert_xla

    if options["to"] in XLA:
        convert_xla.run(options)
        return
    convert_xla.refuse_foreign(options)
    for name in ("topology", "shard", "train", "stablehlo_version"):
        options.pop(name)
    from torch_tpu_unified.cli import convert

    convert.run(convert.Request.from_options(options))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and leave with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    with failures.reported(as_json="--json" in given):
        if given[:1] and given[0] in ("check", "inspect", "diff"):
            from torch_tpu_unified.cli import check, inspect

            about = {"check": check.command, "inspect": inspect.inspect, "diff": inspect.diff}
            name = f"tpu-convert {given[0]}"
            result = about[given[0]].main(given[1:], prog_name=name, standalone_mode=False)
            sys.exit(result if isinstance(result, int) else 0)
        result = command.main(given, prog_name="tpu-convert", standalone_mode=False)
        sys.exit(result if isinstance(result, int) else 0)


if __name__ == "__main__":
    main()
