"""What happens on the device: counters, and one observer that may listen.

The rest of the package reports here: waits of the host for values, copies between host and device,
programs made, operators that ran on the CPU. Counting is always on; an observer costs something
only while there is one. `torch.tpu` shows the counters, `tpu-doctor model` listens.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import torch

from torch_tpu_unified.core import flags
from torch_tpu_unified.core.errors import RecompileError


class Counters:
    """What happened so far in this process; read through `torch.tpu`."""

    plans = 0  # programs of single operators
    graphs = 0  # programs of compiled graphs
    fused = 0  # programs of fused mode
    recompiles = 0  # programs beyond the first of a compiled graph
    host_syncs = 0
    to_device = 0
    to_device_bytes = 0
    to_host = 0
    to_host_bytes = 0
    fallbacks: ClassVar[dict[str, int]] = {}


class _Memory:
    """Bytes held by tensors on the device: now, and at most since the last reset."""

    __slots__ = ("current", "peak")

    def __init__(self) -> None:
        self.current = self.peak = 0


Memory = _Memory()  # an instance: to set a class's attribute is many times dearer


class Event(NamedTuple):
    """One thing that happened.

    Attributes:
        kind: operator, host sync, to host, to device, program, recompile or fallback.
        name: the operator, or what else it was.
        nbytes: of copies.
        reason: why a program was made again.
    """

    kind: str
    name: str
    nbytes: int = 0
    reason: str = ""


_observer: Callable[[Event], None] | None = None
_forbidden = 0
_NOTHING = contextlib.nullcontext()


@contextlib.contextmanager
def observed(observer: Callable[[Event], None]) -> Iterator[None]:
    """Call `observer` with every event of the block.

    Operators are told only if the device starts inside the block: their kernels are then
    registered with a note in front, so that programs nobody watches pay nothing.
    """
    global _observer
    before, _observer = _observer, observer
    try:
        yield
    finally:
        _observer = before


def noted(op: Any, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel to register for an operator: itself, or one that reports each call first."""
    if _observer is None:
        return kernel
    name = str(op)

    def call(*args: Any, **kwargs: Any) -> Any:
        _tell("operator", name)
        return kernel(*args, **kwargs)

    return call


def operators(names: list[str]) -> None:
    """The operators of a compiled graph that is about to run."""
    if _observer is not None:
        for name in names:
            _tell("operator", name)


def _tell(kind: str, name: str, nbytes: int = 0, reason: str = "") -> None:
    if _observer is not None:
        _observer(Event(kind, name, nbytes, reason))


def span(name: str) -> contextlib.AbstractContextManager[Any]:
    """A range in the trace of torch.profiler; nothing while it does not run."""
    if torch.autograd._profiler_enabled():
        return torch.profiler.record_function(name)
    return _NOTHING


def host_sync(name: str) -> None:
    """The host waits for a value of the device."""
    Counters.host_syncs += 1
    _tell("host sync", name)


def to_host(nbytes: int) -> None:
    """Values go to the host."""
    Counters.to_host += 1
    Counters.to_host_bytes += nbytes
    _tell("to host", "copy to the host", nbytes)


def to_device(nbytes: int) -> None:
    """Values come from the host."""
    Counters.to_device += 1
    Counters.to_device_bytes += nbytes
    _tell("to device", "copy to tpu", nbytes)


def fallback(name: str) -> None:
    """An operator runs on the CPU."""
    Counters.fallbacks[name] = Counters.fallbacks.get(name, 0) + 1
    _tell("fallback", name)


def plan_made(name: str) -> None:
    """A program for a call of one operator is about to be made."""
    Counters.plans += 1
    _tell("program", name)


def fused_made(name: str) -> None:
    """A program for a recording of fused mode is about to be made."""
    Counters.fused += 1
    _tell("program", name)


def graph_made(name: str, reason: str) -> None:
    """A program for a compiled graph is about to be made.

    Args:
        name: the graph in words.
        reason: why the programs that the graph has do not serve; "" for the first.

    Raises:
        RecompileError: it is not the first, and `error_on_recompile` is in force.
    """
    if reason:
        refuse_recompile(f"{name}: {reason}")
        Counters.recompiles += 1
        if flags.LOG_RECOMPILES.value:
            print(f"tpu: recompiling {name}: {reason}", file=sys.stderr)
    Counters.graphs += 1
    _tell("recompile" if reason else "program", name, reason=reason)


def refuse_recompile(what: str) -> None:
    """Raises RecompileError inside `error_on_recompile`."""
    if _forbidden:
        raise RecompileError(
            f"tpu: a recompile is forbidden here (torch.tpu.error_on_recompile): {what}"
        )


_lock = threading.Lock()


@contextlib.contextmanager
def error_on_recompile() -> Iterator[None]:
    """Inside the block a compiled function that needs another program raises; in all threads.

    A function that is compiled for the first time is not a recompile. PyTorch's own guards raise
    `torch._dynamo.exc.RecompileError` with the guard that failed; new sizes of a graph raise
    `torch_tpu_unified.core.errors.RecompileError`.
    """
    global _forbidden
    config = torch._dynamo.config
    with _lock:
        _forbidden += 1
        before, config.error_on_recompile = config.error_on_recompile, True
    try:
        yield
    finally:
        with _lock:
            _forbidden -= 1
            config.error_on_recompile = before
