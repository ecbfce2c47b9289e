"""Joins the ranks of a program: one jax.distributed cluster, set up through PyTorch's own store.

jax must know of the other processes before it starts, so the process group comes before the first
operation on tpu. Rank 0 runs jax's coordination service; the store tells the others where.
"""

from __future__ import annotations

import functools
import os
import socket
from typing import Any

from cloud_backend import runtime
from cloud_backend.distributed import health
from torch_tpu_unified.core.errors import InputError

_joined: tuple[int, int] | None = None

MSG_LATE = (
    "torch.distributed.init_process_group must come before the first operation on tpu: jax has "
    "started for this process alone. Move init_process_group to the top of the program, before "
    "tensors or models go to tpu."
)
MSG_OTHER_WORLD = (
    "this process joined as rank {0} of {1} before and cannot become rank {2} of {3}: jax keeps "
    "its cluster until the process ends. Start new processes for another world size."
)


def join(store: Any, rank: int, size: int) -> None:
    """Join this process to the others, once.

    Args:
        store: the `torch.distributed.Store` that all ranks share.
        rank: of this process in the world.
        size: of the world; 1 joins nothing.

    Raises:
        InputError: jax has started already, or this process belongs to another world.
    """
    global _joined
    if _joined is not None:
        if _joined != (rank, size):
            raise InputError(MSG_OTHER_WORLD.format(*_joined, rank, size))
        return
    if size > 1:
        if runtime.start.cache_info().currsize:
            raise InputError(MSG_LATE)
        import jax

        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        # It would take SIGTERM for itself, by which torchrun ends ranks.
        jax.config.update("jax_enable_preemption_service", False)
        if rank == 0:
            store.set("tpu/coordinator", f"{host()}:{_free_port()}")
        jax.distributed.initialize(
            store.get("tpu/coordinator").decode(),
            num_processes=size,
            process_id=rank,
            heartbeat_timeout_seconds=health.HEARTBEAT_SECONDS,
        )
        health.watch(client(), rank, size)
    _joined = rank, size


def host() -> str:
    """The address under which other ranks reach this process."""
    if os.environ.get("MASTER_ADDR", "localhost") in ("localhost", "127.0.0.1", "::1"):
        return "127.0.0.1"
    return socket.gethostbyname(socket.gethostname())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def client() -> Any:
    """jax's coordination client, which holds keys and values for all ranks."""
    from jax._src import distributed

    return distributed.global_state.client


@functools.cache
def devices() -> list[Any]:
    """The device of each rank of the world: the first one of its process."""
    first: dict[int, Any] = {}
    for device in runtime.start().devices():
        first.setdefault(device.process_index, device)
    return [first[rank] for rank in sorted(first)]
