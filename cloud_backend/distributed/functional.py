"""PyTorch's functional collectives inside compiled graphs, as XLA collectives of the one program.

A graph that holds some runs as one program over the devices of all ranks that take part, each rank
starting it with its own arrays. Where a graph's collectives belong to several groups (the axes of a
device mesh), the ranks first tell each other theirs, since a rank knows only its own.
"""

from __future__ import annotations

import contextvars
import functools
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.fx import Node

from cloud_backend.distributed import collectives, launch
from cloud_backend.distributed.mesh import GroupMesh, group_mesh
from torch_tpu_unified.core.errors import Unsupported

NAMESPACE = "_c10d_functional"
LOWERINGS: dict[str, Callable[..., Any]] = {}
_WAIT_MILLISECONDS = 300_000
_count = itertools.count()
_active: contextvars.ContextVar[Ranks | None] = contextvars.ContextVar("ranks", default=None)


def _lowers(function: Callable[..., Any]) -> Callable[..., Any]:
    LOWERINGS[function.__name__] = function
    return function


def operators() -> list[Any]:
    """The functional collectives that a compiled graph may hold."""
    ours = torch.ops._c10d_functional
    return [getattr(ours, name).default for name in LOWERINGS if hasattr(ours, name)]


def is_collective(node: Node) -> bool:
    """Whether a graph's node calls a functional collective."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target.namespace == NAMESPACE


def lower(node: Node, args: Any, kwargs: Any) -> Any:
    """The result of a collective's node for arrays, in the graph whose `Ranks` are in force.

    Raises:
        Unsupported: the graph is not run by ranks (it is exported, or compiled ahead of time).
    """
    ranks = _active.get()
    if ranks is None:
        raise Unsupported("a collective works in graphs that torch.compile runs on ranks only")
    return ranks.lower(node, args, kwargs)


class Ranks:
    """Who runs a graph's program, and the groups of its collectives among them.

    Args:
        nodes: the graph's functional collectives.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        names = dict.fromkeys(name for node in nodes if (name := _group_name(node)))
        mine = {n: dist.get_process_group_ranks(c10d._resolve_process_group(n)) for n in names}
        everyone = _told(list(mine.values())) if len(mine) > 1 else {}
        self.members = sorted({r for ranks in mine.values() for r in ranks} | set(everyone))
        place = {rank: i for i, rank in enumerate(self.members)}
        self.groups: dict[str, list[list[int]] | None] = {}
        for i, (name, ranks) in enumerate(mine.items()):
            parts = {tuple(theirs[i]) for theirs in everyone.values()} or {tuple(ranks)}
            chosen = [[place[r] for r in part] for part in sorted(parts)]
            if len(chosen) == 1 and chosen[0] == list(range(len(self.members))):
                self.groups[name] = None
            else:
                self.groups[name] = chosen
        self.mesh: GroupMesh = group_mesh(tuple(self.members), self.members.index(dist.get_rank()))

    def program(
        self, run: Callable[..., Any], arrays: list[Any], donated: list[int]
    ) -> SpreadProgram:
        """The program of a graph, given as a function of this rank's arrays."""
        return SpreadProgram(run, arrays, self, donated)

    def __enter__(self) -> Ranks:
        self._token = _active.set(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _active.reset(self._token)

    def lower(self, node: Node, args: Any, kwargs: Any) -> Any:
        """The result of a collective's node, among the ranks of its group."""
        target: Any = node.target
        name = _group_name(node)
        token = collectives.GROUPS.set(self.groups[name] if name else None)
        try:
            return LOWERINGS[target._schema.name.partition("::")[2]](*args, **kwargs)
        finally:
            collectives.GROUPS.reset(token)


def ranks_of(nodes: Sequence[Node]) -> Ranks | None:
    """The ranks that run a graph of these nodes; None if it has no collectives."""
    found = [n for n in nodes if is_collective(n) and _group_name(n)]
    return Ranks(found) if found else None


def _group_name(node: Node) -> str | None:
    """The group of a collective; None for one that only waits."""
    target: Any = node.target
    names = [a.name for a in target._schema.arguments]
    if "group_name" not in names:
        return None  # it waits, and all groups are the same to it
    place = names.index("group_name")
    return str(node.args[place] if place < len(node.args) else node.kwargs["group_name"])


def _told(mine: list[list[int]]) -> dict[int, list[list[int]]]:
    """The groups of every rank that is connected to this one by groups, by rank.

    All ranks that run a program make it, so the n-th of such programs is the same one on each.
    """
    client, number, rank = launch.client(), next(_count), dist.get_rank()
    client.key_value_set(f"tpu/groups/{number}/{rank}", json.dumps(mine))
    found, left = {rank: mine}, {r for ranks in mine for r in ranks} - {rank}
    while left:
        other = left.pop()
        key = f"tpu/groups/{number}/{other}"
        found[other] = json.loads(client.blocking_key_value_get(key, _WAIT_MILLISECONDS))
        left |= {r for ranks in found[other] for r in ranks} - set(found)
    return found


class SpreadProgram:
    """A graph's program over several ranks, with the interface of `program.Program`.

    Args:
        run: the graph as a function of this rank's arrays.
        arrays: examples of them.
        ranks: who runs it.
        donated: places of the arrays whose memory the program may take.
    """

    handlers = None

    def __init__(
        self, run: Callable[..., Any], arrays: list[Any], ranks: Ranks, donated: list[int]
    ) -> None:
        @functools.wraps(run)
        def with_groups(*values: Any) -> Any:
            with ranks:
                return run(*values)

        self.mesh = ranks.mesh
        self.program = self.mesh.program(with_groups, arrays, donated)

    def execute(self, arrays: list[Any]) -> _Started:
        """Start the program."""
        return _Started(self.mesh.start(self.program, arrays))


class _Started:
    """This rank's results of a started program, with the interface of an executable's."""

    def __init__(self, results: list[Any]) -> None:
        self.results = results

    def consume_with_handlers(self, handlers: None) -> list[Any]:
        return self.results


# ---- the collectives; `group_name` is in force already (see `Ranks.lower`)


@_lowers
def all_reduce(x: Any, reduce_op: str, group_name: str) -> Any:
    return collectives.reduced(reduce_op.lower(), x)


@_lowers
def all_reduce_coalesced(xs: Any, reduce_op: str, group_name: str) -> list[Any]:
    return [collectives.reduced(reduce_op.lower(), x) for x in xs]


@_lowers
def all_gather_into_tensor(x: Any, group_size: int, group_name: str) -> Any:
    (rows,) = collectives.all_gather(x)
    return rows.reshape(group_size * x.shape[0] if x.ndim else group_size, *x.shape[1:])


@_lowers
def all_gather_into_tensor_coalesced(xs: Any, group_size: int, group_name: str) -> list[Any]:
    return [all_gather_into_tensor(x, group_size, group_name) for x in xs]


@_lowers
def reduce_scatter_tensor(x: Any, reduce_op: str, group_size: int, group_name: str) -> Any:
    rows = x.reshape(group_size, x.shape[0] // group_size, *x.shape[1:])
    return collectives.scattered(reduce_op.lower(), rows)


@_lowers
def reduce_scatter_tensor_coalesced(
    xs: Any, reduce_op: str, group_size: int, group_name: str
) -> list[Any]:
    return [reduce_scatter_tensor(x, reduce_op, group_size, group_name) for x in xs]


@_lowers
def all_to_all_single(x: Any, output_split_sizes: Any, input_split_sizes: Any, group: str) -> Any:
    if len({*output_split_sizes, *input_split_sizes}) > 1:
        raise Unsupported(
            "all_to_all_single with unequal splits: its program would depend on other ranks' "
            "sizes; call it outside of torch.compile"
        )
    n = len(input_split_sizes) or collectives._size()
    (rows,) = collectives.all_to_all(x.reshape(n, x.shape[0] // n, *x.shape[1:]))
    return rows.reshape(x.shape)


@_lowers
def broadcast(x: Any, src: int, group_name: str) -> Any:
    return collectives.broadcast(src, x)[0]


@_lowers
def wait_tensor(x: Any) -> Any:
    return x


@_lowers
def _wrap_tensor_autograd(x: Any) -> Any:
    return x
