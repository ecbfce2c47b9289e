"""Starts a module as several ranks, with a hard time limit; no process outlives the call."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]


class Done:
    """How a rank ended: its exit code (None: killed at the limit), output, seconds."""

    def __init__(self, code: int | None, output: str, seconds: float) -> None:
        self.code, self.output, self.seconds = code, output, seconds


def start(size: int, command: Sequence[str], limit: float, **environment: str) -> list[Done]:
    """Run `python command` as `size` ranks, as torchrun would, and wait for all.

    Args:
        size: of the world.
        command: arguments of Python, such as `["-m", "tests.distributed.conformance"]`.
        limit: seconds after which all ranks are killed.
        environment: more variables.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {**os.environ, "TTU_QUIET": "1", "OMP_NUM_THREADS": "1", **environment}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(size)}
    shared["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(size)]
        return _watch(shared, command, files, limit)


def _watch(
    shared: dict[str, str], command: Sequence[str], files: list[IO[str]], limit: float
) -> list[Done]:
    size = len(files)
    begun = time.monotonic()
    processes = [
        subprocess.Popen(
            [sys.executable, *command],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=files[rank],
            stderr=subprocess.STDOUT,
        )
        for rank in range(size)
    ]
    ended: dict[int, float] = {}
    try:
        while len(ended) < size and time.monotonic() - begun < limit:
            time.sleep(0.05)
            for rank, process in enumerate(processes):
                if rank not in ended and process.poll() is not None:
                    ended[rank] = time.monotonic() - begun
    finally:
        for rank, process in enumerate(processes):
            if rank not in ended:
                process.kill()
                process.wait()
    done = []
    for rank, file in enumerate(files):
        file.seek(0)
        code = processes[rank].returncode if rank in ended else None
        done.append(Done(code, file.read(), ended.get(rank, limit)))
    return done


def run(size: int, command: Sequence[str], limit: float, **environment: str) -> list[str]:
    """The outputs of all ranks, which must all end well."""
    done = start(size, command, limit, **environment)
    for rank, one in enumerate(done):
        told = f"rank {rank} of {size}: exit {one.code}\n{one.output[-6000:]}"
        assert all(d.code == 0 for d in done), told if one.code else ""
    return [one.output for one in done]
