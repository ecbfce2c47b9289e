"""What steps are drawn from: dtypes, shapes, values, and which writes have a defined result.

The sets are small on purpose: an XLA program is compiled for every new shape, stride and dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from hypothesis import strategies as st

from tests.fuzz.compare import FLOAT8
from tests.fuzz.program import Program, Step

Tensor = torch.Tensor
T = TypeVar("T")
Kind = Callable[["Draw", Program], "Step | None"]
KINDS: dict[str, Kind] = {}
WEIGHTS: dict[str, int] = {}

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
COMPLEX = (torch.complex64, torch.complex128)
FLOAT8S = tuple(d for d in FLOAT8 if d in (torch.float8_e4m3fn, torch.float8_e5m2))
DTYPES = (
    *(torch.float32,) * 8,
    *(torch.int64,) * 5,
    *(torch.complex64,) * 4,
    *(torch.bool,) * 3,
    *(torch.float64, torch.bfloat16, torch.float16, torch.uint8, torch.int32) * 2,
    *(torch.int8, torch.int16, torch.complex128),
    *UNSIGNED,
    *FLOAT8S,
)
SHAPES = ((2, 3), (6,), (), (2, 3), (0,), (1, 3), (2, 2), (2, 0), (1, 2, 2, 2), (3, 2), (3,))


class Draw:
    """Choices from hypothesis; the first of each shrinks best."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw
        self.main = self.pick(DTYPES)
        self.second = self.pick(DTYPES)

    def below(self, n: int) -> int:
        """An integer from 0 to n - 1."""
        return int(self.draw(_INTEGERS[n])) if n > 1 else 0

    def pick(self, choices: Sequence[T]) -> T:
        """One of these."""
        return choices[self.below(len(choices))]

    def seldom(self, n: int) -> bool:
        """True once in n times."""
        return self.below(n) == n - 1

    def dtype(self) -> torch.dtype:
        """Mostly one of the program's two dtypes."""
        where = self.below(10)
        return self.main if where < 6 else self.second if where < 9 else self.pick(DTYPES)

    def name(self, p: Program, suits: Callable[[Tensor], bool] = lambda t: True) -> str | None:
        """A live tensor that suits; late ones are likelier."""
        found = [n for n in p.names() if suits(p.cpu[n])]
        if not found:
            return None
        return found[-1 - min(self.below(len(found)), self.below(len(found)))]

    def dim(self, t: Tensor) -> int:
        """A dimension of t, from either end; seldom one that it lacks."""
        n = max(t.dim(), 1)
        if self.seldom(30):
            return n
        return self.below(2 * n) - n


_INTEGERS = [st.integers(0, max(n - 1, 0)) for n in range(1000)]


def kind(weight: int) -> Callable[[Kind], Kind]:
    """Decorator: the function draws steps of the kind that it is named after."""

    def add(function: Kind) -> Kind:
        name = function.__name__
        KINDS[name], WEIGHTS[name] = function, weight
        return function

    return add


# ---- values

_SMALL = (1, -2, 3, 0, 5, -4, 7, 2, -1, 6, -3, 4)
_REAL = (1.0, -0.0, 2.5, "nan", -3.0, "inf", 0.5, 0.0, "-inf", -1.5, 4.0, 100.0)


def literal(d: Draw, shape: tuple[int, ...], dtype: torch.dtype) -> str:
    """Source of a tensor of the host with drawn values."""
    n = 1
    for s in shape:
        n *= s
    start = d.below(12)
    floating = dtype.is_floating_point or dtype.is_complex
    special = floating and d.seldom(3)
    base: Sequence[Any] = _REAL if special else _SMALL
    values = [base[(start + i) % 12] for i in range(n)]
    if dtype == torch.bool:
        values = [bool(v % 3) for v in values]
    elif not dtype.is_signed:
        values = [abs(v) for v in values]
    elif dtype.is_complex:
        texts = [f"complex({number(v)}, {number(values[-1 - i])})" for i, v in enumerate(values)]
        return _reshaped(f"torch.tensor([{', '.join(texts)}], dtype={dtype})", shape)
    texts = [number(v) for v in values]
    return _reshaped(f"torch.tensor([{', '.join(texts)}], dtype={dtype})", shape)


def number(v: Any) -> str:
    """Source of a number."""
    return f'float("{v}")' if isinstance(v, str) else repr(v)


def _reshaped(source: str, shape: tuple[int, ...]) -> str:
    return source if len(shape) == 1 else f"{source}.reshape({shape})"


# ---- what is defined


def elements(t: Tensor) -> list[int]:
    """The storage positions (bytes) of a tensor's elements, in row-major order."""
    positions = [t.storage_offset()]
    for n, s in zip(t.shape, t.stride(), strict=True):
        positions = [p + i * s for p in positions for i in range(n)]
    return [p * t.element_size() for p in positions] if t.numel() else []


def dense(t: Tensor) -> bool:
    """Non-overlapping and dense, in PyTorch's sense."""
    step = 1
    for s, n in sorted((s, n) for s, n in zip(t.stride(), t.shape, strict=True) if n > 1):
        if s != step:
            return False
        step *= n
    return True


def broadcasts(t: Tensor) -> bool:
    """Whether a dimension repeats one element, which every write refuses."""
    return any(s == 0 and n > 1 for s, n in zip(t.stride(), t.shape, strict=True))


def may_write(t: Tensor) -> bool:
    """Whether the result of writing t is defined, if only as an error."""
    positions = elements(t)
    return broadcasts(t) or len(set(positions)) == len(positions)


def may_combine(target: Tensor, source: Tensor) -> bool:
    """Whether `target.op_(source)` is defined: they are apart, or the same, or it is refused."""
    if not may_write(target):
        return False
    if target.untyped_storage()._cdata != source.untyped_storage()._cdata:
        return True
    if not target.numel() or not source.numel():
        return True
    a, b = elements(target), elements(source)
    if not {p + i for p in a for i in range(target.element_size())} & {
        p + i for p in b for i in range(source.element_size())
    }:
        return True
    if dense(target) and dense(source):
        return True
    return a == b and target.dtype == source.dtype and target.stride() == source.stride()


def converts(source: Tensor, dtype: torch.dtype) -> bool:
    """Whether C++ defines the conversion of these values to dtype."""
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return True
    if not (source.is_floating_point() or source.is_complex()):
        return True
    real = source.detach().resolve_conj().resolve_neg()
    real = (real.real if real.is_complex() else real).double()
    info = torch.iinfo(dtype)
    return bool(((real >= max(info.min, -(2**62))) & (real <= min(info.max, 2**62))).all())


def is_number(t: Tensor) -> bool:
    """Whether arithmetic is worth trying: no float8."""
    return t.dtype not in FLOAT8


def dtype_name(t: Tensor) -> str:
    """Source of a tensor's dtype."""
    return str(t.dtype)
