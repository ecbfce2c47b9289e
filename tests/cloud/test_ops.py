"""Operators of the device against CPU PyTorch: our own cases, PyTorch's database, and coverage.

Two samples per operator and dtype by default (float32) and all dtypes and samples with `--full`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

from cloud_backend import ops
from tests import op_cases
from tests.op_cases import opinfo
from tests.op_cases.case import OpCase
from tests.op_cases.closeness import assert_close, leaves, widened
from tests.op_cases.coverage import Recorder, reach_database, reach_on_device
from tests.op_cases.draws import DRAWS

# Many samples make CPU PyTorch warn: deprecated spellings, empty variances, padding modes.
pytestmark = pytest.mark.filterwarnings("ignore")
SAMPLES = 2
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
# Entries that only a whole model or a compiled graph reaches; tested there.
ELSEWHERE = ()


def _cases() -> dict[str, OpCase]:
    found = {}
    for module in pkgutil.iter_modules(op_cases.__path__):
        family = importlib.import_module(f"{op_cases.__name__}.{module.name}")
        for case in getattr(family, "CASES", ()):
            if "cloud" in case.halves:
                found[f"{module.name}-{case.name}"] = case
    return found


CASES = _cases()


def _on_cpu(tree: Any) -> Any:
    return tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, tree)


def _check(fn: Callable[..., Any], args: Any, kwargs: Any, label: str, tol: float | None) -> None:
    expected = fn(*opinfo.moved(args, "cpu"), **kwargs)
    try:
        reference = fn(*widened(opinfo.moved(args, "cpu")), **widened(kwargs))
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        reference = None  # no float64 form: measure against CPU PyTorch alone
    with torch.device("tpu"):  # where functions create tensors of their own
        ours = _on_cpu(fn(*opinfo.moved(args, "tpu"), **opinfo.moved(kwargs, "tpu")))
    assert_close(ours, expected, reference, tol=tol, label=label)


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = CASES[name]
    _check(case.fn, case.make(), case.kwargs, name, case.tol)


@pytest.mark.parametrize("name", opinfo.infos())
@pytest.mark.parametrize("dtype", opinfo.DTYPES, ids=lambda d: str(d).removeprefix("torch."))
def test_database(name: str, dtype: torch.dtype, full: bool) -> None:
    info = opinfo.infos()[name]
    if dtype not in info.supported_dtypes("cpu"):
        return
    if not full and dtype not in (torch.float32,):
        return
    for i, (x, args, kwargs) in enumerate(opinfo.samples(info, dtype, None if full else SAMPLES)):
        _check_sample(info, x, args, kwargs, f"{name}/{i}")


def _check_sample(info: Any, x: Any, args: Any, kwargs: Any, label: str) -> None:
    def fn(*given: Any, **named: Any) -> Any:
        return opinfo.comparable(info.name, info(*given, **named))

    if opinfo.has_values(info.name):
        _check(fn, (x, *args), kwargs, label, None)
        return
    expected = leaves(fn(*opinfo.moved((x, *args), "cpu"), **kwargs))
    ours = leaves(fn(*opinfo.moved((x, *args), "tpu"), **opinfo.moved(kwargs, "tpu")))
    assert [(a.shape, a.dtype) for a in ours] == [(b.shape, b.dtype) for b in expected]


def test_every_entry_is_exercised() -> None:
    """Each key of the table is called by some case; composite ones serve compiled graphs only."""
    table = ops.load()
    recorder = Recorder()
    for draw, _ in DRAWS.values():
        with recorder:
            draw("cpu")
    for case in CASES.values():
        args = case.make()
        with recorder:
            case.fn(*args, **case.kwargs)
    reach_database(recorder, SAMPLES)
    reach_on_device(recorder)
    missing = {
        str(op)
        for op in table
        if op not in recorder.reached
        and op.namespace == "aten"
        and not op.has_kernel_for_dispatch_key(_COMPOSITE)
    }
    assert missing == set(ELSEWHERE)
