"""`UntypedStorage` on the device: cloning, moving, resizing; C++ cannot without an allocator.

The Python-level methods are taken over for tpu storages only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from cloud_backend import events, runtime, tensor, views


def from_cpu(source: Any) -> Any:
    """A storage on the device with a copy of a CPU storage's bytes."""
    nbytes = source.nbytes()
    flat = torch.empty(0, dtype=torch.uint8).set_(source)
    values = np.array(flat.numpy(), copy=True)
    events.to_device(values.nbytes)
    array = runtime.start().device_put(values, runtime.device())
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


def copy_(target: Any, source: Any) -> Any:
    """Copy bytes into a tpu storage."""
    array = source.buffer.array if source.device.type == "tpu" else from_cpu(source).buffer.array
    if target.buffer.array is None or target.nbytes() == source.nbytes():
        target.buffer.array = array
        return target
    old = views.flat_as(target.buffer.array, np.dtype(np.uint8))
    new = views.flat_as(array, np.dtype(np.uint8))
    target.buffer.array = old.at[: new.size].set(new)
    return target


def _for_tpu(name: str, ours: Callable[..., Any]) -> None:
    theirs = getattr(torch.UntypedStorage, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == "tpu":
            return ours(self, *args, **kwargs)
        return theirs(self, *args, **kwargs)

    method.__name__, method.__doc__ = name, theirs.__doc__
    setattr(torch.UntypedStorage, name, method)


def _copy(self: Any, source: Any, non_blocking: bool | None = None) -> Any:
    return copy_(self, source)


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


def _resize(self: Any, size: int) -> Any:
    """Grow, or free the array (size 0); a freed storage can be used again, unwritten."""
    if size > self.nbytes():
        grow(self, size)
    if size == 0:
        self.buffer.array = None
    return self


def _set_from_file(self: Any, file: Any, offset: Any, is_real_file: bool, element_size: int) -> Any:
    """Fill a storage from a legacy checkpoint; C++ would write through its address."""
    host = torch.UntypedStorage(self.nbytes())
    host._set_from_file(file, offset, is_real_file, element_size)
    return copy_(self, host)


def _install_to() -> None:
    theirs = torch.UntypedStorage.to

    def to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
        here, there = self.device.type, torch.device(device).type
        if "tpu" not in (here, there):
            return theirs(self, device=device, non_blocking=non_blocking)
        if here == there:
            return self
        if there == "tpu":
            return from_cpu(self.cpu())
        return to_cpu(self) if there == "cpu" else theirs(to_cpu(self), device=device)

    to.__doc__ = theirs.__doc__
    torch.UntypedStorage.to = to  # type: ignore[method-assign]


def install() -> None:
    """Take the methods over."""
    _for_tpu("clone", clone)
    _for_tpu("cpu", to_cpu)
    _for_tpu("copy_", _copy)
    _for_tpu("resize_", _resize)
    _install_to()
    _for_tpu("_write_file", lambda self, *rest: to_cpu(self)._write_file(*rest))
    _for_tpu("_set_from_file", _set_from_file)
    _for_tpu("tolist", lambda self: to_cpu(self).tolist())
