"""Factorisations and what is built on them: Cholesky, LU, QR, SVD, eigenvalues, matrix exponential.

Everything is batched over leading dimensions. `info` is int32: 0, or the 1-based place where a
factorisation broke down, which PyTorch checks afterwards. Pivots are 1-based, as in LAPACK.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast, compute_dtype, is_complex, rounded
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported

INT32, INT64 = np.dtype(np.int32), np.dtype(np.int64)


def transposed(x):
    return jnp.swapaxes(x, -1, -2)


def adjoint(x):
    return jnp.conj(transposed(x)) if is_complex(x.dtype) else transposed(x)


def product(a, b):
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def real_dtype(x) -> np.dtype:
    return np.empty(0, x.dtype).real.dtype


def batched_pair(a, b):
    """Both matrices with the broadcast of their batch dimensions."""
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (jnp.broadcast_to(v, batch + v.shape[-2:]) for v in (a, b))


# ---- products


@lowers(aten.linalg_cross.default)
def linalg_cross(x, other, *, dim=-1):
    """Each product is rounded to the dtype, as PyTorch's kernels have it."""
    if x.dtype == np.bool_:
        raise Unsupported("linalg.cross of bool; give numbers")
    a, b = jnp.broadcast_arrays(*(cast(v, compute_dtype(x.dtype)) for v in (x, other)))
    parts = [
        jnp.roll(a, -1, dim) * jnp.roll(b, -2, dim),
        jnp.roll(a, -2, dim) * jnp.roll(b, -1, dim),
    ]
    first, second = (rounded(p, x.dtype) for p in parts)
    return cast(first - second, x.dtype)


# ---- Cholesky


def _first_bad_minor(a):
    """Order of the first leading minor that is not positive definite, by plain elimination."""
    n = a.shape[-1]

    def step(k, state):
        a, info = state
        pivot = a[..., k, k].real
        bad = ~(pivot > 0)
        info = jnp.where((info == 0) & bad, k + 1, info).astype(INT32)
        below = (jnp.arange(n) > k).astype(a.dtype)
        column = a[..., :, k] * below / jnp.where(bad, 1, pivot)[..., None].astype(a.dtype)
        row = a[..., :, k] * below
        return a - column[..., :, None] * jnp.conj(row)[..., None, :], info

    start = jnp.zeros(a.shape[:-2], INT32)
    return jax.lax.fori_loop(0, n, step, (a, start))[1]


@lowers(aten.linalg_cholesky_ex.default)
def linalg_cholesky_ex(x, upper=False, check_errors=False):
    if x.size == 0:
        return x, jnp.zeros(x.shape[:-2], INT32)
    lower = adjoint(jnp.triu(x)) if upper else jnp.tril(x)
    factor = jax.lax.linalg.cholesky(lower, symmetrize_input=False)
    failed = jnp.any(jnp.isnan(factor), axis=(-1, -2))
    info = jax.lax.cond(
        jnp.any(failed), _first_bad_minor, lambda a: jnp.zeros(a.shape[:-2], INT32), lower
    )
    factor = jnp.tril(factor)
    return (adjoint(factor) if upper else factor), info


@lowers(aten.cholesky.default)
def cholesky(x, upper=False):
    return linalg_cholesky_ex(x, upper)[0]


@lowers(aten.cholesky_solve.default)
def cholesky_solve(x, input2, upper=False):
    b, factor = batched_pair(x, input2)
    if b.size == 0:
        return b
    first = triangular(factor, b, lower=not upper, transpose=upper, conjugate=upper)
    return triangular(factor, first, lower=not upper, transpose=not upper, conjugate=not upper)


@lowers(aten.cholesky_inverse.default)
def cholesky_inverse(x, upper=False):
    eye = jnp.broadcast_to(jnp.eye(x.shape[-1], dtype=x.dtype), x.shape)
    return cholesky_solve(eye, x, upper)


# ---- triangular


def triangular(a, b, *, lower, left=True, transpose=False, conjugate=False, unit=False):
    """Solve with a triangular matrix; batch dimensions are equal."""
    if b.size == 0:
        return b
    return jax.lax.linalg.triangular_solve(
        a,
        b,
        left_side=left,
        lower=lower,
        transpose_a=transpose,
        conjugate_a=conjugate and is_complex(a.dtype),
        unit_diagonal=unit,
    )


@lowers(aten.triangular_solve.default)
def triangular_solve(x, A, upper=True, transpose=False, unitriangular=False):
    b, a = batched_pair(x, A)
    solution = triangular(a, b, lower=not upper, transpose=transpose, unit=unitriangular)
    return solution, a


@lowers(aten.linalg_solve_triangular.default)
def linalg_solve_triangular(x, B, upper, left=True, unitriangular=False):
    batch = jnp.broadcast_shapes(x.shape[:-2], B.shape[:-2])
    a, b = (jnp.broadcast_to(v, batch + v.shape[-2:]) for v in (x, B))
    return triangular(a, b, lower=not upper, left=left, unit=unitriangular)


# ---- LU


def lu_factor(a):
    """Packed factors, 1-based pivots, info."""
    m, n = a.shape[-2:]
    if a.size == 0:
        return a, jnp.zeros((*a.shape[:-2], min(m, n)), INT32), jnp.zeros(a.shape[:-2], INT32)
    packed, pivots, _ = jax.lax.linalg.lu(a)
    zero = jnp.diagonal(packed, axis1=-2, axis2=-1) == 0
    first = jnp.where(jnp.any(zero, -1), jnp.argmax(zero, -1) + 1, 0)
    return packed, (pivots + 1).astype(INT32), first.astype(INT32)


def _permutation(pivots, m):
    if pivots.size == 0:
        return jnp.broadcast_to(jnp.arange(m, dtype=INT32), (*pivots.shape[:-1], m))
    return jax.lax.linalg.lu_pivots_to_permutation(pivots - 1, m)


def _rows(x, at):
    return jnp.take_along_axis(x, at[..., None], axis=-2)


def lu_solve(packed, pivots, b, adjoint_=False, conjugate=True):
    """Solve A x = b (or A^H x = b, or A^T x = b) from packed factors; equal batch dimensions."""
    at = _permutation(pivots, packed.shape[-1])
    at = jnp.broadcast_to(at, (*b.shape[:-2], packed.shape[-1]))
    if not adjoint_:
        y = triangular(packed, _rows(b, at), lower=True, unit=True)
        return triangular(packed, y, lower=False)
    y = triangular(packed, b, lower=False, transpose=True, conjugate=conjugate)
    y = triangular(packed, y, lower=True, transpose=True, conjugate=conjugate, unit=True)
    return _rows(y, jnp.argsort(at, axis=-1))


@lowers(aten.linalg_lu_factor_ex.default)
def linalg_lu_factor_ex(A, pivot=True, check_errors=False):
    if not pivot:
        raise Unsupported("pivot=False: LU without pivoting")
    return lu_factor(A)


@lowers(aten.linalg_lu.default)
def linalg_lu(A, pivot=True):
    if not pivot:
        raise Unsupported("pivot=False: LU without pivoting")
    packed, pivots, _ = lu_factor(A)
    return lu_unpack(packed, pivots)


@lowers(aten.lu_unpack.default)
def lu_unpack(LU_data, LU_pivots, unpack_data=True, unpack_pivots=True):
    m, n = LU_data.shape[-2:]
    k = min(m, n)
    p = low = up = jnp.zeros(0, LU_data.dtype)
    if unpack_pivots:
        at = _permutation(LU_pivots, m)
        p = transposed(jax.nn.one_hot(at, m, dtype=LU_data.dtype))
    if unpack_data:
        low = jnp.tril(LU_data[..., :, :k], -1) + jnp.eye(m, k, dtype=LU_data.dtype)
        up = jnp.triu(LU_data[..., :k, :])
    return p, low, up


@lowers(aten.linalg_lu_solve.default)
def linalg_lu_solve(LU, pivots, B, left=True, adjoint=False):
    packed, b = batched_pair(LU, B)
    pivots = jnp.broadcast_to(pivots, (*packed.shape[:-2], pivots.shape[-1]))
    if left:
        return lu_solve(packed, pivots, b, adjoint)
    # x A = b is A^T x^T = b^T; x A^H = b is conj(A) x^T = b^T.
    if adjoint:
        return jnp.conj(transposed(lu_solve(packed, pivots, jnp.conj(transposed(b)))))
    return transposed(lu_solve(packed, pivots, transposed(b), True, conjugate=False))


@lowers(aten._linalg_solve_ex.default)
def linalg_solve_ex(A, B, left=True, check_errors=False):
    vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    b = B[..., None] if vector else B
    packed, pivots, info = lu_factor(A)
    matrix, b = batched_pair(packed, b)
    places = jnp.broadcast_to(pivots, (*matrix.shape[:-2], pivots.shape[-1]))
    if left:
        out = lu_solve(matrix, places, b)
    else:
        out = transposed(lu_solve(matrix, places, transposed(b), True, conjugate=False))
    return (out[..., 0] if vector else out), packed, pivots, info


@lowers(aten.linalg_inv_ex.default)
def linalg_inv_ex(A, check_errors=False):
    packed, pivots, info = lu_factor(A)
    eye = jnp.broadcast_to(jnp.eye(A.shape[-1], dtype=A.dtype), A.shape)
    return lu_solve(packed, pivots, eye), info


def _factor_for_backward(A, contiguous):
    """Factors of A, or of its transpose where PyTorch's gradient formulas expect those."""
    flipped = contiguous and not is_complex(A.dtype)
    return lu_factor(transposed(A) if flipped else A)


def _pivot_sign(pivots):
    swaps = jnp.sum(pivots != jnp.arange(1, pivots.shape[-1] + 1), axis=-1)
    return 1 - 2 * (swaps % 2)


@lowers(aten._linalg_det.default, contiguous="A")
def linalg_det(A, *, contiguous):
    packed, pivots, _ = _factor_for_backward(A, contiguous)
    diagonal = jnp.diagonal(packed, axis1=-2, axis2=-1)
    return jnp.prod(diagonal, -1) * _pivot_sign(pivots).astype(A.dtype), packed, pivots


@lowers(aten._linalg_slogdet.default, contiguous="A")
def linalg_slogdet(A, *, contiguous):
    packed, pivots, _ = _factor_for_backward(A, contiguous)
    diagonal = jnp.diagonal(packed, axis1=-2, axis2=-1)
    sign = jnp.prod(jnp.sign(diagonal), -1) * _pivot_sign(pivots).astype(A.dtype)
    return sign, jnp.sum(jnp.log(jnp.abs(diagonal)), -1), packed, pivots


# ---- QR


@lowers(aten.linalg_qr.default)
def linalg_qr(A, mode="reduced"):
    m, n = A.shape[-2:]
    k = min(m, n)
    width = m if mode == "complete" else k
    if A.size == 0:
        q = jnp.broadcast_to(jnp.eye(m, width, dtype=A.dtype), (*A.shape[:-2], m, width))
        r = jnp.zeros((*A.shape[:-2], width, n), A.dtype)
    else:
        q, r = jnp.linalg.qr(A, mode="complete" if mode == "complete" else "reduced")
    return (jnp.zeros(0, A.dtype), r) if mode == "r" else (q, r)


@lowers(aten.geqrf.default)
def geqrf(x):
    if x.size == 0:
        return x, jnp.zeros((*x.shape[:-2], min(x.shape[-2:])), x.dtype)
    packed, tau = jnp.linalg.qr(x, mode="raw")
    return transposed(packed), tau


@lowers(aten.linalg_householder_product.default)
def linalg_householder_product(input, tau):
    if input.size == 0:
        return input
    if tau.shape[-1] == 0:
        m, n = input.shape[-2:]
        return jnp.broadcast_to(jnp.eye(m, n, dtype=input.dtype), input.shape)
    return jax.lax.linalg.householder_product(input, tau)


@lowers(aten.ormqr.default)
def ormqr(x, input2, input3, left=True, transpose=False):
    """`x` holds reflectors, input2 their factors; the product of all of Q with input3."""
    m, k = x.shape[-2], input2.shape[-1]
    wide = jnp.zeros((*x.shape[:-2], m, m), x.dtype).at[..., :k].set(x[..., :k])
    factors = jnp.zeros((*input2.shape[:-1], m), x.dtype).at[..., :k].set(input2)
    q = linalg_householder_product(wide, factors)
    q = adjoint(q) if transpose else q
    return product(q, input3) if left else product(input3, q)


# ---- spectra


@lowers(aten._linalg_svd.default)
def linalg_svd(A, full_matrices=False, compute_uv=True, driver=None):
    m, n = A.shape[-2:]
    k = min(m, n)
    nothing = jnp.zeros(0, A.dtype)
    if A.size == 0:
        batch = A.shape[:-2]
        values = jnp.zeros((*batch, k), real_dtype(A))
        if not compute_uv:
            return nothing, values, nothing
        u = jnp.eye(m, m if full_matrices else k, dtype=A.dtype)
        vh = jnp.eye(n if full_matrices else k, n, dtype=A.dtype)
        return jnp.broadcast_to(u, batch + u.shape), values, jnp.broadcast_to(vh, batch + vh.shape)
    if not compute_uv:
        return nothing, jnp.linalg.svd(A, compute_uv=False), nothing
    return tuple(jnp.linalg.svd(A, full_matrices=full_matrices))


@lowers(aten._linalg_eigh.default)
def linalg_eigh(A, UPLO="L", compute_v=True):
    lower = UPLO.upper() == "L"
    if A.size == 0:
        return jnp.zeros(A.shape[:-1], real_dtype(A)), A if compute_v else jnp.zeros(0, A.dtype)
    vectors, values = jax.lax.linalg.eigh(A, lower=lower, symmetrize_input=False)
    return values, vectors if compute_v else jnp.zeros(0, A.dtype)


@lowers(aten.linalg_eig.default)
def linalg_eig(x):
    dtype = np.promote_types(x.dtype, np.complex64)
    if x.size == 0:
        return jnp.zeros(x.shape[:-1], dtype), jnp.zeros(x.shape, dtype)
    values, vectors = jnp.linalg.eig(x)
    return values, vectors


@lowers(aten._linalg_eigvals.default)
def linalg_eigvals(x):
    if x.size == 0:
        return jnp.zeros(x.shape[:-1], np.promote_types(x.dtype, np.complex64))
    return jnp.linalg.eigvals(x)


@lowers(aten.linalg_matrix_exp.default)
def linalg_matrix_exp(x):
    if x.size == 0:
        return x
    if x.shape[-1] == 1:
        return jnp.exp(x)
    wide = cast(x, compute_dtype(x.dtype))
    return cast(jax.scipy.linalg.expm(wide, max_squarings=48), x.dtype)


# ---- least squares


def _rank_decides(args, kwargs):
    """Whether a residual exists depends on the rank: for one matrix, by the SVD drivers."""
    x = args[0] if args else kwargs["self"]
    driver = args[3] if len(args) > 3 else kwargs.get("driver")
    return driver in ("gelsd", "gelss") and x.ndim == 2 and x.shape[0] > x.shape[1]


@lowers(aten.linalg_lstsq.default, host=_rank_decides)
def linalg_lstsq(x, b, rcond=None, driver=None):
    """By SVD. Ranks and singular values are given for the drivers that give them in PyTorch."""
    m, n = x.shape[-2:]
    vector = b.ndim == 1 or (x.ndim - 1 == b.ndim and b.shape == x.shape[:-1])
    right = b[..., None] if vector else b
    u, s, vh = linalg_svd(x)
    if rcond is None:
        rcond = float(np.finfo(real_dtype(x)).eps) * max(m, n)
    keep = s > rcond * jnp.max(s, axis=-1, keepdims=True, initial=0)
    inverse = jnp.where(keep, 1 / jnp.where(keep, s, 1), 0).astype(x.dtype)
    solution = product(adjoint(vh), inverse[..., None] * product(adjoint(u), right))
    residuals = jnp.zeros(0, real_dtype(x))
    exists = driver not in (None, "gelsy") and m > n
    if exists and (driver == "gels" or x.ndim > 2 or int(jnp.sum(keep)) == n):
        difference = product(x, solution) - right
        residuals = jnp.sum(jnp.square(jnp.abs(difference)), axis=-2)
    rank = jnp.zeros(0, INT64)
    if driver != "gels":
        rank = jnp.sum(keep, axis=-1).astype(INT64)
    values = s if driver in ("gelsd", "gelss") else jnp.zeros(0, s.dtype)
    return (solution[..., 0] if vector else solution), residuals, rank, values
