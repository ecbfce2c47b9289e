"""Integer division in a file: one 32-bit operator where ranges allow, and by zero never."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torch_tpu_unified
from litert_export.graph import Graph
from litert_export.ops._range import bounds
from torch_tpu_unified.core.errors import LoweringError


class _Fn(torch.nn.Module):
    def __init__(self, fn: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.fn(*args)


def _histogram(fn: Callable[..., torch.Tensor], *args: torch.Tensor) -> dict[str, int]:
    report = torch_tpu_unified.convert(_Fn(fn), args, verify=True).report
    return dict(report.operators)


@pytest.mark.parametrize(
    ("fn", "x"),
    [
        (lambda x: x.flatten().topk(3).indices // 7, torch.randn(5, 7)),
        (lambda x: (x.long() * 8 + 3) // 16, torch.arange(-20, 20, dtype=torch.int16)),
        (lambda x: (x % 1000) // 10, torch.arange(-20, 20)),
        (lambda x: x.clamp(0, 1 << 20) // 3, torch.arange(-20, 20)),
    ],
)
def test_a_proven_range_takes_one_operator(
    fn: Callable[..., torch.Tensor], x: torch.Tensor
) -> None:
    counts = _histogram(fn, x)
    assert counts["FLOOR_DIV"] == 1 and "ROUND" not in counts


def test_an_unknown_range_is_divided_in_64_bits() -> None:
    counts = _histogram(lambda x: x // 3, torch.tensor([2**40, -(2**40)]))
    assert "FLOOR_DIV" not in counts and counts["ROUND"] == 3


def test_division_by_a_constant_zero_is_refused() -> None:
    with pytest.raises(LoweringError, match="division by zero"):
        _histogram(lambda x: x // torch.tensor([2, 0]), torch.tensor([4, 4]))


def test_bounds_follow_the_operators() -> None:
    g = Graph()
    x = g.input("x", (4,), "uint8")
    wide = g.cast(x, "int64")
    assert bounds(g, wide) == (0, 255)
    total = g.emit("ADD", wide, g.const([1, 5, -3, 0], dtype="int64"))
    assert bounds(g, total) == (-3, 260)
    assert bounds(g, g.emit("MUL", total, total)) == (-780, 67600)
    assert bounds(g, g.emit("FLOOR_MOD", total, g.const(-9, dtype="int64"))) == (-8, 0)
    chosen = g.emit("SELECT_V2", g.input("c", (4,), "bool"), total, wide, dtype="int64")
    assert bounds(g, chosen) == (-3, 260)
    whole = g.input("w", (4,), "int64")
    assert bounds(g, g.emit("ADD", whole, wide)) == (-(2**63), 2**63 - 1)
    doubled = wide
    for _ in range(30):  # found once each, not 2^30 times
        doubled = g.emit("MINIMUM", g.emit("ADD", doubled, doubled), wide)
    assert bounds(g, doubled) == (0, 255)
