"""PyTorch's primitive operators that decompositions leave in compiled graphs."""

from __future__ import annotations

from cloud_backend.dtypes import to_jax
from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast
from torch_tpu_unified.core.aten import prims


@lowers(prims.convert_element_type.default)
def convert_element_type(a, dtype):
    return cast(a, to_jax(dtype))


@lowers(prims.device_put.default)
def device_put(a, device, non_blocking=False):
    return a
