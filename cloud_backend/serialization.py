"""`torch.load` for checkpoints saved from the device, and `map_location="tpu"`."""

from __future__ import annotations

from typing import Any

import torch


def _tag(storage: Any) -> str | None:
    return "tpu" if storage.device.type == "tpu" else None


def _restore(storage: Any, location: str) -> Any:
    """Move a CPU storage of a checkpoint to the device when its location says `tpu`."""
    if not location.startswith("tpu"):
        return None
    if getattr(storage, "device", torch.device("cpu")).type == "tpu":
        return storage
    from cloud_backend import storage as storages

    untyped = storage if isinstance(storage, torch.UntypedStorage) else storage._untyped_storage
    return storages.from_cpu(untyped)


def install() -> None:
    """Register with `torch.serialization`, before its generic rule for out-of-tree devices."""
    torch.serialization.register_package(5, _tag, _restore)
