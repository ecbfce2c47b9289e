"""`shard(model, mesh, plan)`: which parameter lies how over the chips, and the move itself.

A plan is "data", "fsdp", "tensor", a table of patterns, or several of these in a list.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

from cloud_backend import mesh as meshes
from cloud_backend import runtime, sharded
from cloud_backend.mesh import BATCH_AXES, TENSOR_AXIS, Home, Mesh
from torch_tpu_unified.core.errors import InputError

Plan = str | Mapping[str, Any]
# What the plans of transformers (`model.tp_plan`) call the styles; only weights matter here.
_STYLES = {
    "colwise": "colwise",
    "rowwise": "rowwise",
    "colwise_rep": "colwise",
    "rowwise_rep": "rowwise",
    "colwise_gather_output": "colwise",
    "rowwise_split_input": "rowwise",
    "embedding_rowwise": "rowwise",
    "sequence_parallel": "whole",
    "replicated_with_grad_allreduce": "whole",
}
# The dimension of a weight [out, in], or of an embedding's [rows, features], that a style splits.
_SPLIT = {
    ("colwise", nn.Linear): 0,
    ("rowwise", nn.Linear): 1,
    ("colwise", nn.Embedding): 1,
    ("rowwise", nn.Embedding): 0,
}


def shard(model: nn.Module, mesh: Mesh, plan: Plan | Sequence[Plan] = "fsdp") -> nn.Module:
    """Spread a model's parameters over the chips of a mesh; eager and compiled code follow.

    Args:
        model: on the CPU or on tpu; it is moved to tpu, in place.
        mesh: over which chips.
        plan: one of these, or a list of them for meshes of more dimensions:
            "data": every chip holds every parameter;
            "fsdp": each parameter is split along its largest dimension that divides by the mesh's
            axis "fsdp" (else "data") and is not split yet; operators gather it when they use it;
            "tensor": the tensor parallel plan that the model brings (`model.tp_plan`, as models of
            transformers do);
            a mapping of module names (`*` stands for any part) to `ColwiseParallel()`,
            `RowwiseParallel()`, `SequenceParallel()` or "colwise", "rowwise", split along the
            axis "tensor"; or of regular expressions for parameter names to partitions:
            `PartitionSpec`s, or tuples with an axis or None per dimension.

    Returns:
        the model. Parameters keep their identity, so an optimiser made before goes on.

    Raises:
        InputError: an unknown plan or axis, a pattern that matches nothing, a dimension that does
            not divide, or parameters without values (on meta).
    """
    plans = [plan] if isinstance(plan, (str, Mapping)) else list(plan)
    parameters = dict(model.named_parameters())
    specs: dict[str, list[Any]] = {name: [None] * p.dim() for name, p in parameters.items()}
    for part in sorted(plans, key=lambda p: p == "fsdp"):  # which takes what the others leave
        _apply(part, model, mesh, parameters, specs)
    if found := next((n for n, p in parameters.items() if p.device.type == "meta"), None):
        raise InputError(f"{found} is on meta and has no values; shard the model after they exist")
    mesh.use()
    _move(model, mesh, parameters, specs)
    return model


def _apply(
    part: Plan, model: nn.Module, mesh: Mesh, parameters: Mapping[str, Any], specs: dict[str, Any]
) -> None:
    if part == "data":
        return
    if part == "fsdp":
        axis = next((a for a in reversed(BATCH_AXES) if a in mesh.axes), None)
        if axis is None:
            raise InputError(f"the plan 'fsdp' needs an axis 'fsdp' or 'data'; the mesh is {mesh}")
        for name, p in parameters.items():
            _split_largest(specs[name], tuple(p.shape), axis, mesh.axes[axis])
        return
    if part == "tensor":
        part = dict(getattr(model, "tp_plan", None) or {})
        if not part:
            raise InputError(
                f"{type(model).__name__} brings no tp_plan; give a mapping of its modules to "
                "ColwiseParallel() and RowwiseParallel()"
            )
    if not isinstance(part, Mapping):
        raise InputError(f"the plan {part!r} is unknown; 'data', 'fsdp', 'tensor' or a mapping")
    for pattern, style in part.items():
        kind = _style(style)
        matched = (
            _by_module(pattern, kind, model, mesh, specs)
            if kind is not None
            else _by_parameter(pattern, style, mesh, parameters, specs)
        )
        if not matched:
            what = "module" if kind is not None else "parameter"
            raise InputError(f"the plan's pattern {pattern!r} matches no {what} of the model")


def _split_largest(spec: list[Any], shape: tuple[int, ...], axis: str, count: int) -> None:
    free = [d for d, n in enumerate(shape) if spec[d] is None and n and n % count == 0]
    if free:
        spec[max(free, key=lambda d: shape[d])] = axis


def _style(given: Any) -> str | None:
    """ "colwise", "rowwise" or "whole"; None for a partition."""
    if isinstance(given, str) and given in _STYLES:
        return _STYLES[given]
    for kind, name in (
        (ColwiseParallel, "colwise"),
        (RowwiseParallel, "rowwise"),
        (SequenceParallel, "whole"),
    ):
        if isinstance(given, kind):
            return name
    if given is None or isinstance(given, tuple):  # a PartitionSpec is a tuple as well
        return None
    if isinstance(given, runtime.start().sharding.PartitionSpec):
        return None
    raise InputError(
        f"{given!r} is no part of a plan: ColwiseParallel(), RowwiseParallel(), "
        "SequenceParallel(), a PartitionSpec or a tuple of axes"
    )


def _by_module(
    pattern: str, kind: str, model: nn.Module, mesh: Mesh, specs: dict[str, Any]
) -> bool:
    found = False
    for name, module in model.named_modules():
        if not fnmatch.fnmatchcase(name, pattern):
            continue
        found = True
        if kind == "whole":
            continue
        splits = [d for (k, c), d in _SPLIT.items() if k == kind and isinstance(module, c)]
        if not splits:
            raise InputError(
                f"{name} is a {type(module).__name__}; {kind} splits Linear and Embedding. Give "
                "partitions of its parameters by a regular expression"
            )
        axis = _axis(mesh, TENSOR_AXIS)
        for part, p in module.named_parameters(recurse=False):
            full = f"{name}.{part}" if name else part
            dim = splits[0] if part == "weight" else 0
            if full in specs and (part == "weight" or kind == "colwise"):
                _put(specs[full], dim, axis, full, tuple(p.shape), mesh)
    return found


def _by_parameter(
    pattern: str, spec: Any, mesh: Mesh, parameters: Mapping[str, Any], specs: dict[str, Any]
) -> bool:
    found = False
    for name, p in parameters.items():
        if re.fullmatch(pattern, name) is None:
            continue
        found = True
        axes = tuple(spec or ())
        if len(axes) > p.dim():
            raise InputError(f"{name} has {p.dim()} dimensions; the partition {axes} has more")
        for dim, axis in enumerate(axes):
            if axis is not None:
                _put(specs[name], dim, axis, name, tuple(p.shape), mesh)
    return found


def _axis(mesh: Mesh, name: str) -> str:
    if name not in mesh.axes:
        raise InputError(f"the plan needs an axis {name!r}; the mesh is {mesh}")
    return name


def _put(
    spec: list[Any], dim: int, axis: Any, name: str, shape: tuple[int, ...], mesh: Mesh
) -> None:
    count = 1
    for one in axis if isinstance(axis, tuple) else (axis,):
        count *= mesh.axes[_axis(mesh, one)]
    if shape[dim] % count:
        raise InputError(
            f"{name} {list(shape)}: dimension {dim} does not divide by the {count} chips of {axis}"
        )
    spec[dim] = axis


def _move(
    model: nn.Module, mesh: Mesh, parameters: Mapping[str, Any], specs: Mapping[str, Any]
) -> None:
    homes = {id(p): _home(mesh, specs[name]) for name, p in parameters.items()}
    moved: dict[int, torch.Tensor] = {}  # one new tensor for tied parameters and shared buffers

    def move(t: torch.Tensor) -> torch.Tensor:
        if id(t) not in moved:
            home = homes.get(id(t)) or _home(mesh, [None] * t.dim())
            new = moved[id(t)] = sharded.placed(t.detach(), home.sharding)
            if id(t) in homes:
                new.untyped_storage().buffer.home = home
        return moved[id(t)]

    model._apply(move)
    for name, p in model.named_parameters():
        if p.requires_grad:
            hooks = getattr(p, "_post_accumulate_grad_hooks", None) or {}
            if _settle_gradient not in hooks.values():
                p.register_post_accumulate_grad_hook(_settle_gradient)
        if meshes.buffer_of(p) is None or not hasattr(meshes.buffer_of(p), "home"):
            raise InputError(f"{name} ({type(p).__name__}) cannot be spread over chips")


def _home(mesh: Mesh, spec: Sequence[Any]) -> Home:
    batch = set(mesh.batch_axes)
    whole = [None if axis in batch else axis for axis in spec]
    return Home(mesh.sharding(*spec), mesh.sharding(*whole))


def _settle_gradient(p: torch.Tensor) -> None:
    """Keep a gradient where its parameter lives: each chip needs its part alone."""
    home, buffer = getattr(meshes.buffer_of(p), "home", None), meshes.buffer_of(p.grad)
    if home is None or buffer is None or buffer.array is None:
        return
    if tuple(buffer.array.shape) == tuple(p.shape) and buffer.array.sharding != home.sharding:
        buffer.array = runtime.start().device_put(buffer.array, home.sharding)
