"""The arguments of an eager call inside its program: values read from arrays, results written back.

A marker is one part of a plan's key (see `plan.Kernel`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

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


def store(base: Any, view: views.Spec, starts: Any, dtype: np.dtype, value: Any) -> Any:
    """The base array after `value`, cast to `dtype`, is written through a view of it."""
    from cloud_backend.ops._shared import cast

    refusals.check_cast(to_torch(value.dtype), to_torch(dtype))
    return views.write(base, view, starts, dtype, cast(value, dtype))
