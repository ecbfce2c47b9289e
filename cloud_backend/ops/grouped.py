"""Grouped products: the rows of a matrix in groups, each with a matrix of its own."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from cloud_backend.dtypes import to_jax
from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported

# The inner size of both matrices is what falls into groups: one product for each group.
_INNER = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((1,), (0,)), ((), ())),
    lhs_ragged_dimensions=[1],
    rhs_group_dimensions=[],
)


@lowers(aten._grouped_mm.default, meta=False)
def grouped_mm(x, mat2, offs=None, bias=None, out_dtype=None):
    """PyTorch's `_grouped_mm` for any floating dtype: `offs` says where the groups end.

    x [rows, k] with mat2 [groups, k, n]; x [groups, m, k] with mat2 [k, columns]; x [m, inner] with
    mat2 [inner, n], to [groups, m, n]; or, without `offs`, a batch of products.
    """
    dtype = x.dtype if out_dtype is None else to_jax(out_dtype)
    if offs is None and (x.ndim, mat2.ndim) != (3, 3):
        raise Unsupported(f"operands of rank {x.ndim} and {mat2.ndim} without offs")
    if x.dtype != mat2.dtype:
        raise ValueError(f"expected matrices of one dtype, got {x.dtype} and {mat2.dtype}")
    wide = {"preferred_element_type": jnp.promote_types(x.dtype, np.float32)}
    sizes = None if offs is None else jnp.diff(offs, prepend=0).astype(np.int32)
    if (x.ndim, mat2.ndim) == (2, 3):
        out = lax.ragged_dot(x, mat2, sizes, **wide)
    elif (x.ndim, mat2.ndim) == (3, 2):
        out = lax.ragged_dot(mat2.T, x.swapaxes(1, 2), sizes, **wide).T
    elif (x.ndim, mat2.ndim) == (2, 2):
        out = lax.ragged_dot_general(x, mat2, sizes, _INNER, **wide)
    else:
        out = jnp.matmul(x, mat2, **wide)
    return cast(out if bias is None else out + cast(bias, out.dtype), dtype)
