"""What PyTorch's own kernels refuse, and meta kernels do not see: overlapping memory, numbers that
a dtype cannot hold, results that a target cannot take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

Tensor = torch.Tensor


def is_dense(t: Tensor) -> bool:
    """Whether the elements fill their stretch of memory, each place once, in any order."""
    step = 1
    for s, n in sorted((s, n) for s, n in zip(t.stride(), t.shape, strict=True) if n > 1):
        if s != step:
            return False
        step *= n
    return True


# Every element gets the same value, so it does not matter how often it is written.
MAY_REPEAT = frozenset(("aten::fill_", "aten::zero_"))


def check_written(written: Iterable[Tensor]) -> None:
    """Raises RuntimeError for a target with a dimension that repeats one element."""
    for t in written:
        strides = zip(t.stride(), t.shape, strict=True)
        if t.numel() and any(s == 0 and n > 1 for s, n in strides):
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to a "
                "single memory location. Please clone() the tensor before performing the operation."
            )


def check_apart(target: Tensor, operands: Iterable[Any]) -> None:
    """Raises RuntimeError if an operand lies partly over the target, where PyTorch can tell.

    It can for tensors that are dense; others are computed from what was there before.
    """
    storage = target.untyped_storage()._cdata
    for t in operands:
        if not isinstance(t, Tensor) or t is target or t.untyped_storage()._cdata != storage:
            continue
        if not (t.numel() and target.numel() and is_dense(t) and is_dense(target)):
            continue
        begin, end = _stretch(target)
        first, last = _stretch(t)
        same = (begin, end) == (first, last)
        if begin < last and first < end and not (same and t.stride() == target.stride()):
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to "
                "tensor refer to a single memory location. Please clone() the tensor before "
                "performing the operation."
            )


def _stretch(t: Tensor) -> tuple[int, int]:
    begin = t.storage_offset() * t.element_size()
    return begin, begin + t.numel() * t.element_size()


def check_number(value: Any, dtype: torch.dtype) -> None:
    """Raises RuntimeError for a number that a tensor of `dtype` cannot be filled with.

    As in C++: bool takes any, unsigned integers take negative numbers by wrapping round.
    """
    if isinstance(value, (bool, Tensor)) or dtype == torch.bool:
        return
    fits = True
    if isinstance(value, complex):
        if dtype.is_complex:
            return
        fits, value = value.imag == 0, value.real
    if dtype.is_floating_point or dtype.is_complex:
        info = torch.finfo(dtype)
        fits = fits and not (
            dtype.itemsize > 1 and abs(value) > info.max and abs(value) != float("inf")
        )
    else:
        limits = torch.iinfo(dtype)
        lowest = limits.min if dtype.is_signed or isinstance(value, float) else -limits.max
        fits = fits and lowest <= value <= limits.max
    if not fits:
        name = _NAMES.get(dtype, str(dtype))
        raise RuntimeError(f"value cannot be converted to type {name} without overflow")


_NAMES = {
    torch.uint8: "uint8_t",
    torch.int8: "int8_t",
    torch.int16: "int16_t",
    torch.int32: "int",
    torch.int64: "int64_t",
    torch.uint16: "uint16_t",
    torch.uint32: "uint32_t",
    torch.uint64: "uint64_t",
    torch.float16: "c10::Half",
    torch.bfloat16: "c10::BFloat16",
    torch.float32: "float",
    torch.float64: "double",
    torch.complex64: "c10::complex<float>",
    torch.complex128: "c10::complex<double>",
}


def check_cast(result: torch.dtype, target: torch.dtype) -> None:
    """Raises RuntimeError if a result's category is higher than the target's."""
    if not torch.can_cast(result, target):
        raise RuntimeError(
            f"result type {_type_name(result)} can't be cast to the desired output type "
            f"{_type_name(target)}"
        )


def _type_name(dtype: torch.dtype) -> str:
    return torch.empty(0, dtype=dtype).type().rpartition(".")[2].removesuffix("Tensor")


def _check_extreme(name: str, all_dims: bool) -> Callable[..., None]:
    """Extremes over a dimension without elements are IndexErrors; `all_dims`: over all as well."""

    def check(x: Tensor, dim: Any = None, *rest: Any, **named: Any) -> None:
        dim = named.get("dim", dim)
        if x.numel() or (dim in (None, []) and not all_dims):
            return
        dims = range(x.dim()) if dim in (None, []) else [dim] if isinstance(dim, int) else dim
        for d in dims:
            if -x.dim() <= d < x.dim() and x.shape[d] == 0:
                raise IndexError(f"{name}(): Expected reduction dim {d} to have non-zero size.")

    return check


def _check_cat(tensors: Any, dim: int = 0) -> None:
    if any(t.dim() == 0 for t in tensors):
        raise RuntimeError("zero-dimensional tensor cannot be concatenated")


def _check_mean(x: Tensor, *rest: Any, dtype: torch.dtype | None = None, **named: Any) -> None:
    kind = dtype or x.dtype
    if not (kind.is_floating_point or kind.is_complex):
        raise RuntimeError(
            "mean(): could not infer output dtype. Input dtype must be either a floating point or "
            f"complex dtype. Got: {kind}"
        )


def _one_dtype(*places: int, mixed: bool = False) -> Callable[..., None]:
    """A check that the tensors at these places have the first one's dtype.

    With `mixed`, parameters of a layer may be float32 where its input has 16 bits.
    """

    def check(*args: Any, **named: Any) -> None:
        first: Tensor = args[places[0]]
        allowed = {first.dtype}
        if mixed and first.dtype in (torch.float16, torch.bfloat16):
            allowed.add(torch.float32)
        for i in places[1:]:
            t = args[i] if i < len(args) else None
            if isinstance(t, Tensor) and t.dtype not in allowed:
                raise RuntimeError(
                    f"expected tensors of the same dtype, but found {_type_name(first.dtype)} "
                    f"and {_type_name(t.dtype)} (argument {i + 1})"
                )

    return check


_ONE_DTYPE = {
    (0, 1): "mm mv linalg_cross grid_sampler_2d grid_sampler_3d _cdist_forward",
    (0, 1, 2): "addmm addmm_ addmv addmv_ addbmm addbmm_ baddbmm baddbmm_ binary_cross_entropy",
    (0, 3): "index_add index_add_",
}


def _check_index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> None:
    _one_dtype(0, 3)(x, dim, index, source)
    if source.dim() == 0 and index.numel() != 1:
        raise IndexError(
            "index_copy_(): When source is scalar, index should have one element "
            f"(got {index.numel()})"
        )


# What is looked at before PyTorch's meta kernel, which refuses with another class of error.
CHECKS: dict[str, Callable[..., None]] = {
    "aten::cat": _check_cat,
    "aten::mean": _check_mean,
    "aten::index_copy": _check_index_copy,
    "aten::index_copy_": _check_index_copy,
    "aten::native_layer_norm": _one_dtype(0, 2, 3, mixed=True),
    "aten::native_group_norm": _one_dtype(0, 1, 2, mixed=True),
    "aten::native_batch_norm": _one_dtype(0, 1, 2, 3, 4, mixed=True),
    **{f"aten::{n}": _one_dtype(*p) for p, names in _ONE_DTYPE.items() for n in names.split()},
    **{f"aten::{n}": _check_extreme(n, False) for n in ("amax", "amin", "aminmax")},
    **{f"aten::{n}": _check_extreme(n, True) for n in ("argmax", "argmin")},
}


# Operators whose `out=` must have the result's own dtype; all others convert.
_EXACT = frozenset(
    f"aten::{name}"
    for name in """amax amin argmax argmin index_select mm bmm addmm gather take masked_select
    nonzero tril triu diag renorm _softmax _log_softmax softmax log_softmax clamp clamp_min
    clamp_max where norm neg abs""".split()
)


def check_out_dtype(
    name: str, result: torch.dtype, target: torch.dtype, operands: Iterable[Any]
) -> None:
    """Raises RuntimeError where PyTorch does not convert a result for `out=`."""
    if name == "aten::abs" and target in [t.dtype for t in operands if isinstance(t, Tensor)]:
        return  # the absolute values of complex numbers may be complex numbers
    truth = name in ("aten::all", "aten::any") and target not in (torch.bool, torch.uint8)
    if name in _EXACT or truth:
        raise RuntimeError(f"Expected out tensor to have dtype {result}, but got {target} instead")
