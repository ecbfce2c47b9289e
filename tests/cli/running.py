"""A finished run of the command line, as the tests look at it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Ran:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The error message, which is on one line for all but lists of operators and tables."""
        assert "Traceback" not in self.err
        (line,) = (text for text in self.err.splitlines() if text.startswith("error: "))
        return line


Run = Callable[..., Ran]
