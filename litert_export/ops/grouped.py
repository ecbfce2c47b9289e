"""Rows grouped by expert, as mixture-of-experts layers do: histograms and grouped products.

The number of rows of each group is known only at run time, while LiteRT's shapes are fixed: every
group's product is computed for all rows in one batch, and each row then takes its own group's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from litert_export.graph import Graph, Value
from litert_export.ops import TABLE, lowers
from litert_export.ops._dims import binary, computes, filled, i32, scalar
from litert_export.ops._shared import float32, is_float
from litert_export.ops.index import choose
from litert_export.ops.matmul import matmul
from litert_export.ops.reduce import reduced
from torch_tpu_unified.core.aten import Absent, Namespace, aten
from torch_tpu_unified.core.errors import Unsupported


def _limits(g: Graph, x: Value, low: float, high: float) -> tuple[Value, Value]:
    """The outer edges: those given or, where they are equal, the data's own."""
    if low != high:
        return scalar(g, low, "float32"), scalar(g, high, "float32")
    if low or high or not x.size:
        return scalar(g, low - 1, "float32"), scalar(g, high + 1, "float32")
    least, most = (reduced(g, c, x, None, False) for c in ("REDUCE_MIN", "REDUCE_MAX"))
    one = g.cast(g.emit("EQUAL", least, most, dtype="bool"), "float32")
    return binary(g, "SUB", least, one), binary(g, "ADD", most, one)


@lowers(aten.histc.default)
def histc(g: Graph, x: Value, bins: int, min: float, max: float) -> Value:
    if not is_float(x):
        raise Unsupported(f"a histogram of {x.dtype}")
    data = g.reshape(float32(g, x), (x.size, 1))
    if not x.size:
        return filled(g, (bins,), 0, x.dtype)
    low, high = _limits(g, data, float(min), float(max))
    inside = g.emit(
        "LOGICAL_AND",
        g.emit("GREATER_EQUAL", data, low, dtype="bool"),
        g.emit("LESS_EQUAL", data, high, dtype="bool"),
    )
    # PyTorch's own order of operations, so that values on an edge fall to the same side.
    place = binary(g, "MUL", binary(g, "SUB", data, low), scalar(g, bins, "float32"))
    place = g.emit("FLOOR", binary(g, "DIV", place, binary(g, "SUB", high, low)))
    place = g.emit("MINIMUM", place, scalar(g, bins - 1, "float32"))
    numbers = g.const(np.arange(bins, dtype=np.float32))
    member = g.emit("EQUAL", place, numbers, shape=(x.size, bins), dtype="bool")
    member = g.emit("LOGICAL_AND", member, inside, shape=(x.size, bins))
    # Counted as integers: float32 would stop at 2^24.
    counts = reduced(g, "SUM", g.cast(member, "int32"), [0], False)
    return g.cast(counts, x.dtype)


def _grouped(g: Graph, x: Value, weight: Value, ends: Value) -> Value:
    """[S, K] x [E, K, N] -> [S, N]; group e holds the rows before ends[e], after those of e - 1."""
    rows, groups = x.shape[0], weight.shape[0]
    product = matmul(g, g.reshape(x, (1, *x.shape)), weight)
    row = i32(g, np.arange(rows).reshape(1, rows, 1))
    ends = g.reshape(g.cast(ends, "int32"), (groups, 1, 1))
    shape = (groups, rows, 1)
    before = g.emit("LESS", row, ends, shape=shape, dtype="bool")
    # A row belongs to the first group that ends after it.
    count = reduced(g, "SUM", g.cast(before, "int32"), [0], True)
    left = i32(g, groups - np.arange(groups).reshape(groups, 1, 1))
    mine = g.emit("EQUAL", count, left, shape=shape, dtype="bool")
    chosen = choose(g, mine, product, scalar(g, 0, x.dtype))
    return reduced(g, "SUM", chosen, [0], False)


def grouped_mm_fallback(g: Graph, input: Value, weight: Value, offs: Value) -> Value:
    """The operator of the transformers library, of the same meaning as PyTorch's own."""
    return _grouped(g, input, weight, offs)


@computes(aten._grouped_mm.default)
def grouped_mm(
    g: Graph, x: Value, mat2: Value, offs: Value | None, bias: Value | None, out_dtype: Any
) -> Value:
    if bias is not None:
        raise Unsupported("a grouped product with a bias")
    if x.rank == 3 and mat2.rank == 3:
        return g.cast(matmul(g, x, mat2), g.result[0].dtype)
    if offs is None or x.rank != 2 or mat2.rank != 3:
        raise Unsupported("a grouped product whose groups are not rows of the first operand")
    return g.cast(_grouped(g, x, mat2, offs), g.result[0].dtype)


def register_foreign() -> None:
    """Add the operators of libraries that are imported by now; loads none."""
    op = Namespace("transformers").grouped_mm_fallback.default
    if not isinstance(op, Absent) and op not in TABLE:
        computes(op)(grouped_mm_fallback)
