"""The c10d process group of tpu tensors; a plain gloo group inside serves CPU tensors.

c10d calls the methods by many names (`_allgather_base`, `all_gather_single`, ...), from Python and
from C++; each is here, since what is missing would end in "no backend for device type tpu".
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo

from cloud_backend import dispatch, tensor, tpu_module
from cloud_backend.distributed import collectives, launch, point_to_point
from cloud_backend.distributed.mesh import GroupMesh, group_mesh
from cloud_backend.distributed.reductions import reduction
from cloud_backend.distributed.work import Receiving, Work
from cloud_backend.registration import hide_from_dynamo

Tensor = torch.Tensor


class TpuProcessGroup(dist.ProcessGroup):
    """A group of ranks whose tpu tensors meet in XLA programs.

    Args:
        store: shared by the group's members.
        ranks: the global rank of each member, in the group's order.
        rank: which member this process is.
        timeout: for the operations of CPU tensors; those of tpu end when a rank is lost.
    """

    def __init__(self, store: Any, ranks: Sequence[int], rank: int, timeout: timedelta) -> None:
        super().__init__(rank, len(ranks))
        self.ranks, self._timeout, self._store = tuple(ranks), timeout, store
        self._name = self._description = ""
        self._splits = 0
        self.on_host = dist.ProcessGroup(PrefixStore("host", store), rank, len(ranks))
        gloo = ProcessGroupGloo(PrefixStore("gloo", store), rank, len(ranks), timeout=timeout)
        self.on_host._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self.on_host._register_backend(
            torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo
        )
        gloo._set_sequence_number_for_group()
        self.mesh: GroupMesh = group_mesh(self.ranks, rank)

    @classmethod
    def create(cls, options: Any) -> TpuProcessGroup:
        """A group from c10d's options; the first one joins this process to the others."""
        ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
        if not options.global_ranks_in_group:
            launch.join(options.store, options.group_rank, options.group_size)
        dispatch.boot()
        return cls(options.store, ranks, options.group_rank, options.timeout)

    # ---- reductions

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        given = _listed(tensors)
        if not _ours(given):
            return self.on_host.allreduce(tensors, *_given(opts, timeout))
        return self._in_place(given, collectives.all_reduce, reduction(opts))

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        if not _ours(tensors):
            return self.on_host.allreduce_coalesced(tensors, *_given(opts))
        return self._in_place(tensors, collectives.all_reduce, reduction(opts))

    def reduce(self, tensors: Any, opts: Any = None, *rest: Any) -> Any:
        given = _listed(tensors)
        if not _ours(given):
            return self.on_host.reduce(tensors, *_given(opts), *rest)
        root, op = (opts, rest[0] if rest else None) if isinstance(opts, int) else (None, opts)
        results = self._run(collectives.all_reduce, reduction(op), tensors=given)
        if self.rank() == (op.rootRank if root is None else root):
            _write(given, results)
        return Work(given)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, *rest: Any) -> Any:
        if isinstance(outputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        if not _ours(outputs):
            return self.on_host.reduce_scatter(outputs, inputs, *_given(opts), *rest)
        op = reduction(opts)
        for output, parts in zip(outputs, inputs, strict=True):
            longest = max(p.numel() for p in parts)
            rows = _stack([_padded(tensor.read(p), longest) for p in parts])
            (row,) = self.mesh.run(collectives.reduce_scatter, op, arrays=[rows])
            _write([output], [row[: output.numel()]])
        return Work(outputs)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        if not _ours([output]):
            return self.on_host.reduce_scatter_single(output, input, *_given(opts))
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        if not _ours(outputs):
            return self.on_host.reduce_scatter_single_coalesced(outputs, inputs, *_given(opts))
        rows = [tensor.read(x).reshape(self.size(), -1) for x in inputs if x.numel()]
        op = reduction(opts)
        if rows:
            results = self.mesh.run(collectives.reduce_scatter, op, arrays=rows)
            _write([o for o in outputs if o.numel()], results)
        return Work(outputs)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- copies between ranks

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        given = _listed(tensors)
        if not _ours(given):
            return self.on_host.broadcast(tensors, *_given(opts, timeout))
        root = opts if isinstance(opts, int) else opts.rootRank
        return self._in_place(given, collectives.broadcast, root)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, *rest: Any) -> Any:
        if isinstance(inputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        if not _ours(inputs):
            return self.on_host.allgather(outputs, inputs, *_given(opts), *rest)
        for row, x in zip(outputs, inputs, strict=True):
            self._gathered(row, x, True)
        return Work([t for row in outputs for t in row], outputs)

    allgather_coalesced = allgather

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        if not _ours([input]):
            return self.on_host.all_gather_single(output, input, *_given(opts))
        return self.all_gather_single_coalesced([output], [input])

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        if not _ours(inputs):
            return self.on_host.all_gather_single_coalesced(outputs, inputs, *_given(opts))
        results = self._run(collectives.all_gather, tensors=inputs)
        _write(outputs, results)
        return Work(outputs)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, *rest: Any) -> Any:
        if isinstance(inputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        if not _ours(inputs):
            return self.on_host.gather(outputs, inputs, *_given(opts), *rest)
        wanted = self.rank() == (opts if isinstance(opts, int) else opts.rootRank)
        for i, x in enumerate(inputs):
            self._gathered(outputs[i] if wanted else [], x, wanted)
        return Work([t for row in outputs for t in row] if wanted else [], outputs)

    def _gathered(self, targets: Sequence[Tensor], x: Tensor, wanted: bool) -> None:
        """Every rank's `x` into the targets, which may differ in their first sizes."""
        longest = max([x.numel(), *(t.numel() for t in targets)])
        array = tensor.read(x)
        if any(t.numel() != longest for t in targets):
            array = _padded(array, longest)
        (rows,) = self.mesh.run(collectives.all_gather, arrays=[array])
        if wanted:
            flat = rows.reshape(self.size(), -1)
            _write(targets, [flat[i, : t.numel()] for i, t in enumerate(targets)])

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, *rest: Any) -> Any:
        if isinstance(outputs, Tensor):
            outputs, inputs = [outputs], [inputs] if inputs else []
        if not _ours(outputs):
            return self.on_host.scatter(outputs, inputs, *_given(opts), *rest)
        root = opts if isinstance(opts, int) else opts.rootRank
        for i, output in enumerate(outputs):
            if self.rank() == root:
                rows = _stack([tensor.read(t) for t in inputs[i]])
            else:
                rows = tensor.runtime.start().numpy.zeros(
                    (self.size(), *output.shape), tensor.to_jax(output.dtype)
                )
            if output.numel():
                _write([output], self.mesh.run(collectives.scatter, root, arrays=[rows]))
        return Work(outputs)

    def all_to_all_single(
        self, output: Any, input: Any, output_splits: Any, input_splits: Any, opts: Any = None
    ) -> Any:
        if not _ours([output]):
            return self.on_host.all_to_all_single(
                output, input, output_splits, input_splits, *_given(opts)
            )
        n = self.size()
        if not output_splits and not input_splits:
            if input.numel():
                rows = tensor.read(input).reshape(n, -1)
                _write([output], self.mesh.run(collectives.all_to_all, arrays=[rows]))
            return Work([output])
        there = list(output_splits) or [output.shape[0] // n] * n
        here = list(input_splits) or [input.shape[0] // n] * n
        self._exchange(list(output.split(there)), list(input.split(here)))
        return Work([output])

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        if not _ours(outputs):
            return self.on_host.alltoall(outputs, inputs, *_given(opts))
        self._exchange(outputs, inputs)
        return Work(outputs)

    def _exchange(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """Part i of the inputs to rank i. The parts' sizes differ: all pad to the longest."""
        jnp = tensor.runtime.start().numpy
        mine = max(t.numel() for t in (*outputs, *inputs))
        (most,) = self.mesh.run(collectives.all_reduce, "max", arrays=[jnp.asarray(mine)])
        longest = int(most.item())  # no rank can make the program before it knows all sizes
        if longest:
            rows = _stack([_padded(tensor.read(t), longest) for t in inputs])
            (got,) = self.mesh.run(collectives.all_to_all, arrays=[rows])
            _write(outputs, [got[i, : t.numel()] for i, t in enumerate(outputs)])

    # ---- point to point

    def send(self, tensors: Any, destination: int, tag: int) -> Any:
        if not _ours(tensors):
            return self.on_host.send(tensors, destination, tag)
        for t in tensors:
            point_to_point.send(self, tensor.read(t), destination, tag)
        return Work(tensors)

    def recv(self, tensors: Any, source: int, tag: int) -> Any:
        if not _ours(tensors):
            return self.on_host.recv(tensors, source, tag)
        arrays = [
            point_to_point.receive(self, t.numel(), tensor.to_jax(t.dtype), source, tag)
            for t in tensors
        ]
        return Receiving(tensors, arrays)

    def recv_anysource(self, tensors: Any, tag: int) -> Any:
        if not _ours(tensors):
            return self.on_host.recv_anysource(tensors, tag)
        raise NotImplementedError(
            "tpu: a tensor cannot be received from any source; name the source "
            "(dist.recv(tensor, src=...)), or receive a CPU tensor"
        )

    def _start_coalescing(self, device: Any) -> None:
        """Nothing to prepare: operations inside the block start one by one, without waiting."""

    def _end_coalescing(self, device: Any) -> Any:
        return Work()

    # ---- the group itself

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        """Wait for this process's work, then for the other ranks."""
        tpu_module.synchronize()
        options = dist.BarrierOptions()
        options.device = torch.device("cpu")
        return self.on_host.barrier(options)

    def split_group(
        self,
        new_ranks: Any,
        timeout: Any = None,
        opts: Any = None,
        group_name: Any = None,
        group_desc: Any = None,
        device_types: Any = None,
    ) -> TpuProcessGroup | None:
        """A group of some of this group's members, given by their ranks in it."""
        chosen = sorted(new_ranks)
        self._splits += 1
        if self.rank() not in chosen:
            return None
        store = PrefixStore(f"split/{self._splits}/{'_'.join(map(str, chosen))}", self._store)
        ranks = [self.ranks[r] for r in chosen]
        group = TpuProcessGroup(store, ranks, chosen.index(self.rank()), timeout or self._timeout)
        group._set_group_name(group_name or f"{self._name}/split/{self._splits}")
        group._set_group_desc(group_desc or "")
        return group

    supports_splitting, supports_coalescing, supports_time_estimate = True, False, False
    bound_device_id = torch.device("tpu", 0)  # a process has no other

    def perform_nocolor_split(self, device: Any) -> None:
        """Nothing to do for a rank that is in none of the new groups."""

    def eager_connect_single_device(self, device: Any) -> None:
        """Nothing to do: programs connect their ranks when they are made."""

    @property
    def options(self) -> Any:
        # c10d copies them, which it cannot do with its own class.
        return types.SimpleNamespace(
            backend="tpu",
            _timeout=self._timeout,
            group_name=self._name,
            global_ranks_in_group=list(self.ranks),
        )

    def _get_backend(self, device: Any) -> Any:
        cpu = torch.device(device).type == "cpu"
        return self.on_host._get_backend(torch.device("cpu")) if cpu else self

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("tpu")]

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to do: gloo numbers its own operations, XLA needs no numbers."""

    def _get_sequence_number_for_group(self) -> int:
        return int(self.on_host._get_sequence_number_for_group())

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout
        self.on_host.set_timeout(timeout)

    def get_group_store(self) -> Any:
        return self._store

    def shutdown(self) -> None:
        tpu_module.synchronize()
        self.on_host.shutdown()

    def abort(self) -> None:
        self.on_host.abort()

    def name(self) -> str:
        return "tpu"

    def getBackendName(self) -> str:
        return "tpu"

    def _get_backend_name(self) -> str:
        return "tpu"

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    _set_group_name = setGroupName

    @property
    def group_name(self) -> str:  # type: ignore[override]
        return self._name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, text: str) -> None:
        self._description = text

    _set_group_desc = setGroupDesc

    @property
    def group_desc(self) -> str:
        return self._description

    def _run(self, body: Any, *static: Any, tensors: Sequence[Tensor]) -> list[Any]:
        return self.mesh.run(body, *static, arrays=[tensor.read(t) for t in tensors])

    def _in_place(self, tensors: Sequence[Tensor], body: Any, *static: Any) -> Work:
        filled = [t for t in tensors if t.numel()]
        if filled:
            _write(filled, self._run(body, *static, tensors=filled))
        return Work(tensors)


# A graph break may fall between frames that call them.
hide_from_dynamo(*vars(TpuProcessGroup).values())


def _listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _ours(tensors: Sequence[Tensor]) -> bool:
    return bool(tensors) and tensors[0].device.type == "tpu"


def _given(*options: Any) -> list[Any]:
    return [o for o in options if o is not None]


def _stack(arrays: Sequence[Any]) -> Any:
    return tensor.runtime.start().numpy.stack(arrays)


def _padded(array: Any, length: int) -> Any:
    flat = array.reshape(-1)
    missing = length - flat.size
    return tensor.runtime.start().numpy.pad(flat, (0, missing)) if missing else flat


def _write(tensors: Sequence[Tensor], arrays: Sequence[Any]) -> None:
    for t, array in zip(tensors, arrays, strict=True):
        if t.numel():
            tensor.write(t, array.reshape(tuple(t.shape)).astype(tensor.to_jax(t.dtype)))
