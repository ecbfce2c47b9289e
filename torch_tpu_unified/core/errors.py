"""The errors that users meet, and the one that lowerings raise.

A lowering raises only `Unsupported("short reason")`. The two boundaries (the exporter's emitter and
the device's dispatcher) turn it into an error that says what, where and what to do next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class TtuError(Exception):
    """Base of every error this project raises on purpose."""


class Unsupported(TtuError, NotImplementedError):
    """A lowering cannot do this call; the message is a short reason."""


class LoweringError(TtuError, NotImplementedError):
    """An operator call has no lowering; the message names op, call, source line and next step."""


class ConversionError(TtuError):
    """A program cannot become a model file."""


class VerificationError(TtuError):
    """A model file runs, but its outputs are not those of the PyTorch program."""


class InputError(TtuError, ValueError):
    """What the user gave (a file, a shape, an option) is not usable; says what to give instead."""


class OptionError(InputError):
    """A request that cannot be tried as it stands: an option is missing, wrong or contradictory."""


class RecompileError(TtuError, RuntimeError):
    """A compiled function needs another program where `torch.tpu.error_on_recompile` forbids it."""


class NotYetAvailable(TtuError, NotImplementedError):
    """A public name whose feature does not exist yet."""


def not_yet(name: str, instead: str) -> Callable[..., Any]:
    """A stand-in for the public name `name` that raises `NotYetAvailable` when called."""

    def raises(*args: Any, **kwargs: Any) -> Any:
        raise NotYetAvailable(f"{name} is not available yet; {instead}")

    raises.__name__ = raises.__qualname__ = name.rsplit(".", 1)[-1]
    raises.__doc__ = f"Not available yet; {instead}"
    return raises


def one_of(**choices: Any) -> Callable[[str], Any]:
    """A look-up for a string argument of an operator: `one_of(none=False, tanh=True)(approximate)`.

    Raises:
        Unsupported: the value is not one of the choices.
    """

    def pick(value: str) -> Any:
        if value not in choices:
            raise Unsupported(f"{value!r} is not one of {', '.join(choices)}")
        return choices[value]

    return pick
