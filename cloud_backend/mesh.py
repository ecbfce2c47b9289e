"""A mesh of chips behind the one device `tpu:0`: what is active, and where arrays lie on it.

With a mesh in use, storages carry arrays that are sharded over its chips, and every program is
partitioned by XLA (GSPMD) to follow them. Without one nothing here is reached.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from cloud_backend import runtime
from torch_tpu_unified.core.errors import InputError

# The axes along which the examples of a batch are spread, and the one of tensor parallelism.
BATCH_AXES = ("data", "fsdp")
TENSOR_AXIS = "tensor"


class Home(NamedTuple):
    """Where a parameter lives between its uses, and where operators other than updates read it."""

    sharding: Any
    whole: Any


class Mesh:
    """Chips of this process, arranged along named axes: `Mesh(data=4, tensor=2)`.

    Args:
        axes: name -> number of chips; -1 (once) stands for all that are left. "data" and "fsdp"
            spread the batch, "tensor" spreads matrices; other names serve partitions of your own.
        devices: the jax devices to use; default: as many of this process as the axes need.

    Raises:
        InputError: no axes, or their product is not the number of chips.

    Neighbours along an axis are neighbours in the slice where its shape allows it
    (`jax.experimental.mesh_utils.create_device_mesh`).
    """

    def __init__(self, *, devices: Iterable[Any] | None = None, **axes: int) -> None:
        if not axes or any(n == 0 or n < -1 for n in axes.values()):
            raise InputError(f"a mesh needs axes of 1 or more chips, as Mesh(data=8); got {axes}")
        jax = runtime.start()
        found = list(jax.local_devices() if devices is None else devices)
        sizes = _filled(axes, len(found))
        count = math.prod(sizes.values())
        if count > len(found):
            raise InputError(
                f"a mesh of {count} chips {sizes} does not fit the {len(found)} that this process "
                "has; XLA_FLAGS=--xla_force_host_platform_device_count=8 makes 8 of a CPU"
            )
        from jax.experimental import mesh_utils

        shape = tuple(sizes.values())
        chosen = mesh_utils.create_device_mesh(shape, devices=found[:count])
        self.axes: dict[str, int] = sizes
        self.jax_mesh = jax.sharding.Mesh(chosen, tuple(sizes))
        self._order = tuple(chosen.flat)

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{name}={n}' for name, n in self.axes.items())})"

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """The axes along which a batch is spread."""
        return tuple(a for a in BATCH_AXES if a in self.axes)

    def sharding(self, *spec: Any) -> Any:
        """The `jax.sharding.NamedSharding` of a partition: per dimension None, an axis or axes."""
        jax = runtime.start()
        return jax.sharding.NamedSharding(self.jax_mesh, jax.sharding.PartitionSpec(*spec))

    def use(self) -> Mesh:
        """Let `tpu:0` stand for these chips from now on; `shard` and `shard_batch` do so.

        Tensors that already exist are copied to all chips when an operator first meets them.

        Raises:
            InputError: operators are recorded (eager mode "fused"), which knows no meshes.
        """
        if Active.mesh is not self:
            from cloud_backend import sharded

            sharded.start(self)
        return self

    def shard_batch(self, batch: Any) -> Any:
        """The tensors of a batch (in any nesting) on tpu, spread along their first dimension.

        Args:
            batch: CPU or tpu tensors [N, ...]; N divides by the product of the batch axes.

        Raises:
            InputError: a batch does not divide.
        """
        from cloud_backend import sharded

        self.use()
        return pytree.tree_map_only(torch.Tensor, functools.partial(sharded.batch, self), batch)

    def bytes_per_device(self, *held: Any) -> int:
        """Bytes on the fullest chip of what is given: modules, optimisers, tensors, in any nesting.

        A storage that several tensors share counts once.
        """
        per_device: dict[Any, int] = {}
        for array in _arrays(held):
            size = math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
            for device in array.sharding.device_set:
                per_device[device] = per_device.get(device, 0) + size
        return max(per_device.values(), default=0)

    def covers(self, array: Any) -> bool:
        """Whether an array lies on exactly these chips, in this order."""
        return bool(_device_order(array.sharding) == self._order)


def _filled(axes: Mapping[str, int], count: int) -> dict[str, int]:
    open_axes = [name for name, n in axes.items() if n == -1]
    if not open_axes:
        return dict(axes)
    known = math.prod(n for n in axes.values() if n != -1)
    if len(open_axes) > 1 or count % known:
        raise InputError(f"{dict(axes)} cannot be filled with {count} chips")
    return {name: count // known if n == -1 else n for name, n in axes.items()}


@functools.lru_cache(maxsize=4096)
def _device_order(sharding: Any) -> Any:
    mesh = getattr(sharding, "mesh", None)
    return tuple(sharding.device_set) if mesh is None else tuple(mesh.devices.flat)


def _arrays(held: Any) -> Iterator[Any]:
    seen: set[int] = set()
    for tensor in _tensors(held):
        buffer = buffer_of(tensor)
        if buffer is not None and buffer.array is not None and id(buffer) not in seen:
            seen.add(id(buffer))
            yield buffer.array


def _tensors(held: Any) -> Iterator[torch.Tensor]:
    for item in held:
        if isinstance(item, torch.nn.Module):
            yield from item.parameters()
            yield from item.buffers()
        else:
            tree = item.state_dict() if isinstance(item, torch.optim.Optimizer) else item
            yield from (t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor))


class Active:
    """The mesh that `tpu:0` stands for; None: one chip."""

    mesh: Mesh | None = None


def place() -> Any:
    """Where values from the host go: the one chip, or all chips of the mesh."""
    return runtime.device() if Active.mesh is None else Active.mesh.sharding()


def settled(array: Any) -> Any:
    """The array on the active mesh: itself, or a copy of it on every chip."""
    mesh = Active.mesh
    if mesh is None or mesh.covers(array):
        return array
    return runtime.start().device_put(array, mesh.sharding())


def buffer_of(t: Any) -> Any:
    """The buffer behind a tensor; None for tensors of other devices and for what is no tensor."""
    return getattr(t.untyped_storage(), "buffer", None) if isinstance(t, torch.Tensor) else None


def settle(args: Any, kwargs: Any) -> None:
    """Bring the tensors among a call's arguments onto the active mesh."""
    for t in pytree.tree_leaves((args, kwargs)):
        buffer = buffer_of(t)
        if buffer is not None and buffer.array is not None:
            buffer.array = settled(buffer.array)


def kept(buffer: Any, value: Any) -> Any:
    """A buffer's new value (a jax array), placed as the buffer's home or old value was."""
    home = getattr(buffer, "home", None)
    if home is not None and value.ndim == len(home.sharding.spec):
        return runtime.start().device_put(value, home.sharding)
    old = buffer.array
    if old is not None and old.shape == value.shape and _covered(old):
        return runtime.start().device_put(value, old.sharding)
    return value


def _covered(array: Any) -> bool:
    return Active.mesh is not None and Active.mesh.covers(array)


def constrain(value: Any, sharding: Any) -> Any:
    """Inside a program: the value, laid out so; as it is if `sharding` is None or does not fit."""
    if sharding is None or value.ndim < len(sharding.spec):
        return value
    return runtime.start().lax.with_sharding_constraint(value, sharding)
