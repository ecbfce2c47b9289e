"""Products of 8-bit floats with scales: for whole matrices, or for rows and columns.

The sums are float32, the scales are applied to them, and the result is rounded once.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from cloud_backend.dtypes import to_jax
from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast
from cloud_backend.ops.matmul import product
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported

_WHOLE, _ROWS = 0, 1  # PyTorch's names of recipes: TensorWise, RowWise


def _scale(scale, shape):
    """A scale in float32, a number or of `shape`."""
    if scale.size == 1:
        return cast(scale.reshape(()), np.float32)
    if scale.size != max(shape):
        raise Unsupported(f"a scale of shape {list(scale.shape)}; one number or {list(shape)}")
    return cast(scale.reshape(shape), np.float32)


def _check_recipes(recipe_a, swizzle_a, recipe_b, swizzle_b):
    for recipe in (recipe_a, recipe_b):
        if len(recipe) != 1 or recipe[0] not in (_WHOLE, _ROWS):
            raise Unsupported(f"scaling recipe {list(recipe)}; of whole tensors or of rows")
    if any(swizzle_a) or any(swizzle_b):
        raise Unsupported("swizzled scales are a layout of CUDA")


def _scaled(x, mat2, scale_a, scale_b, bias):
    out = product(cast(x, np.float32), cast(mat2, np.float32))
    out = out * (_scale(scale_a, (x.shape[0], 1)) * _scale(scale_b, (1, mat2.shape[1])))
    return out if bias is None else out + cast(bias, np.float32)


@lowers(aten._scaled_mm.default, meta=False)
def scaled_mm(
    x, mat2, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False
):
    out = _scaled(x, mat2, scale_a, scale_b, bias)
    dtype = x.dtype if out_dtype is None else to_jax(out_dtype)
    if scale_result is not None and dtype.itemsize == 1:
        out = out * _scale(scale_result, (1, 1))
    return cast(out, dtype)


@lowers(aten._scaled_mm_v2.default, meta=False)
def scaled_mm_v2(
    x,
    mat2,
    scale_a,
    recipe_a,
    swizzle_a,
    scale_b,
    recipe_b,
    swizzle_b,
    bias,
    out_dtype,
    contraction_dim=(),
    use_fast_accum=False,
):
    _check_recipes(recipe_a, swizzle_a, recipe_b, swizzle_b)
    dtype = x.dtype if out_dtype is None else to_jax(out_dtype)
    return cast(_scaled(x, mat2, scale_a[0], scale_b[0], bias), dtype)


@lowers(aten._scaled_grouped_mm.default, meta=False)
def scaled_grouped_mm(
    x,
    mat2,
    scale_a,
    scale_b,
    offs=None,
    bias=None,
    scale_result=None,
    out_dtype=None,
    use_fast_accum=False,
):
    return _grouped(x, mat2, scale_a, scale_b, offs, bias, out_dtype)


@lowers(aten._scaled_grouped_mm_v2.default, meta=False)
def scaled_grouped_mm_v2(
    x,
    mat2,
    scale_a,
    recipe_a,
    swizzle_a,
    scale_b,
    recipe_b,
    swizzle_b,
    offs=None,
    bias=None,
    out_dtype=None,
    contraction_dim=(),
    use_fast_accum=False,
):
    _check_recipes(recipe_a, swizzle_a, recipe_b, swizzle_b)
    return _grouped(x, mat2, scale_a[0], scale_b[0], offs, bias, out_dtype)


def _grouped(x, mat2, scale_a, scale_b, offs, bias, out_dtype):
    """Rows of x in groups, each multiplied with its matrix; `offs` says where the groups end."""
    if x.ndim != 2 or mat2.ndim != 3 or offs is None:
        raise Unsupported(f"operands of rank {x.ndim} and {mat2.ndim}; 2 and 3 with offs are")
    wide = cast(x, np.float32) * _scale(scale_a, (x.shape[0], 1))
    columns = cast(mat2, np.float32) * cast(scale_b, np.float32).reshape(mat2.shape[0], 1, -1)
    group = jnp.searchsorted(offs, jnp.arange(x.shape[0]), side="right")
    out = jnp.zeros((x.shape[0], mat2.shape[2]), np.float32)
    for i in range(mat2.shape[0]):
        out = out + product(jnp.where((group == i)[:, None], wide, 0), columns[i])
    if bias is not None:
        out = out + cast(bias, np.float32)
    return cast(out, np.dtype(jnp.bfloat16) if out_dtype is None else to_jax(out_dtype))
