"""Floating-point operations of a traced program: its matrix products, loops multiplied.

Counted on the traced program (jaxpr) before XLA sees it: two for each multiply-add of a product or
convolution, as in the papers that define utilisation; elementwise work is left out. What remat
computes again counts again. The products of a Pallas kernel count for each step of its grid.
"""

from __future__ import annotations

import math
from typing import Any


def flops(jaxpr: Any, *, causal: bool = True) -> float:
    """Of the whole program, all devices together.

    Args:
        jaxpr: closed or open.
        causal: attention kernels skip the blocks above the diagonal.
    """
    return sum(_equation(e, causal) for e in getattr(jaxpr, "jaxpr", jaxpr).eqns)


def kept_bytes(jaxpr: Any) -> int:
    """Bytes that the forward loops keep of each turn for the backward, all devices together."""
    total = 0
    for e in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if e.primitive.name == "scan" and not e.params["reverse"]:
            kept = e.outvars[e.params["num_carry"] :]
            total += sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in kept)
        elif e.primitive.name != "scan":
            total += sum(kept_bytes(inner) for inner in _inner(e))
    return total


def _equation(e: Any, causal: bool) -> float:
    name, params = e.primitive.name, e.params
    if name == "dot_general":
        (contract, _), _ = params["dimension_numbers"]
        left = e.invars[0].aval.shape
        return 2.0 * math.prod(e.outvars[0].aval.shape) * math.prod(left[d] for d in contract)
    if name == "conv_general_dilated":
        kernel = e.invars[1].aval.shape
        out_features = params["dimension_numbers"].rhs_spec[0]
        return 2.0 * math.prod(e.outvars[0].aval.shape) * math.prod(kernel) / kernel[out_features]
    inner = [flops(j, causal=causal) for j in _inner(e)]
    if name == "scan":
        return float(params["length"]) * sum(inner)
    if name in ("cond", "switch", "platform_dependent"):
        return max(inner, default=0.0)
    if name == "shard_map":
        mesh = params["mesh"]
        axes = params.get("manual_axes") or mesh.axis_names
        return sum(inner) * math.prod(mesh.shape[a] for a in axes)
    if name == "pallas_call":
        grid = tuple(int(n) for n in params["grid_mapping"].grid)
        return sum(inner) * math.prod(grid) * (_triangle(grid) if causal else 1.0)
    return sum(inner)


def _triangle(grid: tuple[int, ...]) -> float:
    """The share of a square of blocks that is on or below its diagonal."""
    if len(grid) < 2 or grid[-1] != grid[-2]:
        return 1.0
    return (grid[-1] + 1) / (2 * grid[-1])


def _inner(e: Any) -> list[Any]:
    found = []
    for value in e.params.values():
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(one, "eqns") or hasattr(getattr(one, "jaxpr", None), "eqns"):
                found.append(one)
    return found
