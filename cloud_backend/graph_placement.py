"""Where the values of a compiled graph lie on a mesh: parameters gathered, results pinned.

XLA propagates the shardings of the inputs. It is told that parameters spread along the batch axes
are read whole (but where a graph does nothing but update them), that what a graph writes stays
where it was, and that gradients end where their parameters live.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from cloud_backend import mesh
from cloud_backend.mesh import Home


class Pair:
    """What a backward graph learns from its forward graph: the homes of the inputs it had last."""

    def __init__(self) -> None:
        self.homes: tuple[Home | None, ...] = ()


class Placement(NamedTuple):
    """How the arrays of one call lie; a part of the key of its program.

    Attributes:
        shardings: of the arrays.
        homes: of the inputs that are sharded parameters, None for others.
        gradients: per output, the home of the parameter whose gradient it is.
    """

    shardings: tuple[Any, ...]
    homes: tuple[Home | None, ...]
    gradients: tuple[Home | None, ...]

    def gather(self, nodes: Sequence[Node], environment: dict[Node, Any]) -> None:
        """Gather the parameters among the inputs `nodes`, inside the program."""
        for node, home in zip(nodes, self.homes, strict=True):
            if home is not None and not _only_updated(node):
                environment[node] = mesh.constrain(environment[node], home.whole)

    def pinned(self, place: int, value: Any) -> Any:
        """The new value of the input array number `place`, where the old one is."""
        return mesh.constrain(value, self.shardings[place])

    def settled(self, results: list[Any], kinds: Sequence[Any]) -> list[Any]:
        """The results of a graph, with gradients where their parameters live.

        Args:
            results: the arrays among the outputs, in order.
            kinds: what each output is made of; "tensor" and "host" stand for an array.
        """
        if len(self.gradients) != len(kinds):
            return results
        numbers = [i for i, (what, _) in enumerate(kinds) if what in ("tensor", "host", "number")]
        for place, i in enumerate(numbers):
            home = self.gradients[i]
            if home is not None and results[place].ndim == len(home.sharding.spec):
                results[place] = mesh.constrain(results[place], home.sharding)
        return results


def settle(
    tensors: Sequence[Any], arrays: list[Any], pair: Pair, backward: bool, inputs: Sequence[Any]
) -> tuple[list[Any], Placement]:
    """Bring the arrays of a call onto the active mesh, and say how they lie.

    Args:
        tensors: the tensors among the inputs, `arrays` their values.
        pair: of this graph and its backward graph, which learns the homes of all `inputs`.
    """
    for i, (t, array) in enumerate(zip(tensors, arrays, strict=True)):
        arrays[i] = mesh.settled(array)
        buffer = mesh.buffer_of(t)
        if buffer is not None and buffer.array is array:
            buffer.array = arrays[i]
    homes = tuple([getattr(mesh.buffer_of(t), "home", None) for t in tensors])
    if not backward:
        pair.homes = tuple([getattr(mesh.buffer_of(x), "home", None) for x in inputs])
    gradients = pair.homes if backward else ()
    return arrays, Placement(tuple([a.sharding for a in arrays]), homes, gradients)


def _only_updated(node: Node) -> bool:
    """Whether all that a graph does with an input is element by element, as an optimiser's step."""
    return all(
        isinstance(user.target, torch._ops.OpOverload)
        and (
            torch.Tag.pointwise in user.target.tags
            or user.target is torch.ops.aten.copy_.default
            or user.target._schema.name.startswith(("aten::_foreach_", "aten::_fused_"))
        )
        for user in node.users
    )
