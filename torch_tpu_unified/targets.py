"""Names of what a program can be converted to. Standard library only: checked before torch."""

from __future__ import annotations

from torch_tpu_unified.core.errors import NotYetAvailable, OptionError

LATER = ("edgetpu", "stablehlo", "tpu")


def check_target(to: str) -> None:
    """Refuse a target that is unknown or does not exist yet.

    Raises:
        NotYetAvailable: a planned target.
        OptionError: any other.
    """
    if to in LATER:
        raise NotYetAvailable(f"the target {to!r} is not available yet; give litert")
    if to != "litert":
        raise OptionError(f"the target {to!r} is unknown; give litert")
