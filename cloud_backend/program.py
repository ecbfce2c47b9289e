"""Runs the XLA program of one eager call with as little Python and C++ as jax allows.

`jax.jit` looks a program up anew at each call: signature, shardings, configuration. An eager call
has found its plan by a key that says all of that, so the program that jit would find is compiled
ahead and called directly. Numbers and host arrays, which only jit takes, are put on the device.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from cloud_backend import precision, program_index, runtime
from cloud_backend.tensor import Meta


class Program:
    """A compiled call: `execute(arrays).consume_with_handlers(handlers)` are its flat results.

    Args:
        jitted: the jitted function, traced only if the index of programs on disk lacks `name`.
        arrays: device arrays as those of the calls.
        name: `program_index.key` of everything that the trace depends on; None: not indexed.
        extra: called after the trace; what it returns (JSON) is kept beside the program.

    Attributes:
        execute: takes the list of device arrays.
        handlers: make jax arrays of its results.
        tree: how the flat results stand in the traced function's result.
        extra: what `extra` returned, in this process or in the one that compiled the program.
    """

    __slots__ = ("execute", "extra", "handlers", "tree")

    def __init__(
        self,
        jitted: Callable[..., Any],
        arrays: list[Any],
        name: str | None = None,
        extra: Callable[[], Any] = lambda: None,
        direct: bool = True,
    ) -> None:
        loaded = program_index.find(name, arrays) if name is not None else None
        if loaded is not None:
            self.execute, self.handlers, self.tree, self.extra = loaded
            return
        program_index.expect()
        try:
            compiled = jitted.lower(*arrays).compile()
        except TypeError as e:  # a dtype that an operator of XLA's does not take
            raise RuntimeError(str(e)) from e
        self.tree = compiled.out_tree
        self.extra = extra()
        # Arrays over several chips may have to be laid out anew, which jax's own call does.
        call = _direct(compiled) if direct else None
        if call is None:
            self.execute: Any = functools.partial(_Through, compiled)
            self.handlers: Any = None
            return
        self.execute = call.xla_executable.execute_sharded
        self.handlers = call.out_handler.handlers
        if name is not None:
            program_index.note(name, call, self.tree, self.extra)

    def __call__(self, arrays: list[Any]) -> Any:
        """The results for device arrays, as the traced function structures them."""
        return self.tree.unflatten(self.execute(arrays).consume_with_handlers(self.handlers))


class Plan(NamedTuple):
    """A kind of eager call: the jitted function, metadata of fresh results, their structure."""

    run: Callable[..., Any]
    fresh: tuple[Meta | None, ...]
    tree: Any  # None for a single tensor
    programs: dict[Any, Program]  # by what base arrays look like, and the precision of products
    known: Any  # what names the call in the index of programs on disk; None: it has no name there

    def program(self, arrays: list[Any]) -> Program:
        """The compiled program for these device arrays."""
        look = (precision.Setting.name, *[(x.shape, x.dtype) for x in arrays])
        found = self.programs.get(look)
        if found is None:
            weak = [x.weak_type for x in arrays]
            name = program_index.key("eager", self.known, look, weak) if self.known else None
            found = self.programs[look] = Program(self.run, arrays, name)
        return found


class _Through:
    """The same two steps through jax's public call, for programs that need what it does."""

    def __init__(self, compiled: Any, arrays: list[Any]) -> None:
        self.results = compiled(*arrays)

    def consume_with_handlers(self, handlers: Any) -> list[Any]:
        return list(runtime.start().tree.leaves(self.results))


def _direct(compiled: Any) -> Any:
    """The executable's own call; None if jax does more around it."""
    call = getattr(getattr(compiled, "_executable", None), "unsafe_call", None)
    try:
        more = call.ordered_effects or call.has_unordered_effects or call.has_host_callbacks
        kept = len(call.kept_var_idx) == len(compiled.in_avals[0])
        plain = callable(call.xla_executable.execute_sharded) and call.out_handler.handlers
    except (AttributeError, IndexError):  # another jax than those this was written for
        return None
    return call if kept and not more and isinstance(plain, list) else None


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
