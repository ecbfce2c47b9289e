"""`torch.distributed` on tpu: ranks joined by jax.distributed, collectives as XLA programs.

Flow: launch (join the ranks) -> mesh (a group's devices, programs over them) -> collectives (what
the programs compute) -> process_group (c10d's methods); point_to_point sends single arrays.
PyTorch creates a process group of ours for the backend "tpu", which is the default for tpu tensors.
"""

from __future__ import annotations

from typing import Any

NAME = "tpu"


def install(distributed_c10d: Any) -> None:
    """Register the backend "tpu" with `torch.distributed`; loads nothing else."""
    distributed_c10d.Backend.register_backend(NAME, _create, extended_api=True, devices=["tpu"])


def _create(options: Any, backend_options: Any) -> Any:
    from cloud_backend.distributed.process_group import TpuProcessGroup

    return TpuProcessGroup.create(options)
