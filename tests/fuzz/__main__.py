"""`python -m tests.fuzz --programs 20000 --seed 1`: run the fuzzer, in processes of its own.

The programs run in worker processes, one after another, so that a crash ends a batch only and is
reported with the program that it happened in. Exit code 1 when any program showed a difference.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

BATCH = 2500
# Programs of a few elements: what XLA takes to optimise them is most of the time.
QUICK_COMPILES = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def work(count: int, seed: int, trail: Path, shrink: bool) -> None:
    """In a worker: run `count` programs, one JSON line on stdout for each piece of news."""
    import torch

    import torch_tpu_unified  # noqa: F401
    from tests.fuzz.search import Found, Search

    torch.set_num_threads(1)
    with trail.open("w") as file:

        def note(line: str) -> None:
            if not line:
                file.seek(0)
                file.truncate()
            file.write(line + "\n")
            file.flush()

        search, told = Search(note), time.monotonic()

        def tell(kind: str = "progress", **more: Any) -> None:
            counts = {"programs": search.programs, "steps": dict(search.steps)}
            counts |= {"raised": search.raised, "dropped": search.dropped}
            print(json.dumps({"kind": kind, **counts, **more}), flush=True)

        def progress() -> None:
            nonlocal told
            if time.monotonic() - told > 1:
                told = time.monotonic()
                tell()

        search.progress = progress
        failed = 0
        while search.programs < count and failed < 20:
            try:
                search.examples(count - search.programs, seed + 7919 * failed, shrink)
            except Found as e:
                failed += 1
                search.programs += 1
                tell("found", script=str(e))
        tell("done")


class Totals:
    """What all workers together have run."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.start = wanted, time.monotonic()
        self.programs = self.raised = self.dropped = 0
        self.steps: Counter[str] = Counter()
        self.found: list[str] = []
        self.shown = False

    def add(self, news: dict[str, Any]) -> None:
        """Count what a worker ran in all."""
        self.programs += news["programs"]
        self.raised += news["raised"]
        self.dropped += news["dropped"]
        self.steps.update(news["steps"])

    def bar(self, running: int) -> None:
        """The progress bar, on a terminal only."""
        if not sys.stderr.isatty():
            return
        done = self.programs + running
        seconds = time.monotonic() - self.start
        width = 30 * done // max(self.wanted, 1)
        text = f"{'#' * width:.<30} {done}/{self.wanted} {done / seconds:.1f}/s"
        print(f"\r{text}, {len(self.found)} differences", end="", file=sys.stderr, flush=True)
        self.shown = True

    def summary(self) -> str:
        """The table of what was run."""
        seconds = time.monotonic() - self.start
        rows = [f"  {kind:12} {n:8}" for kind, n in sorted(self.steps.items())]
        return "\n".join(
            [
                "steps by kind:",
                *rows,
                f"{self.programs} programs, {sum(self.steps.values())} steps in {seconds:.0f} s "
                f"({self.programs / seconds:.1f} programs/s)",
                f"{self.raised} steps raised the same error on both sides; {self.dropped} were "
                "left out (the CPU has no kernel, or the values are subnormal)",
                f"{len(self.found)} differences",
            ]
        )


def batch(totals: Totals, count: int, seed: int, shrink: bool) -> None:
    """Run one worker to its end."""
    with tempfile.TemporaryDirectory() as folder:
        trail = Path(folder) / "program"
        command = [sys.executable, "-m", "tests.fuzz", "--programs", str(count)]
        command += ["--seed", str(seed), "--worker", str(trail)]
        flags = f"{os.environ.get('XLA_FLAGS', '')} {QUICK_COMPILES}"
        env = {**os.environ, "TTU_QUIET": "1", "XLA_FLAGS": flags}
        if not shrink:
            command.append("--no-shrink")
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        last: dict[str, Any] = {"programs": 0, "steps": {}, "raised": 0, "dropped": 0}
        assert worker.stdout is not None
        for line in worker.stdout:
            if not line.startswith("{"):
                continue
            last = json.loads(line)
            if last["kind"] == "found":
                totals.found.append(last["script"])
                print(f"\n{last['script']}", flush=True)
            totals.bar(last["programs"])
        totals.add(last)
        if worker.wait() != 0 or last.get("kind") != "done":
            totals.found.append(f"a worker ended with code {worker.returncode}")
            lines = trail.read_text() if trail.exists() else ""
            print(f"\na worker ended with code {worker.returncode} in this program:\n{lines}")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--no-shrink", action="store_true", help="print programs as they were found"
    )
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        work(given.programs, given.seed, given.worker, not given.no_shrink)
        return 0
    totals = Totals(given.programs)
    left, seed = given.programs, given.seed * 1_000_003
    while left > 0 and len(totals.found) < 20:
        count = min(BATCH, left)
        batch(totals, count, seed, not given.no_shrink)
        left, seed = left - count, seed + 1
    if totals.shown:
        print(file=sys.stderr)
    print(totals.summary())
    return 1 if totals.found else 0


if __name__ == "__main__":
    sys.exit(main())
