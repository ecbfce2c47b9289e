"""Matrix products: `mm`, `bmm`, `addmm` and their relatives, `dot`, `linear`, `_trilinear`.

float16 and bfloat16 accumulate in float32 and round once, after `beta` and `alpha`; integers
multiply exactly. float32 uses the precision of `torch.set_float32_matmul_precision`: by default the
highest, so that a TPU does not round its inputs.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from cloud_backend.dtypes import to_jax
from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast, compute_dtype, is_scalar, rounded
from torch_tpu_unified.core.aten import aten


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """`a @ b` with the sums in the compute dtype, which is also the result's."""
    if a.dtype == np.bool_:
        return jnp.matmul(a.astype(np.int32), b.astype(np.int32)) != 0
    return jnp.matmul(a, b, preferred_element_type=compute_dtype(a.dtype))


@lowers(aten.mm.default, aten.bmm.default)
def mm(x, mat2):
    return cast(product(x, mat2), x.dtype)


@lowers(aten.mm.dtype, aten.bmm.dtype)
def mm_dtype(x, mat2, out_dtype):
    return cast(product(x, mat2), to_jax(out_dtype))


@lowers(aten.matmul.default)
def matmul(x, other):
    return cast(product(x, other), x.dtype)


@lowers(aten.matmul_backward.default, meta=False)
def matmul_backward(grad, x, other, mask):
    # As matrices: a vector is a row on the left and a column on the right.
    left = x[None, :] if x.ndim == 1 else x
    right = other[:, None] if other.ndim == 1 else other
    grad = grad[..., None, :] if x.ndim == 1 else grad
    grad = grad[..., None] if other.ndim == 1 else grad
    grad_x = grad_other = None
    if mask[0]:
        grad_x = _summed_to(product(grad, jnp.conj(right).mT), left.shape)
        grad_x = cast(grad_x.reshape(x.shape), x.dtype)
    if mask[1]:
        grad_other = _summed_to(product(jnp.conj(left).mT, grad), right.shape)
        grad_other = cast(grad_other.reshape(other.shape), other.dtype)
    return grad_x, grad_other


def _summed_to(value, shape):
    """The sum over the batch dimensions that `shape` lacks or has as 1."""
    lead = value.ndim - len(shape)
    kept = [i + lead for i, n in enumerate(shape) if n == 1 and value.shape[i + lead] != 1]
    return value.sum((*range(lead), *kept)).reshape(shape)


@lowers(aten._int_mm.default)
def int_mm(x, mat2):
    return jnp.matmul(x, mat2, preferred_element_type=np.int32)


@lowers(aten.mv.default)
def mv(x, vec):
    return cast(product(x, vec), x.dtype)


@lowers(aten.dot.default)
def dot(x, tensor):
    return cast(product(x, tensor), x.dtype)


@lowers(aten.vdot.default)
def vdot(x, other):
    return cast(product(jnp.conj(x), other), x.dtype)


def plus_product(x, value, beta, alpha, dtype):
    """`beta * x + alpha * value`, rounded to `dtype` once; `beta` 0 drops x, NaN included."""
    wide = value.dtype
    out = value * cast(alpha, wide) if not _is_one(alpha) else value
    if is_scalar(beta) and not isinstance(beta, (bool, int, float, complex)):
        scaled = jnp.where(beta == 0, jnp.zeros((), wide), cast(x, wide) * cast(beta, wide))
        return cast(scaled + out, dtype)
    if beta == 0:
        return cast(jnp.broadcast_to(out, jnp.broadcast_shapes(out.shape, x.shape)), dtype)
    return cast(cast(x, wide) * cast(beta, wide) + out, dtype)


def _is_one(value) -> bool:
    return isinstance(value, (bool, int, float)) and value == 1


@lowers(aten.addmm.default)
def addmm(x, mat1, mat2, beta=1, alpha=1):
    return plus_product(x, product(mat1, mat2), beta, alpha, mat1.dtype)


@lowers(aten.addmm.dtype)
def addmm_dtype(x, mat1, mat2, out_dtype, beta=1, alpha=1):
    return plus_product(x, product(mat1, mat2), beta, alpha, to_jax(out_dtype))


@lowers(aten._addmm_activation.default)
def addmm_activation(x, mat1, mat2, beta=1, alpha=1, use_gelu=False):
    wide = compute_dtype(mat1.dtype)
    out = plus_product(x, product(mat1, mat2), beta, alpha, wide)
    # PyTorch's fused epilogue is the tanh form of gelu.
    out = jax.nn.gelu(out, approximate=True) if use_gelu else jax.nn.relu(out)
    return cast(out, mat1.dtype)


@lowers(aten.baddbmm.default)
def baddbmm(x, batch1, batch2, beta=1, alpha=1):
    return plus_product(x, product(batch1, batch2), beta, alpha, batch1.dtype)


@lowers(aten.baddbmm.dtype)
def baddbmm_dtype(x, batch1, batch2, out_dtype, beta=1, alpha=1):
    return plus_product(x, product(batch1, batch2), beta, alpha, to_jax(out_dtype))


@lowers(aten.addbmm.default)
def addbmm(x, batch1, batch2, beta=1, alpha=1):
    value = jnp.einsum(
        "bij,bjk->ik",
        batch1,
        batch2,
        preferred_element_type=compute_dtype(batch1.dtype),
    )
    return plus_product(x, value, beta, alpha, batch1.dtype)


@lowers(aten.addmv.default)
def addmv(x, mat, vec, beta=1, alpha=1):
    return plus_product(x, product(mat, vec), beta, alpha, mat.dtype)


@lowers(aten.addr.default)
def addr(x, vec1, vec2, beta=1, alpha=1):
    dtype = jnp.promote_types(jnp.promote_types(x.dtype, vec1.dtype), vec2.dtype)
    if dtype == np.bool_:
        outer = vec1[:, None] & vec2
        keep = jnp.logical_and(x, cast(beta, np.bool_))
        return keep | (outer & cast(alpha, np.bool_))
    wide = compute_dtype(dtype)
    # Not a product with sums: as for other pointwise formulas, PyTorch rounds each step.
    scaled = rounded(cast(vec1, wide) * rounded(cast(alpha, wide), dtype), dtype)
    value = rounded(scaled[:, None] * cast(vec2, wide), dtype)
    factor = rounded(cast(beta, wide), dtype)
    kept = jnp.where(factor == 0, 0, cast(x, wide) * factor)
    return cast(rounded(kept, dtype) + value, dtype)


@lowers(aten.linear.default)
def linear(input, weight, bias=None):
    out = product(input, weight.T)
    if bias is not None:
        out = out + cast(bias, out.dtype)
    return cast(out, input.dtype)


@lowers(aten.linear_backward.default)
def linear_backward(x, grad_output, weight, output_mask):
    wide = compute_dtype(grad_output.dtype)
    rows = grad_output.reshape(-1, grad_output.shape[-1])
    grad_x = cast(product(grad_output, weight), x.dtype) if output_mask[0] else None
    grad_w = None
    if output_mask[1]:
        grad_w = cast(product(rows.T, x.reshape(-1, x.shape[-1])), weight.dtype)
    grad_b = cast(rows.astype(wide).sum(0), weight.dtype) if output_mask[2] else None
    return grad_x, grad_w, grad_b


@lowers(aten._trilinear.default)
def trilinear(i1, i2, i3, expand1, expand2, expand3, sumdim, unroll_dim=1):
    parts = []
    for part, dims in ((i1, expand1), (i2, expand2), (i3, expand3)):
        parts.append(jnp.expand_dims(part, tuple(dims)))
    wide = compute_dtype(i1.dtype)
    ndim = parts[0].ndim
    letters = "abcdefghijklmnop"[:ndim]
    kept = "".join(c for d, c in enumerate(letters) if d not in sumdim)
    parts, terms = _squeezed(parts, letters)
    shape = jnp.broadcast_shapes(
        *(
            jnp.shape(jnp.expand_dims(i, tuple(d)))
            for i, d in ((i1, expand1), (i2, expand2), (i3, expand3))
        )
    )
    out = jnp.einsum(
        f"{','.join(terms)}->{''.join(c for c in kept if any(c in t for t in terms))}",
        *parts,
        preferred_element_type=wide,
    )
    out = out.reshape([shape[letters.index(c)] for c in kept])
    return cast(out, i1.dtype)


def _squeezed(parts, letters):
    """Parts without their dimensions of size 1, and their einsum terms."""
    terms = ["".join(c for c, s in zip(letters, p.shape, strict=True) if s != 1) for p in parts]
    return [p.reshape([s for s in p.shape if s != 1]) for p in parts], terms
