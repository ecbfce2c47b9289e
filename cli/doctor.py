"""`tpu-doctor`: the commands and their options, and nothing heavier than click.

Each command's work is in a file of its own, imported when it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click
from torch_tpu_unified.cli import failures

from torch_tpu_unified import __version__

EPILOG = """\b
Examples:
  tpu-doctor env
  tpu-doctor ops softmax
  tpu-doctor ops --way missing
  tpu-doctor model train.py --epochs 1
  tpu-doctor cache list

\b
Exit codes: 0 done, 1 failed, 2 the command line is wrong."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.version_option(__version__, prog_name="tpu-doctor")
def command() -> None:
    """Tell how programs and operators run on the device tpu."""


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def env(**options: Any) -> None:
    """Versions, the device found, and the flags in force."""
    from torch_tpu_unified.cli import doctor_env

    doctor_env.run(**options)


@command.command()
@click.argument("pattern", default="")
@click.option("--way", metavar="WAY", help="Only operators that run this way, such as missing.")
@click.option(
    "--conformance",
    metavar="FILE",
    help="Results (JSON lines with op, dtype and passes) for a column of their own.",
)
@click.option("--markdown", metavar="FILE", help="Write the page docs/operators.md to FILE.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def ops(**options: Any) -> None:
    """How every ATen operator of the installed PyTorch runs on tpu.

    PATTERN is a part of the name, or a regular expression.
    """
    from torch_tpu_unified.cli import doctor_ops

    doctor_ops.run(doctor_ops.Request(**options))


@command.command()
@click.argument("action", type=click.Choice(["size", "list", "verify", "clear"]), default="size")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def cache(**options: Any) -> None:
    """The compiled programs kept on disk: their size, a list, a check, or empty the folder.

    verify reads every entry and removes the damaged ones.
    """
    from torch_tpu_unified.cli import doctor_cache

    doctor_cache.run(**options)


@command.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object after the run.")
@click.option("--top", default=30, show_default=True, help="Rows a table shows at most.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def model(**options: Any) -> None:
    """Run SCRIPT and report what it did on tpu, with source lines.

    Operators, waits for values, copies to and from the host, fallbacks, programs compiled.
    Options of tpu-doctor stand before SCRIPT; what follows it is the script's own.
    """
    from torch_tpu_unified.cli import doctor_model

    doctor_model.run(doctor_model.Request(**options))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and leave with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    with failures.reported(as_json="--json" in given, program="tpu-doctor"):
        result = command.main(given, prog_name="tpu-doctor", standalone_mode=False)
        sys.exit(result if isinstance(result, int) else 0)


if __name__ == "__main__":
    main()
