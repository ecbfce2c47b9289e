"""`tpu-doctor model SCRIPT`: run a script and tell what it did on tpu, with its source lines."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import runpy
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torch_tpu_unified.core.errors import OptionError
from torch_tpu_unified.tables import readable_bytes, text_table

if TYPE_CHECKING:
    from cloud_backend.watch import Place, Watch

# kind of event -> title of its table
TABLES = {
    "host sync": "the host waited for values",
    "to host": "copies to the host",
    "to device": "copies to tpu",
    "fallback": "operators run on the CPU",
    "program": "programs made",
}


@dataclasses.dataclass(frozen=True)
class Request:
    """The options of the command."""

    script: str
    arguments: tuple[str, ...]
    as_json: bool
    top: int


def run(request: Request) -> None:
    """Run the script and print the report; exits with 1 when the script failed.

    Raises:
        OptionError: the script does not exist.
    """
    path = Path(request.script)
    if not path.is_file():
        raise OptionError(f"{path} does not exist; name a Python script")
    from cloud_backend import events, watch

    watched = watch.Watch()
    start = time.perf_counter()
    output = contextlib.redirect_stdout(sys.stderr) if request.as_json else contextlib.nullcontext()
    with events.observed(watched), output:
        failure = _run_script(path, request.arguments)
    seconds = time.perf_counter() - start
    if request.as_json:
        told = {"ok": not failure, "failure": failure, "seconds": round(seconds, 3)}
        click.echo(json.dumps({**told, **_as_json(watched)}, indent=2))
    else:
        click.echo(_text(watched, request, seconds))
    if failure:
        click.echo(f"error: {path} failed: {failure}", err=True)
        sys.exit(1)


def _run_script(path: Path, arguments: tuple[str, ...]) -> str:
    """Run the script as `python script` would; returns its failure in one line, or ""."""
    argv, search = sys.argv, list(sys.path)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as left:
        return "" if left.code in (None, 0) else f"exit code {left.code}"
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}".splitlines()[0]
    finally:
        sys.argv, sys.path[:] = argv, search
    return ""


def _text(watched: Watch, request: Request, seconds: float) -> str:
    parts = [f"{request.script} on tpu: {seconds:.1f} s\n\n{_overview(watched, seconds)}"]
    operators = watched.totals("operator")
    rows: list[tuple[str, ...]] = [
        (name, str(n), *_at(place)) for name, (n, place) in operators.items()
    ]
    parts.append(_table("operators", ("operator", "calls", "mostly at", "line"), rows, request.top))
    for kind, title in TABLES.items():
        found = watched.rows(kind)
        rows = [
            (name, str(n), readable_bytes(size) if size else "", *_at(place))
            for name, n, size, place in found
        ]
        headers: tuple[str, ...] = ("what", "times", "bytes", "at", "line")
        if not any(r[2] for r in rows):
            headers, rows = _without(2, headers), [_without(2, r) for r in rows]
        parts.append(_table(title, headers, rows, request.top))
    rows = [(name, reason, *_at(place)) for name, reason, place in watched.reasons]
    parts.append(_table("recompiles", ("what", "reason", "at", "line"), rows, request.top))
    text = "\n\n".join(p for p in parts if p)
    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(line[:width] for line in text.splitlines())


def _without(position: int, row: tuple[str, ...]) -> tuple[str, ...]:
    return row[:position] + row[position + 1 :]


def _overview(watched: Watch, seconds: float) -> str:
    kinds = ("operator", *TABLES, "recompile")
    numbers = {k: sum(n for (kind, _, _), n in watched.counts.items() if kind == k) for k in kinds}
    late = sum(at > seconds / 2 for at in watched.programs_at)
    rows = [
        (
            "operator calls",
            str(numbers["operator"]),
            f"{len(watched.totals('operator'))} operators",
        ),
        ("waits for values", str(numbers["host sync"]), ""),
        ("copies to tpu", str(numbers["to device"]), _bytes(watched, "to device")),
        ("copies to the host", str(numbers["to host"]), _bytes(watched, "to host")),
        ("operators on the CPU", str(numbers["fallback"]), ""),
        ("programs made", str(len(watched.programs_at)), f"{late} in the second half of the time"),
        ("recompiles", str(numbers["recompile"]), ""),
    ]
    return text_table(("what", "count", ""), rows, indent="  ")


def _bytes(watched: Watch, kind: str) -> str:
    return readable_bytes(sum(n for (k, _), n in watched.nbytes.items() if k == kind))


def _at(place: Place) -> tuple[str, str]:
    if not place.file:
        return str(place), ""
    name = os.path.relpath(place.file)
    name = place.file if name.startswith("..") else name
    return f"{name}:{place.line}", place.code[:60]


def _table(title: str, headers: tuple[str, ...], rows: list[tuple[str, ...]], top: int) -> str:
    if not rows:
        return ""
    more = f"\n  and {len(rows) - top} more (--top)" if len(rows) > top else ""
    return f"{title}\n{text_table(headers, rows[:top], indent='  ')}{more}"


def _as_json(watched: Watch) -> dict[str, Any]:
    def place(p: Place) -> dict[str, Any] | None:
        return {"file": p.file, "line": p.line, "code": p.code} if p.file else None

    told: dict[str, Any] = {
        "operators": [
            {"name": name, "calls": count, "mostly_at": place(p)}
            for name, (count, p) in watched.totals("operator").items()
        ],
        "recompiles": [
            {"name": name, "reason": reason, "at": place(p)} for name, reason, p in watched.reasons
        ],
    }
    for kind in TABLES:
        told[kind.replace(" ", "_")] = [
            {"name": name, "times": n, "bytes": size, "at": place(p)}
            for name, n, size, p in watched.rows(kind)
        ]
    return told
