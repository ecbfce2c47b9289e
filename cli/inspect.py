"""`tpu-convert inspect` and `tpu-convert diff`: what LiteRT files hold, whoever wrote them."""

from __future__ import annotations

import functools
import json

import click
from torch_tpu_unified.cli.progress import stages, without_native_notes

_SETTINGS = {"help_option_names": ["-h", "--help"]}


@click.command("inspect", context_settings=_SETTINGS)
@click.argument("file")
@click.option("--profile", is_flag=True, help="Time the file and each operator on this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def inspect(file: str, profile: bool, as_json: bool) -> None:
    """List signatures, operators, types and sizes of FILE.

    With --profile also the time of a call on one thread, of each operator alone, and the share of
    operators that XNNPACK takes.
    """
    from torch_tpu_unified import inspection

    found = inspection.inspect(file)
    times = None
    if profile:
        with stages(as_json) as begin, without_native_notes():
            times = inspection.profile(file, progress=functools.partial(begin, "timing"))
    if as_json:
        told = found.as_json() | ({"profile": times.as_json()} if times else {})
        click.echo(json.dumps(told, indent=2))
        return
    click.echo(str(found))
    if times:
        click.echo(f"\n{times}")


@click.command("diff", context_settings=_SETTINGS)
@click.argument("first")
@click.argument("second")
@click.option("--exit-code", is_flag=True, help="Leave with 1 when something differs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def diff(first: str, second: str, exit_code: bool, as_json: bool) -> int:
    """Say what SECOND holds differently than FIRST: size, inputs, outputs, operators, types."""
    from torch_tpu_unified import filediff

    found = filediff.diff(first, second)
    click.echo(json.dumps(found.as_json(), indent=2) if as_json else str(found))
    return int(exit_code and not found.same)
