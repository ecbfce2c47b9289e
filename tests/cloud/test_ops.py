"""Operators of the device against CPU PyTorch: our own cases, PyTorch's database, and coverage.

By default all our own cases run, and of the database those entries that reach other operators, with
three float32 samples each; with `--full` all of them, in all dtypes and samples.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import Any

import pytest
import torch

from cloud_backend import ops
from tests import op_cases
from tests.op_cases import opinfo
from tests.op_cases.case import OpCase
from tests.op_cases.check import check, check_entry
from tests.op_cases.coverage import (
    Recorder,
    chosen,
    gradients,
    reach_entry,
    reach_on_device,
)
from tests.op_cases.draws import DRAWS

# Many samples make CPU PyTorch warn: deprecated spellings, empty variances, padding modes.
pytestmark = pytest.mark.filterwarnings("ignore")
SAMPLES = 3
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
# Entries that only whole layers on the device or products with another output type reach.
ELSEWHERE = {
    "aten._batch_norm_no_update.default",
    "aten._convolution.default",
    "aten._embedding_bag_dense_backward.default",
    "aten._fused_rms_norm_backward.default",
    "aten._linalg_eigvals.default",
    "aten._native_multi_head_attention.default",
    "aten._transformer_encoder_layer_fwd.default",
    "aten._upsample_bicubic2d_aa_backward.default",
    "aten.addmm.dtype",
    "aten.baddbmm.dtype",
    "aten.bmm.dtype",
    "aten.mm.dtype",
    "aten.convolution_overrideable.default",
    "aten.convolution_backward_overrideable.default",
    "aten.linear_backward.default",
}


def _cases() -> dict[str, OpCase]:
    found = {}
    for module in pkgutil.iter_modules(op_cases.__path__):
        family = importlib.import_module(f"{op_cases.__name__}.{module.name}")
        for case in getattr(family, "CASES", ()):
            if "cloud" in case.halves:
                found[f"{module.name}-{case.name}"] = case
    return found


CASES = _cases()


# Wider bounds for gradients that pass through long sums of logarithms in float32.
TOLERANCES = {"nn.functional.ctc_loss": 1e-4}


def _marks(name: str, chosen: bool, dtype: torch.dtype = torch.float32) -> list[Any]:
    marks = [] if chosen else [pytest.mark.slow]
    reason = opinfo.reason_missing(name, dtype)
    if reason is not None:
        marks.append(pytest.mark.xfail(strict=True, reason=reason))
    return marks


def _database() -> list[Any]:
    """(name, dtype) for the dtypes that an entry supports; by default the chosen in float32."""
    taken = set(chosen())
    return [
        pytest.param(
            name,
            dtype,
            id=f"{name}-{str(dtype).removeprefix('torch.')}",
            marks=_marks(name, ("forward", name) in taken and dtype is torch.float32, dtype),
        )
        for name, info in opinfo.infos().items()
        for dtype in opinfo.DTYPES
        if dtype in info.supported_dtypes("cpu")
    ]


def _with_gradient() -> list[Any]:
    taken = set(chosen())
    return [
        pytest.param(name, marks=_marks(name, ("gradient", name) in taken))
        for name, info in opinfo.infos().items()
        if opinfo.has_gradient(info)
    ]


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = CASES[name]
    check(case.fn, case.make(), case.kwargs, name, case.tol)


@pytest.mark.parametrize(("name", "dtype"), _database())
def test_database(name: str, dtype: torch.dtype, full: bool) -> None:
    info = opinfo.infos()[name]
    for i, (x, args, kwargs) in enumerate(opinfo.samples(info, dtype, None if full else SAMPLES)):
        check_entry(info, x, args, kwargs, f"{name}/{i}")


@pytest.mark.parametrize("name", _with_gradient())
def test_gradient(name: str, full: bool) -> None:
    info = opinfo.infos()[name]
    count = None if full else SAMPLES
    for i, (x, args, kwargs) in enumerate(opinfo.samples(info, torch.float32, count, True)):
        fn = functools.partial(gradients, info)
        label = f"gradient of {name}/{i}"
        # A gradient may be a sum of weighted parts near 1 that cancel.
        check(fn, (x, *args), kwargs, label, TOLERANCES.get(name), floor=5e-7)


def wanted() -> set[Any]:
    """The table's ATen keys, without composite ones, which serve compiled graphs only."""
    return {
        op
        for op in ops.load()
        if op.namespace == "aten" and not op.has_kernel_for_dispatch_key(_COMPOSITE)
    }


def reached_by_own_cases() -> set[Any]:
    """Every operator that our own cases and draws run."""
    recorder = Recorder()
    for draw, _ in DRAWS.values():
        with recorder:
            draw("cpu")
    for case in CASES.values():
        args = case.make()
        if getattr(case.fn, "device_only", False):  # elsewhere it is a formula of other operators
            args = opinfo.moved(args, "tpu")
        with recorder:
            case.fn(*args, **case.kwargs)
    reach_on_device(recorder)
    return recorder.reached


def test_every_entry_is_exercised() -> None:
    """Each key of the table is called by some case of the default run."""
    reached = reached_by_own_cases().union(*(reach_entry(c, SAMPLES) for c in chosen()))
    missing = {str(op) for op in wanted() - reached}
    assert missing == ELSEWHERE, sorted(missing ^ ELSEWHERE)
