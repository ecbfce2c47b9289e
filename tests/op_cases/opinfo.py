"""PyTorch's operator database as op cases for the device: which entries, samples, what to compare.

Entries are excluded only where no comparison can be made, each with the reason beside it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16)
OTHER_DTYPES = (torch.float16, torch.float64, torch.complex64, torch.int32, torch.uint8)

# Results are random or uninitialised: shapes and dtypes are compared, values are not.
WITHOUT_VALUES = {
    "bernoulli", "cauchy", "empty", "empty_like", "empty_permuted", "empty_strided", "exponential",
    "geometric", "log_normal", "multinomial", "new_empty", "new_empty_strided", "normal",
    "nn.functional.alpha_dropout", "nn.functional.dropout", "nn.functional.dropout2d",
    "nn.functional.dropout3d", "nn.functional.feature_alpha_dropout",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
    "nn.functional.multi_head_attention_forward", "nn.functional.rrelu",
    "nn.functional.scaled_dot_product_attention", "pca_lowrank", "rand_like", "randint",
    "randint_like", "randn", "randn_like", "svd_lowrank", "torch.ops.aten._flash_attention_forward",
    "torch.ops.aten._efficient_attention_forward", "uniform",
}  # fmt: skip
# The index of one among equal elements is free: only the values, which come first, are compared.
FREE_INDICES = {"kthvalue", "median", "mode", "nanmedian", "sort", "topk"}
# Factors are unique up to signs or phases: their shapes and dtypes are compared here.
FREE_FACTORS = {
    "geqrf", "linalg.eig", "linalg.eigh", "linalg.qr", "linalg.svd", "qr", "svd",
}  # fmt: skip
# CUDA only: the CPU, which is the reference, refuses them.
NOT_APPLICABLE = (
    "jiterator_",
    "torch.ops.aten._efficient_attention_forward",
    "torch.ops.aten._flash_attention_forward",
)
_NO_SPARSE = "XLA has no sparse layouts: tensors on the device are strided"
# What the device does not do of what the CPU does: by entry, or entry and dtype. Strict: what is
# equal one day must leave here.
MISSING = {
    "chalf": "XLA has no complex type of two float16",
    "sparse.mm.reduce": _NO_SPARSE,
    "sparse.sampled_addmm": _NO_SPARSE,
    "to_sparse": _NO_SPARSE,
}
# Where a plain comparison with the CPU fails in bfloat16, since the CPU rounds what lies between:
# the device computes that in float32, as CUDA does, and lies closer to the float64 result.
MORE_EXACT = {
    "_unsafe_masked_index_put_accumulate": "sums of repeated elements",
    "grid_sampler_2d": "coordinates and weights of the samples",
    "grid_sampler_3d": "coordinates and weights of the samples",
    "matrix_exp": "powers of the matrix; the CPU's overflow to NaN",
    "nn.functional.grid_sample": "coordinates and weights of the samples",
    "nn.functional.instance_norm": "mean and deviation",
}


@functools.cache
def infos() -> dict[str, Any]:
    """Full name (with variant) -> OpInfo, for what the device is asked to do."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {info.full_name: info for info in op_db if not info.name.startswith(NOT_APPLICABLE)}


def samples(
    info: Any, dtype: torch.dtype, count: int | None, grad: bool = False
) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """(input, args, kwargs) of `count` samples that show most, or of all for None."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = list(info.sample_inputs("cpu", dtype, requires_grad=grad))
    if count is not None:
        # The largest, since many are empty or 0-d; then the first, the last, and those between.
        found.insert(0, found.pop(max(range(len(found)), key=lambda i: _elements(found[i]))))
        rest = max(len(found) - 1, 1)
        found = [found[i] for i in dict.fromkeys((0, 1 % len(found), rest % len(found)))] + found[
            2:rest
        ]
        found = found[:count]
    for sample in found:
        yield sample.input, sample.args, sample.kwargs


def _elements(sample: Any) -> int:
    leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
    # Beyond some hundreds a sample shows nothing more, only costs more.
    return min(sum(a.numel() for a in leaves if isinstance(a, torch.Tensor)), 300)


def moved(tree: Any, device: str) -> Any:
    """The same arguments on a device; leaves keep `requires_grad`."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to(device).requires_grad_(leaf.requires_grad)
        names_device = isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf == "cpu")
        return torch.device(device) if names_device else leaf

    return tree_map(move, tree)


def comparable(name: str, results: Any) -> Any:
    """What of an entry's results has determined values."""
    if name in FREE_INDICES and isinstance(results, tuple):
        return results[0]
    return results


def has_values(name: str) -> bool:
    """Whether the entry's values can be compared at all."""
    return name not in WITHOUT_VALUES and name not in FREE_FACTORS


def has_gradient(info: Any) -> bool:
    """Whether the entry's gradients can be compared, in float32."""
    return (
        has_values(info.name)
        and info.supports_autograd
        and torch.float32 in info.supported_backward_dtypes("cpu")
    )


def reason_missing(name: str, dtype: torch.dtype) -> str | None:
    """Why the device does not do an entry in a dtype; None if it must."""
    return MISSING.get(name) or MISSING.get(f"{name}-{str(dtype).removeprefix('torch.')}")
