"""What a call of a compiled function costs the host, beside `jax.jit` and PyTorch's guards.

    python -m benchmarks.compiled_call
    python -m benchmarks.compiled_call --parameters 400 --calls 2000

The function adds up its parameters, eight numbers each, so that nearly all time is the call's own.
`guards` is the same function with a backend that computes nothing: what PyTorch does before any
backend is called. The ratio is ours over the sum of the two; the four take turns, medians count.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

LIMIT = 1.5


class Sum(nn.Module):
    """x plus all parameters."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.randn(8)) for _ in range(count)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for p in self.parts:
            x = x + p
        return x


def jitted(count: int) -> Callable[[], Any]:
    """The function in jax, with a list of as many arrays."""
    import jax

    def add(parts: list[Any], x: Any) -> Any:
        for p in parts:
            x = x + p
        return x

    run = jax.jit(add)
    parts = [jax.numpy.ones(8, "float32") * i for i in range(count)]
    x = jax.numpy.ones(8, "float32")
    return lambda: run(parts, x)


def torch_calls(count: int) -> dict[str, Callable[[], Any]]:
    """The function compiled by us, and by a backend that computes nothing."""
    x = torch.randn(8, device="tpu")
    model = Sum(count).to("tpu")
    result = x + 1

    def nothing(gm: Any, inputs: Any) -> Any:
        return lambda *args: (result,)

    ours = torch.compile(model, backend="tpu", fullgraph=True)
    guards = torch.compile(Sum(count).to("tpu"), backend=nothing, fullgraph=True)
    return {"ours": lambda: ours(x), "guards": lambda: guards(x)}


def seconds(run: Callable[[], Any], calls: int) -> float:
    """The time of one call, of many in a row, with what they started finished."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    torch.tpu.synchronize()
    return (time.perf_counter() - start) / calls


def main() -> None:
    """Print microseconds a call, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=200)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--repeat", type=int, default=15)
    options = parser.parse_args()
    torch.ones(1, device="tpu")
    with torch.no_grad():
        runs = {"jax.jit": jitted(options.parameters), **torch_calls(options.parameters)}
        times: dict[str, list[float]] = {name: [] for name in runs}
        for run in runs.values():
            seconds(run, 10)
        for _ in range(options.repeat):
            for name, run in runs.items():
                times[name].append(seconds(run, options.calls))
    found = {name: statistics.median(t) * 1e6 for name, t in times.items()}
    print("  ".join(f"{name} {value:.0f} us" for name, value in found.items()))
    ratio = found["ours"] / (found["jax.jit"] + found["guards"])
    print(f"ours / (jax.jit + guards) {ratio:.2f}; wanted: at most {LIMIT}")


if __name__ == "__main__":
    main()
