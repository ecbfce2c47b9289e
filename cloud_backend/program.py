"""Runs the XLA program of one eager call with as little Python and C++ as jax allows.

`jax.jit` looks a program up anew at each call: signature, shardings, configuration. An eager call
has found its plan by a key that says all of that, so the program that jit would find is compiled
ahead and called directly. Numbers and host arrays, which only jit takes, are put on the device.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from cloud_backend import runtime


class Program:
    """A compiled call: `execute(arrays).consume_with_handlers(handlers)` are its flat results.

    Attributes:
        execute: takes the list of device arrays.
        handlers: make jax arrays of its results.
        tree: how the flat results stand in the traced function's result.
    """

    __slots__ = ("execute", "handlers", "tree")

    def __init__(
        self, jitted: Callable[..., Any], arrays: list[Any], *, direct: bool = True
    ) -> None:
        try:
            compiled = jitted.lower(*arrays).compile()
        except TypeError as e:  # a dtype that an operator of XLA's does not take
            raise RuntimeError(str(e)) from e
        self.tree = compiled.out_tree
        # Arrays over several chips may have to be laid out anew, which jax's own call does.
        execute = _direct(compiled) if direct else None
        if execute is None:
            self.execute: Any = functools.partial(_Through, compiled)
            self.handlers: Any = None
        else:
            self.execute, self.handlers = execute

    def __call__(self, arrays: list[Any]) -> Any:
        """The results for device arrays, as the traced function structures them."""
        return self.tree.unflatten(self.execute(arrays).consume_with_handlers(self.handlers))


class _Through:
    """The same two steps through jax's public call, for programs that need what it does."""

    def __init__(self, compiled: Any, arrays: list[Any]) -> None:
        self.results = compiled(*arrays)

    def consume_with_handlers(self, handlers: Any) -> list[Any]:
        return list(runtime.start().tree.leaves(self.results))


def _direct(compiled: Any) -> tuple[Any, Any] | None:
    """The executable's own call and result handlers; None if jax does more around it."""
    call = getattr(getattr(compiled, "_executable", None), "unsafe_call", None)
    try:
        extra = call.ordered_effects or call.has_unordered_effects or call.has_host_callbacks
        kept = len(call.kept_var_idx) == len(compiled.in_avals[0])
        found = call.xla_executable.execute_sharded, call.out_handler.handlers
    except (AttributeError, IndexError):  # another jax than those this was written for
        return None
    return found if kept and not extra else None


def on_device(arrays: list[Any]) -> list[Any]:
    """The arrays with numbers and host arrays among them put on the device."""
    kind = _array_type()
    return [a if type(a) is kind else _put(a) for a in arrays]


@functools.cache
def _array_type() -> type:
    return type(runtime.start().numpy.zeros(()))


@functools.cache
def _identity() -> Any:
    return runtime.start().jit(lambda x: x)


def _put(a: Any) -> Any:
    if type(a) is float or type(a) is int:
        return number(a) if a else zero(a)
    return _identity()(a)


@functools.lru_cache(maxsize=4096, typed=True)
def number(a: float) -> Any:
    """A number other than zero as a 0-d device array."""
    return _identity()(a)


def zero(a: float) -> Any:
    """Zero, positive or negative (which are equal, so `number` would mix them), on the device."""
    return _zero(type(a), math.copysign(1.0, a))


@functools.cache
def _zero(kind: type, sign: float) -> Any:
    return _identity()(0 if kind is int else math.copysign(0.0, sign))
