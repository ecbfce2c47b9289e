"""Which operators the cases reach: they run on the CPU under a mode that writes down every call."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from tests.op_cases import opinfo
from tests.op_cases.closeness import leaves
from torch_tpu_unified.core.schema import functional_form


class Recorder(TorchDispatchMode):
    """Collects the operators that run, each with its functional form."""

    def __init__(self) -> None:
        super().__init__()
        self.reached: set[OpOverload] = set()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.reached.add(op)
        self.reached.add(functional_form(op) or op)
        return op(*args, **(kwargs or {}))


def reach_database(recorder: Recorder, count: int) -> None:
    """Run `count` samples of every entry, with the backward where there is one."""
    for info in opinfo.infos().values():
        supported = info.supported_dtypes("cpu")
        if not supported:
            continue
        dtype = torch.float32 if torch.float32 in supported else next(iter(supported))
        grad = info.supports_autograd and dtype is torch.float32
        for x, args, kwargs in opinfo.samples(info, dtype, count, grad):
            # A sample that the CPU rejects reaches nothing.
            with recorder, contextlib.suppress(RuntimeError, ValueError, TypeError, IndexError):
                results = leaves(info(x, *args, **kwargs))
                wanted = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
                if wanted:
                    torch.autograd.backward(wanted, [torch.ones_like(r) for r in wanted])


def reach_on_device(recorder: Recorder) -> None:
    """Layers that PyTorch dispatches to operators of their own on an accelerator."""

    def run(fn: Any, *sizes: tuple[int, ...]) -> None:
        given = [torch.randn(s, device="tpu", requires_grad=True) for s in sizes]
        with recorder:
            results = [r for r in leaves(fn(*given)) if r.requires_grad]
            torch.autograd.backward(results, [torch.ones_like(r) for r in results])

    functional = torch.nn.functional
    run(functional.scaled_dot_product_attention, *[(1, 2, 4, 8)] * 3)
    run(functional.conv2d, (1, 2, 5, 5), (3, 2, 3, 3))
    run(torch.nn.LSTM(3, 4).to("tpu"), (2, 1, 3))
    run(torch.nn.GRU(3, 4).to("tpu"), (2, 1, 3))
