"""Attention over a mesh inside a planned program: the flash kernel on each chip's own heads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from cloud_backend.custom import jax_op
from cloud_backend.pallas.attention import _attention

# The mesh of the program that is traced, the axes of the batch, and that of the heads or None.
_PLACE: ContextVar[tuple[Mesh, tuple[str, ...], str | None] | None] = ContextVar(
    "place", default=None
)


@contextlib.contextmanager
def over(mesh: Mesh, batch: tuple[str, ...], heads: str | None) -> Iterator[None]:
    """Programs traced inside run attention chip by chip of this mesh."""
    token = _PLACE.set((mesh, batch, heads))
    try:
        yield
    finally:
        _PLACE.reset(token)


def _torch_form(query, key, value, causal=False, scale=None):  # type: ignore[no-untyped-def]
    import torch

    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=causal, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )


@jax_op(name="sharded_attention", torch_form=_torch_form)
def sharded_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    causal: bool = False,
    scale: float | None = None,
) -> jax.Array:
    """`flash_attention` whose batch and heads are spread over chips.

    Args:
        query: [batch, heads, queries, depth].
        key, value: [batch, key heads, keys, depth].
        causal: query i sees the keys 0 to i.
        scale: default 1 / sqrt(depth).
    """
    place = _PLACE.get()
    if place is None:
        return _attention(query, key, value, causal, scale)
    mesh, batch, heads = place
    if heads is not None and key.shape[1] % mesh.shape[heads]:
        heads = None  # too few heads of keys: every chip computes all of them
    spec = PartitionSpec(batch, heads)

    def local(q: Any, k: Any, v: Any) -> Any:
        return _attention(q, k, v, causal, scale)

    over_chips = jax.shard_map(
        local, mesh=mesh, in_specs=(spec, spec, spec), out_specs=spec, check_vma=False
    )
    return over_chips(query, key, value)
