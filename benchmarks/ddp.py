"""DistributedDataParallel on tpu beside the same step by hand in jax (`shard_map`), on two ranks.

    torchrun --nproc-per-node 2 -m benchmarks.ddp
    torchrun --nproc-per-node 2 -m benchmarks.ddp --layers 4 --width 256

A step is forward, backward, the mean of the gradients over the ranks, and AdamW. By hand it is one
program with donated arguments. The kinds take turns; medians count, and the losses must agree.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from benchmarks.eager_modes import Gpt

LENGTH = 64


def make(options: Any) -> tuple[Gpt, torch.Tensor, torch.Tensor]:
    """The model, the same on all ranks, and this rank's tokens and labels."""
    torch.manual_seed(0)
    model = Gpt(options.layers, options.width, LENGTH)
    source = torch.Generator().manual_seed(dist.get_rank())
    ids = torch.randint(65, (options.rows, LENGTH + 1), generator=source)
    return model, ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def in_torch(options: Any, compiled: bool) -> Callable[[], Any]:
    """The step with DDP; compiled: the model and the optimiser's step."""
    model, x, y = make(options)
    wrapped: Any = DistributedDataParallel(model.to("tpu"))
    x, y = x.to("tpu"), y.to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    update: Any = optimizer.step
    if compiled:
        wrapped, update = torch.compile(wrapped), torch.compile(update)

    def call() -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(wrapped(x).flatten(0, 1), y.flatten())
        loss.backward()
        update()
        return loss.detach()

    return call


def by_hand(options: Any) -> Callable[[], Any]:
    """The step in jax: one program over the ranks."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from benchmarks.by_hand import adamw, gpt_loss
    from cloud_backend.distributed import launch

    model, x, y = make(options)
    mesh = Mesh(np.array(launch.devices()), ("ranks",))
    rows, same = PartitionSpec("ranks"), PartitionSpec()
    weights = {k: p.detach().numpy() for k, p in model.named_parameters()}
    whole = NamedSharding(mesh, same)

    def place(a: Any) -> Any:
        return jax.make_array_from_process_local_data(whole, np.asarray(a))

    def local(params: Any, state: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(gpt_loss)(params, x, y)
        return *adamw(params, jax.lax.pmean(grads, "ranks"), state), value.reshape(1)

    step = jax.jit(
        jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(same, same, rows, rows),
            out_specs=(same, same, rows),
            check_vma=False,
        ),
        donate_argnums=(0, 1),
    )
    zeros = [{k: np.zeros_like(w) for k, w in weights.items()} for _ in range(2)]
    state = jax.tree.map(place, (np.zeros((), np.float32), *zeros))
    held = [jax.tree.map(place, weights), state]
    split = NamedSharding(mesh, rows)
    batch = [jax.make_array_from_process_local_data(split, a.numpy()) for a in (x, y)]

    def call() -> Any:
        *held[:], value = step(*held, *batch)
        return jnp.squeeze(value.addressable_data(0))

    return call


def main() -> None:
    """Print a line from rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=7)
    options = parser.parse_args()
    dist.init_process_group()
    torch.ones(1, device="tpu")
    runs = {
        "by hand": by_hand(options),
        "ddp compiled": in_torch(options, True),
        "ddp eager": in_torch(options, False),
    }
    losses = {kind: [float(run()) for _ in range(4)] for kind, run in runs.items()}
    times: dict[str, list[float]] = {kind: [] for kind in runs}
    for _ in range(options.repeat):
        for kind, run in runs.items():
            dist.barrier()
            start = time.perf_counter()
            for _ in range(options.steps):
                loss = run()
            float(loss)
            torch.tpu.synchronize()
            times[kind].append((time.perf_counter() - start) / options.steps * 1e3)
    if dist.get_rank() == 0:
        found = {kind: statistics.median(t) for kind, t in times.items()}
        for kind, value in found.items():
            off = max(abs(a - b) for a, b in zip(losses[kind], losses["by hand"], strict=True))
            told = f"{found['by hand'] / value:.2f}x of by hand, losses differ by {off:.1e}"
            print(f"{kind:14} {value:8.2f} ms a step, {told}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
