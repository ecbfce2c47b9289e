"""How a rank ends when another one is lost: soon, with a non-zero code, and with its name.

Every rank counts its heartbeats in jax's coordination service, which rank 0 holds, and says there
when it fails by an error. When the connection to a rank breaks, the others read there which rank
failed, or fell silent. A rank that does not notice by itself (it computes alone) is ended by jax,
whose own heartbeats fail after `HEARTBEAT_SECONDS`.
"""

from __future__ import annotations

import atexit
import itertools
import os
import re
import sys
import threading
import time
from typing import Any

# A rank that is silent for so long is lost; the others end within this time and a few seconds.
HEARTBEAT_SECONDS = 10
_BEAT_SECONDS = 1.0
# Rank 0 stays until the others have read what it holds.
_STAYS_SECONDS = 4
# What the errors of XLA's collectives and transfers say when the other end is gone.
_BROKEN = re.compile(r"Gloo|SocketServer|Connection (closed|reset|refused)|[Tt]imed out")
_FAILED, _ALIVE = "tpu/failed/", "tpu/alive/"
_error: str | None = None


def watch(client: Any, rank: int, size: int) -> None:
    """Let this rank end soon when an error ends its program.

    Args:
        client: jax's coordination client.
        rank: of this process.
        size: of the world.
    """
    before = sys.excepthook

    def excepthook(kind: Any, error: Any, trace: Any) -> None:
        global _error
        _error = f"{kind.__name__}: {error}"
        before(kind, error, trace)

    sys.excepthook = excepthook
    end = threading.Event()
    beating = threading.Thread(target=_beat, args=(client, rank, size, end), daemon=True)
    beating.start()

    def leave() -> None:
        if _error is not None:  # others may still be finding out who fell silent: beat on
            _leave(client, rank, size)
        end.set()
        beating.join()  # before Python takes its threads down, or jax its client

    # Runs before jax's own end, which waits for all ranks.
    atexit.register(leave)


def _beat(client: Any, rank: int, size: int, end: threading.Event) -> None:
    for count in itertools.count():
        try:
            client.key_value_set(f"{_ALIVE}{rank}", str(count), allow_overwrite=True)
            failed = _failure(client)
        except RuntimeError:
            return  # the service is gone: the program ends, or jax ends it
        if failed and _error is None:
            _say(f"{failed}; rank {rank} of {size} ends")
            _exit(rank)
        if end.wait(_BEAT_SECONDS):
            return


def _failure(client: Any) -> str:
    """Which rank said that it failed, in words; "" if none did."""
    told = client.key_value_dir_get(_FAILED)
    return f"rank {told[0][0].removeprefix(_FAILED)} failed ({told[0][1]})" if told else ""


def _leave(client: Any, rank: int, size: int) -> None:
    if not _BROKEN.search(_error or ""):  # an error of its own: tell the others, and go
        client.key_value_set(f"{_FAILED}{rank}", str(_error)[:500])
        _say(f"rank {rank} of {size} ends after an error; it does not wait for the others")
    else:
        _say(f"{_culprits(client, rank, size)}; rank {rank} of {size} ends")
    _exit(rank)


def _culprits(client: Any, rank: int, size: int) -> str:
    """Which ranks broke a connection, in words."""
    try:
        before = dict(client.key_value_dir_get(_ALIVE))
        for _ in range(3):  # some heartbeats
            time.sleep(_BEAT_SECONDS)
            if failed := _failure(client):
                return failed
        now = dict(client.key_value_dir_get(_ALIVE))
    except RuntimeError:
        return "rank 0 is lost"
    silent = [r for r in range(size) if now.get(k := f"{_ALIVE}{r}") == before.get(k)]
    if not silent:
        return "the connection to another rank broke"
    names = " and ".join(f"rank {r}" for r in silent)
    return f"{names} is lost (killed, out of memory, or its machine is gone)"


def _say(text: str) -> None:
    print(f"torch_tpu_unified: {text}", file=sys.stderr)


def _exit(rank: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    if rank == 0:
        time.sleep(_STAYS_SECONDS)
    os._exit(1)
