"""`linear` and `matmul` as one operator forward and one backward, instead of views and products.

PyTorch composes both of views, `mm`, `bmm` and `addmm`: three to six operators each way. It has
derivatives for the whole operators as well, but registers those for nested tensors only. So the
device answers above autograd: plain calls go to these derivatives and then to its own kernels, and
what is more than plain (`torch.func`, forward mode, subclasses, dispatch modes) is composed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch.autograd import forward_ad

from cloud_backend import events, plan

Tensor = torch.Tensor
aten = torch.ops.aten
# Where PyTorch keeps the derivatives of the whole operators, above this device's kernels.
_DERIVATIVE = DispatchKeySet(DispatchKey.AutogradNestedTensor) | DispatchKeySet(
    DispatchKey.PrivateUse1
)
_PLAIN = frozenset((Tensor, torch.nn.Parameter))
_interpreters = torch._C._functorch.peek_interpreter_stack
_modes = torch._C._len_torch_dispatch_stack
_linear = aten.linear.default._handle.redispatch_boxed
_matmul = aten.matmul.default._handle.redispatch_boxed


def register(table: Any) -> Any:
    """Give the device its kernels of `linear`, `matmul` and `matmul_backward`.

    Args:
        table: the operator table, which has the lowerings of all three.

    Returns the library that holds them, for the caller to keep.
    """
    library = torch.library.Library("aten", "IMPL")
    for op, above in KERNELS.items():
        kernel = events.noted(op, plan.Kernel(op, table.get(op)).__call__)
        name = op._schema.name
        library.m.impl(name, "PrivateUse1", kernel, False)
        library.m.impl(name, "AutogradPrivateUse1", above, False)
    return library


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The kernel of `linear` above autograd: x (..., k), weight (n, k), bias (n) -> (..., n)."""
    shape = weight.shape
    if (
        _is_plain(input, weight)
        and len(shape) == 2
        and input.shape[-1] == shape[1]
        and weight.is_contiguous()
        and (
            bias is None
            or (type(bias) in _PLAIN and bias.shape == shape[:1] and bias.dtype is weight.dtype)
        )
    ):
        return _linear(_DERIVATIVE, input, weight, bias)  # type: ignore[no-any-return]
    return _composed(aten.linear.default, input, weight, bias)


def matmul(self: Tensor, other: Tensor) -> Tensor:
    """The kernel of `matmul` above autograd: (..., m, k) @ (k, n) or (..., k, n) -> (..., m, n)."""
    if _is_plain(self, other) and other.dim() >= 2:
        a, b = self.shape, other.shape
        # Gradients of transposed matrices lie as these do: the composition sees to that.
        if a[-1] == b[-2] and (
            a[:-2] == b[:-2]
            if len(b) > 2
            else other.is_contiguous() and (len(a) > 2 or self.is_contiguous())
        ):
            return _matmul(_DERIVATIVE, self, other)  # type: ignore[no-any-return]
    return _composed(aten.matmul.default, self, other)


def matmul_backward(
    grad: Tensor | None, self: Tensor, other: Tensor, mask: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The kernel of `matmul_backward` above autograd, which has no derivative in PyTorch."""
    if grad is None:
        return None, None
    differentiable = torch.is_grad_enabled() and any(t.requires_grad for t in (grad, self, other))
    if differentiable:
        grad_self = (grad @ other.mT).sum_to_size(self.shape) if mask[0] else None
        grad_other = (self.mT @ grad).sum_to_size(other.shape) if mask[1] else None
        return grad_self, grad_other
    with torch._C._AutoDispatchBelowAutograd():
        found: tuple[Tensor | None, Tensor | None] = aten.matmul_backward.default(
            grad, self, other, mask
        )
        return found


def _composed(op: Any, *args: Any) -> Tensor:
    """What every device without a kernel of `op` does; its form for tracing while one traces."""
    if torch._C._dispatch_tls_is_dispatch_key_included(DispatchKey.PythonDispatcher):
        return op.decompose(*args)  # type: ignore[no-any-return]
    return op._op_dk(DispatchKey.CompositeImplicitAutograd, *args)  # type: ignore[no-any-return]


def _is_plain(a: Tensor, b: Tensor) -> bool:
    """Whether two operands are matrices (or more) of one floating dtype and nothing but values."""
    return (
        type(a) in _PLAIN
        and type(b) in _PLAIN
        and a.dtype is b.dtype
        and a.dtype.is_floating_point
        and a.dim() >= 2
        and a.layout is b.layout is torch.strided
        and forward_ad._current_level < 0
        and not _modes()
        and _interpreters() is None
    )


KERNELS = {
    aten.linear.default: linear,
    aten.matmul.default: matmul,
    aten.matmul_backward.default: matmul_backward,
}
