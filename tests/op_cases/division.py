"""Integer quotients over the whole of int64: powers of two and their neighbours, both signs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.op_cases.case import OpCase

_MODES: dict[str, Callable[..., torch.Tensor]] = {
    "floor": torch.floor_divide,
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
}


def _edges() -> torch.Tensor:
    """-2^63 … 2^63 - 1: every power of two and what stands beside it, without zero."""
    near = {sign * ((1 << k) + d) for k in range(64) for d in (-1, 0, 1) for sign in (1, -1)}
    return torch.tensor(sorted(v for v in near if v and -(2**63) <= v < 2**63))


def _pairs() -> tuple[torch.Tensor, torch.Tensor]:
    """Dividends beside divisors, every combination but -2^63 / -1, which no int64 holds."""
    over, under = (m.reshape(-1) for m in torch.meshgrid(_edges(), _edges(), indexing="ij"))
    kept = (over != -(2**63)) | (under != -1)
    return over[kept], under[kept]


def _random() -> tuple[torch.Tensor, torch.Tensor]:
    bits = torch.randint(-(2**63), 2**63 - 1, (2, 4096))
    shift = torch.randint(0, 62, (2, 4096))
    over, under = bits >> shift
    return over, torch.where((under == 0) | (under == -1), 7, under)


def _by_number(number: int, mode: str) -> OpCase:
    fn = _MODES[mode]
    return OpCase(
        f"{mode}_by_{number}".replace("-", "minus_"),
        lambda a: fn(a, torch.full_like(a[:1], number)),
        lambda: (_edges()[1:],),
    )


CASES = [
    *(OpCase(f"{mode}_edges", fn, _pairs) for mode, fn in _MODES.items()),
    *(OpCase(f"{mode}_random", fn, _random) for mode, fn in _MODES.items()),
    *(_by_number(n, m) for n in (1, -1, 3, -7, 2**20 + 1, 2**40, -(2**62) - 1) for m in _MODES),
    *(
        OpCase(f"{mode}_scalar", lambda a, fn=fn: fn(a, 1000), lambda: (_edges(),))
        for mode, fn in _MODES.items()
    ),
    OpCase(
        "row_and_column_of_argmax",
        lambda x: (x.flatten().argmax() // x.shape[1], x.flatten().argmax() % x.shape[1]),
        lambda: (torch.randn(5, 7),),
    ),
    OpCase(
        "narrow_sources",
        lambda a, b: (a.long() // b.long(), (a.long() * 3 + 1) // 5, a.long()[:2].flip(0) // 4),
        lambda: (
            torch.randint(-128, 127, (4, 6), dtype=torch.int8),
            torch.randint(1, 99, (4, 6), dtype=torch.int32),
        ),
    ),
]
