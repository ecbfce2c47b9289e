"""Names of what a program can be converted to. Standard library only: checked before torch."""

from __future__ import annotations

from torch_tpu_unified.core.errors import OptionError

LITERT = "litert"
FILES = (LITERT, "edgetpu")  # both give a LiteRT file
XLA = ("stablehlo", "tpu", "tpu-cache")


def check_target(to: str) -> None:
    """Refuse a target that is unknown.

    Raises:
        OptionError: names those that exist.
    """
    known = ", ".join((*FILES, *XLA))
    if to not in (*FILES, *XLA):
        raise OptionError(f"the target {to!r} is unknown; give one of {known}")
