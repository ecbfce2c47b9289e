"""Tensors from nothing: constants, ranges, index grids, windows.

Sizes and range bounds are static, since the result's shape depends on them; fill values are traced.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np
import torch

from cloud_backend.dtypes import to_jax
from cloud_backend.ops import lowers
from cloud_backend.ops._shared import (
    cast,
    compute_dtype,
    is_integral,
    is_scalar,
    real_dtype,
    result_dtype,
    scalar_kind,
)
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported

_INT64_CODE = 4  # how schemas write `dtype=torch.int64` as a default


def chosen_dtype(dtype: Any, default: Any = None) -> np.dtype:
    """The NumPy dtype of a `ScalarType?` argument; None gives `default`, or the default dtype."""
    if dtype is None:
        return real_dtype(None) if default is None else np.dtype(default)
    return np.dtype(np.int64) if dtype == _INT64_CODE else to_jax(dtype)


def _constant(size: Any, value: Any, dtype: np.dtype) -> Any:
    return jnp.broadcast_to(cast(value, dtype), tuple(size))


@lowers(aten.zeros.default)
def zeros(size, *, dtype):
    return jnp.zeros(tuple(size), chosen_dtype(dtype))


@lowers(aten.ones.default)
def ones(size, *, dtype):
    return jnp.ones(tuple(size), chosen_dtype(dtype))


# What compiled graphs allocate holds zeros, since a value must be there; strides are the caller's.
@lowers(aten.empty.memory_format)
def empty(size, *, dtype, memory_format):
    return zeros(size, dtype=dtype)


@lowers(aten.empty_strided.default)
def empty_strided(size, stride, *, dtype):
    return zeros(size, dtype=dtype)


@lowers(aten.empty_permuted.default)
def empty_permuted(size, physical_layout, *, dtype):
    return zeros(size, dtype=dtype)


@lowers(aten.full.default)
def full(size, fill_value, *, dtype):
    if dtype is None:
        dtype = result_dtype(fill_value) if is_scalar(fill_value) else fill_value.dtype
        return _constant(size, fill_value, np.dtype(dtype))
    return _constant(size, fill_value, to_jax(dtype))


@lowers(aten.zeros_like.default)
def zeros_like(x, *, dtype):
    return jnp.zeros(x.shape, chosen_dtype(dtype, x.dtype))


@lowers(aten.ones_like.default)
def ones_like(x, *, dtype):
    return jnp.ones(x.shape, chosen_dtype(dtype, x.dtype))


@lowers(aten.full_like.default)
def full_like(x, fill_value, *, dtype):
    return _constant(x.shape, fill_value, chosen_dtype(dtype, x.dtype))


@lowers(aten.new_zeros.default)
def new_zeros(x, size, *, dtype):
    return jnp.zeros(tuple(size), chosen_dtype(dtype, x.dtype))


@lowers(aten.new_ones.default)
def new_ones(x, size, *, dtype):
    return jnp.ones(tuple(size), chosen_dtype(dtype, x.dtype))


@lowers(aten.new_full.default)
def new_full(x, size, fill_value, *, dtype):
    return _constant(size, fill_value, chosen_dtype(dtype, x.dtype))


@lowers(aten.scalar_tensor.default)
def scalar_tensor(s, *, dtype):
    return cast(s, chosen_dtype(dtype))


@lowers(aten._efficientzerotensor.default)
def efficient_zeros(size, *, dtype):
    return jnp.zeros(tuple(size), chosen_dtype(dtype))


def _arange(start: Any, end: Any, step: Any, dtype: Any) -> Any:
    if dtype is not None:
        dtype = to_jax(dtype)
    elif any(isinstance(v, float) for v in (start, end, step)):
        dtype = real_dtype(None)
    else:
        dtype = np.dtype(np.int64)
    if step == 0:
        raise Unsupported("step must be nonzero")
    if dtype == np.int64:
        # PyTorch truncates the bounds first.
        start, end, step = int(start), int(end), int(step)
    if (end - start) * step < 0:
        raise Unsupported("upper bound and lower bound inconsistent with step sign")
    if isinstance(start, int) and isinstance(end, int) and isinstance(step, int):
        count = max(-((start - end) // step), 0)
    else:
        count = max(math.ceil((end - start) / step), 0)
    return _progression(start, step, count, dtype)


def _progression(start: Any, step: Any, count: int, dtype: np.dtype) -> Any:
    if is_integral(dtype):
        index = jnp.arange(count, dtype=np.int64)
        return cast(cast(start, np.int64) + index * cast(step, np.int64), dtype)
    # In float64, as PyTorch's kernel: start + i * step, rounded once.
    index = jnp.arange(count, dtype=np.float64)
    return cast(start + index * step, dtype)


@lowers(aten.arange.default, static=("end",))
def arange(end, *, dtype):
    return _arange(0, end, 1, dtype)


@lowers(aten.arange.start, static=("start", "end"))
def arange_start(start, end, *, dtype):
    return _arange(start, end, 1, dtype)


@lowers(aten.arange.start_step, static=("start", "end", "step"))
def arange_step(start, end, step, *, dtype):
    return _arange(start, end, step, dtype)


def _range(start: Any, end: Any, step: Any, dtype: Any) -> Any:
    count = int((end - start) / step + 1)
    return _progression(start, step, count, chosen_dtype(dtype))


@lowers(aten.range.default, static=("start", "end"))
def range_(start, end, *, dtype):
    return _range(start, end, 1, dtype)


@lowers(aten.range.step, static=("start", "end", "step"))
def range_step(start, end, step, *, dtype):
    return _range(start, end, step, dtype)


def _space_dtype(start: Any, end: Any, dtype: Any) -> np.dtype:
    if dtype is not None:
        return to_jax(dtype)
    if any(
        scalar_kind(v) is complex if is_scalar(v) else np.dtype(v.dtype).kind == "c"
        for v in (start, end)
    ):
        return to_jax(torch.promote_types(torch.get_default_dtype(), torch.complex64))
    return real_dtype(None)


def even_steps(start: Any, end: Any, steps: int, dtype: np.dtype) -> Any:
    """From both ends towards the middle, as PyTorch's kernels, so that both ends are exact."""
    wide = np.dtype(np.float64) if np.dtype(dtype).kind != "c" else np.dtype(np.complex128)
    if is_integral(dtype):
        start, end = cast(cast(start, dtype), wide), cast(cast(end, dtype), wide)
    start, end = cast(start, wide), cast(end, wide)
    if steps == 1:
        return start.reshape(1)
    index = jnp.arange(steps, dtype=np.int64)
    # Behind a barrier, or XLA multiplies by a rounded reciprocal and whole steps fall short.
    step = (end - start) / jax.lax.optimization_barrier(jnp.asarray(steps - 1, wide))
    lower = start + index * step
    upper = end - (steps - 1 - index) * step
    return jnp.where(index < steps // 2, lower, upper)


@lowers(
    aten.linspace.default,
    aten.linspace.Tensor_Tensor,
    aten.linspace.Tensor_Scalar,
    aten.linspace.Scalar_Tensor,
)
def linspace(start, end, steps, *, dtype):
    dtype = _space_dtype(start, end, dtype)
    return cast(even_steps(start, end, steps, dtype), dtype)


@lowers(
    aten.logspace.default,
    aten.logspace.Tensor_Tensor,
    aten.logspace.Tensor_Scalar,
    aten.logspace.Scalar_Tensor,
)
def logspace(start, end, steps, base, *, dtype):
    dtype = _space_dtype(start, end, dtype)
    return cast(jnp.power(base, even_steps(start, end, steps, dtype)), dtype)


@lowers(aten.eye.default)
def eye(n, *, dtype):
    return jnp.eye(n, dtype=chosen_dtype(dtype))


@lowers(aten.eye.m)
def eye_m(n, m, *, dtype):
    return jnp.eye(n, m, dtype=chosen_dtype(dtype))


@lowers(aten.tril_indices.default)
def tril_indices(row, col, offset, *, dtype):
    indices = np.stack(np.tril_indices(row, offset, col)) if row and col else np.zeros((2, 0))
    return jnp.asarray(indices, chosen_dtype(dtype))


@lowers(aten.triu_indices.default)
def triu_indices(row, col, offset, *, dtype):
    indices = np.stack(np.triu_indices(row, offset, col)) if row and col else np.zeros((2, 0))
    return jnp.asarray(indices, chosen_dtype(dtype))


def _window(length: int, periodic: bool, dtype: Any, f: Any) -> Any:
    """`f(i, n)` for i in 0..length-1, where n is the number of steps of the symmetric window."""
    dtype = chosen_dtype(dtype)
    if length <= 1:
        return jnp.ones(length, dtype)
    index = jnp.arange(length, dtype=np.float64)
    return cast(f(index, length if periodic else length - 1), dtype)


@lowers(aten.bartlett_window.default)
def bartlett_window(window_length, *, dtype):
    return bartlett_window_periodic(window_length, True, dtype=dtype)


@lowers(aten.bartlett_window.periodic)
def bartlett_window_periodic(window_length, periodic, *, dtype):
    return _window(window_length, periodic, dtype, lambda i, n: 1 - jnp.abs(2 * i / n - 1))


@lowers(aten.blackman_window.default)
def blackman_window(window_length, *, dtype):
    return blackman_window_periodic(window_length, True, dtype=dtype)


@lowers(aten.blackman_window.periodic)
def blackman_window_periodic(window_length, periodic, *, dtype):
    def f(i, n):
        turn = 2 * math.pi * i / n
        return jnp.maximum(0.42 - 0.5 * jnp.cos(turn) + 0.08 * jnp.cos(2 * turn), 0)

    return _window(window_length, periodic, dtype, f)


@lowers(aten.hamming_window.default)
def hamming_window(window_length, *, dtype):
    return hamming_window_alpha_beta(window_length, True, 0.54, 0.46, dtype=dtype)


@lowers(aten.hamming_window.periodic)
def hamming_window_periodic(window_length, periodic, *, dtype):
    return hamming_window_alpha_beta(window_length, periodic, 0.54, 0.46, dtype=dtype)


@lowers(aten.hamming_window.periodic_alpha)
def hamming_window_alpha(window_length, periodic, alpha, *, dtype):
    return hamming_window_alpha_beta(window_length, periodic, alpha, 0.46, dtype=dtype)


@lowers(aten.hamming_window.periodic_alpha_beta)
def hamming_window_alpha_beta(window_length, periodic, alpha, beta, *, dtype):
    def f(i, n):
        return alpha - beta * jnp.cos(2 * math.pi * i / n)

    return _window(window_length, periodic, dtype, f)


@lowers(aten.hann_window.default)
def hann_window(window_length, *, dtype):
    return hamming_window_alpha_beta(window_length, True, 0.5, 0.5, dtype=dtype)


@lowers(aten.hann_window.periodic)
def hann_window_periodic(window_length, periodic, *, dtype):
    return hamming_window_alpha_beta(window_length, periodic, 0.5, 0.5, dtype=dtype)


@lowers(aten.kaiser_window.default)
def kaiser_window(window_length, *, dtype):
    return kaiser_window_beta(window_length, True, 12.0, dtype=dtype)


@lowers(aten.kaiser_window.periodic)
def kaiser_window_periodic(window_length, periodic, *, dtype):
    return kaiser_window_beta(window_length, periodic, 12.0, dtype=dtype)


@lowers(aten.kaiser_window.beta)
def kaiser_window_beta(window_length, periodic, beta, *, dtype):
    def f(i, n):
        inside = 1 - jnp.square(2 * i / n - 1)
        return jsp.i0(beta * jnp.sqrt(jnp.maximum(inside, 0))) / jsp.i0(beta)

    return _window(window_length, periodic, dtype, f)


@lowers(aten.fft_rfftfreq.default)
def fft_rfftfreq(n, d, *, dtype):
    dtype = chosen_dtype(dtype)
    return cast(jnp.arange(n // 2 + 1, dtype=compute_dtype(dtype)) / (n * d), dtype)


@lowers(aten.fft_fftfreq.default)
def fft_fftfreq(n, d, *, dtype):
    dtype = chosen_dtype(dtype)
    index = (jnp.arange(n) + n // 2) % max(n, 1) - n // 2
    return cast(cast(index, compute_dtype(dtype)) / (n * d), dtype)
