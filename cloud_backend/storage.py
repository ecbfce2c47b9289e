"""`UntypedStorage` on the device: cloning, moving, resizing; C++ cannot without an allocator.

`registration` takes the Python-level methods over, for tpu storages only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cloud_backend import events, mesh, runtime, tensor, views


def from_cpu(source: Any) -> Any:
    """A storage on the device with a copy of a CPU storage's bytes."""
    nbytes = source.nbytes()
    flat = torch.empty(0, dtype=torch.uint8).set_(source)
    values = np.array(flat.numpy(), copy=True)
    events.to_device(values.nbytes)
    array = runtime.start().device_put(values, mesh.place())
    return tensor.new_storage(array, nbytes)


def to_cpu(source: Any) -> Any:
    """A CPU storage with a copy of a tpu storage's bytes."""
    array = source.buffer.array
    if array is None:
        return torch.zeros(source.nbytes(), dtype=torch.uint8).untyped_storage()
    events.host_sync("copy of a storage to the host")
    values = np.array(array, copy=True, order="C").reshape(-1).view(np.uint8)
    events.to_host(values.nbytes)
    flat = torch.empty(source.nbytes(), dtype=torch.uint8)
    flat[: values.size] = torch.from_numpy(values)
    return flat.untyped_storage()


def clone(source: Any) -> Any:
    """Another storage over the same immutable array."""
    return tensor.new_storage(source.buffer.array, source.nbytes())


def copy_(target: Any, source: Any, non_blocking: bool | None = None) -> Any:
    """Copy bytes into a tpu storage."""
    array = source.buffer.array if source.device.type == "tpu" else from_cpu(source).buffer.array
    if target.buffer.array is None or target.nbytes() == source.nbytes():
        target.buffer.array = array
        return target
    old = views.flat_as(target.buffer.array, np.dtype(np.uint8))
    new = views.flat_as(array, np.dtype(np.uint8))
    target.buffer.array = old.at[: new.size].set(new)
    return target


def grow(source: Any, nbytes: int) -> None:
    """Make a storage larger, in place: all tensors over it see the same memory as before."""
    array = source.buffer.array
    if array is not None:
        flat = views.flat_as(array, np.dtype(np.uint8))
        array = runtime.start().numpy.pad(flat, (0, nbytes - flat.size))
    # Only with an empty storage may another of any size change places.
    source._swap_data_ptr_(tensor.new_storage(None, 0))
    source._swap_data_ptr_(tensor.new_storage(None, nbytes))
    source.buffer = tensor.Buffer(array, nbytes)


def resize_(self: Any, size: int) -> Any:
    """Grow, or free the array (size 0); a freed storage can be used again, unwritten."""
    if size > self.nbytes():
        grow(self, size)
    if size == 0:
        self.buffer.array = None
    return self


def set_from_file(self: Any, file: Any, offset: Any, is_real_file: bool, element_size: int) -> Any:
    """Fill a storage from a legacy checkpoint; C++ would write through its address."""
    host = torch.UntypedStorage(self.nbytes())
    host._set_from_file(file, offset, is_real_file, element_size)
    return copy_(self, host)


def write_file(self: Any, *rest: Any) -> None:
    """Write a storage's bytes into a file, as `UntypedStorage._write_file`."""
    to_cpu(self)._write_file(*rest)


def tolist(self: Any) -> list[int]:
    """The bytes of a storage."""
    return to_cpu(self).tolist()  # type: ignore[no-any-return]


def moved(self: Any, device: str) -> Any:
    """A storage on another device: `self` or a copy."""
    if self.device.type == device:
        return self
    if device == "tpu":
        return from_cpu(self.cpu())
    return to_cpu(self) if device == "cpu" else to_cpu(self).to(device=device)
