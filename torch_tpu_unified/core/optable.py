"""The op table: ATen overload -> lowering, with arguments bound by the schema.

A lowering's parameter names are the schema's (`self` is written `x`, a Python keyword gets a
trailing underscore). A parameter that a lowering does not take must hold its default in every call,
else the call is refused; so no argument that changes meaning can be ignored by accident. A wrong
entry (duplicate, misspelt parameter, unknown trait) fails at import.
"""

from __future__ import annotations

import dataclasses
import inspect
import keyword
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch._ops import OpOverload

from torch_tpu_unified.core.aten import Absent
from torch_tpu_unified.core.errors import Unsupported

# Arguments that say where or how a result is stored; the engine around the table sees to them.
STORAGE_ARGUMENTS = frozenset(
    {"layout", "device", "pin_memory", "memory_format", "non_blocking", "generator"}
)
_MISSING = object()


def parameter_name(argument: str) -> str:
    """The lowering's name of a schema argument: `self` -> `x`, `from` -> `from_`."""
    if argument == "self":
        return "x"
    return argument + "_" if keyword.iskeyword(argument) else argument


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One schema argument. `target` is the lowering's parameter, or None when it takes none."""

    name: str
    type: str
    target: str | None
    default: Any

    @property
    def required(self) -> bool:
        return self.default is _MISSING


@dataclasses.dataclass(frozen=True)
class Entry:
    """A lowering with its schema facts and traits."""

    op: OpOverload
    function: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    traits: Mapping[str, Any]

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments of the lowering for the call `op(*args, **kwargs)`.

        Raises:
            TypeError: a required argument is absent.
            Unsupported: an argument that the lowering does not take differs from its default.
        """
        values: dict[str, Any] = {}
        for position, p in enumerate(self.parameters):
            if position < len(args):
                value = args[position]
            else:
                value = kwargs.get(p.name, p.default)
            if value is _MISSING:
                if p.name in STORAGE_ARGUMENTS and p.target is None:
                    continue
                raise TypeError(f"{self.op}: missing argument '{p.name}'")
            if p.target is not None:
                values[p.target] = value
            elif p.name not in STORAGE_ARGUMENTS and value != p.default:
                raise Unsupported(f"{p.name}={value!r} is not supported")
        return values


class OpTable:
    """A table of lowerings.

    Args:
        name: used in messages.
        leading: parameters of every lowering that the engine supplies, such as `("g",)`.
        traits: every allowed trait with its default value.
        supplied: trait name -> parameter that the engine supplies when the trait is set.
    """

    def __init__(
        self,
        name: str,
        *,
        leading: tuple[str, ...] = (),
        traits: Mapping[str, Any] | None = None,
        supplied: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.leading = name, leading
        self.traits, self.supplied = dict(traits or {}), dict(supplied or {})
        self.entries: dict[OpOverload, Entry] = {}

    def lowers(
        self, *ops: OpOverload | Absent, **traits: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator: the function lowers these overloads.

        Raises:
            ValueError: an overload has an entry already, or a trait is unknown.
            TypeError: the function's parameters are not the schema's.
        """

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            for op in ops:
                if not isinstance(op, Absent):
                    self._add(op, function, traits)
            return function

        return add

    def _add(self, op: OpOverload, function: Callable[..., Any], traits: dict[str, Any]) -> None:
        if op in self.entries:
            raise ValueError(f"{self.name}: {op} has two lowerings")
        if unknown := set(traits) - set(self.traits):
            raise ValueError(f"{self.name}: {op}: unknown trait {sorted(unknown)[0]}")
        traits = {**self.traits, **traits}
        engine = set(self.leading) | {p for t, p in self.supplied.items() if traits[t]}
        takes = [
            n
            for n, p in inspect.signature(function).parameters.items()
            if n not in engine and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        ]
        parameters = []
        for a in op._schema.arguments:
            target: str | None = parameter_name(a.name)
            if target in engine:  # the engine has the name; the schema's gets an underscore
                target = f"{target}_"
            if target not in takes:
                target = None
                if not a.has_default_value() and a.name not in STORAGE_ARGUMENTS:
                    lacks = parameter_name(a.name)
                    raise TypeError(f"{self.name}: the lowering of {op} lacks parameter '{lacks}'")
            default = a.default_value if a.has_default_value() else _MISSING
            parameters.append(Parameter(a.name, str(a.type), target, default))
        known = {p.target for p in parameters}
        if extra := [n for n in takes if n not in known]:
            raise TypeError(f"{self.name}: {op} has no argument for the parameter '{extra[0]}'")
        self.entries[op] = Entry(op, function, tuple(parameters), traits)

    def get(self, op: Any) -> Entry | None:
        """The entry of an overload, or None."""
        return self.entries.get(op)

    def __contains__(self, op: object) -> bool:
        return op in self.entries

    def __iter__(self) -> Iterator[OpOverload]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def extended(self, functions: Mapping[OpOverload, Callable[..., Any]]) -> OpTable:
        """A copy with these lowerings in front of the table's own, checked by the same rules."""
        table = OpTable(self.name, leading=self.leading, traits=self.traits, supplied=self.supplied)
        table.entries = {op: e for op, e in self.entries.items() if op not in functions}
        for op, function in functions.items():
            table.lowers(op)(function)
        return table
