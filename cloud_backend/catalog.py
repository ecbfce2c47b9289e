"""How every ATen overload of the installed PyTorch resolves on the device: `tpu-doctor ops`.

Follows the same order as the dispatcher and `dispatch.py`: a registered kernel, PyTorch's composite
kernel, a form derived from the schema, a decomposition; what is left is either foreign (it belongs
to another device or layout, by name) or missing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch._ops import OpOverload

from cloud_backend import attention, derivatives, dispatch, foreign
from torch_tpu_unified.core import schema

# How an overload runs, the best first; the texts are the table's legend.
WAYS = {
    "native": "one XLA program from a lowering of its own",
    "derived": "in-place or out= form of such an operator, by its schema",
    "view": "sizes, strides and storage only; nothing is computed",
    "composite": "PyTorch's own composition of other operators",
    "decomposed": "a decomposition of PyTorch into other operators",
    "foreign": "belongs to another device or layout by its name; refused",
    "missing": "no lowering: refused, or run and counted on the CPU with TTU_FALLBACK=warn",
}
RESOLVED = ("native", "derived", "view", "composite", "decomposed")
_has = torch._C._dispatch_has_kernel_for_dispatch_key


@dataclasses.dataclass(frozen=True)
class Resolution:
    """One overload.

    Attributes:
        op: its name, `add.Tensor`.
        way: a key of `WAYS`.
        via: the overload that it is derived from, or "".
        group: of a foreign operator.
        backward: "yes", "through its parts", "not differentiable", "no", or what it needs.
        traits: of "host sync" (always or for some arguments), "random", "in-place", "out=".
    """

    op: str
    way: str
    via: str = ""
    group: str = ""
    backward: str = ""
    traits: tuple[str, ...] = ()


def overloads() -> dict[str, OpOverload]:
    """Every ATen overload that the dispatcher knows, by name without namespace, sorted."""
    found = {}
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full.partition("::")
        if namespace == "aten":
            packet, _, overload = name.partition(".")
            found[name] = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return dict(sorted(found.items(), key=lambda item: (item[0].strip("_"), item[0])))


def catalog() -> list[Resolution]:
    """The resolution of every ATen overload."""
    dispatch.boot()
    return [resolution(name, op) for name, op in overloads().items()]


def resolution(name: str, op: OpOverload) -> Resolution:
    """How one overload resolves."""
    way, via = _way(op)
    base = name.partition(".")[0]
    group = foreign.group_of(base) if way not in ("native", "derived", "view") else ""
    if group:
        way, via = "foreign", ""
    backward = "" if way in ("foreign", "missing") else _backward(name, op, way)
    return Resolution(name, way, via, group, backward, _traits(op))


@functools.cache
def _way(op: OpOverload) -> tuple[str, str]:
    from cloud_backend import kernels
    from cloud_backend.ops import TABLE

    functional = schema.functional_form(op) or schema.computing_form(op)
    via = _short(functional) if functional is not None and functional is not op else ""
    if op in kernels.KERNELS:
        return ("view", "") if schema.is_view(op) or _is_metadata(op) else ("native", "")
    if op in dispatch.registered() or op in attention.KERNELS:
        return ("derived", via) if via else ("native", "")
    name = op.name()
    structured = _has(name, "CompositeExplicitAutogradNonFunctional")
    composite = _has(name, "CompositeExplicitAutograd") or _has(name, "CompositeImplicitAutograd")
    if composite and schema.out_arguments(op) and functional is not None:
        return _through(functional)  # generated: the functional form, then a copy
    if composite:
        return ("view", "") if schema.is_view(op) or _is_metadata(op) else ("composite", "")
    if via and functional is not None:
        return _through(functional)
    if op in TABLE:
        return "native", ""
    if structured and (_is_copy_of_view(op) or _composed_out(op)):
        return "composite", ""
    if dispatch.decomposition_of(op) is not None:
        return "decomposed", ""
    return "missing", ""


def _through(functional: OpOverload) -> tuple[str, str]:
    way, _ = _way(functional)
    return (way if way == "missing" else "derived"), _short(functional)


def _short(op: OpOverload) -> str:
    return op.name().partition("::")[2]


def _is_metadata(op: OpOverload) -> bool:
    """In-place views, `set_`, `resize_` and questions about sizes write or read no element."""
    names = ("set_", "resize_", "is_set_to", "detach_", "is_same_size", "is_pinned", "dense_dim")
    base = op._schema.name.partition("::")[2]
    return torch.Tag.inplace_view in op.tags or base in names


def _is_copy_of_view(op: OpOverload) -> bool:
    """`permute_copy` and its like: a view and a clone, both PyTorch's own."""
    return torch.Tag.view_copy in op.tags


def _composed_out(op: OpOverload) -> bool:
    """Whether the `out=` form is composed as well; a structured operator's is a kernel instead."""
    packet = op._overloadpacket
    forms = (getattr(packet, o) for o in packet.overloads())
    pairs = [o for o in forms if schema.out_arguments(o) and schema.functional_form(o) is op]
    return any(_has(o.name(), "CompositeExplicitAutograd") for o in pairs)


def _backward(name: str, op: OpOverload, way: str) -> str:
    if schema.out_arguments(op):
        return "no"  # PyTorch refuses out= under autograd
    if _has(op.name(), "CompositeImplicitAutograd"):
        return "through its parts"
    functional = schema.functional_form(op)
    known = derivatives.formulas()
    for candidate in (name, _short(functional) if functional is not None else name):
        if candidate in known:
            return _by_formulas(known[candidate])
    return "no"


def _by_formulas(given: Iterable[str]) -> str:
    real = [f for f in given if derivatives.real(f)]
    if not real:
        return "not differentiable"
    needs = {n for f in real for n in derivatives.called(f)}
    lacking = sorted(n for n in needs if hasattr(torch.ops.aten, n) and not _runs(n))
    return f"needs {', '.join(lacking)}" if lacking else "yes"


@functools.cache
def _runs(packet: str) -> bool:
    """Whether some overload of a packet resolves; TorchScript's own are none of the device's."""
    found: Any = getattr(torch.ops.aten, packet)
    known = [getattr(found, o) for o in found.overloads()]
    ways = [_way(op)[0] for op in known if torch._C._dispatch_has_kernel(op.name())]
    return not ways or any(way in RESOLVED for way in ways)


def _traits(op: OpOverload) -> tuple[str, ...]:
    from cloud_backend.ops import TABLE

    entry = TABLE.get(schema.functional_form(op) or op)
    host = entry.traits["host"] if entry is not None else False
    found = []
    if host is True or torch.Tag.data_dependent_output in op.tags:
        found.append("host sync")
    elif host or torch.Tag.dynamic_output_shape in op.tags:
        found.append("host sync for some arguments" if host else "host sync")
    if torch.Tag.nondeterministic_seeded in op.tags or (entry and entry.traits["random"]):
        found.append("random")
    if schema.out_arguments(op):
        found.append("out=")
    elif schema.written_arguments(op):
        found.append("in-place")
    return tuple(found)


def counts(rows: Iterable[Resolution]) -> dict[str, int]:
    """How many overloads resolve each way, in the order of `WAYS`."""
    found = dict.fromkeys(WAYS, 0)
    for row in rows:
        found[row.way] += 1
    return found
