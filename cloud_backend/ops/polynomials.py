"""Orthogonal polynomials of a degree that is itself a tensor.

All follow a three-term recurrence, run to the largest degree in the tensor; each element stops at
its own. Degrees are truncated to integers; below zero the value is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast, compute_dtype, result_dtype, to_float
from torch_tpu_unified.core.aten import aten


class Family(NamedTuple):
    """`first(x)` is the polynomial of degree 1; `step(k, x, p_k, p_k_minus_1)` the next one."""

    first: Callable[[Any], Any]
    step: Callable[[Any, Any, Any, Any], Any]
    shifted: bool = False


def _chebyshev(k, x, p, before):
    return 2 * x * p - before


def _values(family: Family, x: jax.Array, n: jax.Array) -> jax.Array:
    degree = cast(n, np.int64)
    x, degree = jnp.broadcast_arrays(x, degree)
    if family.shifted:
        x = 2 * x - 1
    zero, one = jnp.zeros_like(x), jnp.ones_like(x)
    first = family.first(x) + zero
    start = jnp.where(degree < 0, zero, jnp.where(degree == 0, one, first))

    def more(state):
        return state[0] < jnp.max(degree, initial=0)

    def advance(state):
        k, p, before, result = state
        new = family.step(cast(k, x.dtype), x, p, before)
        return k + 1, new, p, jnp.where(degree == k + 1, new, result)

    state = (jnp.ones((), np.int64), first, one, start)
    return jax.lax.while_loop(more, advance, state)[3]


def polynomial(name: str, family: Family) -> None:
    """Register the three overloads of `special_<name>`."""
    packet = getattr(aten, f"special_{name}")

    @lowers(packet.default, packet.n_scalar, packet.x_scalar)
    def lowering(x, n):
        dtype = to_float(result_dtype(x, n))
        return cast(_values(family, cast(x, compute_dtype(dtype)), n), dtype)


_CHEBYSHEV = {
    "t": lambda x: x,
    "u": lambda x: 2 * x,
    "v": lambda x: 2 * x - 1,
    "w": lambda x: 2 * x + 1,
}
for _kind, _first in _CHEBYSHEV.items():
    polynomial(f"chebyshev_polynomial_{_kind}", Family(_first, _chebyshev))
    polynomial(f"shifted_chebyshev_polynomial_{_kind}", Family(_first, _chebyshev, shifted=True))
polynomial(
    "hermite_polynomial_h",
    Family(lambda x: 2 * x, lambda k, x, p, before: 2 * x * p - 2 * k * before),
)
polynomial(
    "hermite_polynomial_he",
    Family(lambda x: x, lambda k, x, p, before: x * p - k * before),
)
polynomial(
    "laguerre_polynomial_l",
    Family(
        lambda x: 1 - x,
        lambda k, x, p, before: ((2 * k + 1 - x) * p - k * before) / (k + 1),
    ),
)
polynomial(
    "legendre_polynomial_p",
    Family(
        lambda x: x,
        lambda k, x, p, before: ((2 * k + 1) * x * p - k * before) / (k + 1),
    ),
)
