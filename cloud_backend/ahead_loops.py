"""What a program's loops do beyond their first turn: the compiler counts a loop's body once.

The body of each loop of known length is compiled alone, for the same device, and its counts are
added as often as it runs again. Only for one device: alone, a body does not know how its values are
spread over several.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cloud_backend import runtime
from cloud_backend.ahead_report import Loop


def loops(traced: Any, sharding: Any) -> list[Loop]:
    """The loops of a traced program, those inside of other loops included.

    Args:
        traced: by `jax.jit(...).trace(...)`.
        sharding: of every value: the one device.
    """
    return [found for body, turns in _scans(traced.jaxpr) for found in _loop(body, turns, sharding)]


def _scans(jaxpr: Any) -> Iterator[tuple[Any, int]]:
    """Bodies and lengths of the outermost scans, also in the programs that a program calls."""
    from jax.extend.core import ClosedJaxpr, Jaxpr

    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if equation.primitive.name == "scan":
            yield equation.params["jaxpr"], equation.params["length"]
            continue
        for value in equation.params.values():
            for part in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(part, (ClosedJaxpr, Jaxpr)):
                    yield from _scans(part)


def _loop(body: Any, turns: int, sharding: Any, times: int = 1) -> Iterator[Loop]:
    """A loop that is reached `times` times, and those of its body."""
    jax = runtime.start()
    from jax.extend.core import jaxpr_as_fun

    arguments = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding) for a in body.in_avals]
    traced = jax.jit(jaxpr_as_fun(body), keep_unused=True).trace(*arguments)
    costs = traced.lower(lowering_platforms=("tpu",)).compile().cost_analysis() or {}
    # Each time that it is reached, its first turn is in the count of what is around it.
    again = times * (turns - 1)
    yield Loop(turns, again, float(costs.get("flops", 0)), float(costs.get("bytes accessed", 0)))
    for inner, length in _scans(body):
        yield from _loop(inner, length, sharding, times * turns)
