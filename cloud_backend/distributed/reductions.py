"""c10d's reduce operators under the names that the collectives use."""

from __future__ import annotations

from typing import Any

from torch.distributed import ReduceOp

_NAMES = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "avg",
    ReduceOp.PRODUCT: "product",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.BAND: "band",
    ReduceOp.BOR: "bor",
    ReduceOp.BXOR: "bxor",
}


def reduction(options: Any) -> Any:
    """The name of a reduction, or ("premul_sum", factor).

    Args:
        options: c10d's options of a call, a `ReduceOp`, or None (a sum).
    """
    if options is None:
        return "sum"
    op = getattr(options, "reduceOp", options)
    kind = getattr(op, "op", op)  # options hold an object, the enumeration's members are plain
    if kind == ReduceOp.PREMUL_SUM:
        factor = op.__getstate__()[1]
        return "premul_sum", float(factor)
    return _NAMES[kind]
