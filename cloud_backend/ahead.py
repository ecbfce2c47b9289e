"""Ahead of time for a TPU, without one: the compiler in libtpu, its executable, and a report.

libtpu compiles for any topology on any x86-64 Linux machine. What comes back is the program that a
TPU would run, with the compiler's own counts; the step time is an estimate by the roofline model.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import json
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cloud_backend import runtime, tensor
from cloud_backend.ahead_loops import loops
from cloud_backend.ahead_report import Collective, TpuReport, refused
from cloud_backend.chips import chip_of
from cloud_backend.stablehlo import PureProgram
from torch_tpu_unified.core.errors import ConversionError, InputError, OptionError

SHARDS = ("none", "batch", "weights")
_MAGIC = "torch_tpu_unified executable 1"
_HBM = re.compile(r"exceeds available HBM|Exceeded hbm capacity|Ran out of memory")
_COLLECTIVE = re.compile(
    r"= (?P<type>\(?[^=]*?) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|"
    r"collective-permute|ragged-all-to-all)(?:-start)?\("
)
_ARRAY = re.compile(r"\b(?P<dtype>pred|[subf]\w*?\d+\w*|c64|c128)\[(?P<size>[\d,]*)\]")


def _prepare() -> None:
    """What libtpu asks of its surroundings; off Google's cloud nobody else answers."""
    if importlib.util.find_spec("libtpu") is None:
        raise OptionError(
            "the TPU compiler is not installed; pip install 'torch-tpu-unified[tpu]' brings libtpu "
            "(Linux on x86-64)"
        )
    if not runtime.has_tpu_hardware():
        for name, value in (
            ("TPU_SKIP_MDS_QUERY", "1"),
            ("TPU_ACCELERATOR_TYPE", "v5litepod-4"),
            ("TPU_WORKER_HOSTNAMES", "localhost"),
            ("TPU_MIN_LOG_LEVEL", "3"),
            # Without chips there is nothing that two processes could not share.
            ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1"),
        ):
            os.environ.setdefault(name, value)


@functools.cache
def devices(topology: str) -> list[Any]:
    """The devices of a topology such as `v6e:2x4`, as the compiler knows them.

    Raises:
        OptionError: libtpu is not installed, or does not know the topology.
    """
    chip_of(topology)
    _prepare()
    runtime.start()
    from jax.experimental import topologies

    try:
        found = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    except Exception as err:  # of several kinds, with libtpu's own text
        raise OptionError(f"libtpu does not know the topology {topology}: {_first(err)}") from err
    return list(found.devices)


def _first(err: BaseException) -> str:
    return (str(err).strip().splitlines() or [type(err).__name__])[0]


def compile_for(program: PureProgram, topology: str, *, shard: str = "none") -> TpuExecutable:
    """Compile a program for a topology.

    Args:
        shard: `none`: one device runs it; `batch`: all devices, each with a part of the inputs'
            first dimension; `weights`: likewise, and each weight is spread over the devices along
            its largest dimension that divides.

    Raises:
        OptionError: the topology or `shard` is unknown, or libtpu is not installed.
        OutOfMemory: the program does not fit; the error holds the report.
        ConversionError: the compiler refuses it otherwise.
    """
    if shard not in SHARDS:
        raise OptionError(f"shard={shard!r} is unknown; one of {', '.join(SHARDS)}")
    found = devices(topology)
    jax = runtime.start()
    used = found if shard != "none" else found[:1]
    place = _placement(jax, used, shard)
    arguments = program.shapes(place)
    chip = chip_of(topology)
    report = TpuReport(
        topology=topology,
        chip=chip,
        devices=len(used),
        shard=shard,
        weights=sum(t.numel() * t.element_size() for t in program.weights.values()),
        largest=_largest(program),
    )
    traced = jax.jit(program.__call__, keep_unused=True).trace(*arguments)
    try:
        with _not_kept():
            compiled = traced.lower(lowering_platforms=("tpu",)).compile()
    except Exception as err:  # the compiler's errors have one type and many meanings
        if _HBM.search(str(err)):
            raise refused(report, str(err)) from err
        raise ConversionError(f"the TPU compiler refuses the program: {_first(err)}") from err
    _fill(report, compiled)
    if shard == "none":
        with _not_kept():
            report.loops = loops(traced, place((), True))
        report.flops += sum(loop.again * loop.flops for loop in report.loops)
        report.bytes_accessed += sum(loop.again * loop.bytes_accessed for loop in report.loops)
    signature = {
        "weights": {n: _described(t) for n, t in program.weights.items()},
        "inputs": {
            n: _described(t) for n, t in zip(program.inputs, program.input_values, strict=True)
        },
        "outputs": program.outputs,
        "random": program.random,
    }
    return TpuExecutable(compiled.runtime_executable().serialize(), report, signature)


def _not_kept() -> Any:
    """Keeps the executable out of the cache on disk, which could not load it without its TPU."""
    from jax._src import config

    return config.persistent_cache_min_compile_time_secs(float("inf"))


def _placement(jax: Any, used: list[Any], shard: str) -> Any:
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh, count = Mesh(np.array(used), ("devices",)), len(used)

    def place(size: tuple[int, ...], is_weight: bool) -> Any:
        axis = None
        if is_weight and shard == "weights":
            fitting = [d for d, n in enumerate(size) if n and n % count == 0]
            axis = max(fitting, key=lambda d: size[d], default=None)
        elif not is_weight and shard != "none" and size and size[0] % count == 0:
            axis = 0
        spec = [None] * len(size)
        if axis is not None:
            spec[axis] = "devices"  # type: ignore[call-overload]
        return NamedSharding(mesh, PartitionSpec(*spec))

    return place


def _largest(program: PureProgram) -> list[tuple[str, int]]:
    """The largest tensors of the program by name: weights and intermediate values."""
    sizes = {name: t.numel() * t.element_size() for name, t in program.weights.items()}
    for node in program.module.graph.nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and isinstance(value, torch.Tensor):
            sizes[f"{node.name} ({node.target})"] = value.numel() * value.element_size()
    return sorted(sizes.items(), key=lambda item: -item[1])[:8]


def _described(t: torch.Tensor) -> list[Any]:
    return [str(t.dtype).removeprefix("torch."), list(t.shape)]


def _fill(report: TpuReport, compiled: Any) -> None:
    costs, memory = compiled.cost_analysis() or {}, compiled.memory_analysis()
    report.flops = float(costs.get("flops", 0))
    report.bytes_accessed = float(costs.get("bytes accessed", 0))
    report.arguments = memory.argument_size_in_bytes
    report.results = memory.output_size_in_bytes
    report.temporaries = memory.temp_size_in_bytes
    report.aliased = memory.alias_size_in_bytes
    report.code = memory.generated_code_size_in_bytes
    report.collectives = collectives(compiled.as_text())


def collectives(hlo: str) -> list[Collective]:
    """The collective operations of an optimised HLO text, and the bytes of their results."""
    found: dict[tuple[str, int], int] = {}
    for line in hlo.splitlines():
        if match := _COLLECTIVE.search(line):
            sizes = [_bytes(m) for m in _ARRAY.finditer(match["type"])]
            key = match["kind"], max(sizes, default=0)
            found[key] = found.get(key, 0) + 1
    return [
        Collective(kind, count, nbytes)
        for (kind, nbytes), count in sorted(found.items(), key=lambda i: -i[0][1] * i[1])
    ]


def _bytes(match: re.Match[str]) -> int:
    count = 1
    for n in filter(None, match["size"].split(",")):
        count *= int(n)
    bits = re.search(r"\d+", match["dtype"])
    wide = {"c64": 64, "c128": 128, "pred": 8}.get(match["dtype"], int(bits[0]) if bits else 8)
    return count * wide // 8


class TpuExecutable:
    """A compiled program for one topology.

    Attributes:
        content: the executable, as libtpu writes it.
        report: a `TpuReport`.
        signature: names, dtypes and shapes of weights and inputs, names of outputs.
    """

    def __init__(self, content: bytes, report: TpuReport, signature: dict[str, Any]) -> None:
        self.content, self.report, self.signature = content, report, signature

    def __repr__(self) -> str:
        return f"TpuExecutable({self.report.topology}, {len(self.content)} bytes)"

    def packed(self) -> bytes:
        """The file's content: the executable, its signature and its report, no pickle in it."""
        import jax

        told = {"format": _MAGIC, "jax": jax.__version__, "libtpu": _libtpu_version()}
        told |= {"signature": self.signature, "report": self.report.as_json()}
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("program.json", json.dumps(told, indent=1))
            archive.writestr("executable", self.content)
        return buffer.getvalue()


def _libtpu_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("libtpu")
    except PackageNotFoundError:
        return "unknown"


def load_executable(
    path: str | os.PathLike[str], weights: Mapping[str, torch.Tensor] | None = None
) -> LoadedExecutable:
    """Load a file of `tpu-convert --to tpu` on a machine with that TPU.

    Args:
        weights: a state_dict; the file holds the program only.

    Raises:
        InputError: it is no such file, this machine has not that TPU, its jax is another version,
            or weights are missing or of another shape.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            told = json.loads(archive.read("program.json"))
            content = archive.read("executable")
    except FileNotFoundError:
        raise InputError(f"{Path(path)} does not exist") from None
    except (zipfile.BadZipFile, KeyError, ValueError, OSError) as err:
        raise InputError(f"{Path(path)} is no file of tpu-convert --to tpu: {err}") from err
    if told.get("format") != _MAGIC:
        raise InputError(f"{Path(path)} is of another version; convert the model again")
    jax = runtime.start()
    report, found = told["report"], jax.devices()
    chip = chip_of(report["topology"])
    if found[0].device_kind != chip.kind or len(found) < report["devices"]:
        raise InputError(
            f"{Path(path)} is compiled for {report['topology']} ({report['devices']} devices of "
            f"the kind {chip.kind}); this machine has {len(found)} of the kind "
            f"{found[0].device_kind}. Run it there, or convert the model for what is here"
        )
    if told["jax"] != jax.__version__:
        raise InputError(
            f"{Path(path)} was made with jax {told['jax']}, and this is {jax.__version__}; "
            "install that version, or convert the model again"
        )
    return LoadedExecutable(content, told, weights or {})


class LoadedExecutable:
    """A program on its TPU; call it with the inputs. Programs of one device run today."""

    def __init__(
        self, content: bytes, told: dict[str, Any], weights: Mapping[str, torch.Tensor]
    ) -> None:
        self.signature, jax = told["signature"], runtime.start()
        if told["report"]["devices"] != 1:
            raise InputError(
                "this executable spans several devices, which cannot be run from here yet; "
                "compile it with shard='none', or use torch.compile on the slice"
            )
        device = jax.devices()[0]
        arrays = check_tensors("weight", self.signature["weights"], weights)
        self._weights = [jax.device_put(tensor.host_array(t.cpu()), device) for t in arrays]
        self._device = device
        self._loaded = device.client.deserialize_executable(content, [device])

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Run it.

        Returns:
            Every result in the order of `signature["outputs"]`, on the CPU.

        Raises:
            InputError: an input is missing or has another shape or dtype.
        """
        jax = runtime.start()
        names = list(self.signature["inputs"])
        given = dict(zip(names, inputs, strict=False))
        tensors = check_tensors("input", self.signature["inputs"], given)
        arrays = [jax.device_put(tensor.host_array(t.cpu()), self._device) for t in tensors]
        if self.signature["random"]:
            arrays.append(jax.numpy.zeros(4, jax.numpy.uint32))
        results = self._loaded.execute([*self._weights, *arrays])
        return [tensor.to_tensor(r).cpu() for r in results]


def check_tensors(
    what: str, wanted: Mapping[str, Any], given: Mapping[str, torch.Tensor]
) -> list[torch.Tensor]:
    """The tensors in the executable's order: jax sorts weights by name.

    Raises:
        InputError: one is missing or has another shape or dtype.
    """
    names = sorted(wanted) if what == "weight" else list(wanted)
    for name in names:
        if name not in given:
            raise InputError(f"the {what} {name} is missing; give {wanted[name]}")
        found = _described(given[name])
        if found != list(wanted[name]):
            raise InputError(f"the {what} {name} is {found}, not {list(wanted[name])}")
    return [given[name] for name in names]
