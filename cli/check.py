"""`tpu-convert check`: what an accelerator would run of a LiteRT file, whoever wrote it."""

from __future__ import annotations

import json

import click


@click.command("check", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file")
@click.option(
    "--target", type=click.Choice(["edgetpu"]), default="edgetpu", show_default=True,
    help="The accelerator.",
)  # fmt: skip
@click.option(
    "--require-mapped", type=float, metavar="PERCENT", help="Fail when fewer operators are mapped."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def command(file: str, target: str, require_mapped: float | None, as_json: bool) -> None:
    """Say for each operator of FILE whether it runs on the Edge TPU, and why not.

    By the documented rules of the compiler, which need not be installed.
    """
    from torch_tpu_unified import edgetpu

    found = edgetpu.check_file(file)
    click.echo(json.dumps(found.as_json(), indent=2) if as_json else str(found))
    edgetpu.demand(found, require_mapped)
