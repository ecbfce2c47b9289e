"""Scaled dot-product attention: masks of every kind, causal, grouped heads, scale, odd ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests.op_cases.case import OpCase

_KEEP = torch.tensor([[True, True, False, True, False]] * 3)
_NONE_KEPT = torch.tensor([[True, True, False, True, False], [False] * 5, [True] * 5])
_ADD = torch.tensor([[0.5, -1.0, float("-inf"), 0.0, 2.0]] * 3)
_NONE_ADDED = torch.where(_NONE_KEPT, 0.0, float("-inf"))


def _case(
    name: str,
    q: tuple[int, ...] = (2, 4, 3, 8),
    k: tuple[int, ...] = (2, 4, 5, 8),
    v: tuple[int, ...] | None = None,
    mask: Callable[[], torch.Tensor] | None = None,
    **options: Any,
) -> OpCase:
    def args() -> tuple[torch.Tensor, ...]:
        made = (torch.randn(q), torch.randn(k), torch.randn(v or k))
        return (*made, mask()) if mask else made

    def fn(q: Any, k: Any, v: Any, mask: Any = None, **options: Any) -> torch.Tensor:
        fixed = options.pop("fixed", None)
        return F.scaled_dot_product_attention(q, k, v, mask if fixed is None else fixed, **options)

    return OpCase(name, fn, args, options)


CASES = [
    _case("plain"),
    _case("other_value_width", v=(2, 4, 5, 6)),
    _case("scale", scale=0.3),
    _case("causal", q=(2, 4, 5, 8), is_causal=True),
    _case("causal_longer_query", q=(2, 4, 7, 8), is_causal=True),
    _case("causal_longer_key", is_causal=True),
    _case("bool_mask", mask=lambda: torch.rand(2, 1, 3, 5) > 0.3),
    _case("bool_mask_empty_rows", mask=lambda: torch.rand(2, 4, 3, 5) > 0.8),
    _case("float_mask", mask=lambda: torch.randn(3, 5)),
    _case("float_mask_infinite", mask=lambda: torch.randn(2, 1, 3, 5).relu().log()),
    _case("float_mask_empty_rows", mask=lambda: torch.randn(2, 4, 3, 5).sub(1).relu().log()),
    _case("float_mask_lowest", mask=lambda: torch.full((3, 5), torch.finfo(torch.float32).min)),
    _case("key_mask", mask=lambda: torch.rand(2, 1, 1, 5) > 0.3),
    _case("const_bool", fixed=_KEEP),
    _case("const_bool_empty_row", fixed=_NONE_KEPT),
    _case("const_float", fixed=_ADD),
    _case("const_float_empty_row", fixed=_NONE_ADDED),
    _case("grouped", k=(2, 2, 5, 8), enable_gqa=True),
    _case(
        "grouped_one", k=(2, 1, 5, 8), enable_gqa=True, mask=lambda: torch.rand(2, 1, 3, 5) > 0.3
    ),
    _case("grouped_causal", q=(2, 4, 5, 8), k=(2, 2, 5, 8), enable_gqa=True, is_causal=True),
    _case("rank_3", q=(2, 3, 8), k=(2, 5, 8)),
    _case("rank_2", q=(3, 8), k=(5, 8)),
    _case("rank_5", q=(1, 2, 2, 3, 8), k=(1, 2, 2, 5, 8)),
    OpCase(
        "flash",
        lambda q, k: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, k)[0],
        lambda: (torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8)),
        halves=("litert",),
    ),
    _case("broadcast_batch", k=(1, 4, 5, 8)),
]
