"""Programs over a mesh: what is pinned, what is gathered, and who takes eager calls meanwhile.

XLA propagates the shardings of a program's arrays by itself. Three things it is told: what an
operator writes stays where it was; the result of `zeros_like` and its kin lies as its model does;
and a parameter that is spread along the batch axes (fsdp) is gathered for every operator but the
pointwise ones that update it, so that activations keep their batch spread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from cloud_backend import eager_modes, mesh, plan, precision, runtime, tensor
from cloud_backend.mesh import Active, Mesh, constrain
from cloud_backend.program import Program
from torch_tpu_unified.core.errors import InputError

Tensor = torch.Tensor
NOT_FUSED = (
    "a mesh and the eager mode 'fused' do not go together yet; "
    "torch.tpu.set_eager_mode('strict') first, or torch.compile the step"
)


def start(chosen: Mesh) -> None:
    """Let operators on tpu run over a mesh.

    Raises:
        InputError: eager mode "fused" is on.
    """
    if eager_modes.get_eager_mode() is eager_modes.EagerMode.DEFER_AND_FUSE:
        raise InputError(NOT_FUSED)
    Active.mesh = chosen
    plan.Calls.program = program
    if plan.Calls.take is None:
        plan.Calls.take = take


def take(kernel: Any, args: Any, kwargs: Any) -> Any:
    """A kernel's call in strict mode: the general way, as the short one knows a single chip."""
    return kernel._general(args, dict(kwargs))


def batch(chosen: Mesh, t: Tensor) -> Tensor:
    """One tensor of a batch, spread along its first dimension."""
    parts = 1
    for axis in chosen.batch_axes:
        parts *= chosen.axes[axis]
    if t.dim() == 0 or t.shape[0] % parts:
        raise InputError(
            f"a batch of shape {list(t.shape)} does not divide into {parts} parts ({chosen}); "
            "choose another batch size, or drop the last incomplete batch"
        )
    spec = (chosen.batch_axes,) if chosen.batch_axes else ()
    return placed(t.detach(), chosen.sharding(*spec, *[None] * (t.dim() - len(spec))))


def placed(t: Tensor, sharding: Any) -> Tensor:
    """A contiguous tpu tensor with the values of a CPU or tpu tensor, laid out over chips."""
    values = tensor.read(t) if t.device.type == "tpu" else tensor.host_array(t.contiguous())
    return tensor.from_array(runtime.start().device_put(values, sharding), t.dtype)


# ---- eager calls


def program(kernel: Any, made: plan.Plan, arrays: Sequence[Any], args: Any, kwargs: Any) -> Program:
    """The program of one eager call for arrays that lie as these do."""
    leaves = pytree.tree_leaves((args, kwargs))
    homes = {id(b.array): b.home for t in leaves if hasattr(b := mesh.buffer_of(t), "home")}
    if homes and _keeps_shards(kernel.op, [t for t in leaves if isinstance(t, Tensor)]):
        homes = {}
    gathered = tuple([homes[id(a)].whole if id(a) in homes else None for a in arrays])
    pinned = tuple([_pin(mesh.buffer_of(t)) for t in kernel._written(args, kwargs)])
    like = arrays[0] if kernel.op._schema.name.endswith("_like") else None
    look = (
        precision.Setting.name,
        gathered,
        pinned,
        *[(a.shape, a.dtype, a.sharding) for a in arrays],
    )
    found = made.programs.get(look)
    if found is None:
        run = _constrained(made.run.__wrapped__, gathered, pinned, like)
        jitted = runtime.start().jit(run, keep_unused=True)
        found = made.programs[look] = Program(jitted, list(arrays), direct=False)
    return found


def _keeps_shards(op: Any, tensors: list[Tensor]) -> bool:
    """Whether an operator works on the shards of parameters: updates, element by element."""
    if op._schema.name.startswith(("aten::_foreach_", "aten::_fused_")):
        return True
    pointwise = torch.Tag.pointwise in op.tags or op._schema.name.endswith("_like")
    return pointwise and len({t.shape for t in tensors if t.dim()}) == 1


def _pin(buffer: Any) -> Any:
    home = getattr(buffer, "home", None)
    if home is not None:
        return home.sharding
    array = buffer.array
    covered = array is not None and Active.mesh is not None and Active.mesh.covers(array)
    return array.sharding if covered else None


def _constrained(
    run: Callable[..., Any], gathered: Sequence[Any], pinned: Sequence[Any], like: Any
) -> Callable[..., Any]:
    def call(*arrays: Any) -> Any:
        results = run(*map(constrain, arrays, gathered))
        if pinned:
            fresh, bases = results
            return fresh, list(map(constrain, bases, pinned))
        if like is not None and results.shape == like.shape:
            return constrain(results, like.sharding)
        return results

    call.__name__ = run.__name__
    return call
