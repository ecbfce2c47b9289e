"""Scaled dot-product attention, kept whole: two batch products around a softmax.

Query heads that share a key head are stacked as rows of one product, so grouped attention repeats
nothing. As in PyTorch, a row whose every position is masked gives zeros, not NaN: masks become
finite additions, and such rows are multiplied by zero.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from litert_export.graph import Graph, Value
from litert_export.ops._dims import binary, computes, filled, scalar
from litert_export.ops.matmul import matmul, scaled
from litert_export.ops.reduce import reduced
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported

# Far below every score, and no sum with one overflows.
_MASKED = -1e30


def _constant_mask(g: Graph, mask: np.ndarray[Any, Any]) -> tuple[Value, Value | None]:
    """(addition, row factor or None) of a constant mask, boolean or additive."""
    keep = mask if mask.dtype == bool else mask != -np.inf
    add = np.where(keep, 0.0 if mask.dtype == bool else np.maximum(mask, _MASKED), _MASKED)
    rows = keep.any(-1, keepdims=True)
    factor = None if rows.all() else g.const(rows.astype(np.float32))
    return g.const(add.astype(np.float32)), factor


def _mask(g: Graph, mask: Value) -> tuple[Value, Value]:
    """(addition, row factor) of a mask that the program computes."""
    last = [mask.rank - 1]
    low = scalar(g, _MASKED, "float32")
    if mask.dtype == "bool":
        zero = scalar(g, 0, "float32")
        add = g.emit("SELECT_V2", mask, zero, low, shape=mask.shape, dtype="float32")
        rows = reduced(g, "REDUCE_ANY", mask, last, True)
    else:
        mask = g.cast(mask, "float32")
        add = g.emit("MAXIMUM", mask, low)
        largest = reduced(g, "REDUCE_MAX", mask, last, True)
        rows = g.emit("GREATER", largest, scalar(g, -np.inf, "float32"), dtype="bool")
    return add, g.cast(rows, "float32")


def _masks(
    g: Graph, mask: Value | None, causal: bool, rows: int, columns: int
) -> tuple[Value | None, Value | None]:
    if causal:
        if mask is not None:
            raise Unsupported("attn_mask together with is_causal")
        return _constant_mask(g, np.tri(rows, columns, dtype=bool))
    if mask is None:
        return None, None
    return _mask(g, mask) if mask.data is None else _constant_mask(g, mask.data)


def _merge_heads(g: Graph, x: Value, groups: int) -> Value:
    """[..., H, L, E] -> [..., H / groups, groups * L, E]."""
    *batch, heads, length, width = x.shape
    return g.reshape(x, (*batch, heads // groups, groups * length, width))


@computes(aten.scaled_dot_product_attention.default)
def attention(
    g: Graph,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None,
    enable_gqa: bool,
) -> Value:
    if dropout_p:
        raise Unsupported("dropout in attention; call model.eval() before exporting")
    shape, dtype = g.result[0]
    if not query.size or not key.size or not value.size:
        return filled(g, shape, 0, dtype)
    query, key, value = (g.cast(v, "float32") for v in (query, key, value))
    rows, columns = query.shape[-2], key.shape[-2]
    add, factor = _masks(g, attn_mask, is_causal, rows, columns)
    groups = query.shape[-3] // key.shape[-3] if enable_gqa else 1
    if enable_gqa and key.shape[-3] != value.shape[-3]:
        raise Unsupported("keys and values with different numbers of heads")
    query = scaled(g, query, 1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if groups > 1:
        query = _merge_heads(g, query, groups)
    scores = matmul(g, query, key, adj_b=True)
    wide = (*shape[:-1], columns)
    if add is not None:
        scores = binary(g, "ADD", g.reshape(scores, wide) if groups > 1 else scores, add)
    weights = g.emit("SOFTMAX", scores, beta=1.0)
    if groups > 1:
        weights = g.reshape(weights, (*query.shape[:-1], columns))
    result = g.reshape(matmul(g, weights, value), shape)
    if factor is not None:
        result = binary(g, "MUL", result, factor)
    return g.cast(result, dtype)


@computes(aten._scaled_dot_product_flash_attention_for_cpu.default)
def flash_attention(
    g: Graph,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Value | None,
    scale: float | None,
) -> tuple[Value, None]:
    return (
        attention(
            g, query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=False
        ),
        None,
    )
