"""Compiled model families beside CPU eager: how many agree, and how many `aot_eager` compiles.

    python -m benchmarks.model_families --library transformers --json families.jsonl
    python -m benchmarks.model_families --library timm --json timm.jsonl --count 60
    python -m benchmarks.model_families --library transformers --only vision/convnext,text/llama

The architectures are those that the library lists, in an order that depends on their names' hashes
alone, until `--count` of each group are judged; those without a reference (the rules make no small
configuration or no inputs, or the results are random) are told apart. Each runs in a process of
its own (`worker.py`). A file that exists is continued: what it lacks is judged and added.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import importlib
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.model_families.judge import FORWARD, GRADIENT, KINDS
from benchmarks.model_families.worker import LIBRARIES, in_process


def in_order(names: list[str]) -> list[str]:
    """Names in an order that nobody chose."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())


def table(rows: list[dict[str, Any]]) -> str:
    """Counts per group, and the errors."""
    groups = collections.defaultdict(list)
    for row in rows:
        groups[row["group"]].append(row)
    lines = [f"{'group':<12}{'judged':>8}" + "".join(f"{k:>22}" for k in KINDS) + "   not judged"]
    for group, members in [*groups.items(), ("all", rows)]:
        judged = [m for m in members if "not judged" not in m]
        counts = [sum(m.get(k) == "ok" for m in judged) for k in KINDS]
        lines.append(
            f"{group:<12}{len(judged):>8}"
            + "".join(f"{f'{c} ({c / max(1, len(judged)):.1%})':>22}" for c in counts)
            + f"   {len(members) - len(judged)}"
        )
    for row in rows:
        for kind in KINDS:
            if row.get(kind, "ok") != "ok":
                lines.append(f"{row['group']}/{row['name']}: {kind}: {row[kind]}")
    lines.append(f"\ntolerances: results {FORWARD:.0e}, loss and gradients {GRADIENT:.0e} of a ")
    lines[-1] += "tensor's largest value; counted as ok beyond that:"
    for row in rows:
        for kind, why in row.get("leave", {}).items():
            lines.append(f"{row['group']}/{row['name']}: {kind}: {row['errors'][kind]:.1e}, {why}")
    return "\n".join(lines)


def read(path: Path | None) -> dict[tuple[str, str], dict[str, Any]]:
    """The results of a file by group and name; a later line adds to an earlier one."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for text in path.read_text().splitlines() if path and path.exists() else ():
        add(rows, json.loads(text))
    return rows


def add(rows: dict[tuple[str, str], dict[str, Any]], row: dict[str, Any]) -> None:
    """Add a result to those that are known."""
    known = rows.setdefault((row["group"], row["name"]), {})
    for key, value in row.items():
        known[key] = {**known.get(key, {}), **value} if isinstance(value, dict) else value


def walk(options: Any) -> list[dict[str, Any]]:
    """Judge the architectures; each result is told and appended to the file as it comes."""
    module = importlib.import_module(LIBRARIES[options.library])
    kinds = tuple(k for k in KINDS if not (options.no_peer and k.startswith("aot_eager")))
    path = Path(options.json) if options.json else None
    rows = read(path)
    if options.only:
        wanted = [tuple(x.split("/", 1)) for x in options.only.split(",")]
    else:
        wanted = [(g, n) for g in module.GROUPS for n in in_order(module.architectures(g))]
    for group, name in wanted:
        known = rows.get((group, name), {})
        left = tuple(k for k in kinds if k not in known)
        judged = sum(g == group and "not judged" not in r for (g, _), r in rows.items())
        if "not judged" in known or not left:
            continue
        if not known and judged >= options.count and not options.only:
            continue
        start = time.perf_counter()
        found = in_process(options.library, group, name, left, options.limit)
        row = {"group": group, "name": name, "took": round(time.perf_counter() - start, 1), **found}
        add(rows, row)
        what = row.get("not judged") or " ".join(
            "ok" if row.get(k) == "ok" else "-" if k not in row else "FAIL" for k in KINDS
        )
        print(f"{group}/{name}  {row['took']} s  {what[:200]}", flush=True)
        if path:
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
    return list(rows.values())


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", choices=sorted(LIBRARIES), required=True)
    parser.add_argument("--json", help="a file of one result a line; continued if it exists")
    parser.add_argument("--count", type=int, default=20, help="how many of each group are judged")
    parser.add_argument("--limit", type=int, default=200, help="processor seconds for each")
    parser.add_argument("--only", default="", help="group/name,group/name")
    parser.add_argument(
        "--no-peer", action="store_true", help="leave aot_eager out; a later run adds it"
    )
    print(table(walk(parser.parse_args())))


if __name__ == "__main__":
    main()
