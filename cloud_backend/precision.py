"""How float32 products are computed: `torch.set_float32_matmul_precision` as XLA's precision.

Matrix products, convolutions and attention leave their precision to jax's default, which is set
here. jax keys its caches by that default, and eager calls their programs by `Setting.name`, so each
precision has programs of its own. It matters on a TPU, whose matrix unit multiplies bfloat16.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from typing import Any

import torch

from cloud_backend import runtime


class Precision(enum.Enum):
    """XLA's precisions of a float32 product: one, three or six bfloat16 passes on a TPU."""

    DEFAULT = "default"
    HIGH = "high"
    HIGHEST = "highest"


_OF_TORCH = {
    "medium": Precision.DEFAULT,
    "high": Precision.HIGH,
    "highest": Precision.HIGHEST,
}


class Setting:
    """The precision in force, as jax names it."""

    name = ""


def apply() -> None:
    """Give jax the precision that PyTorch is set to."""
    _set(_OF_TORCH[torch.get_float32_matmul_precision()].value)


def current() -> str:
    """The precision that jax has from here, as its text; "" before the first."""
    return Setting.name


def _set(value: str) -> None:
    import jax

    Setting.name = value
    jax.config.update("jax_default_matmul_precision", value)


@contextlib.contextmanager
def precision(value: Precision | str) -> Iterator[None]:
    """Compute float32 products in this precision inside the block.

    Args:
        value: a `Precision`, or its name in any case.

    Raises:
        ValueError: no such precision.
    """
    chosen = value if isinstance(value, Precision) else Precision(value.lower())
    jax = runtime.start()
    before = jax.config.jax_default_matmul_precision
    _set(chosen.value)
    try:
        yield
    finally:
        _set(before)


def install() -> None:
    """Let `torch.set_float32_matmul_precision` reach jax once it runs."""
    theirs = torch.set_float32_matmul_precision

    def set_float32_matmul_precision(precision: str) -> None:
        theirs(precision)
        if runtime.start.cache_info().currsize:
            apply()

    ours: Any = set_float32_matmul_precision
    ours.__doc__, ours.__module__ = theirs.__doc__, theirs.__module__
    torch.set_float32_matmul_precision = ours
