"""Fused eager mode beside strict mode and CPU PyTorch: steps a second, peak memory, programs.

    python benchmarks/eager_modes.py                      # all cases
    python benchmarks/eager_modes.py --cases gpt-small,chain-1m --steps 20

The modes take turns, so that drift of the machine falls on all of them; figures are medians.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """A transformer block with attention written out."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        parts = self.qkv(self.norm1(x)).split(c, 2)
        q, k, v = (p.view(b, t, self.heads, c // self.heads).transpose(1, 2) for p in parts)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(c // self.heads)
        mixed = F.softmax(scores.masked_fill(mask, float("-inf")), -1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """A small GPT over 65 tokens."""

    def __init__(self, layers: int, width: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(65, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 65)
        self.register_buffer("mask", torch.ones(length, length, dtype=torch.bool).triu(1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places.weight
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(self.norm(x))


class Residual(nn.Module):
    """A basic block of ResNet-18."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)
        self.skip = nn.Sequential()
        if stride != 1:
            self.skip = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.skip(x))


def resnet18() -> nn.Module:
    """ResNet-18 for 32x32 images, 10 classes."""
    widths = [64, 64, 128, 256, 512]
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    for i in range(4):
        layers += [Residual(widths[i], widths[i + 1], 1 if i == 0 else 2)]
        layers += [Residual(widths[i + 1], widths[i + 1], 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def training(make: Callable[[], nn.Module], inputs: torch.Tensor, targets: torch.Tensor) -> Any:
    """A function that makes a step of training with AdamW on a device."""

    def prepare(device: str) -> Callable[[], Any]:
        torch.manual_seed(0)
        model = make().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        x, y = inputs.to(device), targets.to(device)

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    return prepare


def gpt(layers: int, width: int, batch: int, length: int) -> Any:
    """Training of a GPT."""
    ids = torch.randint(65, (batch, length + 1), generator=torch.Generator().manual_seed(0))
    return training(lambda: Gpt(layers, width, length), ids[:, :-1], ids[:, 1:])


def chain(size: tuple[int, ...]) -> Any:
    """100 elementwise operators."""

    def prepare(device: str) -> Callable[[], Any]:
        a, b = torch.ones(size).to(device), torch.full(size, 1e-3).to(device)

        def step() -> torch.Tensor:
            x = a
            for _ in range(25):
                x = torch.relu((x + b) * 0.5) - b
            return x

        return step

    return prepare


CASES: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "gpt-small": (lambda: gpt(3, 48, 4, 32), ("strict", "fused")),
    "gpt": (lambda: gpt(4, 256, 8, 128), ("strict", "fused")),
    "resnet18": (
        lambda: training(resnet18, torch.randn(8, 3, 32, 32), torch.arange(8)),
        ("strict", "fused"),
    ),
    "chain-1m": (lambda: chain((1000, 1000)), ("cpu", "strict", "fused")),
    "chain-4x4": (lambda: chain((4, 4)), ("cpu", "strict", "fused", "raw jax")),
}


def raw_jax() -> Callable[[], Any]:
    """100 calls of one jitted addition of 4x4 numbers."""
    import jax

    add, a = jax.jit(lambda x, y: x + y), jax.numpy.ones((4, 4), "float32")

    def step() -> Any:
        x = a
        for _ in range(100):
            x = add(x, a)
        return x

    return step


def measure(name: str, steps: int, turns: int) -> None:
    """Print one line for each mode of a case."""
    make, modes = CASES[name]
    prepare = make()
    runs: dict[str, Any] = {}
    seconds: dict[str, list[float]] = {m: [] for m in modes}
    peaks: dict[str, int] = {}
    compiles = dict.fromkeys(modes, 0)
    for turn in range(turns):
        for mode in modes:
            torch.tpu.set_eager_mode(mode if mode in ("strict", "fused") else "strict")
            if turn == 0:
                before = torch.tpu.memory_allocated()
                device = "cpu" if mode == "cpu" else "tpu"
                runs[mode] = raw_jax() if mode == "raw jax" else prepare(device)
                for _ in range(3):
                    runs[mode]()
                    torch.tpu.synchronize()
            torch.tpu.synchronize()
            torch.tpu.reset_peak_memory_stats()
            programs = torch.tpu.compile_count()
            start = time.perf_counter()
            for _ in range(steps):
                runs[mode]()
                if name.startswith("chain"):
                    torch.tpu.synchronize()
            torch.tpu.synchronize()
            seconds[mode].append((time.perf_counter() - start) / steps)
            compiles[mode] += torch.tpu.compile_count() - programs
            if turn == 0:  # later turns find the other modes' tensors on the device as well
                peaks[mode] = torch.tpu.max_memory_allocated() - before
    torch.tpu.set_eager_mode("strict")
    first = statistics.median(seconds[modes[0]])
    for mode in modes:
        t = statistics.median(seconds[mode])
        print(
            f"{name:10} {mode:8} {t * 1e3:9.3f} ms a step   {first / t:6.2f}x {modes[0]}   "
            f"peak {peaks[mode] / 1e6:8.2f} MB   programs after warm-up {compiles[mode]}",
            flush=True,
        )


def main() -> None:
    """Run the cases that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    for name in options.cases.split(","):
        measure(name, options.steps, options.turns)


if __name__ == "__main__":
    main()
