"""`tpu-doctor ops`: every ATen overload and how it runs, as a table, JSON, or a page."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torch_tpu_unified import files
from torch_tpu_unified.core.errors import InputError, OptionError
from torch_tpu_unified.tables import text_table

if TYPE_CHECKING:
    from cloud_backend.catalog import Resolution

Measured = dict[str, dict[str, bool]]  # packet -> dtype -> whether all of its samples agreed


@dataclasses.dataclass(frozen=True)
class Request:
    """The options of the command."""

    pattern: str = ""
    way: str | None = None
    conformance: str | None = None
    markdown: str | None = None
    as_json: bool = False

    def chosen(self, rows: Iterable[Resolution], ways: Iterable[str]) -> list[Resolution]:
        """The rows that the command asks for.

        Raises:
            OptionError: no such way, or the pattern is no regular expression.
        """
        if self.way is not None and self.way not in ways:
            raise OptionError(f"--way {self.way!r} is not one of {', '.join(ways)}")
        try:
            wanted = re.compile(self.pattern)
        except re.error as error:
            raise OptionError(f"{self.pattern!r} is no regular expression: {error}") from error
        return [r for r in rows if wanted.search(r.op) and self.way in (None, r.way)]


def run(request: Request) -> None:
    """Print the operators, or write the page."""
    from cloud_backend import catalog

    measured = conformance(Path(request.conformance)) if request.conformance else {}
    everything = catalog.catalog()
    rows = request.chosen(everything, catalog.WAYS)
    if request.markdown:
        path = Path(request.markdown)
        files.check_writable(path)
        path.write_text(page(everything, measured), encoding="utf-8")
    elif request.as_json:
        told = [{**dataclasses.asdict(r), "conformance": _measured(r, measured)} for r in rows]
        click.echo(json.dumps({"ok": True, "counts": catalog.counts(rows), "operators": told}))
    else:
        text = table(rows, measured)
        if sys.stdout.isatty():
            width = shutil.get_terminal_size().columns
            text = "\n".join(line[:width] for line in text.splitlines())
        click.echo(text)
        click.echo(f"\n{summary(rows)}")


def conformance(path: Path) -> Measured:
    """Results of PyTorch's operator database: lines with `op`, `dtype` and `passes`.

    Raises:
        InputError: the file is absent or not of that form.
    """
    found: Measured = {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            told = json.loads(line)
            if "passes" not in told:
                continue
            forward = told["passes"].get("forward", {})
            if forward.get("total"):
                packet = _packet(told["op"])
                ok = forward["pass"] == forward["total"]
                dtypes = found.setdefault(packet, {})
                dtypes[told["dtype"]] = ok and dtypes.get(told["dtype"], True)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} holds no results as JSON lines: {error}") from error
    return found


def _packet(name: str) -> str:
    """The ATen name of a database entry: `nn.functional.gelu`, `linalg.det`, `max.binary`."""
    name = name.removeprefix("nn.functional.").removeprefix("_refs.")
    first, _, rest = name.partition(".")
    if first in ("linalg", "fft", "special"):
        return f"{first}_{rest.partition('.')[0]}"
    return first


def _measured(row: Resolution, measured: Measured) -> dict[str, bool]:
    return measured.get(row.op.partition(".")[0], {})


def _shown(row: Resolution, measured: Measured) -> str:
    from torch_tpu_unified.core.schema import short_dtype

    found = _measured(row, measured)
    return " ".join(("" if ok else "!") + short_dtype(d) for d, ok in sorted(found.items()))


BACKWARD = {"no": "-", "not differentiable": "-", "through its parts": "parts"}
HEADERS = ("operator", "runs", "by", "backward", "traits")


def _cells(row: Resolution) -> tuple[str, ...]:
    backward = BACKWARD.get(row.backward, row.backward)
    return (row.op, row.way, row.via or row.group, backward, ", ".join(row.traits))


def table(rows: Sequence[Resolution], measured: Measured) -> str:
    """All rows as text; a column more when there are results."""
    headers = (*HEADERS, "conformance") if measured else HEADERS
    extra = [(_shown(r, measured),) if measured else () for r in rows]
    return text_table(headers, [_cells(r) + e for r, e in zip(rows, extra, strict=True)])


def summary(rows: Sequence[Resolution]) -> str:
    """How many run which way, and to whom the foreign ones belong."""
    from cloud_backend.catalog import WAYS, counts

    lines = [(way, str(count), WAYS[way]) for way, count in counts(rows).items()]
    text = text_table(("runs", "overloads", "which means"), [*lines, ("all", str(len(rows)), "")])
    groups = _groups(rows)
    if groups:
        text += "\n\n" + text_table(("foreign", "overloads"), [(g, str(n)) for g, n in groups])
    return text


def _groups(rows: Iterable[Resolution]) -> list[tuple[str, int]]:
    from cloud_backend import foreign

    names = [r.group for r in rows if r.way == "foreign"]
    return [(g, names.count(g)) for g, _, _ in foreign.GROUPS if g in names]


# ---- the page


def page(rows: Sequence[Resolution], measured: Measured) -> str:
    """The page docs/operators.md: Markdown, grouped by how operators run."""
    import torch

    from cloud_backend import catalog, foreign

    version = torch.__version__.partition("+")[0]
    found = catalog.counts(rows)
    lines = [
        "# Operators on `tpu`",
        "",
        f"Every ATen overload of PyTorch {version} ({len(rows)}) and how it runs on the device.",
        "Made by `tpu-doctor ops --markdown docs/operators.md`; `tpu-doctor ops NAME` answers the",
        "same for the PyTorch that is installed.",
        "",
        *_rows(
            ("runs", "overloads", "which means"),
            [(w, n, catalog.WAYS[w]) for w, n in found.items()],
        ),
        "",
        "`backward`: yes, PyTorch has a formula and all it calls runs; parts, through the",
        "operators that it is composed of; -, PyTorch does not differentiate it (no `out=` form).",
        "",
    ]
    for way in catalog.WAYS:
        chosen = [r for r in rows if r.way == way]
        if way == "foreign":
            lines += ["## foreign", "", *_foreign(chosen, foreign.GROUPS)]
        elif chosen:
            lines += [f"## {way}", "", *_listed(chosen, measured), ""]
    return "\n".join(lines).rstrip() + "\n"


def _rows(headers: Sequence[Any], rows: Iterable[Sequence[Any]]) -> list[str]:
    head = ["| " + " | ".join(headers) + " |", "|" + " --- |" * len(headers)]
    return head + ["| " + " | ".join(str(c) for c in row) + " |" for row in rows]


def _listed(rows: Sequence[Resolution], measured: Measured) -> list[str]:
    """One line an operator name with all its overloads that run alike."""
    merged: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        packet, _, overload = row.op.partition(".")
        backward = BACKWARD.get(row.backward, row.backward)
        base = row.via.partition(".")[0]
        traits = ", ".join(t for t in row.traits if t not in ("out=", "in-place"))
        key = (packet, base, backward, traits, _shown(row, measured))
        merged.setdefault(key, []).append(overload or "default")
    headers = ["operator", "overloads", "by", "backward", "traits"]
    cells = [
        [f"`{packet}`", " ".join(f"`{n}`" for n in names), f"`{via}`" if via else "", *rest]
        for (packet, via, *rest), names in merged.items()
    ]
    if measured:
        headers.append("conformance")
    else:
        cells = [c[:-1] for c in cells]
    keep = [i for i, h in enumerate(headers) if h != "by" or any(c[i] for c in cells)]
    return _rows([headers[i] for i in keep], [[c[i] for i in keep] for c in cells])


def _foreign(rows: Sequence[Resolution], groups: Iterable[tuple[str, str, str]]) -> list[str]:
    lines = []
    for group, meaning, _ in groups:
        names = [f"`{r.op}`" for r in rows if r.group == group]
        if names:
            lines += [f"**{group}** ({meaning}; {len(names)}): {' '.join(names)}", ""]
    return lines
