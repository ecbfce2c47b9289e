"""Random numbers of ranks: their own by seed, and DTensor's, which follow the placement."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.tensor as dtensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def rows(values: torch.Tensor) -> torch.Tensor:
    """The values of all ranks, stacked."""
    found = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(found, values)
    return torch.stack(found).cpu()


def alike(values: torch.Tensor) -> bool:
    found = rows(values)
    return bool((found == found[0]).all())


def draws(name: str, compile: bool) -> list[str]:
    """A strategy of `strategies`: checks, in its form."""
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    options: dict[str, Any] = {"device_mesh": mesh}
    torch.manual_seed(3)
    whole = dtensor.rand((8,), placements=[Replicate()], **options).to_local()
    part = dtensor.rand((8, 8), placements=[Shard(0)], **options).to_local()
    ones = distribute_tensor(torch.ones(8, 64, device="tpu"), mesh, [Shard(0)])
    dropped = torch.nn.functional.dropout(ones, 0.5).to_local()
    torch.manual_seed(dist.get_rank())
    own = torch.rand(8, device="tpu")
    found = {
        "replicated draws are the same on all ranks": alike(whole),
        "sharded draws differ": not alike(part),
        "dropout of a sharded tensor differs": not alike(dropped),
        "a seed of the rank's own gives its own draws": not alike(own),
    }
    return [f"{'ok   ' if right else 'WRONG'} {what}" for what, right in found.items()]


STRATEGIES = {"draws": draws}
