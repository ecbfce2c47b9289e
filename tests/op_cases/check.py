"""A function on the device against the same on the CPU, measured by its float64 results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.op_cases import opinfo
from tests.op_cases.closeness import assert_close, leaves, widened

# Their tensor of scalars must be on the CPU.
_HOST_SCALARS = (torch._foreach_addcmul, torch._foreach_addcdiv)


class OnTpu(TorchFunctionMode):
    """Constants that a case holds, such as weights, go to tpu when a call has a tpu tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [a for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
        if func in _HOST_SCALARS:
            return func(*args, **(kwargs or {}))
        if {a.device.type for a in given} == {"cpu", "tpu"}:
            args, kwargs = opinfo.moved(args, "tpu"), opinfo.moved(kwargs or {}, "tpu")
        return func(*args, **(kwargs or {}))


def on_cpu(tree: Any) -> Any:
    """The same results with their tensors on the CPU."""
    return tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, tree)


def in_float64(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The call's results with wider arguments, on the CPU; None where it has no float64 form."""
    try:
        return fn(*widened(opinfo.moved(args, "cpu")), **widened(kwargs))
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None


def check(
    fn: Callable[..., Any],
    args: Any,
    kwargs: Any,
    label: str,
    tol: float | None,
    **more: float,
) -> None:
    """Compare one call on the device with the CPU's; see `closeness.assert_close`."""
    expected = fn(*opinfo.moved(args, "cpu"), **kwargs)
    reference = in_float64(fn, args, kwargs)
    with torch.device("tpu"), OnTpu():  # where functions create tensors of their own
        ours = on_cpu(fn(*opinfo.moved(args, "tpu"), **opinfo.moved(kwargs, "tpu")))
    assert_close(ours, expected, reference, tol=tol, label=label, **more)


def check_entry(
    info: Any, x: Any, args: Any, kwargs: Any, label: str, tol: float | None = None
) -> None:
    """Compare one sample of an entry of PyTorch's database, by its values if it has any."""

    def fn(*given: Any, **named: Any) -> Any:
        return opinfo.comparable(info.name, info(*given, **named))

    if opinfo.has_values(info.name):
        check(fn, (x, *args), kwargs, label, tol)
        return
    expected = leaves(fn(*opinfo.moved((x, *args), "cpu"), **kwargs))
    ours = leaves(fn(*opinfo.moved((x, *args), "tpu"), **opinfo.moved(kwargs, "tpu")))
    assert [(a.shape, a.dtype) for a in ours] == [(b.shape, b.dtype) for b in expected]
