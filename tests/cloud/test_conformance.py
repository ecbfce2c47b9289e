"""PyTorch's operator database further: more dtypes, `out=` forms, and the known differences.

By default a few entries run; `make conformance` runs all of them, some samples each.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.testing._internal.common_utils import is_iterable_of_tensors

from tests.op_cases import opinfo
from tests.op_cases.check import OnTpu, check_entry, in_float64, on_cpu
from tests.op_cases.closeness import assert_close, leaves

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.conformance]
SAMPLES = 3
# The default run's, cheap and of many kinds.
_DEFAULT = {"add", "cumsum", "unbind_copy"}
# Beyond 5 the CPU's Bessel functions are right to single precision in float64 too; ours to 1e-12.
_ROUGH_ON_CPU = {f"special.bessel_{kind}": 1e-4 for kind in ("j0", "j1", "y0", "y1")}
# PyTorch's own tests leave these `out=` forms out: nothing tells where their results belong.
_WITHOUT_OUT = {"empty_strided"}


def _marks(name: str, dtype: torch.dtype = torch.float32) -> list[Any]:
    marks = [] if name in _DEFAULT else [pytest.mark.slow]
    reason = opinfo.reason_missing(name, dtype)
    if reason is not None:
        marks.append(pytest.mark.xfail(strict=True, reason=reason))
    return marks


def _other_dtypes() -> list[Any]:
    return [
        pytest.param(
            name, dtype, id=f"{name}-{str(dtype).removeprefix('torch.')}", marks=_marks(name, dtype)
        )
        for name, info in opinfo.infos().items()
        for dtype in opinfo.OTHER_DTYPES
        if dtype in info.supported_dtypes("cpu")
    ]


def _with_out() -> list[Any]:
    return [
        pytest.param(name, marks=_marks(name))
        for name, info in opinfo.infos().items()
        if info.supports_out and name not in _WITHOUT_OUT
    ]


@pytest.mark.parametrize(("name", "dtype"), _other_dtypes())
def test_dtype(name: str, dtype: torch.dtype) -> None:
    info = opinfo.infos()[name]
    tol = _ROUGH_ON_CPU.get(name) if dtype is torch.float64 else None
    for i, (x, args, kwargs) in enumerate(opinfo.samples(info, dtype, SAMPLES)):
        check_entry(info, x, args, kwargs, f"{name}/{i}", tol)


def _targets(results: Any, device: str, kind: str) -> Any:
    """Tensors for `out=`, of the results' dtypes: alike, strided otherwise, or to be resized."""

    def make(r: torch.Tensor) -> torch.Tensor:
        if kind == "resized":
            return torch.empty(0, dtype=r.dtype, device=device)
        made = torch.ones_like(r, device=device, memory_format=torch.contiguous_format)
        if kind == "strided":
            # Every second element along a last dimension of its own.
            made = torch.ones((*r.shape, 2), dtype=r.dtype, device=device)[..., 0]
        return made

    if isinstance(results, torch.Tensor):
        return make(results)
    return (
        type(results)(map(make, results))
        if type(results) in (tuple, list)
        else tuple(map(make, results))
    )


@pytest.mark.parametrize("name", _with_out())
def test_out(name: str) -> None:
    """`out=` fills what it is given, keeps its strides, and gives it back."""
    info = opinfo.infos()[name]
    supported = info.supported_dtypes("cpu")
    dtype = torch.float32 if torch.float32 in supported else next(iter(supported))
    for i, (x, args, kwargs) in enumerate(opinfo.samples(info, dtype, SAMPLES)):
        results = info(*opinfo.moved((x, *args), "cpu"), **kwargs)
        if not isinstance(results, torch.Tensor) and not is_iterable_of_tensors(results):
            continue
        for kind in ("alike", "strided", "resized"):
            _check_out(info, (x, *args), kwargs, results, kind, f"{name}/{i} {kind}")


def _check_out(info: Any, args: Any, kwargs: Any, results: Any, kind: str, label: str) -> None:
    def call(device: str) -> tuple[Any, Any]:
        out = _targets(results, device, kind)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given = info(*opinfo.moved(args, device), **opinfo.moved(kwargs, device), out=out)
        return out, given

    try:
        expected, _ = call("cpu")
    except RuntimeError:  # what the CPU refuses tells nothing
        return
    reference = in_float64(lambda *a, **k: info(*a, **k), args, kwargs)
    ours, given = call("tpu")
    returned = given if given is not None else ours  # lists of tensors are not returned
    for a, b in zip(leaves(ours), leaves(returned), strict=True):
        assert a is b, f"{label}: returned another tensor than was given"
    for a, b in zip(leaves(ours), leaves(expected), strict=True):
        assert a.shape == b.shape, f"{label}: {a.shape}"
        # What is resized gets the strides that each kernel of the CPU happens to use.
        assert kind == "resized" or a.stride() == b.stride(), f"{label}: {a.stride()}"
    if opinfo.has_values(info.name):
        comparable = [opinfo.comparable(info.name, t) for t in (on_cpu(ours), expected, reference)]
        assert_close(*comparable, label=label)


@pytest.mark.parametrize("name", [pytest.param(n, marks=_marks(n)) for n in opinfo.MORE_EXACT])
def test_closer_to_float64_than_the_cpu(name: str) -> None:
    """Where bfloat16 differs from the CPU, the sum of errors over all samples is smaller here."""
    info = opinfo.infos()[name]
    errors = {"cpu": 0.0, "tpu": 0.0}
    for x, args, kwargs in opinfo.samples(info, torch.bfloat16, None):
        reference = in_float64(info, (x, *args), kwargs)
        for device in errors:
            with torch.device(device), OnTpu():
                result = info(*opinfo.moved((x, *args), device), **opinfo.moved(kwargs, device))
            error = (on_cpu(result).double() - reference).abs().nan_to_num(1e3)
            errors[device] += float(error.sum())
    assert errors["tpu"] < 0.8 * errors["cpu"], errors


def test_few_differences() -> None:
    assert len(opinfo.MISSING) + len(opinfo.MORE_EXACT) <= 12
