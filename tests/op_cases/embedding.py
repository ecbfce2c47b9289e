"""Embedding bags: every mode, bags of even and odd lengths, offsets as constants and as inputs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.op_cases.case import OpCase

_EVEN, _ODD, _EMPTY = [0, 3, 6], [0, 1, 5], [0, 4, 4]


def _case(
    name: str, offsets: list[int], *, fixed: bool = True, weights: bool = False, **options: Any
) -> OpCase:
    starts = torch.tensor(offsets)

    def args() -> tuple[torch.Tensor, ...]:
        made = [torch.randint(0, 7, (9,)), torch.randn(7, 4)]
        made += [] if fixed else [starts]
        return (*made, torch.rand(9)) if weights else tuple(made)

    def fn(indices: Any, table: Any, *rest: Any) -> torch.Tensor:
        given = list(rest)
        at = starts if fixed else given.pop(0)
        scale = given.pop(0) if weights else None
        return F.embedding_bag(indices, table, at, per_sample_weights=scale, **options)

    return OpCase(name, fn, args)


def _rows(name: str, **options: Any) -> OpCase:
    return OpCase(
        name,
        lambda i, w: F.embedding_bag(i, w, **options),
        lambda: (torch.randint(0, 7, (3, 4)), torch.randn(7, 5)),
    )


def _old(name: str, op: Any) -> OpCase:
    starts = torch.tensor(_ODD)
    return OpCase(
        name,
        lambda i, w: op(w, i, starts, False, 1)[0],
        lambda: (torch.randint(0, 7, (9,)), torch.randn(7, 4)),
    )


CASES = [
    _old("bag", torch.ops.aten._embedding_bag),
    _old("bag_forward_only", torch.ops.aten._embedding_bag_forward_only),
    _old("bag_plain", torch.ops.aten.embedding_bag),
    *(_rows(f"rows_{mode}", mode=mode) for mode in ("sum", "mean", "max")),
    _rows("rows_padding", mode="mean", padding_idx=2),
    *(_case(f"even_{mode}", _EVEN, mode=mode) for mode in ("sum", "mean", "max")),
    *(_case(f"odd_{mode}", _ODD, mode=mode) for mode in ("sum", "mean", "max")),
    *(_case(f"empty_{mode}", _EMPTY, mode=mode) for mode in ("sum", "mean", "max")),
    *(_case(f"input_{mode}", _EMPTY, fixed=False, mode=mode) for mode in ("sum", "mean", "max")),
    _case("weights", _EVEN, weights=True, mode="sum"),
    _case("weights_odd", _ODD, weights=True, mode="sum"),
    _case("weights_input", _ODD, fixed=False, weights=True, mode="sum"),
    _case("padding", _ODD, mode="sum", padding_idx=1),
    _case("padding_max", _ODD, fixed=False, mode="max", padding_idx=1),
    _case("last_offset", [0, 2, 6, 9], mode="mean", include_last_offset=True),
    _case("last_offset_input", [0, 2, 6, 9], fixed=False, mode="sum", include_last_offset=True),
]
