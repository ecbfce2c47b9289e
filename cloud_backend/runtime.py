"""Starts jax, once, on first use: platform, 64-bit types, the line that says where `tpu` runs.

The platform is decided before jax starts, because a plain start with libtpu installed but no TPU
attached first tries the TPU and prints alarming lines.
"""

from __future__ import annotations

import functools
import glob
import os
import sys
from typing import Any

from cloud_backend import cache
from torch_tpu_unified.core import flags


def has_tpu_hardware() -> bool:
    """True when this machine shows TPU device files or the runtime's environment says it is one."""
    if glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*"):
        return True
    return any(os.environ.get(name) for name in ("TPU_NAME", "TPU_WORKER_ID", "COLAB_TPU_ADDR"))


@functools.cache
def start() -> Any:
    """Import and configure jax; returns the module."""
    import jax

    from cloud_backend import precision

    if not os.environ.get("JAX_PLATFORMS") and not has_tpu_hardware():
        jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    precision.apply()
    cache.start(jax)
    platform = jax.devices()[0].platform
    if platform != "tpu" and not flags.QUIET.value:
        print(
            f"torch_tpu_unified: no TPU here; device 'tpu' runs on the {platform.upper()} "
            "through XLA"
            " (TTU_QUIET=1 hides this line)",
            file=sys.stderr,
        )
    return jax


def device() -> Any:
    """The jax device that stands behind `tpu:0` in this process."""
    return start().local_devices()[0]
