"""What fake tensors on tpu become, where PyTorch's meta kernels have the limits of other devices.

`torch.compile` and `torch.export` ask this before they ask a meta kernel; eager calls of such an
operator take the shapes from the lowering.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch

aten = torch.ops.aten


def _grouped_mm(
    mode: Any,
    op: Any,
    x: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """CUDA multiplies bfloat16 matrices of certain strides; a TPU all floating ones."""
    if x.device.type != "tpu":
        return NotImplemented
    groups = {(2, 2): offs, (3, 3): x}.get((x.dim(), mat2.dim()))
    size = [x.shape[-2], mat2.shape[-1]]
    if groups is not None:
        size = [groups.shape[0], *size]
    inner, wanted = x.shape[-1], mat2.shape[-2]
    torch._check(inner == wanted, lambda: f"contraction dimensions differ: {inner} and {wanted}")
    with mode:
        return x.new_empty(size, dtype=out_dtype or x.dtype)


def install(module: Any) -> None:
    """Tell `torch._subclasses.fake_impls` (the module given)."""
    module.op_implementations_checks.insert(
        0, (functools.partial(operator.is_, aten._grouped_mm.default), _grouped_mm)
    )
