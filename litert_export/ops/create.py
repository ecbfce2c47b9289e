"""Factories: every one is a constant, except large ones of a single value, which FILL spreads.

`empty` gives zeros: its contents are undefined, and a file should be the same each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from litert_export.graph import Graph, Value
from litert_export.ops import lowers
from litert_export.ops._dims import filled
from torch_tpu_unified.core.aten import aten

Number = int | float | bool


def _filled(g: Graph, value: Number) -> Value:
    shape, dtype = g.result[0]
    return filled(g, shape, value, dtype)


@lowers(aten.full.default)
def full(g: Graph, size: Sequence[int], fill_value: Number, *, dtype: Any) -> Value:
    return _filled(g, fill_value)


@lowers(aten.zeros.default, aten.empty.memory_format)
def zeros(g: Graph, size: Sequence[int], *, dtype: Any) -> Value:
    return _filled(g, 0)


@lowers(aten.empty_permuted.default)
def empty_permuted(
    g: Graph, size: Sequence[int], physical_layout: Sequence[int], *, dtype: Any
) -> Value:
    return _filled(g, 0)


@lowers(aten.empty_strided.default)
def empty_strided(g: Graph, size: Sequence[int], stride: Sequence[int], *, dtype: Any) -> Value:
    return _filled(g, 0)


@lowers(aten.ones.default)
def ones(g: Graph, size: Sequence[int], *, dtype: Any) -> Value:
    return _filled(g, 1)


@lowers(aten.full_like.default)
def full_like(g: Graph, x: Value, fill_value: Number, *, dtype: Any) -> Value:
    return _filled(g, fill_value)


@lowers(aten.zeros_like.default, aten.empty_like.default)
def zeros_like(g: Graph, x: Value, *, dtype: Any) -> Value:
    return _filled(g, 0)


@lowers(aten.ones_like.default)
def ones_like(g: Graph, x: Value, *, dtype: Any) -> Value:
    return _filled(g, 1)


@lowers(aten.new_full.default)
def new_full(g: Graph, x: Value, size: Sequence[int], fill_value: Number, *, dtype: Any) -> Value:
    return _filled(g, fill_value)


@lowers(aten.new_zeros.default, aten.new_empty.default)
def new_zeros(g: Graph, x: Value, size: Sequence[int], *, dtype: Any) -> Value:
    return _filled(g, 0)


@lowers(aten.new_ones.default)
def new_ones(g: Graph, x: Value, size: Sequence[int], *, dtype: Any) -> Value:
    return _filled(g, 1)


@lowers(aten.fill.Scalar)
def fill(g: Graph, x: Value, value: Number) -> Value:
    return _filled(g, value)


@lowers(aten.fill.Tensor)
def fill_tensor(g: Graph, x: Value, value: Value) -> Value:
    return g.broadcast_to(g.cast(value, x.dtype), x.shape)


@lowers(aten.scalar_tensor.default)
def scalar_tensor(g: Graph, s: Number, *, dtype: Any) -> Value:
    return _filled(g, s)


def _range(g: Graph, start: Number, step: Number) -> Value:
    shape, dtype = g.result[0]
    if "int" in dtype:
        return g.const(int(start) + np.arange(shape[0]) * int(step), dtype=dtype)
    # float64 in between, as PyTorch does
    return g.const(start + np.arange(shape[0], dtype=np.float64) * step, dtype=dtype)


@lowers(aten.arange.default)
def arange(g: Graph, end: Number, *, dtype: Any) -> Value:
    return _range(g, 0, 1)


@lowers(aten.arange.start)
def arange_start(g: Graph, start: Number, end: Number, *, dtype: Any) -> Value:
    return _range(g, start, 1)


@lowers(aten.arange.start_step)
def arange_step(g: Graph, start: Number, end: Number, step: Number, *, dtype: Any) -> Value:
    return _range(g, start, step)


@lowers(aten.linspace.default)
def linspace(g: Graph, start: Number, end: Number, steps: int, *, dtype: Any) -> Value:
    return g.const(np.linspace(start, end, steps), dtype=g.result[0].dtype)


@lowers(aten.eye.default)
def eye(g: Graph, n: int, *, dtype: Any) -> Value:
    return g.const(np.eye(n), dtype=g.result[0].dtype)


@lowers(aten.eye.m)
def eye_m(g: Graph, n: int, m: int, *, dtype: Any) -> Value:
    return g.const(np.eye(n, m), dtype=g.result[0].dtype)


def _indices(g: Graph, found: tuple[np.ndarray, ...]) -> Value:
    return g.const(np.stack(found), dtype=g.result[0].dtype)


@lowers(aten.tril_indices.default)
def tril_indices(g: Graph, row: int, col: int, offset: int, *, dtype: Any) -> Value:
    return _indices(g, np.tril_indices(row, offset, col))


@lowers(aten.triu_indices.default)
def triu_indices(g: Graph, row: int, col: int, offset: int, *, dtype: Any) -> Value:
    return _indices(g, np.triu_indices(row, offset, col))
