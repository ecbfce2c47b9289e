"""The arguments of an eager call inside its program: values read from arrays, results written back.

A marker is one part of a plan's key (see `plan.Kernel`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cloud_backend import refusals, tensor, views
from cloud_backend.dtypes import to_jax, to_torch


def value(marker: Any, stream: Any, places: list[Any]) -> Any:
    """Rebuild one argument inside the trace; `places` collects where its tensors lie."""
    kind = marker[0]
    if kind == "C":
        return marker[2]
    if kind == "S":
        return next(stream)
    if kind == "L":
        return [value(m, stream, places) for m in marker[1]]
    if kind == "N":
        return tensor.resolved(value(marker[1], stream, places), marker[2], marker[3])
    base = next(stream)
    dtype = to_jax(marker[2])
    if kind == "W":
        view, starts = views.Spec("whole", tuple(marker[1]), (), base.size), None
    else:
        view, starts = marker[1], next(stream)
    places.append((base, view, starts, dtype))
    return views.read(base, view, starts, dtype)


def head(kernel: Any, args: Any, kwargs: Any) -> Any:
    """The first part of a key: the default dtype, and which written arguments share a storage.

    Several may be views of one storage, as the parts that `split` gives to `torch._foreach_*`; each
    then builds on what the ones before it wrote.
    """
    dtype = torch.get_default_dtype()
    if kernel.inplace or not kernel.writes:
        return dtype
    storages = [t.untyped_storage() for t in kernel._written(args, kwargs)]
    owners = [id(getattr(s, "buffer", s)) for s in storages]
    if len(set(owners)) == len(owners):
        return dtype
    return dtype, tuple([owners.index(owner) for owner in owners])


def stored(head: Any, targets: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """The base arrays of the written arguments with their new values in place.

    Args:
        head: the first part of the key.
        targets: (base, view, starts, dtype) of each.
        values: the new value of each, cast to its dtype.
    """
    from cloud_backend.ops._shared import cast

    owners = head[1] if isinstance(head, tuple) else range(len(targets))
    latest: dict[int, Any] = {}
    for owner, (base, view, starts, dtype), value in zip(owners, targets, values, strict=True):
        refusals.check_cast(to_torch(value.dtype), to_torch(dtype))
        before = latest.get(owner, base)
        latest[owner] = views.write(before, view, starts, dtype, cast(value, dtype))
    return [latest[owner] for owner in owners]
