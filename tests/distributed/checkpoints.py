"""Training that is saved by `torch.distributed.checkpoint`, and goes on with other ranks.

`save FOLDER` trains ten steps and saves after the fifth; `load FOLDER` goes on from there and
compares with the run in one process.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from tests.distributed import strategies

HALF = strategies.STEPS // 2


def sharded() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = strategies.make("mingpt")
    for layer in strategies.layers(model):
        fully_shard(layer)
    fully_shard(model)
    return model, strategies.optimizer_of(model)


def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> list[float]:
    losses = []
    for step in range(first, last):
        rows = strategies.part_of(strategies.batch(step))
        loss = strategies.loss_of(model(rows[:, :-1]), rows)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return strategies.mean_over_ranks(losses)


def main(what: str, folder: str) -> None:
    dist.init_process_group()
    model, optimizer = sharded()
    if what == "save":
        steps(model, optimizer, 0, HALF)
        dcp.save(state(model, optimizer), checkpoint_id=folder)
    else:
        expected, parameters = strategies.reference("mingpt")
        held = state(model, optimizer)
        dcp.load(held, checkpoint_id=folder)
        set_state_dict(
            model, optimizer, model_state_dict=held["model"], optim_state_dict=held["optimizer"]
        )
        losses = steps(model, optimizer, HALF, strategies.STEPS)
        off = max(abs(a - b) for a, b in zip(losses, expected[HALF:], strict=True))
        far = max(
            float((strategies.whole(p) - parameters[k]).abs().max())
            for k, p in model.named_parameters()
        )
        print(f"resumed: losses within {off:.1e}, parameters within {far:.1e}")
        assert max(off, far) <= strategies.LIMIT
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
