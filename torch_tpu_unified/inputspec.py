"""Descriptions of example inputs, as the command line takes them: `ids=int64[1,16]:0..999`.

Parsing needs no torch, so that a misspelt option is refused before anything slow is loaded.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any

from torch_tpu_unified.core.errors import OptionError

if TYPE_CHECKING:
    import torch

DTYPES = (
    "float32",
    "float16",
    "bfloat16",
    "float64",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
)
_FULL = re.compile(
    r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<dtype>[a-z]+\d*)\[(?P<shape>[^\]]*)\]"
    r"(?::(?P<low>[-+.\de]+?)\.\.(?P<high>[-+.\de]+))?"
)
_SHORT = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>\d+(?:x\d+)*)")
FORMS = (
    "give float32[1,3,224,224], x=float32[1,3,224,224], int64[1,16]:0..999 (values in that range) "
    "or 1x3x224x224 (float32)"
)


@dataclasses.dataclass(frozen=True)
class InputSpec:
    """One example input: sizes, dtype by name, the name of forward's parameter if one is given.

    `low` and `high` bound the random values, both included; floats default to a normal
    distribution, integers to 0 and 1, which index any table.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    name: str | None = None
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        text = f"{self.dtype}[{','.join(map(str, self.shape))}]"
        text = f"{self.name}={text}" if self.name else text
        return text if self.low is None else f"{text}:{self.low:g}..{self.high:g}"

    def example(self, generator: torch.Generator) -> torch.Tensor:
        """A random CPU tensor of this shape and dtype."""
        import torch

        dtype: torch.dtype = getattr(torch, self.dtype)
        if dtype == torch.bool:
            return torch.randint(0, 2, self.shape, generator=generator).bool()
        if not dtype.is_floating_point:
            low, high = (0, 1) if self.low is None else (int(self.low), int(self.high or 0))
            return torch.randint(low, high + 1, self.shape, generator=generator, dtype=dtype)
        if self.low is None or self.high is None:
            return torch.randn(self.shape, generator=generator).to(dtype)
        unit = torch.rand(self.shape, generator=generator)
        return (self.low + (self.high - self.low) * unit).to(dtype)


def parse(text: str) -> InputSpec:
    """The specification that a text describes.

    Raises:
        OptionError: it is malformed, its dtype unknown, or its range empty.
    """
    if short := _SHORT.fullmatch(text.strip()):
        return InputSpec(tuple(int(n) for n in short["shape"].split("x")), name=short["name"])
    full = _FULL.fullmatch(text.strip().replace(" ", ""))
    if not full:
        raise OptionError(f"input {text!r} is not understood; {FORMS}")
    if full["dtype"] not in DTYPES:
        raise OptionError(
            f"input {text!r}: unknown dtype {full['dtype']!r}; one of {', '.join(DTYPES)}"
        )
    return InputSpec(_sizes(text, full["shape"]), full["dtype"], full["name"], *_range(text, full))


def _sizes(text: str, shape: str) -> tuple[int, ...]:
    parts = shape.split(",") if shape else []
    if not all(part.isdigit() for part in parts):
        raise OptionError(f"input {text!r}: the sizes {shape!r} are not whole numbers; {FORMS}")
    return tuple(int(part) for part in parts)


def _range(text: str, full: re.Match[str]) -> tuple[float | None, float | None]:
    if full["low"] is None:
        return None, None
    try:
        low, high = float(full["low"]), float(full["high"])
    except ValueError:
        raise OptionError(f"input {text!r}: the range is not two numbers; {FORMS}") from None
    whole = full["dtype"].startswith(("int", "uint"))
    if full["dtype"] == "bool" or (whole and not (low.is_integer() and high.is_integer())):
        raise OptionError(f"input {text!r}: a range of whole numbers is for integers; {FORMS}")
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise OptionError(f"input {text!r}: the range {low:g}..{high:g} is empty")
    return low, high


def examples(
    specs: list[InputSpec], seed: int = 0
) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    """Example tensors: positional ones in order, named ones by name.

    Raises:
        OptionError: a name occurs twice, or an unnamed input follows a named one.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    args: list[torch.Tensor] = []
    kwargs: dict[str, Any] = {}
    for spec in specs:
        if spec.name is None and kwargs:
            raise OptionError(f"input {spec} has no name but follows named ones; name it too")
        if spec.name in kwargs:
            raise OptionError(f"input {spec.name} is given twice")
        value = spec.example(generator)
        if spec.name is None:
            args.append(value)
        else:
            kwargs[spec.name] = value
    return tuple(args), kwargs
