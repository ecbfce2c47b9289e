"""Optimisers, schedulers, clipping, mixed precision, checkpointing and copies of trained models.

One small network stands for all: what differs between models is tested in test_training.py.
"""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.model_cases import BY_NAME, example

OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.01}),
    "amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
}
SCHEDULERS = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 5),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=6),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 4))


def batch(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(12, 6).to(device), (torch.arange(12) % 4).to(device)


def train(device: str, make: Any, options: dict[str, Any], scheduler: Any = None) -> nn.Module:
    """Five steps with clipped gradients; the trained network."""
    model, (x, labels) = network().to(device), batch(device)
    optimizer = make(model.parameters(), **options)
    schedule = scheduler and scheduler(optimizer)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        assert norm.device.type == device
        optimizer.step()
        if schedule:
            schedule.step()
    return model


def assert_same(found: nn.Module, expected: nn.Module, atol: float = 2e-6) -> None:
    for name, value in expected.state_dict().items():
        got = found.state_dict()[name].cpu()
        torch.testing.assert_close(
            got, value.cpu(), rtol=1e-5, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("foreach", [False, True], ids=["single", "foreach"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name: str, foreach: bool) -> None:
    make, options = OPTIMIZERS[name]
    found = train("tpu", make, {**options, "foreach": foreach})
    assert torch.tpu.fallback_count() == 0
    # An Adam step divides two rounded moments: a few units in the last place of lr * 5 steps.
    assert_same(found, train("cpu", make, {**options, "foreach": foreach}))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_scheduler(name: str) -> None:
    make, options = OPTIMIZERS["momentum"]
    found = train("tpu", make, options, SCHEDULERS[name])
    assert_same(found, train("cpu", make, options, SCHEDULERS[name]))


def test_optimizer_state_moves_between_devices() -> None:
    make, options = OPTIMIZERS["adamw"]

    def continued(first: str, second: str) -> nn.Module:
        model, (x, labels) = network().to(first), batch(first)
        optimizer = make(model.parameters(), **options)
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
        stream = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, stream)
        stream.seek(0)
        saved = torch.load(stream, map_location="cpu")
        model, (x, labels) = network().to(second), batch(second)
        optimizer = make(model.parameters(), **options)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
        return model

    expected = continued("cpu", "cpu")
    for path in (("tpu", "cpu"), ("cpu", "tpu"), ("tpu", "tpu")):
        assert_same(continued(*path), expected)


def test_tied_weights_survive_saving_and_moving() -> None:
    model = BY_NAME["mingpt"].model().to("tpu")
    assert model.head.weight is model.token.weight
    stream = io.BytesIO()
    torch.save(model.state_dict(), stream)
    stream.seek(0)
    state = torch.load(stream, weights_only=True)
    assert state["head.weight"].device.type == "tpu"
    assert state["head.weight"].data_ptr() == state["token.weight"].data_ptr()
    untied = example("mingpt").GPT(32, 16, 16, 2, 2)
    untied.load_state_dict({n: v.cpu() for n, v in state.items()})
    assert_same(untied, model, atol=0.0)
    with torch.no_grad():
        model.token.weight.zero_()
    assert model.head.weight.abs().sum().item() == 0


def test_checkpoint_repeats_dropout() -> None:
    model, (x, _) = network().to("tpu"), batch("tpu")
    model.insert(1, nn.Dropout(0.5))

    def gradients(call: Any) -> list[torch.Tensor]:
        model.zero_grad()
        torch.tpu.manual_seed(7)
        call(x).square().sum().backward()
        return [p.grad.cpu() for p in model.parameters()]

    expected = gradients(model)
    assert any(
        not torch.equal(a, b) for a, b in zip(expected, gradients(model.eval()), strict=True)
    )
    model.train()
    for reentrant in (False, True):
        given = x.clone().requires_grad_()
        found = gradients(lambda x, g=given, r=reentrant: checkpoint(model, g, use_reentrant=r))
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)


def test_autocast_step() -> None:
    def step(device: str) -> tuple[float, nn.Module]:
        model, (x, labels) = network().to(device), batch(device)
        with torch.autocast(device, torch.bfloat16):
            output = model(x)
            assert output.dtype == torch.bfloat16
            loss = F.cross_entropy(output.float(), labels)
        loss.backward()
        assert all(p.grad.dtype == torch.float32 for p in model.parameters())
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        return loss.item(), model

    (loss, model), (expected, reference) = step("tpu"), step("cpu")
    # bfloat16 has 8 bits: one unit of rounding is 2**-8 of the value.
    assert loss == pytest.approx(expected, abs=2**-6)
    assert_same(model, reference, atol=2**-8 * 0.5)


def test_grad_scaler_skips_steps_that_overflow() -> None:
    model, (x, labels) = network().to("tpu"), batch("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("tpu", init_scale=2.0**10)
    reference = copy.deepcopy(model)
    for factor in (1.0, float("inf")):
        optimizer.zero_grad()
        with torch.autocast("tpu", torch.float16):
            loss = F.cross_entropy(model(x).float(), labels)
        scaler.scale(loss * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        if factor == 1.0:
            assert scaler.get_scale() == 2.0**10
            assert not torch.equal(model[0].weight.cpu(), reference[0].weight.cpu())
            reference = copy.deepcopy(model)
    assert scaler.get_scale() == 2.0**9
    assert_same(model, reference, atol=0.0)


def test_deepcopy_of_a_trained_model_is_independent() -> None:
    make, options = OPTIMIZERS["adam"]
    model, (x, _) = train("tpu", make, options), batch("tpu")
    twin = copy.deepcopy(model)
    before = model(x).cpu()
    torch.testing.assert_close(twin(x).cpu(), before)
    with torch.no_grad():
        for p in twin.parameters():
            p.add_(1.0)
    torch.testing.assert_close(model(x).cpu(), before)
    assert all(p.device.type == "tpu" and p.requires_grad for p in twin.parameters())
