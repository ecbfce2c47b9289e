"""Progress by stage, on stderr: a moving line in a terminal, plain lines in a log."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

from rich.console import Console

Stage = Callable[..., None]


class Stages:
    """Shows one stage at a time; a stage ends when the next begins."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("") if console.is_terminal else None
        self._name, self._start = "", 0.0

    def begin(self, name: str, done: int = 0, total: int = 0) -> None:
        """End the current stage and show the next; the same one again shows how far it is."""
        if name == self._name:
            if self._status is not None and total:
                filled = "━" * (20 * done // total)
                self._status.update(f"{name} {filled:<20} {done}/{total}")
            return
        self.end()
        self._name, self._start = name, time.perf_counter()
        if self._status is not None:
            self._status.update(f"{name} …")
            self._status.start()

    def end(self) -> None:
        """End the current stage, if there is one, and print its time."""
        if self._status is not None:
            self._status.stop()
        if self._name:
            seconds = time.perf_counter() - self._start
            self._console.print(f"  {self._name:<10} {seconds:6.2f} s", highlight=False)
        self._name = ""


@contextlib.contextmanager
def stages(quiet: bool) -> Iterator[Stage]:
    """Gives a function to call with the name of each stage as it begins.

    Called again with the same name and (done, total), it shows a bar.
    """
    if quiet:
        yield lambda name, done=0, total=0: None
        return
    shown = Stages(Console(stderr=True))
    try:
        yield shown.begin
    finally:
        shown.end()


@contextlib.contextmanager
def without_native_notes() -> Iterator[None]:
    """Leaves out the `INFO:` lines that native libraries write to stderr past Python.

    Everything else written meanwhile appears when the block ends.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            written.seek(0)
            for line in written:
                if not line.startswith(b"INFO: "):
                    os.write(2, line)
