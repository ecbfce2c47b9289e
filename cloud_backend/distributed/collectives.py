"""What each collective computes, as functions of one rank's arrays over the axis `RANKS`.

Traced by `mesh.GroupMesh.run` and by compiled graphs. They return lists of arrays. Reductions are
named as in c10d's functional operators ("sum", "avg", "product", "min", "max", "band", "bor",
"bxor"), or are a pair ("premul_sum", factor). NCCL's rules hold where gloo refuses: a sum of bools
is "any", the average of integers rounds towards zero.
"""

from __future__ import annotations

import contextvars
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from cloud_backend.distributed.mesh import RANKS

Reduction = Any  # a name, or ("premul_sum", factor)
# Inside a compiled graph the axis may span several groups, each of which works for itself: their
# members, as positions on the axis. None: one group, the whole axis.
GROUPS: contextvars.ContextVar[list[list[int]] | None] = contextvars.ContextVar(
    "groups", default=None
)
_BITWISE = {"band": jnp.bitwise_and, "bor": jnp.bitwise_or, "bxor": jnp.bitwise_xor}
_FOLDS = {"product": jnp.multiply, "min": jnp.minimum, "max": jnp.maximum, **_BITWISE}


def _size() -> int:
    groups = GROUPS.get()
    return int(lax.axis_size(RANKS)) if groups is None else len(groups[0])


def _sum(x: Any) -> Any:
    return lax.psum(x, RANKS, axis_index_groups=GROUPS.get())


def _rows(x: Any) -> Any:
    """`x` of all ranks, stacked."""
    return lax.all_gather(x, RANKS, axis_index_groups=GROUPS.get())


def _exchanged(x: Any) -> Any:
    """Row s of the result is row r of rank s, on rank r."""
    return lax.all_to_all(x, RANKS, 0, 0, axis_index_groups=GROUPS.get())


def _is(root: int) -> Any:
    """Whether this rank is the root of its group."""
    groups, here = GROUPS.get(), lax.axis_index(RANKS)
    if groups is None:
        return here == root
    return jnp.isin(here, jnp.asarray([members[root] for members in groups]))


def reduced(op: Reduction, x: Any) -> Any:
    """`x` reduced over the ranks, on each of them."""
    if x.size == 0:
        return x
    if op == "sum":
        if x.dtype == np.bool_:
            return _sum(x.astype(np.int32)) != 0
        return _sum(x)
    if op == "avg":
        if x.dtype == np.bool_:
            raise TypeError("tpu: ReduceOp.AVG has no meaning for bool tensors; use SUM or MAX")
        return _divided(_sum(x), _size())
    if op == "max" and not jnp.issubdtype(x.dtype, jnp.complexfloating):
        return lax.pmax(x, RANKS, axis_index_groups=GROUPS.get())
    if op == "min" and not jnp.issubdtype(x.dtype, jnp.complexfloating):
        return lax.pmin(x, RANKS, axis_index_groups=GROUPS.get())
    if isinstance(op, tuple):
        return _sum(x * jnp.asarray(op[1], x.dtype))
    return _folded(op, _rows(x))


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
    return [_rows(x) for x in xs]


def scattered(op: Reduction, x: Any) -> Any:
    """Row r of `x` (ranks, *shape) reduced over the ranks, on rank r."""
    if op in ("sum", "avg") and x.dtype != np.bool_:
        total = lax.psum_scatter(x, RANKS, axis_index_groups=GROUPS.get())
        return _divided(total, _size()) if op == "avg" else total
    rows = _exchanged(x)
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
    kept = jnp.where(_is(root), bits, jnp.zeros_like(bits))
    return _from_bits(_sum(kept), x.dtype)


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
    return [_exchanged(x)[root]]


def all_to_all(x: Any) -> list[Any]:
    """Row s of the result (ranks, *shape) is row r of rank s, on rank r."""
    return [_exchanged(x)]
