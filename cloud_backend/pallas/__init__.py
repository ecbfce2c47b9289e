"""`torch.tpu.pallas`: kernels written in JAX and Pallas as torch operators.

`jax_op` makes one of any function; `flash_attention` and `ragged_matmul` are two that are ready,
and examples of how to write more. Their kernels load with their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_tpu_unified.core.errors import not_yet

if TYPE_CHECKING:
    from cloud_backend.custom import JaxOp as JaxOp
    from cloud_backend.custom import jax_op as jax_op

get_pallas_mesh = not_yet("torch.tpu.pallas.get_pallas_mesh", "a kernel sees one device")


def __getattr__(name: str) -> Any:
    found: Any
    if name in ("JaxOp", "jax_op"):
        from cloud_backend import custom

        found = getattr(custom, name)
    elif name == "flash_attention":
        from cloud_backend.pallas.attention import flash_attention as found
    elif name == "ragged_matmul":
        from cloud_backend.pallas.ragged import ragged_matmul as found
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found
