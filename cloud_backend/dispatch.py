"""From an ATen call to its implementation: hand-written kernel, table, decomposition, host.

Importing the package registers only a fallback; the first operator that reaches it starts jax and
registers a kernel for each entry of the table and for its in-place and `out=` forms (structured
operators would otherwise arrive as their `out=` form). What still reaches the fallback later is
derived, decomposed, run on the host if the user asked for that, or refused.
"""

from __future__ import annotations

import contextvars
import difflib
import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from cloud_backend import events, explain, norm_statistics, plan, refusals
from cloud_backend.registration import hide_from_dynamo, libraries
from torch_tpu_unified.core import schema
from torch_tpu_unified.core.errors import LoweringError

aten = torch.ops.aten
log = logging.getLogger("torch_tpu_unified")
_registered: set[OpOverload] = set()
_booted = False
_running: contextvars.ContextVar[tuple[Any, ...]] = contextvars.ContextVar("running", default=())
# Overloads that write running statistics without saying so in their schema.
_HIDDEN_WRITES = {
    "aten::native_batch_norm": (
        "aten::_native_batch_norm_legit_functional",
        ("running_mean", "running_var"),
    ),
}
_HIDDEN_WRITES |= {
    f"aten::{name}": (f"aten::{name}", ("running_mean", "running_var"))
    for name in (
        "batch_norm_update_stats",
        "batch_norm_gather_stats",
        "batch_norm_gather_stats_with_counts",
    )
}


def boot() -> None:
    """Start jax, load the table and register its kernels. Idempotent."""
    global _booted
    if _booted:
        return
    from cloud_backend import attention, autocast, kernels, ops, products, runtime

    runtime.start()
    table = ops.load()
    _booted = True
    library = torch.library.Library("aten", "IMPL", "PrivateUse1")
    libraries.append(library)
    autocast.install_operators()
    hide_from_dynamo(fallback, _call_out, plan.Kernel.__call__, *kernels.KERNELS.values())
    _guard_memory(library)
    libraries.append(attention.register())
    libraries.append(products.register(table))
    hide_from_dynamo(*(function for function, _ in attention.KERNELS.values()))
    hide_from_dynamo(*products.KERNELS.values())
    _registered.update(products.KERNELS)
    for op, function in kernels.KERNELS.items():
        _register(library, op, function)
    for full, (name, writes) in _HIDDEN_WRITES.items():
        op = getattr(aten, full.removeprefix("aten::")).default
        entry = table.get(getattr(aten, name.removeprefix("aten::")).default)
        if entry is not None:
            _register(library, op, norm_statistics.kernel_of(op, entry, writes))
    for op, entry in table.entries.items():
        if op.namespace == "aten" and not schema.is_view(op):
            _register(library, op, norm_statistics.kernel_of(op, entry))
            for other in _derived_forms(op):
                if other.namespace == "aten" and other not in _registered:
                    _register(library, other, _derived(other, op, entry))


def _guard_memory(library: Any) -> None:
    """Composites that read a tensor's memory would end the process here: they refuse or are made.

    Every other composite keeps decomposing; these compute nothing that autograd sees through.
    """
    from cloud_backend import foreign

    for name in foreign.READ_MEMORY:
        packet = getattr(aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            op = getattr(packet, overload)
            full = op._schema.name + (f".{overload}" if overload != "default" else "")
            library.m.impl(full, "PrivateUse1", functools.partial(_refuse, op), False)
    library.m.impl("aten::_reshape_from_tensor", "PrivateUse1", _reshape_from_tensor, False)
    above = torch.library.Library("aten", "IMPL")
    libraries.append(above)
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        above.m.impl("tensor_split.tensor_indices_or_sections", key, _tensor_split, False)


def _refuse(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    from cloud_backend import foreign

    group = foreign.group_of(op._schema.name.partition("::")[2])
    raise LoweringError(explain.explain(op, args, kwargs, f"it reads the host's memory ({group})"))


def _reshape_from_tensor(self: torch.Tensor, shape: torch.Tensor) -> torch.Tensor:
    return self.reshape(shape.tolist())


def _tensor_split(self: torch.Tensor, where: torch.Tensor, dim: int = 0) -> Any:
    """The composite reads `where` in the host's memory: it gets a copy there."""
    op = aten.tensor_split.tensor_indices_or_sections
    return op._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, self, where.cpu(), dim)


def _register(library: Any, op: OpOverload, function: Callable[..., Any]) -> None:
    if op in _registered or _is_composite(op):
        return
    _registered.add(op)
    name = op._schema.name
    if op._schema.overload_name:
        name += "." + op._schema.overload_name
    if isinstance(function, plan.Kernel):
        function = function.__call__  # a bound method, which C++ calls sooner than an object
    kernel = events.noted(op, function)
    hide_from_dynamo(kernel)
    library.m.impl(name, "PrivateUse1", kernel, False)


def registered() -> set[OpOverload]:
    """The overloads that have a kernel of this device."""
    return _registered


def _is_composite(op: OpOverload) -> bool:
    """CompositeImplicit operators must keep decomposing, or autograd would not see through them."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")


def _derived_forms(op: OpOverload) -> list[OpOverload]:
    """The in-place and `out=` overloads whose functional form is `op`."""
    packet = op._overloadpacket
    name = op._schema.name.partition("::")[2]
    found = []
    base = name.removesuffix("_functional")
    for p in (packet, getattr(aten, base + "_", None), getattr(aten, base, None)):
        if p is None:
            continue
        for overload in p.overloads():
            other = getattr(p, overload)
            writes = other is not op and schema.written_arguments(other)
            if writes and schema.functional_form(other) is op:
                found.append(other)
    return found


def _derived(other: OpOverload, op: OpOverload, entry: Any) -> Callable[..., Any]:
    if schema.out_arguments(other):
        return functools.partial(_call_out, other, op)
    return norm_statistics.kernel_of(other, entry)


# These compute in the dtype of what `out=` names, unless `dtype=` says otherwise.
_COMPUTED_AS_OUT = frozenset(
    f"aten::{name}" for name in ("sum", "nansum", "prod", "cumsum", "cumprod")
)


def _call_out(op: OpOverload, functional: Any, *args: Any, **kwargs: Any) -> Any:
    """`out=`: compute the functional form, then resize and fill what the user gave."""
    names = schema.out_arguments(op)
    count = len(op._schema.arguments) - len(names)
    outs = [kwargs.pop(n) if n in kwargs else args[count + i] for i, n in enumerate(names)]
    if op._schema.name in _COMPUTED_AS_OUT and kwargs.get("dtype") is None:
        kwargs["dtype"] = outs[0].dtype
    results = _unless_running(op, functional, *args[:count], **kwargs)
    flat = list(results) if isinstance(results, (tuple, list)) else [results]
    targets = outs[0] if len(outs) == 1 and isinstance(outs[0], (list, tuple)) else outs
    operands = [
        t
        for a in args[:count]
        for t in (a if isinstance(a, (list, tuple)) else [a])
        if isinstance(t, torch.Tensor)
    ]
    for target, result in zip(targets, flat, strict=True):
        _fill(op, target, result, operands)
    if not op._schema.returns:  # lists of `out=` tensors
        return None
    return outs[0] if len(outs) == 1 else tuple(outs)


def _fill(op: OpOverload, target: torch.Tensor, result: torch.Tensor, operands: Any) -> None:
    if op._schema.name in ("aten::cat", "aten::stack") and not torch.can_cast(
        result.dtype, target.dtype
    ):
        if op._schema.name == "aten::stack":  # which resizes before it looks
            target.resize_(result.shape)
        raise TypeError(f"{op._schema.name}: input types can't be cast to the desired output type")
    refusals.check_cast(result.dtype, target.dtype)
    if result.dtype != target.dtype:
        refusals.check_out_dtype(op._schema.name, result.dtype, target.dtype, operands)
    refusals.check_written([target])
    refusals.check_apart(target, operands)
    if target.shape != result.shape:
        if any(t is target for t in operands):
            raise RuntimeError(
                f"output with shape {list(target.shape)} doesn't match the broadcast shape "
                f"{list(result.shape)}"
            )
        target.resize_(result.shape)
        if target.numel():
            target.as_strided_(result.shape, result.stride())
    target.copy_(result)


# ---- what has no kernel


def fallback(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """The boxed fallback of the device: everything that has no kernel of its own."""
    if not _booted:
        boot()
        return op(*args, **kwargs)
    return events.noted(op, _resolve(op))(*args, **kwargs)


@functools.cache
def _resolve(op: OpOverload) -> Callable[..., Any]:
    from cloud_backend.ops import TABLE

    functional = schema.functional_form(op)
    if functional is not None and functional is not op:
        entry = TABLE.get(functional)
        if schema.out_arguments(op):
            return functools.partial(_call_out, op, functional)
        if entry is not None:
            return norm_statistics.kernel_of(op, entry)
        if len(op._schema.returns) == 1 and len(schema.written_arguments(op)) == 1:
            return functools.partial(_call_inplace, functional)
    entry = TABLE.get(op)
    if entry is not None:
        return norm_statistics.kernel_of(op, entry)
    if functional is None and (computing := schema.computing_form(op)) is not None:
        return functools.partial(_call_out, op, computing)
    decomposition = decomposition_of(op)
    if decomposition is not None:
        return functools.partial(_call_decomposition, op, decomposition)
    return functools.partial(_on_host, op)


def _call_inplace(
    functional: OpOverload, self: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    return self.copy_(functional(self, *args, **kwargs))


def decomposition_of(op: OpOverload) -> Callable[..., Any] | None:
    """PyTorch's decomposition of an operator, or its own composite kernel; None without either."""
    from torch._decomp import decomposition_table

    found = decomposition_table.get(op)
    if found is None and op.has_kernel_for_dispatch_key(
        torch._C.DispatchKey.CompositeImplicitAutograd
    ):
        found = op.decompose
    return found


def _unless_running(op: OpOverload, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `function` for `op`. If that is what is running already, it leads back to itself (a
    structured operator whose functional form calls its `out=` form): then there is no lowering."""
    running = _running.get()
    if op in running:
        functional = schema.functional_form(op) or op
        decomposition = decomposition_of(functional)
        if decomposition is None or functional in running:
            return _on_host(functional, *args, **kwargs)
        return _call_decomposition(functional, decomposition, *args, **kwargs)
    token = _running.set((*running, op))
    try:
        return function(*args, **kwargs)
    finally:
        _running.reset(token)


def _call_decomposition(op: OpOverload, decomposition: Any, *args: Any, **kwargs: Any) -> Any:
    if op in _running.get():
        return _on_host(op, *args, **kwargs)
    result = _unless_running(op, decomposition, *args, **kwargs)
    return _on_host(op, *args, **kwargs) if result is NotImplemented else result


def _on_host(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Run an operator on the CPU if the user allowed it, counted and named; else refuse."""
    from cloud_backend.ops import TABLE
    from torch_tpu_unified.core import flags

    if flags.FALLBACK.value != "warn":
        near = difflib.get_close_matches(str(op), [str(o) for o in TABLE], n=1)
        hint = f"; the closest operator with a lowering is {near[0]}" if near else ""
        raise LoweringError(
            explain.explain(op, args, kwargs, f"no lowering and no decomposition{hint}")
        )
    name = str(op)
    if name not in events.Counters.fallbacks:
        log.warning("tpu: %s runs on the CPU (TTU_FALLBACK=warn)", name)
    events.fallback(name)
    return _run_on_host(op, args, kwargs)


def _run_on_host(op: OpOverload, args: Any, kwargs: Any) -> Any:
    from torch.utils import _pytree as pytree

    moved: list[tuple[torch.Tensor, torch.Tensor]] = []

    def down(a: Any) -> Any:
        if isinstance(a, torch.Tensor) and a.device.type != "cpu":
            moved.append((a, a.cpu()))
            return moved[-1][1]
        return torch.device("cpu") if isinstance(a, torch.device) else a

    cargs, ckwargs = pytree.tree_map(down, (args, kwargs))
    result = op(*cargs, **ckwargs)
    if schema.written_arguments(op):
        for there, here in moved:
            there.resize_(here.shape)
            there.copy_(here)
        back = {id(here): there for there, here in moved}
    else:
        back = {}
    return pytree.tree_map_only(
        torch.Tensor, lambda t: back[id(t)] if id(t) in back else t.to("tpu"), result
    )
