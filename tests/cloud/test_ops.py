"""Operators of the device against CPU PyTorch: our own cases, PyTorch's database, and coverage.

By default all our own cases run, and every so many database entries with two float32 samples each;
with `--full` all of them, in all dtypes and samples.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

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
# Every so many database entries run by default: each costs several XLA compilations.
EVERY = 6
# Entries that only whole layers on the device or products with another output type reach.
ELSEWHERE = {
    "aten._batch_norm_no_update.default",
    "aten._convolution.default",
    "aten._embedding_bag_dense_backward.default",
    "aten._fused_rms_norm_backward.default",
    "aten._linalg_eigvals.default",
    "aten._native_batch_norm_legit_no_training.default",
    "aten._native_multi_head_attention.default",
    "aten._scaled_dot_product_fused_attention_overrideable.default",
    "aten._scaled_dot_product_fused_attention_overrideable_backward.default",
    "aten._thnn_fused_gru_cell.default",
    "aten._thnn_fused_gru_cell_backward.default",
    "aten._thnn_fused_lstm_cell.default",
    "aten._thnn_fused_lstm_cell_backward_impl.default",
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


def _on_cpu(tree: Any) -> Any:
    return tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, tree)


class _OnTpu(TorchFunctionMode):
    """Constants that a case holds, such as weights, go to tpu when a call has a tpu tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [a for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
        if func in _HOST_SCALARS:
            return func(*args, **(kwargs or {}))
        if {a.device.type for a in given} == {"cpu", "tpu"}:
            args, kwargs = opinfo.moved(args, "tpu"), opinfo.moved(kwargs or {}, "tpu")
        return func(*args, **(kwargs or {}))


def _check(fn: Callable[..., Any], args: Any, kwargs: Any, label: str, tol: float | None) -> None:
    expected = fn(*opinfo.moved(args, "cpu"), **kwargs)
    try:
        reference = fn(*widened(opinfo.moved(args, "cpu")), **widened(kwargs))
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        reference = None  # no float64 form: measure against CPU PyTorch alone
    with torch.device("tpu"), _OnTpu():  # where functions create tensors of their own
        ours = _on_cpu(fn(*opinfo.moved(args, "tpu"), **opinfo.moved(kwargs, "tpu")))
    assert_close(ours, expected, reference, tol=tol, label=label)


# Their tensor of scalars must be on the CPU.
_HOST_SCALARS = (torch._foreach_addcmul, torch._foreach_addcdiv)

# What the device cannot run yet, with the reason. Strict: a lowering that arrives must leave here.
LIMITATIONS = {
    "linalg.ldl_factor": "XLA has no LDL factorisation",
    "linalg.ldl_factor_ex": "XLA has no LDL factorisation",
    "linalg.ldl_solve": "XLA has no LDL factorisation",
}


def _marks(name: str, chosen: bool) -> list[Any]:
    marks = [] if chosen else [pytest.mark.slow]
    if name in LIMITATIONS:
        marks.append(pytest.mark.xfail(strict=True, reason=LIMITATIONS[name]))
    return marks


def _database() -> list[Any]:
    """(name, dtype) for the dtypes that an entry supports; float32 of some entries by default."""
    chosen = set(list(opinfo.infos())[::EVERY])
    return [
        pytest.param(
            name,
            dtype,
            id=f"{name}-{str(dtype).removeprefix('torch.')}",
            marks=_marks(name, name in chosen and dtype is torch.float32),
        )
        for name, info in opinfo.infos().items()
        for dtype in opinfo.DTYPES
        if dtype in info.supported_dtypes("cpu")
    ]


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = CASES[name]
    _check(case.fn, case.make(), case.kwargs, name, case.tol)


@pytest.mark.parametrize(("name", "dtype"), _database())
def test_database(name: str, dtype: torch.dtype, full: bool) -> None:
    info = opinfo.infos()[name]
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
    assert missing <= ELSEWHERE, sorted(missing - ELSEWHERE)
