"""Several op cases as one module: one conversion, most of a case's time, serves them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests.op_cases.case import OpCase


def tensors(tree: Any) -> list[torch.Tensor]:
    """Every tensor in nested lists and tuples, in order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, (list, tuple)):
        return [t for part in tree for t in tensors(part)]
    return []


class Batch(torch.nn.Module):
    """Takes the tensors of all cases' arguments in a row, gives the tensors of all their results.

    Attributes:
        inputs: example inputs.
        counts: how many results each case has, known after the first call.
    """

    def __init__(self, cases: Sequence[OpCase]) -> None:
        super().__init__()
        self.cases = list(cases)
        self.made = [case.make() for case in self.cases]
        self.inputs = tuple(t.clone() for t in tensors(self.made))
        self.counts: list[int] = []

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rest = iter(given)

        def filled(tree: Any) -> Any:
            if isinstance(tree, torch.Tensor):
                return next(rest)
            if isinstance(tree, (list, tuple)):
                return type(tree)(map(filled, tree))
            return tree

        results = []
        for case, args in zip(self.cases, self.made, strict=True):
            results.append(tensors(case.fn(*filled(args), **case.kwargs)))
        self.counts = [len(r) for r in results]
        return tuple(t for r in results for t in r)

    def reference(self) -> list[torch.Tensor]:
        """The results on the CPU."""
        with torch.no_grad():
            return list(self(*(t.clone() for t in self.inputs)))
