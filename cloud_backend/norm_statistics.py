"""What normalisations return beside their result: the statistics that their gradients need.

Devices of PyTorch differ here. Meta kernels, and with them compiled graphs, have what accelerators
return; eager calls return what the CPU does: the parameters' dtype, nothing in evaluation.
"""

from __future__ import annotations

from typing import Any

import torch

from cloud_backend import plan, runtime, tensor
from cloud_backend.dtypes import to_jax
from torch_tpu_unified.core.optable import Entry

_PARAMETERS = ("weight", "bias", "running_mean", "running_var")
_OPERATORS = frozenset(
    f"aten::{name}"
    for name in (
        "native_layer_norm",
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_functional",
        "_native_batch_norm_legit_no_training",
        "_batch_norm_with_update",
        "_batch_norm_with_update_functional",
        "_batch_norm_no_update",
    )
)
_NEVER_TRAINING = ("aten::_native_batch_norm_legit_no_training", "aten::_batch_norm_no_update")


class NormKernel(plan.Kernel):
    """A kernel whose second and third results are statistics, as the CPU returns them."""

    def _metas(self, args: Any, kwargs: Any) -> Any:
        metas = super()._metas(args, kwargs)
        if metas is None:
            return None
        (result, mean, rstd, *rest), tree = metas
        kept = [self._kept(m, args, kwargs) for m in (mean, rstd)]
        return [result, *kept, *rest], tree

    def _kept(self, m: tensor.Meta, args: Any, kwargs: Any) -> tensor.Meta:
        given = [self.argument(n, args, kwargs) for n in _PARAMETERS if n in self.position]
        dtype: torch.dtype = args[0].dtype
        if dtype.itemsize == 2 and any(t is not None and t.dtype == torch.float32 for t in given):
            dtype = torch.float32
        training = "training" not in self.position or self.argument("training", args, kwargs)
        if not training or self.op._schema.name in _NEVER_TRAINING:
            return tensor.meta((0,), (1,), dtype)
        return tensor.meta(m.size, m.stride, dtype)

    def _laid_out(self, value: Any, m: tensor.Meta | None) -> Any:
        if isinstance(m, tensor.Meta) and value is not None:
            dtype = to_jax(m.dtype)
            empty = m.size == (0,) and value.shape != m.size
            value = runtime.start().numpy.zeros(0, dtype) if empty else value.astype(dtype)
        return super()._laid_out(value, m)


def kernel_of(op: Any, entry: Entry, writes: tuple[str, ...] = ()) -> plan.Kernel:
    """The kernel of `op` by a lowering: see `plan.Kernel`."""
    kind = NormKernel if op._schema.name in _OPERATORS else plan.Kernel
    return kind(op, entry, writes)
