"""What each collective computes, as functions of one rank's arrays over the axis `RANKS`.

Traced by `mesh.GroupMesh.run` and by compiled graphs. They return lists of arrays. Reductions are
named as in c10d's functional operators ("sum", "avg", "product", "min", "max", "band", "bor",
"bxor"), or are a pair ("premul_sum", factor). NCCL's rules hold where gloo refuses: a sum of bools
is "any", the average of integers rounds towards zero.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from cloud_backend.distributed.mesh import RANKS

Reduction = Any  # a name, or ("premul_sum", factor)
_BITWISE = {"band": jnp.bitwise_and, "bor": jnp.bitwise_or, "bxor": jnp.bitwise_xor}
_FOLDS = {"product": jnp.multiply, "min": jnp.minimum, "max": jnp.maximum, **_BITWISE}


def _size() -> int:
    return int(lax.axis_size(RANKS))


def reduced(op: Reduction, x: Any) -> Any:
    """`x` reduced over the ranks, on each of them."""
    if x.size == 0:
        return x
    if op == "sum":
        if x.dtype == np.bool_:
            return lax.psum(x.astype(np.int32), RANKS) != 0
        return lax.psum(x, RANKS)
    if op == "avg":
        return _divided(lax.psum(x, RANKS), _size())
    if op == "max" and not jnp.issubdtype(x.dtype, jnp.complexfloating):
        return lax.pmax(x, RANKS)
    if op == "min" and not jnp.issubdtype(x.dtype, jnp.complexfloating):
        return lax.pmin(x, RANKS)
    if isinstance(op, tuple):
        return lax.psum(x * jnp.asarray(op[1], x.dtype), RANKS)
    return _folded(op, lax.all_gather(x, RANKS))


def _divided(total: Any, n: int) -> Any:
    if jnp.issubdtype(total.dtype, jnp.inexact):
        return total / jnp.asarray(n, total.dtype)
    return lax.div(total, jnp.asarray(n, total.dtype))


def _folded(op: str, rows: Any) -> Any:
    """The rows of an array reduced to one, in the order of the ranks."""
    result = rows[0]
    for i in range(1, rows.shape[0]):
        result = _FOLDS[op](result, rows[i])
    return result


def all_reduce(op: Reduction, *xs: Any) -> list[Any]:
    """Each array reduced over the ranks."""
    return [reduced(op, x) for x in xs]


def all_gather(*xs: Any) -> list[Any]:
    """Each array of all ranks, stacked: (ranks, *shape)."""
    return [lax.all_gather(x, RANKS) for x in xs]


def scattered(op: Reduction, x: Any) -> Any:
    """Row r of `x` (ranks, *shape) reduced over the ranks, on rank r."""
    if op in ("sum", "avg") and x.dtype != np.bool_:
        total = lax.psum_scatter(x, RANKS)
        return _divided(total, _size()) if op == "avg" else total
    rows = lax.all_to_all(x, RANKS, 0, 0)
    if isinstance(op, tuple):
        return (rows * jnp.asarray(op[1], x.dtype)).sum(0, dtype=x.dtype)
    return rows.any(0) if op == "sum" else _folded(op, rows)


def reduce_scatter(op: Reduction, *xs: Any) -> list[Any]:
    """Each array's row r reduced over the ranks, on rank r."""
    return [scattered(op, x) for x in xs]


def broadcast(root: int, *xs: Any) -> list[Any]:
    """The root's arrays, on every rank."""
    return [_from_root(root, x) for x in xs]


def _from_root(root: int, x: Any) -> Any:
    if x.size == 0:
        return x
    # A sum of the root's bits with zeros: exact for every value, NaN and -0 included.
    bits = _bits(x)
    kept = jnp.where(lax.axis_index(RANKS) == root, bits, jnp.zeros_like(bits))
    return _from_bits(lax.psum(kept, RANKS), x.dtype)


def _bits(x: Any) -> Any:
    if x.dtype == np.bool_:
        return x.astype(np.uint8)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.stack([x.real, x.imag], -1)
    return lax.bitcast_convert_type(x, np.dtype(f"u{x.dtype.itemsize}"))


def _from_bits(bits: Any, dtype: np.dtype) -> Any:
    if dtype == np.bool_:
        return bits != 0
    if jnp.issubdtype(dtype, jnp.complexfloating):
        parts = lax.bitcast_convert_type(bits, np.zeros(0, dtype).real.dtype)
        return lax.complex(parts[..., 0], parts[..., 1])
    return lax.bitcast_convert_type(bits, dtype)


def scatter(root: int, x: Any) -> list[Any]:
    """Row r of the root's array (ranks, *shape), on rank r."""
    return [lax.all_to_all(x, RANKS, 0, 0)[root]]


def all_to_all(x: Any) -> list[Any]:
    """Row s of the result (ranks, *shape) is row r of rank s, on rank r."""
    return [lax.all_to_all(x, RANKS, 0, 0)]


def permuted(pairs: tuple[tuple[int, int], ...], x: Any) -> list[Any]:
    """`x` moved along (source, destination) pairs; zeros where nothing arrives."""
    return [lax.ppermute(x, RANKS, pairs)]
