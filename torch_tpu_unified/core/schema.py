"""Facts read from operator schemas: which arguments are written, the functional form of an op.

In-place (`add_`) and `out=` (`add.out`) overloads pair with the functional overload that has the
same arguments; both halves derive those forms from it instead of registering them.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._ops import OpOverload


def is_tensor_type(type_: Any) -> bool:
    """True for `Tensor`, `Tensor?`, `Tensor[]` and `Tensor?[]`."""
    text = str(type_).replace("Optional[", "").replace("List[", "").rstrip("]")
    return text == "Tensor"


def written_arguments(op: OpOverload) -> tuple[str, ...]:
    """Names of the arguments that the op writes, `out=` ones included, in schema order."""
    return tuple(
        a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write
    )


def out_arguments(op: OpOverload) -> tuple[str, ...]:
    """Names of the `out=` arguments, in schema order."""
    return tuple(a.name for a in op._schema.arguments if a.is_out)


def is_view(op: OpOverload) -> bool:
    """True when a result aliases an argument without writing it."""
    return any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns)


def _signature(op: OpOverload, leave_out: tuple[str, ...] = ()) -> tuple[tuple[str, str], ...]:
    return tuple((a.name, str(a.type)) for a in op._schema.arguments if a.name not in leave_out)


@functools.cache
def functional_form(op: OpOverload) -> OpOverload | None:
    """The functional overload with the same arguments less `out`, or None when there is none.

    `add_.Tensor` and `add.out` give `add.Tensor`. An op that writes nothing is its own form.
    """
    written = written_arguments(op)
    if not written:
        return op
    outs = out_arguments(op)
    namespace, _, name = op._schema.name.partition("::")
    if outs:
        bases = [name]
    else:
        bases = [name.removesuffix("_"), name.removesuffix("_") + "_functional"]
    wanted = _signature(op, outs)
    candidates: list[OpOverload] = [
        getattr(packet, overload)
        for packet in (getattr(getattr(torch.ops, namespace), base, None) for base in bases)
        if packet is not None
        for overload in packet.overloads()
    ]
    # Factories carry dtype, layout, device and pin_memory, which their `out=` form lacks.
    for leave_out in ((), ("dtype", "layout", "device", "pin_memory")):
        found = [
            other
            for other in candidates
            if not written_arguments(other) and _signature(other, leave_out) == wanted
        ]
        if len(found) == 1:
            return found[0]
    return None


@functools.cache
def computing_form(op: OpOverload) -> OpOverload | None:
    """The overload that an `out=` overload fills its results from, None when there is none.

    It is the functional form, or, where arguments other than `out` are written too
    (`_native_batch_norm_legit.out`), the overload that writes just those.
    """
    outs = out_arguments(op)
    if not outs:
        return None
    if (functional := functional_form(op)) is not None:
        return functional
    namespace, _, name = op._schema.name.partition("::")
    wanted = _signature(op, outs)
    packets = (getattr(getattr(torch.ops, namespace), n, None) for n in (name, f"_{name}"))
    found = [
        getattr(packet, overload)
        for packet in packets
        if packet is not None
        for overload in packet.overloads()
    ]
    same = [o for o in found if not out_arguments(o) and _signature(o) == wanted]
    return same[0] if len(same) == 1 else None


def format_value(value: Any) -> str:
    """A short, readable text of an argument: tensors as `f32[2, 3]`, others by `repr`."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        return f"{short_dtype(dtype)}{list(shape)}"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(format_value(v) for v in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    return repr(value)


def short_dtype(dtype: Any) -> str:
    """`f32` for `torch.float32`; NumPy dtypes are accepted too."""
    text = str(dtype).removeprefix("torch.")
    for long, short in (
        ("bfloat", "bf"),
        ("float", "f"),
        ("uint", "u"),
        ("int", "i"),
        ("complex", "c"),
    ):
        if text.startswith(long):
            return short + text.removeprefix(long)
    return text


def format_call(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The call with argument names: `gelu(self: f32[1, 64], approximate='tanh')`."""
    names = [a.name for a in op._schema.arguments]
    parts = []
    for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
        text = format_value(value)
        parts.append(f"{name}: {text}" if hasattr(value, "shape") else f"{name}={text}")
    return f"{op._schema.name.partition('::')[2]}({', '.join(parts)})"
