"""Single arrays from rank to rank, by jax's transfer server.

A sender offers its array under a number, the receiver pulls it: neither waits for the other, so any
order of sends and receives is safe, as c10d's batches need. Both ends count the messages of a
group, a direction and a tag, which gives each message the same number on both.
"""

from __future__ import annotations

import collections
import functools
import hashlib
from typing import Any

import numpy as np

from cloud_backend import runtime
from cloud_backend.distributed import launch

_counts: collections.Counter[tuple[str, int, int, int]] = collections.Counter()
# Offers to this process itself.
_kept: dict[int, Any] = {}


def _number(group: Any, source: int, destination: int, tag: int) -> int:
    """The number of the next message from `source` to `destination` (ranks in the group)."""
    key = (group.group_name, source, destination, tag)
    _counts[key] += 1
    digest = hashlib.blake2b(repr((*key, _counts[key])).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@functools.cache
def _server() -> Any:
    """This process's transfer server; the others find its address at the coordinator."""
    from jax.experimental import transfer

    address = f"{launch.host()}:0"
    jax_client = runtime.device().client
    server = transfer.start_transfer_server(jax_client, address, [address])
    launch.client().key_value_set(_key(runtime.device().process_index), server.address())
    return server


def _key(rank: int) -> str:
    return f"tpu/transfer/{rank}"


@functools.cache
def _connection(rank: int) -> Any:
    """A connection to a rank of the world, made when it first sends to us."""
    address = launch.client().blocking_key_value_get(_key(rank), 300_000)
    return _server().connect(address)


def send(group: Any, array: Any, destination: int, tag: int) -> None:
    """Offer an array to a rank of the group; does not wait for it to be received."""
    number = _number(group, group.rank(), destination, tag)
    if array.size == 0:
        return
    if destination == group.rank():
        _kept[number] = array.reshape(-1)
    else:
        _server().await_pull(number, [array.reshape(-1)])


def receive(group: Any, size: int, dtype: np.dtype, source: int, tag: int) -> Any:
    """The flat array that a rank of the group sends; XLA waits for it, this call does not."""
    jax = runtime.start()
    number = _number(group, source, group.rank(), tag)
    if size == 0:
        return jax.numpy.zeros(0, dtype)
    if source == group.rank():
        return _kept.pop(number)
    place = jax.sharding.SingleDeviceSharding(runtime.device())
    expected = jax.ShapeDtypeStruct((size,), dtype, sharding=place)
    return _connection(group.ranks[source]).pull(number, [expected])[0]
