"""torch dtypes <-> NumPy/JAX dtypes, and the 64-bit policy.

JAX runs with `jax_enable_x64`, set when the device starts: PyTorch programs index with int64 and
may compute in float64, and both must mean what they say.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

_PAIRS: tuple[tuple[torch.dtype, Any], ...] = (
    (torch.bool, np.bool_),
    (torch.uint8, np.uint8),
    (torch.int8, np.int8),
    (torch.int16, np.int16),
    (torch.int32, np.int32),
    (torch.int64, np.int64),
    (torch.uint16, np.uint16),
    (torch.uint32, np.uint32),
    (torch.uint64, np.uint64),
    (torch.float16, np.float16),
    (torch.bfloat16, ml_dtypes.bfloat16),
    (torch.float32, np.float32),
    (torch.float64, np.float64),
    (torch.complex64, np.complex64),
    (torch.complex128, np.complex128),
    (torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn),
    (torch.float8_e5m2, ml_dtypes.float8_e5m2),
    (torch.float8_e4m3fnuz, ml_dtypes.float8_e4m3fnuz),
    (torch.float8_e5m2fnuz, ml_dtypes.float8_e5m2fnuz),
)
TO_JAX: dict[torch.dtype, np.dtype[Any]] = {t: np.dtype(n) for t, n in _PAIRS}
TO_TORCH: dict[np.dtype[Any], torch.dtype] = {n: t for t, n in TO_JAX.items()}


def to_jax(dtype: torch.dtype) -> np.dtype[Any]:
    """The NumPy dtype of a torch dtype.

    Raises:
        TypeError: XLA has no such type.
    """
    try:
        return TO_JAX[dtype]
    except KeyError:
        raise TypeError(f"the tpu device has no dtype {dtype}") from None


def to_torch(dtype: Any) -> torch.dtype:
    """The torch dtype of a NumPy or JAX dtype."""
    return TO_TORCH[np.dtype(dtype)]
