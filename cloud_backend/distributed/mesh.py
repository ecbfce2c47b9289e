"""A group's devices as a mesh, and programs over it that each rank starts with its own arrays.

A collective is a function of one rank's arrays, traced under `shard_map`: inside, the axis
`RANKS` spans the group. Each rank of the group must run the same programs in the same order, as
with every backend of c10d; XLA keeps the order of programs that communicate.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cloud_backend import events, runtime
from cloud_backend.distributed import launch

RANKS = "ranks"


class Program(NamedTuple):
    """A program that all ranks of a group start, and the shapes of its results on each."""

    call: Callable[..., Any]
    shapes: list[tuple[int, ...]]


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
        key = (body, static, tuple([(a.shape, a.dtype) for a in arrays]))
        program = self._programs.get(key)
        if program is None:
            events.plan_made(f"c10d::{body.__name__}")
            named = functools.update_wrapper(functools.partial(body, *static), body)
            program = self._programs[key] = self.program(named, arrays)
        return self.start(program, arrays)

    def program(
        self, function: Callable[..., Any], arrays: Sequence[Any], donated: Sequence[int] = ()
    ) -> Program:
        """A program of all ranks, for `start`.

        Args:
            function: of one rank's arrays; returns a list of arrays.
            arrays: examples.
            donated: places of arrays whose memory it may take.
        """
        jax = runtime.start()
        given_shapes, shapes = [a.shape for a in arrays], []

        def local(*given: Any) -> list[Any]:
            values = [x.reshape(s) for x, s in zip(given, given_shapes, strict=True)]
            results = [jax.numpy.asarray(r) for r in function(*values)]
            shapes[:] = [r.shape for r in results]
            return [jax.numpy.atleast_1d(r) for r in results]

        local.__name__ = f"c10d_{function.__name__}"
        spread = jax.shard_map(
            local, mesh=self.mesh, in_specs=self.spec, out_specs=self.spec, check_vma=False
        )
        jitted = jax.jit(spread, donate_argnums=tuple(donated), keep_unused=True)
        return Program(jitted, shapes)

    def start(self, program: Program, arrays: Sequence[Any]) -> list[Any]:
        """Start a program with this rank's arrays; its results on this rank."""
        results = program.call(*[self._spread(a if a.ndim else a.reshape(1)) for a in arrays])
        parts = [r.addressable_data(0) for r in results]
        return [p if s else p.reshape(s) for p, s in zip(parts, program.shapes, strict=True)]

    def _spread(self, a: Any) -> Any:
        shape = (self.size * a.shape[0], *a.shape[1:])
        make = runtime.start().make_array_from_single_device_arrays
        return make(shape, self.sharding, [a])


@functools.lru_cache(maxsize=256)
def group_mesh(ranks: tuple[int, ...], rank: int) -> GroupMesh:
    """The mesh of these ranks; groups of the same ranks share it and its programs."""
    return GroupMesh(ranks, rank)
