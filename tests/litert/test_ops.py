"""Every lowering, through the whole exporter and the LiteRT interpreter, against CPU PyTorch.

One parametrised test over the shared cases; the bound is closeness to float64. Cases are exported
in batches, since PyTorch's decomposition has a fixed cost per program; a batch that fails is
exported case by case. Another test asserts that every key of the table is reached by some case.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from litert_export import capture, ops, pipeline, verify
from litert_export.emit import to_numpy
from tests import op_cases
from tests.op_cases.case import OpCase
from tests.op_cases.closeness import assert_close, leaves, widened

BATCH = 24


def _cases() -> dict[str, OpCase]:
    found = {}
    for module in pkgutil.iter_modules(op_cases.__path__):
        family = importlib.import_module(f"{op_cases.__name__}.{module.name}")
        for case in getattr(family, "CASES", ()):
            if "litert" in case.halves:
                found[f"{module.name}-{case.name}"] = case
    return found


CASES = _cases()
NAMES = list(CASES)
# Keys that no traced program holds on this PyTorch, with the reason.
UNREACHED: dict[str, str] = {
    f"aten.{name}.default": "complex inside the program: test_complex.py"
    for name in (
        "_conj", "_fft_c2c", "_fft_c2r", "_fft_r2c", "angle", "complex", "polar",
        "view_as_complex", "view_as_real",
    )
}  # fmt: skip


class Batch(torch.nn.Module):
    """Several cases as one program: all their tensors are inputs, all their results outputs."""

    def __init__(self, cases: Sequence[OpCase]) -> None:
        super().__init__()
        self.cases = list(cases)
        self.trees = [tree_flatten(c.make()) for c in cases]

    def inputs(self) -> list[torch.Tensor]:
        """The tensors of every case, in order."""
        return [a for flat, _ in self.trees for a in flat if isinstance(a, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        results = []
        for case, (flat, spec) in zip(self.cases, self.trees, strict=True):
            args = [next(given) if isinstance(a, torch.Tensor) else a for a in flat]
            results.append(leaves(case.fn(*tree_unflatten(args, spec), **case.kwargs)))
        return results


@dataclasses.dataclass
class Outcome:
    """What an export of some cases gave: arrays per case, operators met."""

    results: list[list[torch.Tensor]]
    reached: set[Any]


def _run(cases: Sequence[OpCase]) -> Outcome:
    batch = Batch(cases).eval()
    table = ops.load()
    inputs = batch.inputs()
    program = capture.decompose(capture.capture(batch, tuple(inputs)), table)
    reached = {node.target for node in capture.nodes(program.graph_module)}
    model, _, _ = pipeline.run({"f": program}, table=table, decomposed=True)
    given = iter(verify.run(model, [to_numpy(t) for t in inputs]))
    results = []
    for case in cases:
        count = len([t for t in leaves(_expected(case)) if isinstance(t, torch.Tensor)])
        results.append([torch.from_numpy(np.array(next(given))) for _ in range(count)])
    return Outcome(results, reached)


def _expected(case: OpCase) -> Any:
    with torch.no_grad():
        return case.fn(*case.make(), **case.kwargs)


@functools.cache
def _batch(number: int) -> tuple[dict[str, Outcome | Exception], set[Any]]:
    names = NAMES[number * BATCH : (number + 1) * BATCH]
    found: dict[str, Outcome | Exception] = {}
    try:
        whole = _run([CASES[n] for n in names])
    except Exception:  # which case it was is found out one by one
        reached: set[Any] = set()
        for n in names:
            try:
                one = _run([CASES[n]])
                found[n], reached = one, reached | one.reached
            except Exception as err:
                found[n] = err
        return found, reached
    for n, result in zip(names, whole.results, strict=True):
        found[n] = Outcome([result], whole.reached)
    return found, whole.reached


def _reference(case: OpCase) -> Any:
    fn: Callable[..., Any] = case.fn
    try:
        with torch.no_grad():
            return leaves(fn(*widened(case.make()), **widened(case.kwargs)))
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None  # no float64 form: measure against CPU PyTorch alone


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("name", NAMES)
def test_case(name: str) -> None:
    case = CASES[name]
    outcome = _batch(NAMES.index(name) // BATCH)[0][name]
    if isinstance(outcome, Exception):
        raise outcome
    expected = [t for t in leaves(_expected(case)) if isinstance(t, torch.Tensor)]
    assert_close(outcome.results[0], expected, _reference(case), tol=case.tol, label=name)


def test_every_lowering_has_a_case() -> None:
    reached: set[Any] = set()
    for number in range(-(-len(NAMES) // BATCH)):
        reached |= _batch(number)[1]
    missing = [str(op) for op in ops.load() if op not in reached and str(op) not in UNREACHED]
    assert not missing, f"no case reaches {', '.join(sorted(missing))}"
