"""Pipeline schedules of PyTorch on minGPT, cut into one stage a rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from tests.distributed import strategies


class Stage(nn.Module):
    """Some blocks of minGPT; the first stage embeds, the last one makes logits."""

    def __init__(self, net: Any, rank: int, size: int):
        super().__init__()
        count = len(net.blocks) // size
        self.blocks = net.blocks[rank * count : (rank + 1) * count]
        self.first, self.last = rank == 0, rank == size - 1
        if self.first:
            self.token, self.position = net.token, net.position
        if self.last:
            self.norm, self.head = net.norm, net.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.first:
            x = self.token(x) + self.position.weight[: x.shape[1]]
        x = self.blocks(x)
        return self.head(self.norm(x)) if self.last else x


def untied() -> nn.Module:
    """minGPT whose head has its own weights: they lie on different ranks."""
    net = strategies.make("mingpt")
    net.head.weight = nn.Parameter(net.head.weight.detach().clone())
    return net


def losses_and_net() -> tuple[list[float], nn.Module]:
    """The run in one process."""
    net = untied()
    return strategies.train(net), net


def schedule(label: str, kind: Any, compile: bool) -> list[str]:
    rank, size = dist.get_rank(), dist.get_world_size()
    expected, trained = losses_and_net()
    net = Stage(untied(), rank, size)
    run = torch.compile(net) if compile else net
    stage = PipelineStage(run, rank, size, torch.device("tpu", 0))
    runs = kind(stage, n_microbatches=4, loss_fn=lambda out, rows: strategies.loss_of(out, rows))
    optimizer, losses = strategies.optimizer_of(net), []
    for step in range(strategies.STEPS):
        rows, parts = strategies.batch(step), []
        if rank == 0:
            runs.step(rows[:, :-1], target=rows, losses=parts)
        else:
            runs.step(target=rows, losses=parts)
        if net.last:
            losses.append(float(torch.stack(parts).detach().mean()))
        optimizer.step()
        optimizer.zero_grad()
    counterpart = Stage(trained, rank, size)
    far = max(
        float((a - b).detach().abs().max())
        for a, b in zip(net.parameters(), counterpart.parameters(), strict=True)
    )
    off = max((abs(a - b) for a, b in zip(losses, expected, strict=False)), default=0.0)
    told = torch.tensor([far, off], dtype=torch.float64)
    dist.all_reduce(told, dist.ReduceOp.MAX)
    far, off = told.tolist()
    verdict = "ok   " if max(far, off) <= strategies.LIMIT else "WRONG"
    return [f"{verdict} {label} mingpt: losses within {off:.1e}, parameters within {far:.1e}"]


def pipeline(name: str, compile: bool) -> list[str]:
    """GPipe and 1F1B; other models than minGPT have no stages here."""
    if name != "mingpt":
        return [f"ok    pipeline: {name} is not cut into stages here"]
    told = schedule("pipeline, GPipe", ScheduleGPipe, compile)
    return told + schedule("pipeline, 1F1B", Schedule1F1B, compile)


STRATEGIES = {"pipeline": pipeline}
