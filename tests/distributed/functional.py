"""Functional collectives inside one compiled graph against the same calls one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch.distributed.device_mesh import init_device_mesh

Tensor = torch.Tensor


def every_collective(x: Tensor) -> Any:
    group = dist.group.WORLD
    gathered = fc.all_gather_single(x, 0, group)
    return (
        fc.all_reduce(x * 2, "sum", group).sum(),
        fc.all_reduce(x, "max", group),
        gathered,
        fc.reduce_scatter_single(gathered + 1, "avg", 0, group),
        fc.all_to_all_single(gathered, None, None, group),
        fc.broadcast(x, 1, group),
        *fc.all_reduce_coalesced([x, x + 1], "sum", group),
    )


def c10d_in_place(x: Tensor) -> Tensor:
    y = x * 3
    dist.all_reduce(y)
    return y + 1


def with_gradient(x: Tensor) -> Tensor:
    return (fc.all_gather_single_autograd(x * 0.5, 0, dist.group.WORLD) ** 2).sum()


def of_a_mesh(mesh: Any) -> Callable[[Tensor], Any]:
    """Both axes of a mesh in one graph: each rank knows its own groups only."""

    def run(x: Tensor) -> Any:
        rows = fc.all_reduce(x, "sum", (mesh, 0))
        both = fc.all_gather_single(rows * 2, 0, (mesh, 1))
        return rows, both, fc.reduce_scatter_single(both, "sum", 0, (mesh, 1))

    return run


def differences() -> list[str]:
    """What differs, in words; each function is one graph (`fullgraph`)."""
    size, rank = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh("tpu", (2, size // 2), mesh_dim_names=("rows", "columns"))
    told = []
    x = torch.arange(8.0, device="tpu").reshape(4, 2) + 10 * rank
    for function in (every_collective, c10d_in_place, with_gradient, of_a_mesh(mesh)):
        torch._dynamo.reset()
        before, results = torch.tpu.compile_stats()["graphs"], []
        for run in (function, torch.compile(function, fullgraph=True)):
            given = x.clone().requires_grad_(function is with_gradient)
            out = run(given)
            if function is with_gradient:
                out.backward()
                out = (out.detach(), given.grad)
            results.append(out if isinstance(out, tuple) else (out,))
        same = all(torch.allclose(e.cpu(), f.cpu()) for e, f in zip(*results, strict=True))
        graphs = torch.tpu.compile_stats()["graphs"] - before
        if not same or graphs != (2 if function is with_gradient else 1):
            told.append(f"{function.__name__}: {graphs} graphs, {same=}")
    return told
