"""Which form of scaled dot-product attention runs: one fused operator, or PyTorch's composition.

PyTorch asks a table of C++ functions which form a device has; one cannot be added from Python. So
the device answers above autograd, for the operator itself: the fused operator brings its own
derivative, and what it cannot do goes the way of every device without one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

Tensor = torch.Tensor
aten = torch.ops.aten


def register() -> Any:
    """Give the device its answers for attention and for the question which form it takes.

    Returns the library that holds them, for the caller to keep.
    """
    library = torch.library.Library("aten", "IMPL")
    for op, (function, keys) in KERNELS.items():
        for key in keys:
            library.m.impl(op._schema.name, key, function, False)
    return library


def attention(*args: Any, scale: float | None = None, enable_gqa: bool = False) -> Tensor:
    """The kernel of `scaled_dot_product_attention`; `args`: all that its schema allows by place."""
    if _fused(*args, enable_gqa=enable_gqa):
        fused = aten._scaled_dot_product_fused_attention_overrideable.default
        out: Tensor = fused(*args, scale=scale)[0]
    else:  # with the checks and errors that every device shares
        composed = aten.scaled_dot_product_attention.default.decompose
        out = composed(*args, scale=scale, enable_gqa=enable_gqa)
    return out


def choice(*args: Any, scale: float | None = None, enable_gqa: bool = False) -> int:
    """The kernel of `_fused_sdp_choice`: a number of `torch.nn.attention.SDPBackend`."""
    fused = _fused(*args, enable_gqa=enable_gqa)
    return int((SDPBackend.OVERRIDEABLE if fused else SDPBackend.MATH).value)


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *_: Any,
    enable_gqa: bool,
) -> bool:
    """Whether the fused operator computes this call: (batch, heads, length, features), nothing to
    broadcast but the mask, no forward-mode derivative, and not switched off by `sdpa_kernel`.

    Inside `torch.func` transforms the composition runs: the fused operator has no batching rule.
    """
    if not torch._C._get_overrideable_sdp_enabled():
        return False
    if not query.dim() == key.dim() == value.dim() == 4:
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    q, k, v = query.shape, key.shape, value.shape
    given = (query, key, value) if mask is None else (query, key, value, mask)
    if any(_special(t) for t in given) or 0 in (*q, *k, *v):
        return False
    if mask is not None and mask.dtype not in (torch.bool, query.dtype):
        return False
    if mask is not None and not _broadcasts(mask.shape, (*q[:3], k[2])):
        return False
    heads = q[1] % k[1] == 0 if enable_gqa else q[1] == k[1]
    return (
        heads
        and query.is_floating_point()
        and key.dtype == value.dtype == query.dtype
        and q[0] == k[0] == v[0]
        and k[1:3] == v[1:3]
        and q[3] == k[3]
    )


def _special(t: Tensor) -> bool:
    """A tensor that is more than its values: sparse, nested, distributed, or with a tangent."""
    return (
        t.layout != torch.strided
        or t.is_nested
        or t.device.type != "tpu"
        or is_traceable_wrapper_subclass(t)
        or (forward_ad._current_level >= 0 and forward_ad.unpack_dual(t).tangent is not None)
    )


def _broadcasts(shape: torch.Size, target: tuple[int, ...]) -> bool:
    lead = len(target) - len(shape)
    return lead >= 0 and all(n in (1, m) for n, m in zip(shape, target[lead:], strict=True))


KERNELS = {
    aten.scaled_dot_product_attention.default: (attention, ("PrivateUse1", "AutogradPrivateUse1")),
    aten._fused_sdp_choice.default: (choice, ("PrivateUse1",)),
}
