"""Histograms and grouped products: edges, values outside, empty groups, rows of no group."""

from __future__ import annotations

import torch

from tests.op_cases.case import OpCase


def _numbers() -> tuple[torch.Tensor]:
    return (torch.cat([torch.randn(40), torch.tensor([-1.0, 0.0, 0.5, 1.0, 2.0, 7.0])]),)


def _routed() -> tuple[torch.Tensor]:
    return (torch.tensor([0.0, 3.0, 3.0, 1.0, 0.0, 4.0, 2.0, 3.0]),)


def _experts(last: int) -> tuple[torch.Tensor, ...]:
    import transformers.integrations.moe  # noqa: F401  (it defines the operator)

    ends = torch.tensor([2, 2, 5, last], dtype=torch.int32)
    return torch.randn(9, 5), torch.randn(4, 5, 6), ends


def _fallback(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return torch.ops.transformers.grouped_mm_fallback(x, weight, ends)


def _native() -> tuple[torch.Tensor, ...]:
    ends = torch.tensor([3, 3, 8], dtype=torch.int32)
    return torch.randn(8, 16).bfloat16(), torch.randn(3, 16, 8).bfloat16(), ends


def _grouped(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._grouped_mm(x, weight, ends).float()


def _product(x: torch.Tensor, mat2: torch.Tensor, ends: torch.Tensor | None) -> torch.Tensor:
    return torch.ops.aten._grouped_mm(x, mat2, ends)


def _made(*shapes: tuple[int, ...], ends: list[int] | None = None) -> tuple[object, ...]:
    offs = None if ends is None else torch.tensor(ends, dtype=torch.int32)
    return (*(torch.randn(shape) for shape in shapes), offs)


# [rows, k] by groups of rows, [k, columns] by groups of columns, by groups of the inner size, all.
_PRODUCTS = {
    "rows": lambda: _made((9, 8), (3, 8, 4), ends=[3, 3, 9]),
    "columns": lambda: _made((3, 4, 8), (8, 12), ends=[4, 4, 12]),
    "inner": lambda: _made((4, 12), (12, 8), ends=[4, 4, 12]),
    "batch": lambda: _made((3, 4, 8), (3, 8, 4)),
}

CASES = [
    OpCase("experts", _fallback, lambda: _experts(9), halves=("litert",)),
    OpCase("experts_rows_left", _fallback, lambda: _experts(7), halves=("litert",)),
    OpCase("grouped_mm", _grouped, _native, halves=("litert",)),
    OpCase("histc", torch.histc, _numbers, {"bins": 7, "min": -1, "max": 2}, halves=("litert",)),
    OpCase("histc_own_range", torch.histc, _numbers, {"bins": 5}, halves=("litert",)),
    OpCase("histc_one_value", torch.histc, lambda: (torch.full((5,), 3.0),), {"bins": 4},
           halves=("litert",)),
    OpCase("histc_routing", torch.histc, _routed, {"bins": 4, "min": 0, "max": 3},
           halves=("litert",)),
    *[OpCase(f"grouped_mm_{n}", _product, m, halves=("cloud",)) for n, m in _PRODUCTS.items()],
]  # fmt: skip
