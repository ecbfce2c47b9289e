"""minGPT over all chips of this process: `fsdp`, or tensor parallel as well, without other code.

XLA_FLAGS=--xla_force_host_platform_device_count=8 python examples/many_chips.py --tensor 2
"""

from pathlib import Path

import click
import torch
from mingpt import GPT
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn import functional as F

import torch_tpu_unified as ttu

PAIRS = {
    "blocks.*.qkv": ColwiseParallel(),
    "blocks.*.out": RowwiseParallel(),
    "blocks.*.mlp.0": ColwiseParallel(),
    "blocks.*.mlp.2": RowwiseParallel(),
}


@click.command()
@click.option("--steps", default=10, help="Training steps.")
@click.option("--tensor", default=1, help="Chips that share each matrix.")
@click.option("--compile", "compiled", is_flag=True, help="Train with torch.compile.")
def main(steps: int, tensor: int, compiled: bool) -> None:
    mesh = ttu.Mesh(fsdp=-1, tensor=tensor)
    net = ttu.shard(GPT(), mesh, ["fsdp", PAIRS])
    run = torch.compile(net) if compiled else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    text = torch.tensor(list(Path(__file__).read_bytes())).clamp(max=127)
    for step in range(steps):
        starts = torch.randint(len(text) - 65, (16,)).tolist()
        ids = mesh.shard_batch(torch.stack([text[i : i + 65] for i in starts]))
        loss = F.cross_entropy(run(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")
    whole = 3 * sum(p.nbytes for p in net.parameters())
    held = mesh.bytes_per_device(net, optimizer)
    print(f"{mesh}: {held:,} bytes on each chip for parameters and optimiser, of {whole:,}")


if __name__ == "__main__":
    main()
