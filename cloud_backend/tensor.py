"""A torch tensor whose storage carries a jax.Array.

The tensor is PyTorch's own metadata; its `UntypedStorage` has a `Buffer` attribute that all views
share. Storage addresses come from a reserved, inaccessible mapping: they are unique, so alias
checks by `data_ptr()` hold, and a stray read faults instead of seeing other data.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import threading
from typing import Any, NamedTuple

import numpy as np
import torch

from cloud_backend import mesh, runtime, views
from cloud_backend.dtypes import to_jax, to_torch
from cloud_backend.events import Memory

_PAGE = 4096
CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
DEVICE = torch.device("privateuseone", 0)  # prints as tpu:0 once the backend has its name
_new_storage = torch._C._construct_storage_from_data_pointer
_new_tensor = torch._C._acc.create_empty_tensor
_set = torch.ops.aten.set_.source_Storage_storage_offset._handle.redispatch_boxed


class Buffer:
    """What a storage holds. `array` is None for memory nobody has written yet.

    `home` (`mesh.Home`) is set on the buffers of sharded parameters alone.
    """

    __slots__ = ("array", "home", "nbytes")

    def __init__(self, array: Any, nbytes: int) -> None:
        self.array = array
        self.nbytes = nbytes
        current = Memory.current = Memory.current + nbytes
        if current > Memory.peak:
            Memory.peak = current

    def __del__(self) -> None:
        Memory.current -= self.nbytes


class Meta(NamedTuple):
    """Size, stride, dtype and storage bytes of a fresh tensor (offset 0)."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    nbytes: int
    contiguous: bool


def meta(size: Any, stride: Any, dtype: torch.dtype) -> Meta:
    """The `Meta` of a fresh tensor with this size, stride and dtype."""
    size, stride = tuple(size), tuple(stride)
    nbytes = views.extent(size, stride) * dtype.itemsize
    contiguous = 0 not in size and stride == views.contiguous_stride(size)
    return Meta(size, stride, dtype, nbytes, contiguous)


class _Addresses:
    """Unique addresses inside a PROT_NONE mapping; wraps round after terabytes of allocations."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = (
            [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
        )
        no_reserve = 0x4000 if hasattr(mmap, "MAP_ANONYMOUS") else 0
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
        size = 1 << 44
        while True:
            start = libc.mmap(None, size, 0, flags, -1, 0)
            if start not in (None, ctypes.c_void_p(-1).value):
                break
            size >>= 1
            if size < 1 << 20:
                raise MemoryError("no address space for tpu storages")
        # Most storages are small: those take one page each from the first half, without a lock.
        self.start, self.middle, self.end = start, start + size // 2, start + size
        self.next = self.middle
        self.pages = iter(range(self.start, self.middle, _PAGE)).__next__
        self.lock = threading.Lock()

    def take(self, nbytes: int) -> int:
        if nbytes < _PAGE:
            try:
                return self.pages()
            except StopIteration:
                self.pages = iter(range(self.start, self.middle, _PAGE)).__next__
                return self.pages()
        step = (nbytes + _PAGE) // _PAGE * _PAGE
        with self.lock:
            if self.next + step > self.end:
                self.next = self.middle
            address = self.next
            self.next += step
        return address


_take_address = _Addresses().take
_NO_ELEMENTS = [0]


def new_storage(array: Any, nbytes: int, kind: type[Buffer] = Buffer) -> torch.UntypedStorage:
    """A storage of `nbytes` on the device that carries `array` (None: not written yet)."""
    storage = _new_storage(_take_address(nbytes), DEVICE, nbytes)
    storage.buffer = kind(array, nbytes)
    return storage


def wrap(array: Any, m: Meta, kind: type[Buffer] = Buffer) -> torch.Tensor:
    """A new tensor of metadata `m` over `array`, whose flattening is the storage's content."""
    tensor: torch.Tensor
    if m.contiguous:
        # Exchanging the storage's pointer is far cheaper than dispatching `set_`.
        tensor = _new_tensor(m.size, m.dtype)
        storage = tensor.untyped_storage()
        storage._swap_data_ptr_(_new_storage(_take_address(m.nbytes), DEVICE, m.nbytes))
        storage.buffer = kind(array, m.nbytes)
        return tensor
    tensor = _new_tensor(_NO_ELEMENTS, m.dtype)
    _set(CPU_KEYS, tensor, new_storage(array, m.nbytes, kind), 0, m.size, m.stride)
    return tensor


def from_array(array: Any, dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor over a jax array of the tensor's own shape."""
    size = tuple(array.shape)
    return wrap(array, meta(size, views.contiguous_stride(size), dtype))


def to_tensor(array: Any) -> torch.Tensor:
    """A new contiguous tensor over a jax (or NumPy) array."""
    array = runtime.start().numpy.asarray(array)
    return from_array(array, to_torch(array.dtype))


def read_any(a: torch.Tensor) -> Any:
    """The values of a tpu tensor, or of a CPU tensor, as a jax array."""
    if a.device.type == "cpu":
        return runtime.start().numpy.asarray(host_array(a))
    return read(a)


def empty(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    """An unwritten tensor; its memory is made (as zeros) when something reads it."""
    to_jax(dtype)
    return wrap(None, meta(size, stride, dtype))


def base_of(tensor: torch.Tensor) -> Any:
    """The base array of a tensor's storage, made now if nobody wrote it yet.

    Raises:
        RuntimeError: the storage carries nothing (it is not one of this device's).
    """
    storage = tensor.untyped_storage()
    buffer = getattr(storage, "buffer", None)
    if buffer is None:
        raise RuntimeError(f"a tensor on {tensor.device} has no tpu storage")
    if buffer.array is None:
        dtype = to_jax(tensor.dtype)
        buffer.array = zeros(storage.nbytes(), dtype)
    if mesh.Active.mesh is not None:
        buffer.array = mesh.settled(buffer.array)
    return buffer.array


def zeros(nbytes: int, dtype: np.dtype) -> Any:
    """A flat array of zeros that fills `nbytes`; bytes when they do not divide evenly."""
    jax = runtime.start()
    if nbytes % dtype.itemsize:
        dtype = np.dtype(np.uint8)
    return jax.numpy.zeros((nbytes // dtype.itemsize,), dtype)


def view_of(tensor: torch.Tensor, base: Any) -> tuple[views.Spec, np.ndarray | None]:
    """How `tensor` lies in its storage's base array."""
    length = base.size
    itemsize = tensor.dtype.itemsize
    if base.dtype.itemsize != itemsize:
        length = base.size * base.dtype.itemsize // itemsize
    return views.spec(tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), length)


def lies_otherwise(a: Any) -> bool:
    """Whether a tensor has its base array's shape but other bytes, as `z.real` of a scalar has."""
    if not isinstance(a, torch.Tensor):
        return False
    base = a.untyped_storage().buffer.array
    return bool(base.shape == a.shape and base.dtype.itemsize != a.itemsize)


def placed_view_of(tensor: torch.Tensor, base: Any) -> tuple[views.Spec, Any]:
    """`view_of` with the start positions on the device."""
    base_dtype, dtype = base.dtype, tensor.dtype
    length = base.size
    if base_dtype.itemsize != dtype.itemsize:
        length = length * base_dtype.itemsize // dtype.itemsize
    return _placed(tensor.shape, tensor.stride(), tensor.storage_offset(), length)


@functools.lru_cache(maxsize=65536)
def _placed(size: Any, stride: Any, offset: int, length: int) -> tuple[views.Spec, Any]:
    view, starts = views.spec(tuple(size), stride, offset, length)
    return view, None if starts is None else runtime.start().numpy.asarray(starts)


_jitted: dict[Any, Any] = {}


def _jit(name: str, *static: int) -> Any:
    if name not in _jitted:
        _jitted[name] = runtime.start().jit(getattr(views, name), static_argnums=static)
    return _jitted[name]


def host_array(a: torch.Tensor) -> np.ndarray:
    """A CPU tensor as a NumPy array, sharing memory where possible (bfloat16 included)."""
    a = a.detach().resolve_conj().resolve_neg()
    dtype = to_jax(a.dtype)
    try:
        return a.numpy()
    except TypeError:  # bfloat16 and float8 have no NumPy form that torch knows
        whole = a.contiguous()
        bits = {1: torch.uint8, 2: torch.int16}[a.element_size()]
        return whole.view(bits).numpy().view(dtype).reshape(a.shape)


def read(tensor: torch.Tensor) -> Any:
    """The tensor's values as a jax array of its shape and dtype."""
    base = base_of(tensor)
    view, starts = view_of(tensor, base)
    dtype = to_jax(tensor.dtype)
    if view.kind == "whole" and base.dtype == dtype and base.shape == view.size:
        value = base
    else:
        value = _jit("read", 1, 3)(base, view, starts, dtype)
    if tensor.is_neg() or (tensor.is_complex() and tensor.is_conj()):
        return resolved(value, tensor.is_conj(), tensor.is_neg())
    return value


def resolved(value: Any, conj: bool, neg: bool) -> Any:
    """What a tensor with PyTorch's lazy conjugate or negative bit stands for."""
    value = value.conj() if conj else value
    return -value if neg else value


def write(tensor: torch.Tensor, value: Any) -> None:
    """Store `value` (a jax array of the tensor's shape and dtype) through the tensor's view."""
    storage = tensor.untyped_storage()
    buffer = storage.buffer
    dtype = to_jax(tensor.dtype)
    size = tuple(tensor.shape)
    if (
        tensor.storage_offset() == 0
        and tensor.is_contiguous()
        and value.size * dtype.itemsize == storage.nbytes()
    ):
        value = value if value.shape == size else value.reshape(size)
        buffer.array = value if mesh.Active.mesh is None else mesh.kept(buffer, value)
        return
    base = base_of(tensor)
    view, starts = view_of(tensor, base)
    buffer.array = _jit("write", 1, 3)(base, view, starts, dtype, value)
