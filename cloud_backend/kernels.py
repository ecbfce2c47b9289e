"""Kernels that are about storage, not values: memory, views, copies between devices, scalars.

Views run PyTorch's own metadata kernels, from a closed list of operators that never read memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from cloud_backend import events, mesh, pending, plan, refusals, runtime, storage, tensor, views
from cloud_backend.tensor import CPU_KEYS

Tensor = torch.Tensor
aten = torch.ops.aten
KERNELS: dict[Any, Callable[..., Any]] = {}


def kernel(*ops: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the function is the device's kernel of these overloads."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for op in ops:
            KERNELS[op] = function
        return function

    return add


# Operators whose CPU kernels touch sizes, strides and the storage pointer, never the memory.
_METADATA_ONLY = (
    aten.as_strided.default,
    aten.view.default,
    aten._reshape_alias.default,
    aten.unfold.default,
    aten.view_as_real.default,
    aten.view_as_complex.default,
    aten.set_.source_Tensor,
    aten.is_set_to.default,
)
for _op in _METADATA_ONLY:
    KERNELS[_op] = functools.partial(_op._handle.redispatch_boxed, CPU_KEYS)
# A view in all but name: what PyTorch's composites make of their own fresh results.
KERNELS[aten._unsafe_view.default] = KERNELS[aten.view.default]


def _strides(size: tuple[int, ...], memory_format: torch.memory_format | None) -> tuple[int, ...]:
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        return views.contiguous_stride(size)
    return torch.empty(size, device="meta", memory_format=memory_format).stride()


@kernel(aten.empty.memory_format)
def empty(
    size: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Tensor:
    _check_layout(layout)
    size = tuple(size)
    if any(n < 0 for n in size):
        raise RuntimeError(
            f"Trying to create tensor with negative dimension {min(size)}: {list(size)}"
        )
    return tensor.empty(size, _strides(size, memory_format), dtype or torch.get_default_dtype())


@kernel(aten.empty_strided.default)
def empty_strided(
    size: Any,
    stride: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Tensor:
    _check_layout(layout)
    return tensor.empty(tuple(size), tuple(stride), dtype or torch.get_default_dtype())


def _check_layout(layout: Any) -> None:
    if layout not in (None, torch.strided):
        raise NotImplementedError(
            f"the tpu device has no layout {layout} yet; use a strided tensor"
        )


# ---- storage


@kernel(aten.set_.source_Storage)
def set_storage(self: Tensor, source: torch.UntypedStorage) -> Tensor:
    n = source.nbytes() // self.element_size()
    return set_storage_view(self, source, 0, (n,), (1,))


@kernel(aten.set_.source_Storage_storage_offset)
def set_storage_view(
    self: Tensor, source: Any, storage_offset: int, size: Any, stride: Any = ()
) -> Tensor:
    size = tuple(size)
    stride = tuple(stride) or views.contiguous_stride(size)
    tensor._set(CPU_KEYS, self, source, storage_offset, size, stride)
    return self


@kernel(aten.set_.default)
def set_nothing(self: Tensor) -> Tensor:
    tensor._set(CPU_KEYS, self, tensor.new_storage(None, 0), 0, (0,), (1,))
    return self


@kernel(aten.resize_.default)
def resize_(self: Tensor, size: Any, memory_format: Any = None) -> Tensor:
    size = tuple(size)
    stride = _strides(size, memory_format)
    held, offset = self.untyped_storage(), self.storage_offset()
    needed = (offset + views.extent(size, stride)) * self.element_size()
    if tuple(self.shape) == size and memory_format is None:
        return self
    if 0 not in size and needed > held.nbytes():
        storage.grow(held, needed)
    tensor._set(CPU_KEYS, self, held, offset, size, stride)
    return self


@kernel(aten._resize_output_.default)
def resize_output_(self: Tensor, size: Any, device: Any) -> Tensor:
    if torch.device(device).type != self.device.type:
        raise RuntimeError(f"cannot resize a tensor on {self.device} for a result on {device}")
    return resize_(self, size)


def _fill(outs: Any, results: Any) -> None:
    for out, result in zip(outs, results, strict=True):
        resize_(out, result.shape)
        out.copy_(result)


@kernel(aten._cummax_helper.default)
def cummax_helper(self: Tensor, values: Tensor, indices: Tensor, dim: int) -> None:
    _fill((values, indices), torch.cummax(self, dim))


@kernel(aten._cummin_helper.default)
def cummin_helper(self: Tensor, values: Tensor, indices: Tensor, dim: int) -> None:
    _fill((values, indices), torch.cummin(self, dim))


@kernel(aten._slow_conv2d_backward.grad_input)
def slow_conv2d_backward_out(*args: Any, grad_input: Any, grad_weight: Any, grad_bias: Any) -> Any:
    outs = (grad_input, grad_weight, grad_bias)
    _fill(outs, aten._slow_conv2d_backward.output_mask(*args, [True] * 3))
    return outs


# ---- values that leave the device


@kernel(aten._local_scalar_dense.default)
def local_scalar_dense(self: Tensor) -> Any:
    events.host_sync("item")
    if self.numel() != 1:
        raise RuntimeError(f"a Tensor with {self.numel()} elements cannot be converted to Scalar")
    with events.span("tpu::wait_for_value"):
        return np.asarray(tensor.read(self)).reshape(()).item()


@kernel(aten.equal.default)
def equal(self: Tensor, other: Tensor) -> bool:
    events.host_sync("equal")
    if self.shape != other.shape:
        return False
    return bool(tensor.read(torch.eq(self, other)).all())


def to_host(self: Tensor) -> Tensor:
    """A contiguous CPU tensor with the values of a tpu tensor."""
    events.host_sync("copy to the host")
    with events.span("tpu::copy_to_host"):
        values = np.array(tensor.read(self), copy=True, order="C")
    events.to_host(values.nbytes)
    if self.dtype in _BITS:
        return torch.from_numpy(values.view(_BITS[self.dtype][0])).view(self.dtype)
    return torch.from_numpy(values)


_BITS: dict[torch.dtype, tuple[Any, torch.dtype]] = {
    torch.bfloat16: (np.int16, torch.int16),
    torch.float8_e4m3fn: (np.uint8, torch.uint8),
    torch.float8_e5m2: (np.uint8, torch.uint8),
    torch.float8_e4m3fnuz: (np.uint8, torch.uint8),
    torch.float8_e5m2fnuz: (np.uint8, torch.uint8),
}


def from_host(source: Tensor) -> Any:
    """A jax array with a copy of a CPU tensor's values."""
    values = np.array(tensor.host_array(source), copy=True, order="C")
    events.to_device(values.nbytes)
    return runtime.start().device_put(values, mesh.place())


@kernel(aten._assert_async.default, aten._assert_async.msg)
def assert_async(
    self: Tensor, assert_msg: str = "Expected Tensor with single nonzero value"
) -> None:
    """Checked at once: an error that comes later would have lost its line."""
    if not local_scalar_dense(self):
        raise RuntimeError(assert_msg)


@kernel(aten._functional_assert_async.msg)
def functional_assert_async(self: Tensor, assert_msg: str, dep_token: Tensor) -> Tensor:
    assert_async(self, assert_msg)
    return dep_token.clone()


@kernel(aten._make_dep_token.default)
def make_dep_token(
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Tensor:
    return empty((), dtype=dtype, layout=layout)


# ---- copies


@kernel(aten.copy_.default, aten._copy_from.default)
def copy_(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    if self.is_complex() and self.is_conj():
        self.conj().copy_(src.conj())
        return self
    if self.is_neg():
        torch._neg_view(self).copy_(torch._neg_view(src))
        return self
    if self.device.type != "cpu" and src.device.type == "cpu":
        source = src.to(self.dtype).expand(self.shape)
        refusals.check_written([self])
        tensor.write(self, from_host(source))
        return self
    if self.device.type == "cpu":
        self.copy_(to_host(src))
        return self
    if self.dtype == src.dtype and self.shape == src.shape and _whole(src) and _whole(self):
        content = pending.content(src)
        if pending.shape_of(content) == self.shape:
            buffer = self.untyped_storage().buffer
            pending.put(buffer, content if mesh.Active.mesh is None else mesh.kept(buffer, content))
            return self
    table_kernel(aten.copy_.default)(self, src)
    return self


@kernel(aten._copy_from_and_resize.default)
def copy_from_and_resize(self: Tensor, dst: Tensor) -> Tensor:
    dst.resize_(self.shape)
    return dst.copy_(self)


@kernel(aten._to_copy.default)
def to_copy(
    self: Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Tensor:
    _check_layout(layout)
    target = torch.device(device) if device is not None else self.device
    if target.type == self.device.type:
        if dtype in (None, self.dtype):
            return clone(self, memory_format=memory_format)
        return table_kernel(aten._to_copy.default)(self, dtype=dtype, memory_format=memory_format)
    wanted = torch.empty_strided(
        self.shape, self.stride(), dtype=dtype or self.dtype, device="meta"
    )
    if memory_format not in (None, torch.preserve_format) or not refusals.is_dense(self):
        wanted = torch.empty_like(wanted, memory_format=memory_format or torch.preserve_format)
    if target.type == "cpu":
        host = to_host(self)
        if dtype is not None:
            host = host.to(dtype)
        if host.stride() == wanted.stride():
            return host
        result = torch.empty_strided(wanted.shape, wanted.stride(), dtype=wanted.dtype)
    else:
        result = torch.empty_strided(
            wanted.shape, wanted.stride(), dtype=wanted.dtype, device=target
        )
    return result.copy_(self if target.type != "cpu" else host)


@kernel(aten.clone.default)
def clone(self: Tensor, *, memory_format: Any = None) -> Tensor:
    if memory_format in (None, torch.preserve_format) and _whole(self):
        # Arrays are immutable, so a copy is another storage over the same array.
        return pending.wrap(pending.content(self), plan._meta_of(self))
    return table_kernel(aten.clone.default)(self, memory_format=memory_format)


def _whole(t: Tensor) -> bool:
    return (
        not t.is_neg()
        and not (t.is_complex() and t.is_conj())
        and t.storage_offset() == 0
        and t.is_contiguous()
        and t.numel() * t.element_size() == t.untyped_storage().nbytes()
    )


@kernel(aten.record_stream.default)
def record_stream(self: Tensor, s: Any) -> None:
    """Nothing to do: XLA keeps arrays alive while computations use them."""


@kernel(aten.nonzero.default)
def nonzero(self: Tensor) -> Tensor:
    """Coordinates, laid out as in PyTorch: those of one dimension stand together."""
    found = tensor.read(table_kernel(aten.nonzero.default)(self))
    return tensor.wrap(found.T, tensor.meta(found.shape, (1, found.shape[0]), torch.int64))


@kernel(aten.conj_physical_.default)
def conj_physical_(self: Tensor) -> Tensor:
    return self.copy_(self.conj()) if self.is_complex() else self


@kernel(aten.nan_to_num.default)
def nan_to_num(self: Tensor, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Tensor:
    """Complex numbers part by part, which PyTorch's meta kernel does not know."""
    kernel = table_kernel(aten.nan_to_num.default)
    if not self.is_complex():
        return kernel(self, nan, posinf, neginf)
    parts = torch.view_as_real(self.resolve_conj())
    return torch.view_as_complex(kernel(parts, nan, posinf, neginf))


@kernel(aten.nan_to_num_.default)
def nan_to_num_(self: Tensor, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Tensor:
    if self.is_complex():
        return self.copy_(nan_to_num(self, nan, posinf, neginf))
    return table_kernel(aten.nan_to_num_.default)(self, nan, posinf, neginf)


# ---- numbers that are stored


def _stored_number(op: Any, position: int) -> Callable[..., Any]:
    """The kernel of `op`, after a look at the number that it stores into its first argument."""

    def call(*args: Any, **kwargs: Any) -> Any:
        refusals.check_number(args[position], args[0].dtype)
        return table_kernel(op)(*args, **kwargs)

    return call


for _op, _position in (
    (aten.fill.Scalar, 1),
    (aten.fill_.Scalar, 1),
    (aten.masked_fill.Scalar, 2),
    (aten.masked_fill_.Scalar, 2),
    (aten.index_fill.int_Scalar, 3),
    (aten.index_fill_.int_Scalar, 3),
    (aten.scatter.value, 3),
    (aten.scatter_.value, 3),
):
    KERNELS[_op] = _stored_number(_op, _position)


def _made_of_number(op: Any, position: int) -> Callable[..., Any]:
    """The kernel of `op`, after a look at the number that it fills a new tensor with."""

    def call(*args: Any, **kwargs: Any) -> Any:
        dtype = kwargs.get("dtype")
        if dtype is None and isinstance(args[0], Tensor):
            dtype = args[0].dtype
        if dtype is not None:
            refusals.check_number(args[position], dtype)
        return table_kernel(op)(*args, **kwargs)

    return call


for _op, _position in (
    (aten.scalar_tensor.default, 0),
    (aten.full.default, 1),
    (aten.full_like.default, 1),
):
    KERNELS[_op] = _made_of_number(_op, _position)


@functools.cache
def table_kernel(op: Any) -> plan.Kernel:
    """The kernel that runs `op` by the table's lowering of its functional form."""
    from cloud_backend import norm_statistics
    from cloud_backend.ops import TABLE
    from torch_tpu_unified.core import schema

    entry = TABLE.get(schema.functional_form(op))
    if entry is None:
        raise NotImplementedError(f"tpu: {op} has no lowering")
    return norm_statistics.kernel_of(op, entry)
