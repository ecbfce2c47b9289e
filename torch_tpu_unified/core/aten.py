"""Operator look-up that tolerates overloads which this PyTorch does not have.

`aten.gelu.default` is the `OpOverload`, or an `Absent` where the installed PyTorch lacks it. The op
tables leave absent overloads out; `ABSENT` lists them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

ABSENT: set[str] = set()


class Absent(NamedTuple):
    """An overload that the installed PyTorch does not have."""

    name: str


class _Packet:
    def __init__(self, namespace: str, name: str) -> None:
        self._namespace, self._name = namespace, name

    def __getattr__(self, overload: str) -> OpOverload | Absent:
        full = f"{self._namespace}::{self._name}.{overload}"
        try:
            packet = getattr(getattr(torch.ops, self._namespace), self._name)
            found: OpOverload = getattr(packet, overload)
        except AttributeError:
            ABSENT.add(full)
            return Absent(full)
        self.__dict__[overload] = found
        return found


class Namespace:
    """`torch.ops.<name>` whose look-ups never fail."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, packet: str) -> Any:
        found = self.__dict__[packet] = _Packet(self._name, packet)
        return found


aten: Any = Namespace("aten")
prims: Any = Namespace("prims")
