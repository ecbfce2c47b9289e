"""LDL factorisation of symmetric and Hermitian matrices, and its solver.

Bunch and Kaufman's diagonal pivoting on the lower triangle (Math. Comp. 31, 1977), with LAPACK's
packing and pivots as `?sytrf` and `?hetrf` give them: a positive pivot p at k says that a block of
one row was swapped with row p; a negative one, twice in a row, that the second row of a block of
two was swapped with row -p. Both count from 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import is_complex
from torch_tpu_unified.core.aten import aten

INT32 = np.dtype(np.int32)
# Bounds the growth of the elements, for blocks of one and of two rows alike.
ALPHA = (1 + math.sqrt(17)) / 8
Flip = Callable[[Any], Any]


def _flip(dtype: Any, hermitian: bool) -> Flip:
    """Conjugation where the factorisation is Hermitian, else nothing."""
    return jnp.conj if hermitian and is_complex(dtype) else lambda x: x


def _size(x):
    """The magnitude by which LAPACK compares complex numbers."""
    return jnp.abs(x.real) + jnp.abs(x.imag) if is_complex(x.dtype) else jnp.abs(x)


def _swapped(n, i, j):
    """The positions 0 ... n - 1 with `i` and `j` exchanged."""
    at = jnp.arange(n)
    return jnp.where(at == i, j, jnp.where(at == j, i, at))


def _inverse(a, k, flip):
    """The inverse of the 2 x 2 block at k, whose off-diagonal element is its largest."""
    low, up = a[k + 1, k], flip(a[k + 1, k])
    first, second = a[k, k] / up, a[k + 1, k + 1] / low
    rows = [[second / up, -1 / low], [-1 / up, first / low]]
    return jnp.stack([jnp.stack(r) for r in rows]) / (first * second - 1)


def _choose(a, k):
    """(row to swap in, whether the block has two rows, whether its column is zero) at step k."""
    at = jnp.arange(a.shape[-1])
    here = _size(a[k, k])
    column = jnp.where(at > k, _size(a[:, k]), 0)
    row = jnp.argmax(column)
    largest = column[row]
    row_largest = jnp.max(jnp.where((at >= k) & (at != row), _size(a[row]), 0))
    zero = (jnp.maximum(here, largest) == 0) | jnp.isnan(here)
    stay = (here >= ALPHA * largest) | (here * row_largest >= ALPHA * largest * largest) | zero
    single = stay | (_size(a[row, row]) >= ALPHA * row_largest)
    return jnp.where(stay, k, row), ~single, zero


def _factor_one(x, flip):
    """LD, pivots and info of one matrix. The trailing part is kept whole, not just its triangle."""
    n = x.shape[-1]
    at = jnp.arange(n)
    low = jnp.tril(x, -1)
    diagonal = jnp.diagonal(x)
    a = low + flip(low).T + jnp.diag((diagonal + flip(diagonal)) / 2)

    def step(state):
        k, a, pivots, info = state
        row, two, zero = _choose(a, k)
        order = _swapped(n, k + two, row)
        trailing = (at[:, None] >= k) & (at >= k)
        a = jnp.where(trailing, a[order][:, order], a)
        below = at > k + two
        first = jnp.where(below, a[:, k], 0)
        second = jnp.where(below & two, a[:, k + 1], 0)
        inverse = jnp.where(
            two, _inverse(a, k, flip), jnp.array([[1, 0], [0, 0]]) / jnp.where(zero, 1, a[k, k])
        )
        left = first * inverse[0, 0] + jnp.where(two, second * inverse[1, 0], 0)
        right = jnp.where(two, first * inverse[0, 1] + second * inverse[1, 1], 0)
        a = a - left[:, None] * flip(first) - right[:, None] * flip(second)
        a = jnp.where(below[:, None] & (at == k), left[:, None], a)
        a = jnp.where((below & two)[:, None] & (at == k + 1), right[:, None], a)
        taken = (at == k) | (two & (at == k + 1))
        pivots = jnp.where(taken, jnp.where(two, -1, 1) * (row + 1), pivots).astype(INT32)
        info = jnp.where((info == 0) & zero, k + 1, info).astype(INT32)
        return k + 1 + two, a, pivots, info

    start = (jnp.zeros((), at.dtype), a, jnp.zeros(n, INT32), jnp.zeros((), INT32))
    _, a, pivots, info = jax.lax.while_loop(lambda s: s[0] < n, step, start)
    return jnp.tril(a), pivots, info


@lowers(aten.linalg_ldl_factor_ex.default)
def linalg_ldl_factor_ex(x, *, hermitian=False, check_errors=False):
    n = x.shape[-1]
    if x.size == 0:
        return x, jnp.zeros(x.shape[:-1], INT32), jnp.zeros(x.shape[:-2], INT32)
    factor = jax.vmap(functools.partial(_factor_one, flip=_flip(x.dtype, hermitian)))
    ld, pivots, info = factor(x.reshape(-1, n, n))
    return ld.reshape(x.shape), pivots.reshape(x.shape[:-1]), info.reshape(x.shape[:-2])


def _solve_one(ld, pivots, b, flip):
    n = ld.shape[-1]
    at = jnp.arange(n)[:, None]

    def columns(k, beyond):
        """The two columns of L from k, below row `beyond`."""
        pair = jnp.stack([ld[:, k], ld[:, jnp.minimum(k + 1, n - 1)]], axis=1)
        return jnp.where(at > beyond, pair, 0)

    def forward(state):
        k, b = state
        two = pivots[k] < 0
        b = b[_swapped(n, k + two, jnp.abs(pivots[k]) - 1)]
        left = columns(k, k + two)
        here, following = b[k], b[k + 1]
        update = left[:, :1] * here + jnp.where(two, left[:, 1:] * following, 0)
        inverse = _inverse(ld, k, flip)
        both = [row[0] * here + row[1] * following for row in inverse]
        b = b - update
        b = jnp.where(at == k, jnp.where(two, both[0], here / ld[k, k]), b)
        return k + 1 + two, jnp.where((at == k + 1) & two, both[1], b)

    def backward(state):
        k, b = state
        two = pivots[k] < 0
        left = flip(columns(k - two, k))
        sums = [jnp.sum(left[:, i : i + 1] * b, axis=0) for i in (0, 1)]
        b = jnp.where(at == k - two, b - sums[0], b)
        b = jnp.where((at == k) & two, b - sums[1], b)
        return k - 1 - two, b[_swapped(n, k, jnp.abs(pivots[k]) - 1)]

    first = jnp.zeros((), jnp.arange(1).dtype)
    _, b = jax.lax.while_loop(lambda s: s[0] < n, forward, (first, b))
    return jax.lax.while_loop(lambda s: s[0] >= 0, backward, (first + n - 1, b))[1]


@lowers(aten.linalg_ldl_solve.default)
def linalg_ldl_solve(LD, pivots, B, *, hermitian=False):
    batch = jnp.broadcast_shapes(LD.shape[:-2], B.shape[:-2])
    n, width = B.shape[-2:]
    b = jnp.broadcast_to(B, (*batch, n, width))
    if b.size == 0:
        return b
    ld = jnp.broadcast_to(LD, (*batch, n, n)).reshape(-1, n, n)
    places = jnp.broadcast_to(pivots, (*batch, n)).reshape(-1, n)
    solve = jax.vmap(functools.partial(_solve_one, flip=_flip(LD.dtype, hermitian)))
    return solve(ld, places, b.reshape(-1, n, width)).reshape(b.shape)
