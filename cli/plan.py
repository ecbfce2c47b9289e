"""`tpu-plan`: the command and its options; the work is `torch_tpu_unified.planning`."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from typing import Any

import click
from torch_tpu_unified.cli import failures

from torch_tpu_unified import __version__

EPILOG = """\b
Examples:
  tpu-plan qwen3-8b --topology tpu7x:4x4x4
  tpu-plan qwen3-8b --topology tpu7x:4x4x4 --topology tpu7x:8x8x8 --plot scaling.png
  tpu-plan llama3-8b --topology v5p:4x4x4 --strategy fsdp --strategy fsdp,tensor=4 --batch 1
    --batch 2 --search
  tpu-plan train.py:make --topology v6e:4x4 --json

\b
Strategies, on the devices of the topology:
  data           every device holds all weights
  fsdp           weights spread over up to 256 devices, copies of that over the rest
  fsdp=N         weights spread over N devices
  fsdp,tensor=N  each matrix over N devices, and weights spread over up to 256 of the others

\b
Exit codes: 0 done, 1 failed or nothing fits, 2 the command line is wrong."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.version_option(__version__, prog_name="tpu-plan")
@click.argument("model")
@click.option(
    "--topology", "topologies", multiple=True, required=True, help="Such as tpu7x:4x4x4; repeat."
)
@click.option(
    "--strategy", "strategies", multiple=True, default=("fsdp",), help="See below; repeat."
)
@click.option(
    "--batch", "batches", multiple=True, type=int, default=(2,), help="Sequences a chip; repeat."
)
@click.option("--length", default=4096, show_default=True, help="Tokens of a sequence.")
@click.option("--inference", is_flag=True, help="The forward alone, instead of a training step.")
@click.option("--search", is_flag=True, help="Compile only what may still be the fastest.")
@click.option(
    "--beside", type=click.FloatRange(1, 100), help="A measured MFU in %: what decides the rest."
)
@click.option("--plot", metavar="FILE", help="Draw tokens a second and MFU over the chips.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="No progress.")
def command(**options: Any) -> int:
    """Tell what a step of MODEL would cost on TPU slices that need not be here.

    MODEL is a name, such as qwen3-8b, or MODULE:FACTORY or FILE.py:FACTORY: a function of the
    number of sequences that returns the module, which returns its loss, and its inputs. Weights
    may be on meta; nothing is allocated. The compiler in libtpu does the rest.
    """
    return run(**options)


def run(
    model: str, topologies: Sequence[str], plot: str | None, beside: float | None, **options: Any
) -> int:
    """Plan and print; 1 if nothing fits."""
    from torch_tpu_unified.cli.progress import without_native_notes

    from torch_tpu_unified import planning

    silent = options["quiet"] or options["as_json"]
    with contextlib.redirect_stdout(sys.stderr), without_native_notes(), _bar(silent) as progress:
        plans = planning.table(
            model,
            topologies,
            strategies=options["strategies"],
            batches=options["batches"],
            length=options["length"],
            train=not options["inference"],
            search=options["search"],
            progress=progress,
        )
    if plot is not None:
        draw(plans, plot)
    told = [_beside(p, beside) for p in plans]
    if options["as_json"]:
        rows = [
            p.as_json() | ({"beside": text} if text else {})
            for p, text in zip(plans, told, strict=True)
        ]
        click.echo(json.dumps({"ok": True, "plans": rows}))
    else:
        for p, text in zip(plans, told, strict=True):
            click.echo("\n".join([str(p), *text, ""]))
        click.echo(as_table(plans))
    return 0 if any(p.fits for p in plans) else failures.FAILED


def _beside(plan: Any, measured: float | None) -> list[str]:
    if measured is None or plan.refusal:
        return []
    from cloud_backend.pod.assumptions import beside

    return beside(plan, measured / 100)


@contextlib.contextmanager
def _bar(silent: bool) -> Any:
    if silent:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn())
    with Progress(
        *columns, TextColumn("{task.description}"), console=Console(stderr=True)
    ) as shown:
        task = shown.add_task("exporting", total=None)

        def tell(name: str, number: int, total: int) -> None:
            shown.update(task, description=name, completed=number - 1, total=total)

        yield tell


def as_table(plans: Sequence[Any]) -> str:
    """One line a plan; scaling is tokens a second a chip beside the first plan that fits.

    Both bounds: everything overlaps, and nothing does.
    """
    head = (
        "chips",
        "strategy",
        "batch/chip",
        "HBM",
        "step (overlap..none)",
        "MFU",
        "tokens/s",
        "scaling",
        "compile",
    )
    rows = [head]
    first = next((p for p in plans if p.fits), None)
    for p in plans:
        share = f"{p.needed / p.chip.hbm:.0%}" if not p.refusal else "does not fit"
        row = (str(p.chips), p.strategy, f"{p.batch / p.chips:g}", share)
        if p.refusal or first is None:
            rows.append((*row, "", "", "", "", ""))
            continue
        low, high = p.overlapped, p.serial
        rates = [p.tokens(s) / p.chips for s in (low, high)]
        base = [first.tokens(s) / first.chips for s in (first.overlapped, first.serial)]
        scaling = [r / b for r, b in zip(rates, base, strict=True)]
        rows.append(
            (
                *row,
                f"{low * 1e3:.4g}..{high * 1e3:.4g} ms",
                f"{p.mfu(low):.1%}..{p.mfu(high):.1%}",
                f"{p.tokens(low):.3g}..{p.tokens(high):.3g}",
                f"{scaling[0]:.1%}..{scaling[1]:.1%}",
                f"{p.compile_seconds:.0f} s",
            )
        )
    widths = [max(len(r[i]) for r in rows) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(r, widths, strict=True)).rstrip() for r in rows
    )


def draw(plans: Sequence[Any], file: str) -> None:
    """Tokens a second and MFU over the number of chips, between the bounds, to an image file.

    Raises:
        OptionError: matplotlib is not installed.
    """
    from torch_tpu_unified.core.errors import OptionError

    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise OptionError(
            "--plot needs matplotlib; pip install 'torch-tpu-unified[examples]'"
        ) from error
    figure = Figure(figsize=(9, 4), layout="constrained")
    speed, use = figure.subplots(1, 2)
    shown = [p for p in plans if not p.refusal]
    for strategy in dict.fromkeys(p.strategy for p in shown):
        some = sorted((p for p in shown if p.strategy == strategy), key=lambda p: p.chips)
        chips = [p.chips for p in some]
        for axis, value in ((speed, "tokens"), (use, "mfu")):
            low = [getattr(p, value)(p.serial) for p in some]
            high = [getattr(p, value)(p.overlapped) for p in some]
            axis.fill_between(chips, low, high, alpha=0.3, label=strategy)
            axis.plot(chips, high, marker="o")
    for axis, label in ((speed, "tokens a second"), (use, "MFU")):
        axis.set(xscale="log", xlabel="chips", ylabel=label)
        axis.legend(title="no to full overlap")
    speed.set(yscale="log")
    figure.savefig(file)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and leave with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    with failures.reported(as_json="--json" in given, program="tpu-plan"):
        result = command.main(given, prog_name="tpu-plan", standalone_mode=False)
        sys.exit(result if isinstance(result, int) else 0)


if __name__ == "__main__":
    main()
