"""Every environment variable of the project: name, type, default, help.

A flag is read from the environment once, here, and checked; the code asks `flags.DEBUG.value`.
`with flags.DEBUG(1): ...` sets one for a block. The table in the README is `markdown_table()`.
Imports the standard library only, so that the command line can read flags before torch.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from torch_tpu_unified.core.errors import InputError

T = TypeVar("T")
REGISTRY: dict[str, Flag[object]] = {}


class Flag(Generic[T]):
    """One environment variable.

    Args:
        name: with the prefix `TTU_`.
        parse: text -> value; raises ValueError.
        allowed: the allowed values in words, for errors and the README.
        default: the value when the variable is unset or empty.
        help: one line on what it does.
    """

    def __init__(
        self, name: str, parse: Callable[[str], T], allowed: str, default: T, help: str
    ) -> None:
        if not name.startswith("TTU_") or name in REGISTRY:
            raise ValueError(f"{name}: a flag's name starts with TTU_ and is unique")
        self.name, self.parse, self.allowed = name, parse, allowed
        self.default, self.help = default, help
        self.value: T = default
        REGISTRY[name] = self  # type: ignore[assignment]

    def read(self, environment: Mapping[str, str]) -> None:
        """Take the value from the environment.

        Raises:
            InputError: the text is not an allowed value.
        """
        text = environment.get(self.name, "").strip()
        try:
            self.value = self.parse(text) if text else self.default
        except ValueError:
            raise InputError(
                f"{self.name}={text!r} is not understood; allowed: {self.allowed}"
            ) from None

    @contextlib.contextmanager
    def __call__(self, value: T) -> Iterator[None]:
        """Set the flag for a `with` block."""
        before, self.value = self.value, value
        try:
            yield
        finally:
            self.value = before


def _level(highest: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text)
        if not 0 <= number <= highest:
            raise ValueError(text)
        return number

    return parse


def _choice(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(text)
        return text

    return parse


def _megabytes(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


CACHE = Flag(
    "TTU_CACHE",
    str,
    "a folder, off",
    "",
    "where compiled programs are kept; unset: `torch_tpu_unified/programs` in the user's cache",
)
CACHE_SIZE = Flag(
    "TTU_CACHE_SIZE",
    _megabytes,
    "megabytes",
    2048,
    "what the kept programs may take; the least recently used go first",
)
DEBUG = Flag(
    "TTU_DEBUG",
    _level(1),
    "0, 1",
    0,
    "1 shows the traceback of an error, and every XLA program as it is made",
)
DUMP = Flag(
    "TTU_DUMP",
    str,
    "a folder",
    "",
    "the exporter writes the graph there after every stage, as numbered texts",
)
EAGER_MODE = Flag(
    "TTU_EAGER_MODE",
    _choice("strict", "debug", "fused"),
    "strict, debug, fused",
    "strict",
    "operators on tpu run one by one; one by one, waiting for each; or recorded and run together",
)
FALLBACK = Flag(
    "TTU_FALLBACK",
    _choice("error", "warn"),
    "error, warn",
    "error",
    "an operator that tpu lacks: raise an error, or run it on the CPU, warn and count it",
)
LOG_RECOMPILES = Flag(
    "TTU_LOG_RECOMPILES",
    lambda text: bool(_level(1)(text)),
    "0, 1",
    False,
    "1 tells each recompile of a compiled function and its reason, on stderr",
)
QUIET = Flag(
    "TTU_QUIET",
    lambda text: bool(_level(1)(text)),
    "0, 1",
    False,
    "1 hides the line that says where tpu runs when there is no TPU",
)


def read_environment(environment: Mapping[str, str] | None = None) -> None:
    """Read every flag anew.

    Raises:
        InputError: a value is not allowed.
    """
    environment = os.environ if environment is None else environment
    for flag in REGISTRY.values():
        flag.read(environment)


def markdown_table() -> str:
    """The flags as the table of the README."""
    rows = ["| variable | values | default | meaning |", "| --- | --- | --- | --- |"]
    for flag in REGISTRY.values():
        shown = int(flag.default) if isinstance(flag.default, bool) else flag.default
        default = "unset" if shown == "" else f"`{shown}`"
        rows.append(f"| `{flag.name}` | {flag.allowed} | {default} | {flag.help} |")
    return "\n".join(rows) + "\n"


read_environment()
