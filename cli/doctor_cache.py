"""`tpu-doctor cache`: the compiled programs that are kept on disk."""

from __future__ import annotations

import datetime
import json
from typing import Any

import click

from torch_tpu_unified.core.errors import OptionError
from torch_tpu_unified.tables import readable_bytes, text_table


def run(action: str, as_json: bool) -> None:
    """Show, check or empty the folder of compiled programs.

    Args:
        action: `size`, `list`, `verify` (damaged entries are removed) or `clear`.
        as_json: print one JSON object.

    Raises:
        OptionError: the cache is off.
    """
    from cloud_backend import cache

    folder = cache.folder()
    if folder is None:
        raise OptionError("the cache of programs is off (TTU_CACHE=off); there is nothing to show")
    programs = cache.ProgramCache(folder)
    told: dict[str, Any] = {"ok": True, "folder": str(folder)}
    if action == "verify":
        told["damaged"] = [path.name for path in programs.remove_damaged()]
    if action == "clear":
        told["removed"] = programs.clear()
    entries = programs.entries()
    told |= {
        "entries": len(entries),
        "bytes": sum(size for _, size, _ in entries),
        "limit_bytes": programs.limit,
    }
    if action == "list":
        told["programs"] = [
            {"file": path.name, "bytes": size, "last_used": _time(used)}
            for used, size, path in reversed(entries)
        ]
    click.echo(json.dumps(told, indent=2) if as_json else _text(told))


def _time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds).isoformat(sep=" ", timespec="seconds")


def _text(told: dict[str, Any]) -> str:
    lines = []
    if "programs" in told:
        rows = [
            [p["file"].partition(".")[0][:16], readable_bytes(p["bytes"]), p["last_used"]]
            for p in told["programs"]
        ]
        lines.append(text_table(("program", "size", "last used"), rows))
    if "damaged" in told:
        lines.append(f"{len(told['damaged'])} damaged entries removed")
        lines += [f"  {name}" for name in told["damaged"]]
    if "removed" in told:
        lines.append(f"{told['removed']} entries removed")
    size, limit = readable_bytes(told["bytes"]), readable_bytes(told["limit_bytes"])
    lines.append(f"{told['folder']}: {told['entries']} programs, {size} of {limit}")
    return "\n".join(lines)
