"""Names of what a program can be converted to. Standard library only: checked before torch."""

from __future__ import annotations

from torch_tpu_unified.core.errors import NotYetAvailable, OptionError

LITERT = "litert"
XLA = ("stablehlo", "tpu", "tpu-cache")
LATER = ("edgetpu",)


def check_target(to: str) -> None:
    """Refuse a target that is unknown or does not exist yet.

    Raises:
        NotYetAvailable: a planned target.
        OptionError: any other.
    """
    known = ", ".join((LITERT, *XLA))
    if to in LATER:
        raise NotYetAvailable(f"the target {to!r} is not available yet; give one of {known}")
    if to != LITERT and to not in XLA:
        raise OptionError(f"the target {to!r} is unknown; give one of {known}")
