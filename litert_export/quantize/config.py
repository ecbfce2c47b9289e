"""What a quantisation is asked to do."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch_tpu_unified.core.errors import OptionError

STATIC = ("int8", "int16x8")
WEIGHTS = ("int8-dynamic", "int8-weight", "int4-weight", "float16")
MODES = (*STATIC, *WEIGHTS)
TARGETS = ("litert", "edgetpu")
OBSERVERS = ("minmax", "percentile", "mse")
END_TYPES = ("int8", "uint8", "int16", "float32")


@dataclasses.dataclass(frozen=True)
class QuantConfig:
    """How a model is quantised.

    Attributes:
        mode: `int8` (weights, activations, inputs and outputs), `int16x8` (int16 activations, int8
            weights), `int8-dynamic` (int8 weights, activations quantised at run time),
            `int8-weight`, `int4-weight`, `float16` (stored so, computed in float32).
        observer: how the range of an activation follows from the samples: `minmax`, `percentile`
            (leaves out `1 - percentile` of the values), `mse` (the range with the least error).
        percentile: share of the values inside the range, for that observer.
        input_type, output_type: `int8`, `uint8`, `int16` or `float32`; None: the mode's own.
        float_layers: name patterns (as in a shell) of layers that stay in float32.
        allow_float: let operators without an integer form stay in float32 instead of failing.
        target: `litert`, or `edgetpu`: what that compiler does not map is rewritten, and linear
            layers have one scale for all rows.
        per_channel_linear: one scale for each row of a linear layer's weight, else one for all.
        ratio: ranges that differ more than so many times do not share a scale: the narrower one
            keeps its own, at the cost of a QUANTIZE.

    Raises:
        OptionError: a value is none of those.
    """

    mode: str = "int8"
    observer: str = "minmax"
    percentile: float = 0.9999
    input_type: str | None = None
    output_type: str | None = None
    float_layers: tuple[str, ...] = ()
    allow_float: bool = False
    per_channel_linear: bool = True
    ratio: float = 16.0
    target: str = "litert"

    def __post_init__(self) -> None:
        choices = (("mode", MODES), ("observer", OBSERVERS), ("target", TARGETS))
        for name, known in choices:
            if getattr(self, name) not in known:
                raise OptionError(
                    f"quantize: {name} {getattr(self, name)!r} is none of {', '.join(known)}"
                )
        for name in ("input_type", "output_type"):
            given = getattr(self, name)
            if given is not None and given not in END_TYPES:
                raise OptionError(f"quantize: {name} {given!r} is none of {', '.join(END_TYPES)}")
            if given not in (None, "float32") and not self.is_static:
                raise OptionError(f"quantize: {self.mode} has float32 inputs and outputs")
        if self.target == "edgetpu" and self.mode != "int8":
            raise OptionError(f"quantize: the Edge TPU computes in int8, not in {self.mode}")
        if not 0.5 < self.percentile <= 1:
            raise OptionError(f"quantize: percentile {self.percentile} is not in (0.5, 1]")

    @classmethod
    def of(cls, given: Any) -> QuantConfig:
        """A config from itself, a mode's name, or a mapping of the attributes.

        Raises:
            OptionError: it is none of these, or has an unknown key.
        """
        if isinstance(given, cls):
            return given
        if isinstance(given, str):
            return cls(mode=given)
        if isinstance(given, dict):
            known = {f.name for f in dataclasses.fields(cls)}
            if unknown := sorted(set(given) - known):
                raise OptionError(
                    f"quantize: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}"
                )
            return cls(**given)
        raise OptionError(f"quantize: a {type(given).__name__}; give a mode or a QuantConfig")

    @property
    def is_static(self) -> bool:
        """Whether activations are quantised beforehand, which needs calibration samples."""
        return self.mode in STATIC

    @property
    def activations(self) -> str:
        """The number type of activations in the file."""
        return {"int8": "int8", "int16x8": "int16"}.get(self.mode, "float32")
