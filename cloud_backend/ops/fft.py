"""Fourier transforms over several dimensions: real to complex and back, complex to complex.

`normalization` is PyTorch's enumeration: 0 none, 1 by the root of the length, 2 by the length.
Half precision computes in float32.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import canonical_dim, cast
from torch_tpu_unified.core.aten import aten


def _factor(normalization: int, lengths: list[int]) -> float:
    count = math.prod(lengths)
    return {0: 1.0, 1: 1 / math.sqrt(count), 2: 1 / count}[normalization] if count else 1.0


def _scaled(x, normalization, lengths):
    factor = _factor(normalization, lengths)
    return x if factor == 1 else x * np.asarray(factor, np.empty(0, x.dtype).real.dtype)


def _dims(x, dim):
    return [canonical_dim(d, x.ndim) for d in dim]


def _forward(x, dims):
    for d in dims:
        x = jnp.fft.fft(x, axis=d)
    return x


def _inverse(x, dims):
    """The unscaled inverse."""
    for d in dims:
        x = jnp.fft.ifft(x, axis=d, norm="forward")
    return x


@lowers(aten._fft_r2c.default)
def fft_r2c(x, dim, normalization, onesided):
    dims = _dims(x, dim)
    lengths = [x.shape[d] for d in dims]
    if onesided:
        out = _forward(jnp.fft.rfft(x, axis=dims[-1]), dims[:-1][::-1])
    else:
        out = _forward(cast(x, np.promote_types(x.dtype, np.complex64)), dims)
    return _scaled(out, normalization, lengths)


@lowers(aten._fft_c2r.default)
def fft_c2r(x, dim, normalization, last_dim_size):
    dims = _dims(x, dim)
    lengths = [x.shape[d] for d in dims[:-1]] + [last_dim_size]
    out = _inverse(x, dims[:-1])
    out = jnp.fft.irfft(out, n=last_dim_size, axis=dims[-1], norm="forward")
    return _scaled(out, normalization, lengths)


@lowers(aten._fft_c2c.default)
def fft_c2c(x, dim, normalization, forward):
    dims = _dims(x, dim)
    out = (_forward if forward else _inverse)(x, dims)
    return _scaled(out, normalization, [x.shape[d] for d in dims])
