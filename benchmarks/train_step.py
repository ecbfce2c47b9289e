"""Training steps compiled on tpu beside the same steps by hand in `jax.jit`, and inductor's.

    python -m benchmarks.train_step
    python -m benchmarks.train_step --models mlp,gpt --inductor --json steps.jsonl

A step is forward, backward and AdamW. Ours is two compiled functions: the loss with its backward
pass, and the optimiser's step. The kinds take turns; medians count, and the losses must agree.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.eager_modes import Gpt


class Block(nn.Module):
    """A block of ResNet-18; normalised by the batch alone."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = norm(outer), norm(outer)
        self.short: nn.Module | None = None
        if stride > 1:
            self.short = nn.Conv2d(inner, outer, 1, stride, bias=False)
            self.norm3 = norm(outer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(y + (x if self.short is None else self.norm3(self.short(x))))


def norm(width: int) -> nn.BatchNorm2d:
    """Batch norm without running statistics."""
    return nn.BatchNorm2d(width, track_running_stats=False)


class ResNet18(nn.Module):
    """ResNet-18 for small images."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, width, 3, 1, 1, bias=False), norm(width)
        widths = [width << (i // 2) for i in range(8)]
        pairs = zip([width, *widths], widths, strict=False)
        self.blocks = nn.ModuleList([Block(a, b, 2 if b > a else 1) for a, b in pairs])
        self.head = nn.Linear(widths[-1], 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def make(name: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A model on the CPU, its inputs and labels."""
    torch.manual_seed(0)
    if name == "mlp":
        layers = nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()
        model: nn.Module = nn.Sequential(*layers, nn.Linear(1024, 10))
        return model, torch.randn(64, 256), torch.randint(10, (64,))
    if name == "gpt":
        return Gpt(6, 192, 64), torch.randint(65, (8, 64)), torch.randint(65, (8, 64))
    return ResNet18(), torch.randn(16, 3, 32, 32), torch.randint(10, (16,))


def by_hand(name: str) -> Callable[[], Any]:
    """The step in plain jax."""
    import jax.numpy as jnp

    from benchmarks import by_hand as hand

    model, x, y = make(name)
    params = {n: jnp.asarray(p.detach().numpy()) for n, p in model.named_parameters()}
    loss = {"mlp": hand.mlp_loss, "gpt": hand.gpt_loss, "resnet18": hand.resnet_loss}[name]
    return hand.training_step(loss, params, jnp.asarray(x.numpy()), jnp.asarray(y.numpy()))


def in_torch(name: str, device: str, backend: str) -> Callable[[], Any]:
    """The step compiled by a backend of PyTorch."""
    model, x, y = make(name)
    model.to(device)
    x, y = x.to(device), y.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def gradients(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, -2), y.flatten())
        loss.backward()
        return loss.detach()

    run = torch.compile(gradients, backend=backend, fullgraph=True)
    update = torch.compile(optimizer.step, backend=backend)

    def call() -> Any:
        for p in model.parameters():
            p.grad = None
        loss = run(x, y)
        update()
        return loss

    return call


def compare(name: str, options: Any) -> dict[str, Any]:
    """Milliseconds a step of each kind, and the ratio of ours to the step by hand."""
    torch._dynamo.reset()
    torch.ones(1, device="tpu")
    runs = {"by hand": by_hand(name), "ours": in_torch(name, "tpu", "tpu")}
    if options.inductor:
        runs["inductor"] = in_torch(name, "cpu", "inductor")
    losses = {kind: [float(run()) for _ in range(4)] for kind, run in runs.items()}
    times: dict[str, list[float]] = {kind: [] for kind in runs}
    for _ in range(options.repeat):
        for kind, run in runs.items():
            start = time.perf_counter()
            for _ in range(options.steps):
                loss = run()
            float(loss)
            torch.tpu.synchronize()
            times[kind].append((time.perf_counter() - start) / options.steps * 1e3)
    found = {kind: statistics.median(t) for kind, t in times.items()}
    worst = max(abs(a - b) for a, b in zip(losses["by hand"], losses["ours"], strict=True))
    return {
        "model": name,
        **{f"{kind}, ms": round(value, 3) for kind, value in found.items()},
        "ours is faster than by hand by a factor of": round(found["by hand"] / found["ours"], 3),
        "losses differ by": worst,
    }


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="mlp,gpt,resnet18")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--inductor", action="store_true", help="show inductor on the CPU as well")
    parser.add_argument("--json", help="a file that gets one result a line")
    options = parser.parse_args()
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        for name in options.models.split(","):
            row = compare(name, options)
            print("  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
            if options.json:
                with Path(options.json).open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
