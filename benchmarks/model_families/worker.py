"""One architecture in a process of its own, forked from one that has the imports all of them need.

The imports take longer than many architectures do. A process that dies or takes too long tells so.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import signal
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.model_families.judge import NotJudged, judge, summary

LIBRARIES = {
    "transformers": "benchmarks.model_families.from_transformers",
    "timm": "benchmarks.model_families.from_timm",
}
_IMPORTED_ONCE = (
    *("torch._dynamo", "torch._functorch.aot_autograd", "torch._inductor.compile_fx"),
    *("torch_tpu_unified", "cloud_backend.compile", "jax", "transformers.modeling_utils"),
    __name__,
)
_QUICK_COMPILES = (  # of XLA on the CPU: each program runs once or twice
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)


def _run(
    library: str, group: str, name: str, kinds: tuple[str, ...], limit: int, out: Connection
) -> None:
    import torch

    torch.set_num_threads(1)
    spent = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
    resource.setrlimit(resource.RLIMIT_CPU, (spent + limit, spent + limit + 5))
    try:
        found = judge(importlib.import_module(LIBRARIES[library]).make(group, name), kinds)
    except NotJudged as e:
        found = {"not judged": str(e)[:400]}
    except Exception as e:
        found = {"not judged": f"no inputs: {summary(e)}"}
    out.send(found)


def in_process(
    library: str, group: str, name: str, kinds: tuple[str, ...], limit: int
) -> dict[str, Any]:
    """Judge one architecture.

    Args:
        limit: seconds of processor time, which other work on the machine does not eat.
    """
    os.environ.setdefault("XLA_FLAGS", _QUICK_COMPILES)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED_ONCE))
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(library, group, name, kinds, limit, sending))
    process.start()
    sending.close()
    try:
        return dict(receiving.recv())
    except EOFError:
        process.join()
        if process.exitcode == -signal.SIGXCPU:
            return dict.fromkeys(kinds, f"more than {limit} s of processor time")
        return dict.fromkeys(kinds, f"the process ended with {process.exitcode}")
    finally:
        process.kill()
        process.join()
