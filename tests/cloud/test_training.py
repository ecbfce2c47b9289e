"""Whole models train on the device as on the CPU: forward, every gradient, optimiser steps.

Each run is compared with the same run in float64. Float32 on the CPU misses it by rounding. The
device may miss it by `FACTOR` times as much, since XLA sums in another order: as much as the CPU
does in that tensor or, where it is lucky there, in the usual tensor of the run; and by `FLOOR`, a
few units in the last place. Distances are norms, which a single element cannot decide.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.model_cases import BY_NAME, CASES, ModelCase

FACTOR, FLOOR = 8.0, 1e-6
STEPS = 3
COMPILED = ("resnet18", "mingpt", "dlrm", "lstm", "llama")
Tensors = dict[str, torch.Tensor]


def optimizer_of(case: ModelCase, model: torch.nn.Module) -> torch.optim.Optimizer:
    """The case's optimiser. Adam's eps is above the rounding noise of gradients that are 0 exactly,
    such as those of a key's bias: else it would blow the noise up to whole steps."""
    if case.adam:
        return torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


def train(case: ModelCase, device: str, dtype: torch.dtype, wrap: Callable[[Any], Any]) -> Tensors:
    """Every number of a short training run, on the CPU: output, losses, gradients, final state."""
    model = case.model().to(device, dtype)
    args = [a.to(device, dtype if a.is_floating_point() else a.dtype) for a in case.example()]
    optimizer, run, found = optimizer_of(case, model), wrap(model), {}
    for step in range(STEPS):
        optimizer.zero_grad()
        output = run(*args)
        loss = case.loss(output)
        loss.backward()
        if step == 0:
            found["output"] = output.detach().cpu()
            missing = [n for n, p in model.named_parameters() if p.grad is None]
            grads = {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}
            found |= {f"gradient {n}": g for n, g in grads.items()}
            found["without gradient"] = torch.tensor(len(missing))
        found[f"loss {step}"] = loss.detach().cpu()
        optimizer.step()
    return found | {f"after {n}": v.cpu() for n, v in model.state_dict().items()}


def assert_close(found: Tensors, cpu: Tensors, exact: Tensors) -> None:
    """The distance of `found` to `exact` is within the module's bound, for every tensor."""
    assert found.keys() == cpu.keys() == exact.keys()
    floating = [name for name, reference in exact.items() if reference.is_floating_point()]
    rounding = {name: distance(cpu[name], exact[name]) for name in floating}
    scale = {name: exact[name].norm().item() for name in floating}
    usual = statistics.median(rounding[n] / scale[n] if scale[n] else 0.0 for n in floating)
    wrong = []
    for name, reference in exact.items():
        assert found[name].shape == reference.shape, name
        if name not in rounding:
            assert torch.equal(found[name], reference), name
            continue
        assert found[name].dtype == cpu[name].dtype, name
        error = distance(found[name], reference)
        allowed = FACTOR * max(rounding[name], usual * scale[name]) + FLOOR * scale[name]
        if not error <= allowed + 1e-8 * reference.numel() ** 0.5:
            wrong.append(f"{name}: off by {error:.3g}, allowed {allowed:.3g}")
    assert not wrong, "\n".join(wrong)


def distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    return (found.double() - exact).norm().item()


def plain(model: Any) -> Any:
    return model


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_eager_training_agrees(case: ModelCase) -> None:
    before = torch.tpu.fallback_count()
    found = train(case, "tpu", torch.float32, plain)
    assert torch.tpu.fallback_count() == before
    cpu = train(case, "cpu", torch.float32, plain)
    assert_close(found, cpu, train(case, "cpu", torch.float64, plain))


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_training_agrees(name: str) -> None:
    case = BY_NAME[name]
    torch._dynamo.reset()
    found = train(case, "tpu", torch.float32, torch.compile)
    cpu = train(case, "cpu", torch.float32, plain)
    assert_close(found, cpu, train(case, "cpu", torch.float64, plain))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_inference_agrees(case: ModelCase) -> None:
    """In eval mode without gradients, where PyTorch takes other paths (attention, batch norm)."""
    model, args = case.model().eval(), case.example()
    with torch.no_grad():
        cpu = {"output": model(*args)}
        wide = [a.double() if a.is_floating_point() else a for a in args]
        exact = {"output": copy.deepcopy(model).double()(*wide)}
        found = {"output": model.to("tpu")(*(a.to("tpu") for a in args)).cpu()}
    assert_close(found, cpu, exact)
