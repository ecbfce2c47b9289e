"""What a call looks like -> its compiled program on disk, so that a warm process neither traces
nor lowers.

jax finds a program on disk by the lowered module, which takes longer to make than the program to
load. Beside the programs stands an index: a digest of what the module is made from (this project's
sources, the versions, jax's settings, the machine, and what the caller names: operator, shapes,
constants) leads to jax's key of the program and the shapes of its results.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from cloud_backend import cache, runtime

# In a `repr`, something that is told apart by its address alone and means nothing elsewhere.
_ADDRESS = " at 0x"
_FOLDERS = ("cloud_backend", "torch_tpu_unified/core")


class Loaded(NamedTuple):
    """A program from disk.

    Attributes:
        execute: takes the list of device arrays; its result is `consume_with_handlers`.
        handlers: make jax arrays of the results.
        tree: how the flat results stand in the traced function's result.
        extra: what the caller stored beside it (JSON).
    """

    execute: Any
    handlers: Any
    tree: Any
    extra: Any


@functools.cache
def _sources() -> str:
    """A digest of every line of ours that can decide what a program computes."""
    root = Path(__file__).parents[1]
    found = hashlib.sha256()
    for folder in _FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()


@functools.cache
def _machine() -> str:
    """Versions, chip and processor: programs of a host hold its processor's instructions."""
    import jax
    import jaxlib

    chip = runtime.device()
    features = ""
    if chip.platform == "cpu" and (info := Path("/proc/cpuinfo")).exists():
        wanted = ("flags", "Features", "model name")
        features = "\n".join(
            dict.fromkeys(x for x in info.read_text().splitlines() if x.startswith(wanted))
        )
    return repr(
        (_sources(), torch.__version__, jax.__version__, jaxlib.__version__, np.__version__,
         platform.python_version(), chip.client.platform_version, chip.device_kind, chip.id,
         len(chip.client.devices()), platform.machine(), features)
    )  # fmt: skip


def _settings() -> str:
    """jax's settings, those of a `with` block of this thread included."""
    from jax._src import config

    kept = (x for x in config.trace_context() if _ADDRESS not in repr(x))
    fixed = ((k, v) for k, v in config.config.values.items() if "cache" not in k)
    return repr((*kept, *sorted(fixed, key=lambda item: item[0])))


def key(*parts: Any) -> str | None:
    """The digest of what `repr` says of the parts; None where there is no index for such a call:
    the cache is off, or a part is an object that only this process knows."""
    if cache.active() is None:
        return None
    said = repr(parts)
    if _ADDRESS in said:
        return None
    return hashlib.sha256("\0".join((_machine(), _settings(), said)).encode()).hexdigest()


def expect() -> None:
    """Forget which program was asked for last; the next compilation says it."""
    cache.Asked.key = None


def note(name: str, compiled_call: Any, tree: Any, extra: Any) -> None:
    """Write down that `name` is the program that jax has just asked the cache for."""
    store = cache.active()
    if store is None or cache.Asked.key is None:
        return
    avals = compiled_call.out_handler.out_avals
    results = [(list(a.shape), str(a.dtype), bool(a.weak_type)) for a in avals]
    jax = runtime.start()
    try:
        skeleton = json.dumps(jax.tree.unflatten(tree, range(len(avals))))
        text = json.dumps([cache.Asked.key, results, skeleton, extra])
    except TypeError:  # a structure or an addition that JSON does not hold
        return
    store.put_call(name, text.encode())


def find(name: str, arrays: list[Any]) -> Loaded | None:
    """The program that `note` wrote down under `name`; None if it or its entry is gone.

    Args:
        arrays: the arguments. As jax has it, results are committed to a device where one of these
            is; otherwise the next program would not be the one that an earlier process made.
    """
    store = cache.active()
    told = store.get_call(name) if store is not None else None
    if store is None or told is None:
        return None
    key, results, skeleton, extra = json.loads(told)
    content = store.get(key) if store.has(key) else None
    if content is None:
        return None
    jax = runtime.start()
    committed = any(a.committed for a in arrays)
    # Numbers stand for results in the order of the flat list, as they did when it was written.
    _, tree = jax.tree.flatten(json.loads(skeleton))
    return Loaded(_executable(content).execute_sharded, _handlers(results, committed), tree, extra)


def _executable(content: bytes) -> Any:
    from jax._src import compilation_cache, compiler
    from jax._src.lax import linalg

    chip = runtime.device()
    serialized, _ = compilation_cache.extract_executable_and_time(
        compilation_cache.decompress_executable(content)
    )
    if b"lapack_" in serialized or b"blas_" in serialized:
        # jax finds the routines when it lowers a call of them, which is what a program from disk
        # is spared; without them the call is a jump to address zero.
        linalg.initialize_lapack()
    return chip.client.deserialize_executable(
        serialized, _devices(), compiler.get_compile_options(1, 1, np.array([[chip.id]]))
    )


@functools.cache
def _devices() -> Any:
    from jax._src.lib import xla_client

    return xla_client.DeviceList((runtime.device(),))


def _handlers(results: Any, committed: bool) -> Any:
    from jax._src import core
    from jax._src.interpreters import pxla

    jax = runtime.start()
    avals = [core.ShapedArray(tuple(s), np.dtype(d), weak_type=w) for s, d, w in results]
    place = jax.sharding.SingleDeviceSharding(runtime.device())
    return pxla.global_avals_to_results_handler(avals, [place] * len(avals), committed).handlers
