"""A group's devices as a mesh, and programs over it that each rank starts with its own arrays.

A collective is a function of one rank's arrays, traced under `shard_map`: inside, the axis
`RANKS` spans the group. Each rank of the group must run the same programs in the same order, as
with every backend of c10d; XLA keeps the order of programs that communicate.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cloud_backend import events, runtime
from cloud_backend.distributed import launch

RANKS = "ranks"


class GroupMesh:
    """The devices of a group's ranks, one each.

    Args:
        ranks: the global rank of each member, in the group's order.
        rank: which member this process is.
    """

    def __init__(self, ranks: Sequence[int], rank: int) -> None:
        jax = runtime.start()
        self.ranks, self.rank, self.size = tuple(ranks), rank, len(ranks)
        known = launch.devices()
        chosen = np.array([known[r] for r in ranks])
        self.mesh = jax.sharding.Mesh(chosen, (RANKS,))
        self.spec = jax.sharding.PartitionSpec(RANKS)
        self.sharding = jax.sharding.NamedSharding(self.mesh, self.spec)
        self._programs: dict[Any, Any] = {}

    def run(self, body: Callable[..., Any], *static: Any, arrays: Sequence[Any]) -> list[Any]:
        """The results of `body(*static, *arrays)` on this rank; starts it and does not wait.

        Args:
            body: computes a list of arrays; may use jax's collectives over the axis `RANKS`.
            static: hashable arguments, the same on all ranks.
            arrays: this rank's arrays, of the same shapes and dtypes on all ranks.
        """
        flat = [a.reshape(1) if a.ndim == 0 else a for a in arrays]
        key = (body, static, tuple([(a.shape, a.dtype) for a in arrays]))
        program = self._programs.get(key)
        if program is None:
            events.plan_made(f"c10d::{body.__name__}")
            program = self._programs[key] = self._make(body, static, arrays)
        results = program(*[self._spread(a) for a in flat])
        return [r.addressable_data(0) for r in results]

    def _spread(self, a: Any) -> Any:
        shape = (self.size * a.shape[0], *a.shape[1:])
        make = runtime.start().make_array_from_single_device_arrays
        return make(shape, self.sharding, [a])

    def _make(self, body: Callable[..., Any], static: Any, arrays: Sequence[Any]) -> Any:
        jax = runtime.start()
        shapes = [a.shape for a in arrays]

        def local(*given: Any) -> list[Any]:
            values = [x.reshape(s) for x, s in zip(given, shapes, strict=True)]
            return [jax.numpy.atleast_1d(r) for r in body(*static, *values)]

        local.__name__ = f"c10d_{body.__name__}"
        spread = jax.shard_map(
            local, mesh=self.mesh, in_specs=self.spec, out_specs=self.spec, check_vma=False
        )
        return jax.jit(spread)


@functools.lru_cache(maxsize=256)
def group_mesh(ranks: tuple[int, ...], rank: int) -> GroupMesh:
    """The mesh of these ranks; groups of the same ranks share it and its programs."""
    return GroupMesh(ranks, rank)
