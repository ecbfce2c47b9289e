"""What several families share: number types and their promotion, constants, NHWC borders.

LiteRT's kernels take few number types each (`KERNEL_TYPES`); `compute_type` picks the one in which
a call is computed, and casts stand around it. Half-precision is computed in float32, as PyTorch's
CPU kernels do, and small integers in int32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from litert_export import schema
from litert_export.graph import Graph, Value
from torch_tpu_unified.core.errors import Unsupported

Number = bool | int | float

_ARITHMETIC = ("float32", "int32", "int64")
KERNEL_TYPES: dict[str, tuple[str, ...]] = {
    "ADD": _ARITHMETIC,
    "SUB": _ARITHMETIC,
    "MUL": _ARITHMETIC,
    "DIV": ("float32",),
    "POW": ("float32", "int32"),
    "SQUARED_DIFFERENCE": ("float32", "int32"),
    "FLOOR_DIV": ("float32", "int32"),
    "FLOOR_MOD": _ARITHMETIC,
    "MAXIMUM": _ARITHMETIC,
    "MINIMUM": _ARITHMETIC,
    "EQUAL": (*_ARITHMETIC, "bool"),
    "NOT_EQUAL": (*_ARITHMETIC, "bool"),
    "LESS": _ARITHMETIC,
    "LESS_EQUAL": _ARITHMETIC,
    "GREATER": _ARITHMETIC,
    "GREATER_EQUAL": _ARITHMETIC,
    "ABS": ("float32", "int32"),
    "NEG": _ARITHMETIC,
    "SIGN": ("float32", "int32"),
    "ATAN2": ("float32",),
    "BITWISE_XOR": ("int32", "int8", "uint8", "int16"),
    "RIGHT_SHIFT": ("int32", "int8", "uint8", "int16"),
}
_HALF = ("float16", "bfloat16")
_SMALL = ("bool", "int8", "uint8", "int16", "uint16")


def is_float(x: Value | str) -> bool:
    """Whether the value (or type name) is a floating one."""
    name = x if isinstance(x, str) else x.dtype
    return "float" in name


def compute_type(code: str, dtype: str) -> str:
    """The type in which `code` computes a result of type `dtype`.

    Raises:
        Unsupported: LiteRT has no kernel that gives PyTorch's result.
    """
    allowed = KERNEL_TYPES.get(code, ("float32",))
    if dtype in allowed:
        return dtype
    if dtype in _HALF and "float32" in allowed:
        return "float32"
    if dtype in _SMALL and "int32" in allowed:
        return "int32"
    raise Unsupported(f"LiteRT's {code} has no {dtype} kernel")


def result_type(*operands: Any) -> str:
    """The type that PyTorch's promotion gives Values and Python numbers."""
    fakes = [
        torch.empty((1,) * min(v.rank, 1), dtype=torch_dtype(v.dtype), device="meta")
        if isinstance(v, Value)
        else v
        for v in operands
    ]
    found = fakes[0]
    if len(fakes) == 1:
        return schema.dtype_name(found.dtype if isinstance(found, torch.Tensor) else type(found))
    dtype = torch.result_type(fakes[0], fakes[1])
    for fake in fakes[2:]:
        dtype = torch.result_type(torch.empty((1,), dtype=dtype, device="meta"), fake)
    return schema.dtype_name(dtype)


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a LiteRT type name."""
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def as_value(g: Graph, x: Value | Number, dtype: str) -> Value:
    """`x` in type `dtype`: a cast, or a scalar constant."""
    if isinstance(x, Value):
        return g.cast(x, dtype)
    kind = schema.numpy_dtype(dtype)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        if isinstance(x, float) and not x.is_integer():
            raise Unsupported(f"{x} is no {dtype}")
        if not limits.min <= int(x) <= limits.max:
            raise Unsupported(f"{x} does not fit {dtype}")
    return g.const(np.asarray(x).astype(kind))


def binary(
    g: Graph, code: str, x: Value | Number, y: Value | Number, *, dtype: str, **options: Any
) -> Value:
    """An arithmetic op in PyTorch's type `dtype`; operands and result are cast as needed."""
    inner = compute_type(code, dtype)
    # A value first takes PyTorch's common type (which may round), then the kernel's.
    a, b = (as_value(g, as_value(g, v, dtype), inner) for v in (x, y))
    return g.cast(g.emit(code, a, b, **options), dtype)


def compare(g: Graph, code: str, x: Value | Number, y: Value | Number) -> Value:
    """A comparison in the operands' common type; the result is bool."""
    common = result_type(x, y)
    inner = compute_type(code, common)
    a, b = (as_value(g, as_value(g, v, common), inner) for v in (x, y))
    return g.emit(code, a, b, dtype="bool")


def unary(g: Graph, code: str, x: Value, **options: Any) -> Value:
    """A floating unary op; integers become the result's floating type first."""
    dtype = g.result[0].dtype if is_float(g.result[0].dtype) else x.dtype
    inner = compute_type(code, dtype)
    a = g.cast(g.cast(x, dtype), inner)
    return g.cast(g.emit(code, a, shape=x.shape, **options), dtype)


def float32(g: Graph, x: Value) -> Value:
    """A floating value in float32.

    Raises:
        Unsupported: the type is float64 or no floating one.
    """
    if x.dtype not in ("float32", *_HALF):
        raise Unsupported(f"LiteRT has no {x.dtype} kernel for it; convert the model to float32")
    return g.cast(x, "float32")


def ints(g: Graph, values: Sequence[int]) -> Value:
    """An int32 constant: the axes, sizes and paddings that LiteRT reads from tensors."""
    return g.const(np.asarray(list(values), np.int32))


def spatial(values: Sequence[int], count: int) -> list[int]:
    """An argument that PyTorch repeats for every spatial dimension when it has one element."""
    found = list(values)
    return found * count if len(found) == 1 else found


def to_channels_last(g: Graph, x: Value) -> Value:
    """[N, C, *spatial] -> [N, *spatial, C]; the layout pass removes the transpose where it can."""
    return g.transpose(x, [0, *range(2, x.rank), 1])


def to_channels_first(g: Graph, x: Value) -> Value:
    """[N, *spatial, C] -> [N, C, *spatial]."""
    return g.transpose(x, [0, x.rank - 1, *range(1, x.rank - 1)])


def pad(g: Graph, x: Value, amounts: Sequence[tuple[int, int]], value: float = 0.0) -> Value:
    """PAD or, for another value than zero, PADV2; nothing when no amount is positive."""
    if not any(a or b for a, b in amounts):
        return x
    shape = [d + a + b for d, (a, b) in zip(x.shape, amounts, strict=True)]
    table = g.const(np.asarray(amounts, np.int32))
    if value == 0:
        return g.emit("PAD", x, table, shape=shape)
    fill = g.const(np.asarray(value, schema.numpy_dtype(x.dtype)))
    return g.emit("PADV2", x, table, fill, shape=shape)


def slice_(g: Graph, x: Value, begin: Sequence[int], size: Sequence[int]) -> Value:
    """SLICE; `x` itself when it is whole."""
    if tuple(size) == x.shape:
        return x
    return g.emit("SLICE", x, ints(g, begin), ints(g, size), shape=size)


def may_be_same(g: Graph, stride: Sequence[int]) -> bool:
    """Whether SAME may stand for explicit padding: with a stride it does so for some sizes only."""
    return not g.any_size or all(s == 1 for s in stride)


def same_padding(size: int, window: int, stride: int) -> tuple[int, int]:
    """What LiteRT's SAME pads before and after, for an effective window size."""
    total = max((-(-size // stride) - 1) * stride + window - size, 0)
    return total // 2, total - total // 2


def no_data(g: Graph, x: Value, code: str) -> None:
    """Refuse a dynamic operand that LiteRT reads while it plans.

    Raises:
        Unsupported: the value is not constant.
    """
    if x.data is None:
        raise Unsupported(f"{code} needs a constant for {x.name}")
