"""minGPT on several ranks, with DistributedDataParallel or fully_shard; it resumes where it ended.

torchrun --nproc-per-node 2 examples/data_parallel.py --steps 5
torchrun --nproc-per-node 4 examples/data_parallel.py --steps 5 --shard

Each rank takes its rows of the same batch, so that any number of ranks gives the same losses; the
checkpoint of some ranks is resumed by any other number of them.
"""

import sys
from pathlib import Path

import click
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(Path(__file__).parent))
from mingpt import GPT

FOLDER = Path("data_parallel_checkpoint")


def batch(step: int, text: torch.Tensor) -> torch.Tensor:
    """This rank's rows of the step's batch."""
    source = torch.Generator().manual_seed(step)
    starts = torch.randint(2000, (8,), generator=source).tolist()
    rows = torch.stack([text[i : i + 65] for i in starts])
    return rows.tensor_split(dist.get_world_size())[dist.get_rank()].to("tpu")


@click.command()
@click.option("--steps", default=5, help="Training steps from where the checkpoint ended.")
@click.option("--shard", is_flag=True, help="Shard the parameters (FSDP2) instead of DDP.")
def main(steps: int, shard: bool) -> None:
    dist.init_process_group()  # before anything is on tpu
    torch.manual_seed(0)
    model = GPT().to("tpu")
    if shard:
        for block in model.blocks:
            fully_shard(block)
        run = fully_shard(model)
    else:
        run = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": 0}
    if FOLDER.exists():
        dcp.load(state, checkpoint_id=FOLDER)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    text = torch.tensor(list(Path(__file__).with_name("mingpt.py").read_bytes())).clamp(max=127)
    for step in range(state["step"], state["step"] + steps):
        rows = batch(step, text)
        logits = run(rows[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {mean.item():.4f}", flush=True)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": state["step"] + steps}
    dcp.save(state, checkpoint_id=FOLDER)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
