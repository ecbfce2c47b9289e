"""Which operators the cases reach: they run on the CPU under a mode that writes down every call.

The default run takes only those entries of PyTorch's database that reach an operator of the table
which no case of our own does; `chosen.txt` lists them.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from tests.op_cases import opinfo
from tests.op_cases.closeness import leaves
from torch_tpu_unified.core.schema import functional_form

CHOSEN = Path(__file__).with_name("chosen.txt")


class Recorder(TorchDispatchMode):
    """Collects the operators that run, each with its functional form."""

    def __init__(self) -> None:
        super().__init__()
        self.reached: set[OpOverload] = set()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.reached.add(op)
        self.reached.add(functional_form(op) or op)
        return op(*args, **(kwargs or {}))


Choice = tuple[str, str]  # ("forward" or "gradient", the entry's name)


def gradients(info: Any, *given: Any, **named: Any) -> tuple[torch.Tensor | None, ...]:
    """The call's results, and their gradients, weighted unevenly, for the inputs that want them."""
    inputs = [a for a in leaves((given, named)) if isinstance(a, torch.Tensor) and a.requires_grad]
    results = leaves(opinfo.comparable(info.name, info(*given, **named)))
    wanted = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    if not wanted or not inputs:
        return ()
    weights = [
        torch.linspace(0.5, 1.5, r.numel(), device="cpu").reshape(r.shape).to(r) for r in wanted
    ]
    found = torch.autograd.grad(wanted, inputs, weights, allow_unused=True)
    return (*[r.detach() for r in wanted], *found)


def reach_entry(choice: Choice, count: int) -> set[OpOverload]:
    """The operators that the database test of an entry runs with `count` samples."""
    kind, name = choice
    info = opinfo.infos()[name]
    recorder = Recorder()
    supported = info.supported_dtypes("cpu")
    if not supported:
        return set()
    dtype = torch.float32 if torch.float32 in supported else next(iter(supported))
    grad = kind == "gradient"
    for x, args, kwargs in opinfo.samples(info, dtype, count, grad):
        # A sample that the CPU rejects reaches nothing.
        with recorder, contextlib.suppress(RuntimeError, ValueError, TypeError, IndexError):
            if grad:
                gradients(info, x, *args, **kwargs)
            else:
                info(x, *args, **kwargs)
    return recorder.reached


def chosen() -> list[Choice]:
    """The database entries that the default run takes; `python -m tests.op_cases.coverage` makes
    the list anew."""
    pairs = (line.split() for line in CHOSEN.read_text().splitlines())
    return [(kind, name) for kind, name in pairs]


def choose(missing: set[OpOverload], count: int) -> list[Choice]:
    """Few entries that together reach the operators (greedily: the widest first)."""
    reach = {
        (kind, name): reach_entry((kind, name), count) & missing
        for name, info in opinfo.infos().items()
        for kind in ("forward", "gradient")
        if opinfo.has_values(info.name) and (kind == "forward" or opinfo.has_gradient(info))
    }
    found = []
    while missing and (best := max(reach, key=lambda c: len(reach[c] & missing))):
        if not reach[best] & missing:
            break
        found.append(best)
        missing = missing - reach[best]
    return sorted(found)


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


def main() -> None:
    """Write `chosen.txt`."""
    from tests.cloud.test_ops import SAMPLES, reached_by_own_cases, wanted

    missing = wanted() - reached_by_own_cases()
    lines = [f"{kind} {name}" for kind, name in choose(missing, SAMPLES)]
    CHOSEN.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} entries reach {len(missing)} operators that no case of our own does")


if __name__ == "__main__":
    main()
