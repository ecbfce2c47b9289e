"""Writes down what a program does on the device, by operator and by line of the user's source."""

from __future__ import annotations

import collections
import dataclasses
import linecache
import os
import sys
import sysconfig
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from cloud_backend import events

_HERE = Path(__file__).resolve().parents[1]
# Lines of these say nothing to a user; what is installed beside them (a model library) may.
_INNER = tuple(
    str(path) + os.sep
    for path in (
        Path(torch.__file__).parent,
        *(_HERE / name for name in ("cloud_backend", "torch_tpu_unified", "cli", "litert_export")),
    )
)
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
_PACKAGES = sysconfig.get_paths()["purelib"] + os.sep


@dataclasses.dataclass(frozen=True)
class Place:
    """A line of the user's program."""

    file: str
    line: int

    @property
    def code(self) -> str:
        """The text of the line."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "outside the program's own lines"


NOWHERE = Place("", 0)


class Watch:
    """Collects events; pass it to `events.observed`.

    Attributes:
        counts: (kind, name, place) -> how often.
        nbytes: (kind, place) -> bytes copied.
        reasons: (name, reason, place) of each recompile.
        programs_at: seconds after the start at which programs were made.
    """

    def __init__(self) -> None:
        self.counts: collections.Counter[tuple[str, str, Place]] = collections.Counter()
        self.nbytes: collections.Counter[tuple[str, Place]] = collections.Counter()
        self.reasons: list[tuple[str, str, Place]] = []
        self.programs_at: list[float] = []
        self._start = time.perf_counter()
        self._lock = threading.Lock()

    def __call__(self, event: events.Event) -> None:
        place = user_place()
        with self._lock:
            self.counts[event.kind, event.name, place] += 1
            if event.nbytes:
                self.nbytes[event.kind, place] += event.nbytes
            if event.reason:
                self.reasons.append((event.name, event.reason, place))
            if event.kind in ("program", "recompile"):
                self.programs_at.append(time.perf_counter() - self._start)

    def totals(self, kind: str) -> dict[str, tuple[int, Place]]:
        """Names of a kind -> how often and the commonest place, the most frequent first."""
        found: dict[str, collections.Counter[Place]] = {}
        for (k, name, place), count in self.counts.items():
            if k == kind:
                found.setdefault(name, collections.Counter())[place] += count
        ordered = sorted(found.items(), key=lambda item: (-item[1].total(), item[0]))
        return {name: (places.total(), places.most_common(1)[0][0]) for name, places in ordered}

    def rows(self, kind: str) -> list[tuple[str, int, int, Place]]:
        """(name, how often, bytes, place) of a kind by place, the most frequent first."""
        found = [
            (name, count, self.nbytes.get((kind, place), 0), place)
            for (k, name, place), count in self.counts.items()
            if k == kind
        ]
        return sorted(found, key=lambda row: (-row[1], row[0], str(row[3])))


def user_place() -> Place:
    """The innermost line outside PyTorch and this package.

    On a thread of autograd there is none; the main thread then stands at the line of `backward()`.
    """
    found = _innermost(sys._getframe(1))
    if found is NOWHERE and threading.current_thread() is not threading.main_thread():
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        found = _innermost(frame)
    return found


def _innermost(frame: types.FrameType | None) -> Place:
    for f in _outwards(frame):
        name = f.f_code.co_filename
        outside = not name.startswith((*_INNER, "<"))
        if outside and (name.startswith(_PACKAGES) or not name.startswith(_STANDARD)):
            if f"{os.sep}jax{os.sep}" not in name:
                return Place(name, f.f_lineno)
    return NOWHERE


def _outwards(frame: Any) -> Iterator[types.FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
