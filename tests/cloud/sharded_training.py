"""Trains a model over 8 virtual chips under plans and prints how far it is from one chip, as JSON.

python -m tests.cloud.sharded_training --model mingpt --steps 10 --plans data fsdp tensor 2d
"""

from __future__ import annotations

import argparse
import json
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn import functional as F

import torch_tpu_unified as ttu
from tests.model_cases import example

# Column and row pairs of each block: in PyTorch's own words, and by regular expression.
TENSOR = {
    "mingpt": {
        "blocks.*.qkv": ColwiseParallel(),
        "blocks.*.out": RowwiseParallel(),
        "blocks.*.mlp.0": ColwiseParallel(),
        "blocks.*.mlp.2": RowwiseParallel(),
    },
    "llama": {
        r".*\.(q|k|v|gate|up)_proj\.weight": ("tensor", None),
        r".*\.(o|down)_proj\.weight": (None, "tensor"),
        r".*\.lm_head\.weight": ("tensor", None),
    },
}


def model_of(name: str, dtype: torch.dtype) -> nn.Module:
    """minGPT or Llama of the examples, with the same weights each time."""
    torch.manual_seed(0)
    module = example(name)
    return (module.GPT(depth=2) if name == "mingpt" else module.Llama()).to(dtype)


def plans_of(name: str) -> dict[str, tuple[dict[str, int], object]]:
    """Plan name -> axes of the mesh, and the plan."""
    return {
        "data": ({"data": 8}, "data"),
        "fsdp": ({"data": 8}, "fsdp"),
        "tensor": ({"data": 4, "tensor": 2}, TENSOR[name]),
        "2d": ({"fsdp": 4, "tensor": 2}, ["fsdp", TENSOR[name]]),
    }


def train(model: nn.Module, ids: torch.Tensor, steps: int, compiled: bool, rate: float):
    """Losses, parameters and optimiser after some steps of AdamW."""
    torch._dynamo.reset()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    run, update = model, optimizer.step
    if compiled:
        run, update = torch.compile(model), torch.compile(optimizer.step)
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(run(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        update()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in model.parameters()], optimizer


def compare(options: argparse.Namespace) -> list[dict[str, object]]:
    """One row for each plan, eager and compiled: differences from one chip, bytes per chip."""
    torch.manual_seed(1)
    ids = torch.randint(128, (16, 17))
    dtype = getattr(torch, options.dtype)
    alone = model_of(options.model, dtype).to("tpu")
    losses, parameters, _ = train(alone, ids.to("tpu"), options.steps, False, options.rate)
    rows = []
    for compiled in (False, True):
        for name in options.plans:
            axes, plan = plans_of(options.model)[name]
            mesh = ttu.Mesh(**axes)
            model = ttu.shard(model_of(options.model, dtype), mesh, plan)
            found, values, optimizer = train(
                model, mesh.shard_batch(ids), options.steps, compiled, options.rate
            )
            rows.append(
                {
                    "plan": name,
                    "compiled": compiled,
                    "loss": max(abs(a - b) for a, b in zip(found, losses, strict=True)),
                    "parameters": max(
                        float((a - b).abs().max()) for a, b in zip(values, parameters, strict=True)
                    ),
                    "bytes": mesh.bytes_per_device(model, optimizer),
                    "gradients": mesh.bytes_per_device([p.grad for p in model.parameters()]),
                    "whole": sum(p.nbytes for p in model.parameters()),
                }
            )
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="mingpt", choices=list(TENSOR))
    parser.add_argument("--plans", nargs="+", default=["data", "fsdp", "tensor", "2d"])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--rate", type=float, default=1e-3)
    print(json.dumps(compare(parser.parse_args())))
