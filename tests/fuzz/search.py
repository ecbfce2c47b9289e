"""Hypothesis draws programs, step by step, and shrinks the first that shows a difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from tests.fuzz import autograd, reads, views, writes  # noqa: F401 (they fill the table of kinds)
from tests.fuzz.compare import Difference
from tests.fuzz.draw import KINDS, WEIGHTS, Draw
from tests.fuzz.program import Dropped, Program

MOST_TENSORS = 8
_NAMES = tuple(name for name in KINDS for _ in range(WEIGHTS[name]))


class Found(AssertionError):
    """A difference, with the program that shows it."""

    def __init__(self, program: Program, difference: Exception) -> None:
        self.lines, self.kinds = list(program.lines), list(program.kinds)
        self.difference = str(difference)
        super().__init__("\n" + program.script(f"{type(difference).__name__}: {difference}"))


class Search:
    """Counts of what ran, and the hooks of who watches."""

    def __init__(self, note: Callable[[str], None] = lambda line: None) -> None:
        self.programs = 0
        self.steps: Counter[str] = Counter()
        self.raised = self.dropped = 0
        self.note = note
        self.progress: Callable[[], None] = lambda: None

    def run(self, draw: Callable[[Any], Any]) -> Program:
        """Draw and run one program.

        Raises:
            Found: the two sides differ.
        """
        self.note("")
        p, d = Program(self.note), Draw(draw)
        try:
            self._steps(p, d)
        except Difference as e:
            raise Found(p, e) from None
        self.programs += 1
        for kind, line in zip(p.kinds, p.lines, strict=True):
            self.steps[kind] += 1
            self.raised += line.startswith("try:")
        self.progress()
        return p

    def _steps(self, p: Program, d: Draw) -> None:
        wanted = 3 + d.below(10)
        for _ in range(3 * wanted):
            if len(p.lines) >= wanted:
                return
            crowded = len(p.names()) >= MOST_TENSORS
            kind = (
                "new" if not p.names() else _NAMES[(16 * d.below(16) + d.below(16)) % len(_NAMES)]
            )
            step = KINDS[kind](d, p)
            if step is None or (crowded and step.source.startswith("v") and " = " in step.source):
                continue
            try:
                p.run(step, kind)
            except Dropped as e:
                self.dropped += 1
                if e.spoilt:
                    return

    def examples(self, count: int, seed: int | None, shrink: bool = True) -> None:
        """Run `count` programs; without a seed always the same ones.

        Raises:
            Found: the shrunk program that shows a difference.
        """
        phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)

        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            derandomize=seed is None,
            phases=phases,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.composite(self.run)())
        def programs(program: Program) -> None:
            pass

        (programs if seed is None else seeded(seed)(programs))()
