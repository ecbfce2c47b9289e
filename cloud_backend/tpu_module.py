"""The module `torch.tpu`: devices, synchronisation, streams, random state, memory, counters.

Names follow `torch.cuda` and Google's torch_tpu; a name whose feature belongs to a later stage
raises `NotYetAvailable`. There is one logical device in a process and one stream; XLA orders the
work.
"""

from __future__ import annotations

import contextlib
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

import torch

from cloud_backend import cache, eager_modes, events, rng, runtime
from cloud_backend.eager_modes import EagerMode as EagerMode
from cloud_backend.eager_modes import eager_mode as eager_mode
from cloud_backend.eager_modes import get_eager_mode as get_eager_mode
from cloud_backend.eager_modes import set_eager_mode as set_eager_mode
from cloud_backend.events import Memory
from cloud_backend.precision import Precision as Precision
from cloud_backend.precision import precision as precision
from torch_tpu_unified.core.errors import not_yet

default_generators = (rng.default_generator,)


# torch.utils.checkpoint saves the random state only of devices that say so.
_initialized = True


def is_available() -> bool:
    """True: without TPU hardware the device runs on the CPU with the same semantics."""
    return True


def is_initialized() -> bool:
    """True once jax has started."""
    return runtime.start.cache_info().currsize > 0


def init() -> None:
    """Start jax now instead of at the first operator."""
    from cloud_backend import dispatch

    dispatch.boot()


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    """1: several chips in one process are one logical device."""
    return 1


def current_device() -> int:
    """0, the only device index."""
    return 0


def _index(device: Any) -> int:
    if device is None:
        return 0
    index = device if isinstance(device, int) else torch.device(device).index or 0
    if index not in (0, -1):
        raise RuntimeError(f"tpu:{index} does not exist: a process sees one logical device, tpu:0")
    return 0


def set_device(device: Any) -> None:
    """Accepts device 0 only.

    Raises:
        RuntimeError: another index.
    """
    _index(device)


_exchange_device = _maybe_exchange_device = lambda device: 0


class device:
    """Context manager that selects a device, as `torch.cuda.device`; there is only index 0."""

    def __init__(self, device: Any) -> None:
        self.idx = _index(device)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: Any) -> None:
        return None


class device_of(device):
    """Context manager that selects the device of a tensor."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(0)


def get_device_name(device: Any = None) -> str:
    """The chip's name, such as `TPU v5e`, or `cpu` where the device runs on the CPU."""
    _index(device)
    return str(runtime.device().device_kind)


def get_device_properties(device: Any = None) -> types.SimpleNamespace:
    """name, platform, total_memory (bytes, 0 when unknown), chips, process_index."""
    _index(device)
    chip = runtime.device()
    stats = chip.memory_stats() or {}
    return types.SimpleNamespace(
        name=str(chip.device_kind),
        platform=chip.platform,
        total_memory=int(stats.get("bytes_limit", 0)),
        chips=runtime.start().local_device_count(),
        process_index=chip.process_index,
    )


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """(0, 0): a CUDA notion that has no meaning here."""
    _index(device)
    return (0, 0)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """dtypes that `torch.autocast("tpu", ...)` takes."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported() -> bool:
    """True."""
    return True


# ---- synchronisation


def synchronize(device: Any = None) -> None:
    """Wait until all computations that were issued have finished."""
    if device is not None and not isinstance(device, int):
        _index(device)
    if is_initialized():
        eager_modes.flush()
        jax = runtime.start()
        for array in jax.live_arrays():
            if not array.is_deleted():
                array.block_until_ready()


class Stream:
    """The one stream of the device. XLA orders computations by their data, so waiting is free."""

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.device = torch.device("tpu", _index(device))
        self.stream_id = 0
        self.device_index = 0
        self.device_type = 20

    def synchronize(self) -> None:
        synchronize()

    def query(self) -> bool:
        synchronize()
        return True

    def wait_event(self, event: Any) -> None:
        return None

    def wait_stream(self, stream: Any) -> None:
        return None

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: Any) -> None:
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)

    def __hash__(self) -> int:
        return 0


class Event:
    """A point in the work. With `enable_timing`, `record` waits for the work before it."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, **kwargs: Any) -> None:
        self.enable_timing = enable_timing
        self._time: float | None = None

    def record(self, stream: Any = None) -> None:
        if self.enable_timing:
            synchronize()
        self._time = time.perf_counter()

    def synchronize(self) -> None:
        synchronize()

    def query(self) -> bool:
        synchronize()
        return True

    def wait(self, stream: Any = None) -> None:
        return None

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to `end`.

        Raises:
            RuntimeError: one of them was not recorded or does not take times.
        """
        if (
            self._time is None
            or end._time is None
            or not (self.enable_timing and end.enable_timing)
        ):
            raise RuntimeError("both events must be recorded, with enable_timing=True")
        return (end._time - self._time) * 1e3


_stream = Stream.__new__(Stream)
_stream.device, _stream.stream_id = torch.device("privateuseone", 0), 0
_stream.device_index, _stream.device_type = 0, 20


def current_stream(device: Any = None) -> Stream:
    """The device's stream."""
    _index(device)
    return _stream


default_stream = current_stream


def set_stream(stream: Any) -> None:
    """Nothing to do: there is one stream."""


@contextlib.contextmanager
def stream(stream: Any) -> Iterator[None]:
    """Context manager for `torch.tpu.Stream`, for programs written for CUDA."""
    yield


# ---- random state


def manual_seed(seed: int) -> None:
    """Seed the device's generator."""
    rng.default_generator.manual_seed(seed)


manual_seed_all = manual_seed


def seed() -> None:
    """Seed the device's generator from the operating system."""
    rng.default_generator.seed()


seed_all = seed


def initial_seed() -> int:
    """The seed of the device's generator."""
    return rng.default_generator.initial_seed()


def get_rng_state(device: Any = "tpu") -> torch.Tensor:
    """The state of the device's generator, uint8[16] on the CPU."""
    return rng.default_generator.get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "tpu") -> None:
    """Set the state of the device's generator."""
    rng.default_generator.set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices (one)."""
    return [get_rng_state()]


def set_rng_state_all(new_states: Any) -> None:
    """Set the states of all devices (one)."""
    for state in new_states:
        set_rng_state(state)


# ---- memory


def memory_allocated(device: Any = None) -> int:
    """Bytes held by tensors on the device."""
    _index(device)
    return Memory.current


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that tensors held since the last `reset_peak_memory_stats`."""
    _index(device)
    return Memory.peak


def reset_peak_memory_stats(device: Any = None) -> None:
    """Start a new peak."""
    _index(device)
    Memory.peak = Memory.current


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Nothing to do: no accumulated counters are kept."""
    _index(device)


def memory_reserved(device: Any = None) -> int:
    """Bytes the XLA client holds; where it does not say (CPU), those of tensors."""
    stats = (runtime.device().memory_stats() or {}) if is_initialized() else {}
    return int(stats.get("bytes_in_use", Memory.current))


def max_memory_reserved(device: Any = None) -> int:
    """The most bytes the XLA client held; where it does not say (CPU), those of tensors."""
    stats = (runtime.device().memory_stats() or {}) if is_initialized() else {}
    return int(stats.get("peak_bytes_in_use", Memory.peak))


def memory_stats(device: Any = None) -> dict[str, int]:
    """Counters under the names of `torch.cuda.memory_stats`."""
    return {
        "allocated_bytes.all.current": Memory.current,
        "allocated_bytes.all.peak": Memory.peak,
        "reserved_bytes.all.current": memory_reserved(),
        "reserved_bytes.all.peak": max_memory_reserved(),
    }


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes: of the chip, or of this machine where the device runs on the CPU."""
    stats = runtime.device().memory_stats() or {}
    if stats.get("bytes_limit"):
        return int(stats["bytes_limit"] - stats["bytes_in_use"]), int(stats["bytes_limit"])
    import os

    page = os.sysconf("SC_PAGE_SIZE")
    return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")


get_memory_info = mem_get_info


def empty_cache() -> None:
    """Nothing to do: XLA's allocator has no cache to give back."""


# ---- counters


def compile_count() -> int:
    """XLA programs made so far in this process, eager ones and compiled ones."""
    return events.Counters.plans + events.Counters.graphs + events.Counters.fused


cache_stats = cache.stats


def fallback_count() -> int:
    """Operator calls that ran on the CPU because `TTU_FALLBACK=warn` allowed it."""
    return sum(events.Counters.fallbacks.values())


def host_sync_count() -> int:
    """How often the host waited for a value of the device."""
    return events.Counters.host_syncs


def compile_stats() -> dict[str, int]:
    """Programs made so far: of eager operators, of compiled graphs, and how many were recompiles.

    A recompile is a program that a compiled function needs beyond its first: a guard of PyTorch
    failed, or a graph met new sizes. `TTU_LOG_RECOMPILES=1` tells each with its reason.
    """
    found = events.Counters
    return {"eager": found.plans, "graphs": found.graphs, "recompiles": found.recompiles}


def transfer_stats() -> dict[str, int]:
    """Copies between host and device so far, and their bytes."""
    found = events.Counters
    return {
        "to_device": found.to_device,
        "to_device_bytes": found.to_device_bytes,
        "to_host": found.to_host,
        "to_host_bytes": found.to_host_bytes,
    }


error_on_recompile = events.error_on_recompile


# ---- names of Google's torch_tpu that come later

allow_excess_precision = not_yet(
    "torch.tpu.allow_excess_precision", "results keep the precision of their dtype"
)
topology_aware_mesh = not_yet("torch.tpu.topology_aware_mesh", "use one process and one device")

_LATER = {
    "compiler": ("custom_compiler_options",),
    "distributed": [
        "set_tpu_launch_env",
        "spmd_safe",
        "topology_aware_mesh",
        "window_num_stripes",
        "window_stripe_chunk_mb",
    ],
    "ops": [
        "align_jagged_to_multiple",
        "all_gather_dim",
        "max_pool1d",
        "max_pool1d_backward",
        "max_pool2d",
        "max_pool2d_backward",
        "max_pool3d",
        "max_pool3d_backward",
        "optimization_barrier",
        "ragged_all_to_all",
        "ragged_dot",
        "ragged_dot_weight_grad",
        "recv",
        "reduce_scatter_dim",
        "send",
        "sparse_dense_matmul",
        "sparse_dense_matmul_activation_unstack",
        "sparse_dense_matmul_grad_with_adagrad",
        "sparse_dense_matmul_grad_with_adam",
        "sparse_dense_matmul_grad_with_sgd",
        "sparse_dense_matmul_gradient_stack",
        "sparse_gather",
        "sparse_gather_backward",
        "sparse_iota",
        "sparse_map_row",
        "splash_sdpa",
        "strip_jagged_padding",
    ],
    "optimizers": ("AdamW", "Muon", "Optimizer", "Sgd", "SingleTraceTrainer"),
    "profiler": ("TpuProfilerConfig",),
}


def _amp() -> types.ModuleType:
    """`torch.tpu.amp`: `autocast` and `GradScaler` with this device filled in."""
    module = types.ModuleType("torch.tpu.amp", "Automatic mixed precision for the tpu device.")

    class autocast(torch.amp.autocast_mode.autocast):
        def __init__(self, enabled: bool = True, dtype: torch.dtype = torch.bfloat16) -> None:
            super().__init__("tpu", enabled=enabled, dtype=dtype)

    class GradScaler(torch.amp.GradScaler):
        def __init__(self, **options: Any) -> None:
            super().__init__("tpu", **options)

    module.autocast, module.GradScaler = autocast, GradScaler  # type: ignore[attr-defined]
    return module


def install_submodules() -> None:
    """Make `torch.tpu.ops`, `torch.tpu.distributed` and the others importable."""
    for name, members in _LATER.items():
        module = types.ModuleType(
            f"torch.tpu.{name}", "Part of torch.tpu whose functions come later."
        )
        for member in members:
            instead = "use the operators of torch and torch.nn.functional on tpu tensors"
            setattr(module, member, not_yet(f"torch.tpu.{name}.{member}", instead))
        sys.modules[module.__name__] = module
        globals()[name] = module
    from cloud_backend import pallas

    globals()["pallas"] = sys.modules["torch.tpu.pallas"] = pallas
    globals()["amp"] = sys.modules["torch.tpu.amp"] = _amp()
