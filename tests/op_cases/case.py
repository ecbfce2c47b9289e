"""One case of the parametrised op tests: a call on torch tensors that both halves must reproduce.

A family file holds `CASES: list[OpCase]`. The cloud test runs a case on the tpu device, the LiteRT
test converts it and runs the file; both compare with CPU PyTorch. Inputs are made afresh and seeded
for each run, so that cases do not depend on their order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

BOTH = ("cloud", "litert")


@dataclasses.dataclass(frozen=True)
class OpCase:
    """A call `fn(*args(), **kwargs)` and where it must agree.

    Attributes:
        name: unique in its file, readable with `pytest -k`.
        fn: an operator or a function of torch tensors.
        args: gives the positional arguments, tensors among them, afresh at each call.
        kwargs: keyword arguments without tensors.
        tol: largest allowed error relative to the output's range, or None for the test's default.
        halves: the halves that run it.
    """

    name: str
    fn: Callable[..., Any]
    args: Callable[[], tuple[Any, ...]]
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    tol: float | None = None
    halves: tuple[str, ...] = BOTH

    def make(self) -> tuple[Any, ...]:
        """The positional arguments, the same at every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return tuple(self.args())
