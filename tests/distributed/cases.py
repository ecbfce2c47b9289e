"""The calls of c10d that are compared with gloo: each runs on CPU tensors, then on tpu tensors.

A case takes a `Setting` and returns all tensors that it made or wrote. What gloo does not offer
(averages, pre-multiplied sums, all_to_all of lists, ...) has its reference in terms of what it
does offer, in the branch for the CPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Tensor = torch.Tensor
Op = dist.ReduceOp


@dataclasses.dataclass
class Setting:
    """Where and on what a case runs."""

    device: str
    dtype: torch.dtype
    group: Any = None

    def __post_init__(self) -> None:
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.ranks = dist.get_process_group_ranks(self.group or dist.group.WORLD)

    def make(self, *shape: int, key: int = 0) -> Tensor:
        """A tensor whose values depend on the rank."""
        source = torch.Generator().manual_seed(1000 * key + self.rank)
        if self.dtype.is_floating_point or self.dtype.is_complex:
            wide = torch.complex64 if self.dtype.is_complex else torch.float32
            values = torch.randn(shape, generator=source, dtype=wide)
            # Few bits, so that sums of half precision are exact in any order.
            values = (values * 8).round() / 8 if not self.dtype.is_complex else values
        elif self.dtype == torch.bool:
            values = torch.randint(0, 2, shape, generator=source)
        else:
            values = torch.randint(0, 5, shape, generator=source)
        return values.to(self.dtype).to(self.device)

    def zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.dtype, device=self.device)


Case = Callable[[Setting], list[Tensor]]
CASES: dict[str, Case] = {}
# Cases that make sense in one dtype only, or whose point is not the dtype.
ONCE: dict[str, Case] = {}


def case(table: dict[str, Case], name: str) -> Callable[[Case], Case]:
    def enter(function: Case) -> Case:
        table[name] = function
        return function

    return enter


def _all_reduce(op: Any) -> Case:
    def run(s: Setting) -> list[Tensor]:
        x = s.make(3, 4)
        dist.all_reduce(x, op, group=s.group)
        return [x]

    return run


for _name in ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
    CASES[f"all_reduce_{_name.lower()}"] = _all_reduce(getattr(Op, _name))


def _rows(s: Setting, x: Tensor) -> Tensor:
    """`x` of every rank, by CPU all_gather."""
    found = [torch.zeros_like(x) for _ in range(s.size)]
    dist.all_gather(found, x, group=s.group)
    return torch.stack(found)


@case(CASES, "all_reduce_avg")
def _(s: Setting) -> list[Tensor]:
    x = s.make(5, 2)
    if s.device == "cpu":
        if s.dtype == torch.bool:
            raise TypeError("refused by both")
        total = _rows(s, x).sum(0).to(s.dtype)
        if s.dtype.is_floating_point or s.dtype.is_complex:
            return [total / s.size]
        return [total.div(s.size, rounding_mode="trunc").to(s.dtype)]
    dist.all_reduce(x, Op.AVG, group=s.group)
    return [x]


@case(CASES, "all_reduce_premul_sum")
def _(s: Setting) -> list[Tensor]:
    x = s.make(5)
    if s.device == "cpu":
        return [(_rows(s, x) * 2).sum(0).to(s.dtype)]
    dist.all_reduce(x, torch._C._distributed_c10d._make_nccl_premul_sum(2.0), group=s.group)
    return [x]


@case(CASES, "broadcast")
def _(s: Setting) -> list[Tensor]:
    x, y = s.make(4, 3), s.make(2, key=1)
    dist.broadcast(x, s.ranks[-1], group=s.group)
    dist.broadcast(y, s.ranks[0], group=s.group)
    return [x, y]


@case(CASES, "reduce")
def _(s: Setting) -> list[Tensor]:
    x = s.make(4)
    dist.reduce(x, s.ranks[-1], group=s.group)
    return [x] if s.rank == s.size - 1 else []  # what the others hold is not defined


@case(CASES, "all_gather")
def _(s: Setting) -> list[Tensor]:
    found = [s.zeros(2, 3) for _ in range(s.size)]
    dist.all_gather(found, s.make(2, 3), group=s.group)
    return found


@case(CASES, "all_gather_into_tensor")
def _(s: Setting) -> list[Tensor]:
    flat, stacked = s.zeros(2 * s.size, 3), s.zeros(s.size, 2, 3)
    dist.all_gather_into_tensor(flat, s.make(2, 3), group=s.group)
    if s.device == "cpu":  # gloo knows the flat form only
        return [flat, flat.view(s.size, 2, 3)]
    dist.all_gather_into_tensor(stacked, s.make(2, 3), group=s.group)
    return [flat, stacked]


@case(CASES, "reduce_scatter")
def _(s: Setting) -> list[Tensor]:
    out = s.zeros(3)
    parts = [s.make(3, key=i) for i in range(s.size)]
    if s.device == "cpu":
        return [_rows(s, torch.stack(parts)).sum(0)[s.rank].to(s.dtype)]
    dist.reduce_scatter(out, parts, group=s.group)
    return [out]


def _reduce_scatter_single(name: str) -> Case:
    def run(s: Setting) -> list[Tensor]:
        out, x = s.zeros(2, 3), s.make(2 * s.size, 3)
        if s.device == "cpu":
            rows = _rows(s, x)[:, 2 * s.rank : 2 * s.rank + 2]
            return [getattr(torch, name)(rows, 0).to(s.dtype)]
        op = {"sum": Op.SUM, "amax": Op.MAX, "amin": Op.MIN, "prod": Op.PRODUCT}[name]
        dist.reduce_scatter_tensor(out, x, op, group=s.group)
        return [out]

    return run


for _name in ("sum", "amax", "amin", "prod"):
    CASES[f"reduce_scatter_tensor_{_name}"] = _reduce_scatter_single(_name)


@case(CASES, "gather")
def _(s: Setting) -> list[Tensor]:
    root = s.rank == s.size - 1
    found = [s.zeros(4) for _ in range(s.size)] if root else None
    dist.gather(s.make(4), found, dst=s.ranks[-1], group=s.group)
    return found or []


@case(CASES, "scatter")
def _(s: Setting) -> list[Tensor]:
    parts = [s.make(2, 2, key=i) for i in range(s.size)] if s.rank == 0 else None
    out = s.zeros(2, 2)
    dist.scatter(out, parts, src=s.ranks[0], group=s.group)
    return [out]


@case(CASES, "all_to_all_single")
def _(s: Setting) -> list[Tensor]:
    out = s.zeros(2 * s.size, 2)
    dist.all_to_all_single(out, s.make(2 * s.size, 2), group=s.group)
    return [out]


def _uneven(s: Setting) -> tuple[list[int], list[int]]:
    """How many rows this rank sends to each rank, and gets from each; some are none."""
    return [(s.rank + 2 * i) % 4 for i in range(s.size)], [
        (i + 2 * s.rank) % 4 for i in range(s.size)
    ]


@case(CASES, "all_to_all_single_uneven")
def _(s: Setting) -> list[Tensor]:
    there, here = _uneven(s)
    out = s.zeros(sum(here), 2)
    dist.all_to_all_single(out, s.make(sum(there), 2), here, there, group=s.group)
    return [out]


@case(CASES, "all_to_all")
def _(s: Setting) -> list[Tensor]:
    there, here = _uneven(s)
    outs, inputs = [s.zeros(n, 3) for n in here], list(s.make(sum(there), 3).split(there))
    if s.device == "cpu":
        flat = s.zeros(sum(here), 3)
        dist.all_to_all_single(flat, torch.cat(inputs), here, there, group=s.group)
        return list(flat.split(here))
    dist.all_to_all(outs, inputs, group=s.group)
    return outs


@case(CASES, "send_recv")
def _(s: Setting) -> list[Tensor]:
    x = s.make(3, 2)
    if s.rank == 0:
        dist.send(x, s.ranks[-1], group=s.group)
    elif s.rank == s.size - 1:
        dist.recv(x, s.ranks[0], group=s.group)
    return [x]


@case(CASES, "batch_isend_irecv")
def _(s: Setting) -> list[Tensor]:
    after, before = s.ranks[(s.rank + 1) % s.size], s.ranks[s.rank - 1]
    first, second = s.zeros(4), s.zeros(2, 2)
    operations = [
        dist.P2POp(dist.isend, s.make(4), after, s.group, tag=1),
        dist.P2POp(dist.irecv, second, before, s.group, tag=2),
        dist.P2POp(dist.isend, s.make(2, 2, key=1), after, s.group, tag=2),
        dist.P2POp(dist.irecv, first, before, s.group, tag=1),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return [first, second]


# ---- forms, whatever the dtype


@case(ONCE, "scalars")
def _(s: Setting) -> list[Tensor]:
    x, y = s.make(), s.make(key=1)
    dist.all_reduce(x, group=s.group)
    dist.broadcast(y, s.ranks[0], group=s.group)
    found = [s.zeros() for _ in range(s.size)]
    dist.all_gather(found, s.make(key=2), group=s.group)
    return [x, y, *found]


@case(ONCE, "zero_sizes")
def _(s: Setting) -> list[Tensor]:
    x = s.make(0, 3)
    dist.all_reduce(x, group=s.group)
    dist.broadcast(x, s.ranks[0], group=s.group)
    found = [s.zeros(0, 3) for _ in range(s.size)]
    dist.all_gather(found, x, group=s.group)
    whole = s.zeros(0)
    if s.device == "tpu":
        dist.reduce_scatter_tensor(whole, s.zeros(0), group=s.group)
        dist.all_to_all_single(s.zeros(0), s.zeros(0), group=s.group)
    return [x, whole, *found]


@case(ONCE, "views_are_written_through")
def _(s: Setting) -> list[Tensor]:
    base = s.make(6, 4)
    dist.all_reduce(base[1:3, 1:], group=s.group) if s.device == "tpu" else _cpu_view(s, base)
    channels = s.make(2, 3, 4, 4, key=1).to(memory_format=torch.channels_last)
    dist.broadcast(channels, s.ranks[0], group=s.group)
    return [base, channels]


def _cpu_view(s: Setting, base: Tensor) -> None:
    part = base[1:3, 1:].contiguous()
    dist.all_reduce(part, group=s.group)
    base[1:3, 1:] = part


@case(ONCE, "transposed_inputs")
def _(s: Setting) -> list[Tensor]:
    x = s.make(4, 2).t()
    found = [s.zeros(2, 4) for _ in range(s.size)]
    dist.all_gather(found, x.contiguous() if s.device == "cpu" else x, group=s.group)
    return [*found, x]


@case(ONCE, "async_works_and_futures")
def _(s: Setting) -> list[Tensor]:
    x, y = s.make(3), s.make(3, key=1)
    works = [dist.all_reduce(t, group=s.group, async_op=True) for t in (x, y)]
    doubled = works[0].get_future().then(lambda f: [t * 2 for t in f.value()])
    for work in works:
        work.wait()
    return [x, y, *doubled.wait()]


@case(ONCE, "coalesced")
def _(s: Setting) -> list[Tensor]:
    xs = [s.make(2), s.make(3, 2, key=1)]
    if s.device == "cpu":
        for x in xs:
            dist.all_reduce(x, group=s.group)
        wide = s.zeros(4 * s.size)
        dist.all_gather_into_tensor(wide, s.make(4, key=2), group=s.group)
        return [*xs, wide]
    with dist._coalescing_manager(group=s.group, async_ops=True) as manager:
        for x in xs:
            dist.all_reduce(x, group=s.group)
    manager.wait()
    wide = s.zeros(4 * s.size)
    with dist._coalescing_manager(group=s.group):
        dist.all_gather_into_tensor(wide, s.make(4, key=2), group=s.group)
    return [*xs, wide]


@case(ONCE, "large")
def _(s: Setting) -> list[Tensor]:
    x = s.make(300_001)
    dist.all_reduce(x, group=s.group)
    return [x]
