"""Reductions: sums, products, extremes, moments, norms.

Half-precision inputs accumulate in float32. Extremes propagate NaNs; the index of a tie is the
first. A 0-d tensor reduces over dim 0 or -1 to itself.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud_backend.dtypes import to_jax
from cloud_backend.ops import lowers
from cloud_backend.ops._shared import (
    canonical_dim,
    canonical_dims,
    cast,
    compute_dtype,
    is_complex,
    is_integral,
    real_dtype,
    to_float,
)
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported


def _sum_dtype(x: jax.Array, dtype: Any) -> np.dtype:
    if dtype is not None:
        return to_jax(dtype)
    return np.dtype(np.int64) if is_integral(x.dtype) else np.dtype(x.dtype)


def _count(x: jax.Array, axes: tuple[int, ...]) -> int:
    n = 1
    for axis in axes:
        n *= x.shape[axis]
    return n


def _require_elements(x: jax.Array, axes: tuple[int, ...], dim: Any, name: str) -> None:
    """Raises what PyTorch does: IndexError where dimensions are named, RuntimeError where not."""
    if _count(x, axes) == 0:
        if dim is None or (not isinstance(dim, int) and not len(dim)):
            raise RuntimeError(
                f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify "
                "the reduction dim with the 'dim' argument."
            )
        empty = next(d for d in axes if x.shape[d] == 0)
        raise IndexError(f"{name}(): Expected reduction dim {empty} to have non-zero size.")


@lowers(aten.sum.default)
def sum_all(x, *, dtype):
    return sum_(x, None, False, dtype=dtype)


@lowers(aten.sum.dim_IntList)
def sum_(x, dim, keepdim, *, dtype):
    dtype = _sum_dtype(x, dtype)
    wide = cast(x, compute_dtype(dtype))
    return cast(jnp.sum(wide, axis=canonical_dims(dim, x.ndim), keepdims=keepdim), dtype)


@lowers(aten.nansum.default)
def nansum(x, dim, keepdim, *, dtype):
    kept = x if is_integral(x.dtype) else jnp.where(jnp.isnan(x), 0, x)
    return sum_(kept, dim, keepdim, dtype=dtype)


@lowers(aten.mean.default)
def mean_all(x, *, dtype):
    return mean(x, None, False, dtype=dtype)


@lowers(aten.mean.dim)
def mean(x, dim, keepdim, *, dtype):
    dtype = x.dtype if dtype is None else to_jax(dtype)
    if is_integral(dtype):
        raise Unsupported(
            "mean(): the result must have a floating point or complex dtype; "
            f"the input is {x.dtype}, give dtype="
        )
    axes = canonical_dims(dim, x.ndim)
    total = jnp.sum(cast(x, compute_dtype(dtype)), axis=axes, keepdims=keepdim)
    return cast(total / np.asarray(_count(x, axes), real_dtype(total.dtype)), dtype)


@lowers(aten.prod.default)
def prod_all(x, *, dtype):
    dtype = _sum_dtype(x, dtype)
    return cast(jnp.prod(cast(x, compute_dtype(dtype))), dtype)


@lowers(aten.prod.dim_int)
def prod(x, dim, keepdim, *, dtype):
    dtype = _sum_dtype(x, dtype)
    axes = canonical_dims(dim, x.ndim)
    return cast(jnp.prod(cast(x, compute_dtype(dtype)), axis=axes, keepdims=keepdim), dtype)


def _extreme(f: Any, x: jax.Array, dim: Any, keepdim: bool, name: str) -> jax.Array:
    axes = canonical_dims(dim, x.ndim)
    _require_elements(x, axes, dim, name)
    return f(x, axis=axes, keepdims=keepdim)


@lowers(aten.amax.default)
def amax(x, dim, keepdim):
    return _extreme(jnp.max, x, dim, keepdim, "amax")


@lowers(aten.amin.default)
def amin(x, dim, keepdim):
    return _extreme(jnp.min, x, dim, keepdim, "amin")


@lowers(aten.aminmax.default)
def aminmax(x, *, dim, keepdim):
    low = _extreme(jnp.min, x, dim, keepdim, "aminmax")
    return low, _extreme(jnp.max, x, dim, keepdim, "aminmax")


@lowers(aten._aminmax.default)
def aminmax_all(x):
    return aminmax(x, dim=None, keepdim=False)


@lowers(aten._aminmax.dim)
def aminmax_dim(x, dim, keepdim):
    return aminmax(x, dim=dim, keepdim=keepdim)


@lowers(aten.max.default)
def max_all(x):
    return _extreme(jnp.max, x, None, False, "max")


@lowers(aten.min.default)
def min_all(x):
    return _extreme(jnp.min, x, None, False, "min")


def _extreme_with_index(arg: Any, x: jax.Array, dim: int, keepdim: bool) -> Any:
    if x.ndim:
        _require_elements(x, canonical_dims(dim, x.ndim), dim, "max or min")
    if is_complex(x.dtype):
        raise RuntimeError("max or min(): does not support complex input")
    if x.ndim == 0:
        canonical_dim(dim, 0)
        return x, jnp.zeros((), np.int64)
    comparable = x.astype(np.int8) if x.dtype == np.bool_ else x
    index = arg(comparable, axis=dim, keepdims=True).astype(np.int64)
    value = jnp.take_along_axis(x, index, axis=dim)
    return (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim))


@lowers(aten.max.dim)
def max_dim(x, dim, keepdim):
    return _extreme_with_index(jnp.argmax, x, dim, keepdim)


@lowers(aten.min.dim)
def min_dim(x, dim, keepdim):
    return _extreme_with_index(jnp.argmin, x, dim, keepdim)


def _arg_extreme(arg: Any, x: jax.Array, dim: int | None, keepdim: bool) -> jax.Array:
    if x.dtype == np.bool_ or is_complex(x.dtype):
        raise RuntimeError(f"argmax or argmin(): does not support {x.dtype} input")
    if dim is not None:
        return _extreme_with_index(arg, x, dim, keepdim)[1]
    _require_elements(x, canonical_dims(None, x.ndim), None, "argmax or argmin")
    index = arg(x.reshape(-1)).astype(np.int64)
    return index.reshape((1,) * x.ndim) if keepdim else index


@lowers(aten.argmax.default)
def argmax(x, dim, keepdim):
    return _arg_extreme(jnp.argmax, x, dim, keepdim)


@lowers(aten.argmin.default)
def argmin(x, dim, keepdim):
    return _arg_extreme(jnp.argmin, x, dim, keepdim)


def _truth_dtype(x: jax.Array) -> np.dtype:
    # PyTorch keeps uint8 here, from the time when it stood for bool.
    return np.dtype(np.uint8 if x.dtype == np.uint8 else np.bool_)


@lowers(aten.any.default)
def any_all(x):
    return jnp.any(x != 0).astype(_truth_dtype(x))


@lowers(aten.all.default)
def all_all(x):
    return jnp.all(x != 0).astype(_truth_dtype(x))


@lowers(aten.any.dim, aten.any.dims)
def any_(x, dim, keepdim):
    # `any.dims` with an empty list reduces nothing, unlike sums.
    axes = () if dim is not None and not isinstance(dim, int) and not dim else dim
    axes = axes if axes == () else canonical_dims(axes, x.ndim)
    return jnp.any(x != 0, axis=axes, keepdims=keepdim).astype(_truth_dtype(x))


@lowers(aten.all.dim, aten.all.dims)
def all_(x, dim, keepdim):
    axes = () if dim is not None and not isinstance(dim, int) and not dim else dim
    axes = axes if axes == () else canonical_dims(axes, x.ndim)
    return jnp.all(x != 0, axis=axes, keepdims=keepdim).astype(_truth_dtype(x))


@lowers(aten.count_nonzero.default)
def count_nonzero(x, dim):
    return jnp.sum(x != 0, axis=canonical_dims(dim, x.ndim), dtype=np.int64)


@lowers(aten.count_nonzero.dim_IntList)
def count_nonzero_dims(x, dim):
    return jnp.sum(x != 0, axis=canonical_dims(dim, x.ndim), dtype=np.int64)


def _moments(x: jax.Array, dim: Any, correction: Any, keepdim: bool) -> tuple[Any, Any]:
    """Variance (real) and mean, in the compute dtype."""
    if is_integral(x.dtype):
        raise Unsupported("std and var only support floating point and complex dtypes")
    axes = canonical_dims(dim, x.ndim)
    wide = cast(x, compute_dtype(x.dtype))
    real = real_dtype(wide.dtype)
    n = _count(x, axes)
    mean = jnp.sum(wide, axis=axes, keepdims=True) / np.asarray(n, real)
    distance = wide - mean
    square = distance * jnp.conj(distance)
    total = jnp.sum(square.real, axis=axes, keepdims=keepdim)
    freedom = max(n - (1 if correction is None else correction), 0)
    variance = total / np.asarray(freedom, real)
    return variance, mean if keepdim else jnp.squeeze(mean, axes)


@lowers(aten.var.correction, static=("correction",))
def var(x, dim, *, correction, keepdim):
    return cast(_moments(x, dim, correction, keepdim)[0], real_dtype(x.dtype))


@lowers(aten.std.correction, static=("correction",))
def std(x, dim, *, correction, keepdim):
    return cast(jnp.sqrt(_moments(x, dim, correction, keepdim)[0]), real_dtype(x.dtype))


@lowers(aten.var_mean.correction, static=("correction",))
def var_mean(x, dim, *, correction, keepdim):
    variance, mean = _moments(x, dim, correction, keepdim)
    return cast(variance, real_dtype(x.dtype)), cast(mean, x.dtype)


@lowers(aten.std_mean.correction, static=("correction",))
def std_mean(x, dim, *, correction, keepdim):
    variance, mean = _moments(x, dim, correction, keepdim)
    return cast(jnp.sqrt(variance), real_dtype(x.dtype)), cast(mean, x.dtype)


def vector_norm(x: jax.Array, order: Any, dim: Any, keepdim: bool, dtype: Any) -> jax.Array:
    """The norm of order `order` over `dim`; the result is real."""
    dtype = np.dtype(x.dtype) if dtype is None else to_jax(dtype)
    if is_integral(dtype):
        raise Unsupported(f"a norm needs a floating point or complex dtype, not {dtype}")
    axes = canonical_dims(dim, x.ndim)
    size = jnp.abs(cast(x, compute_dtype(dtype)))
    if order in (float("inf"), -float("inf")):
        _require_elements(x, axes, dim, "linalg_vector_norm")
        f = jnp.max if order > 0 else jnp.min
        value = f(size, axis=axes, keepdims=keepdim)
    elif order == 0:
        value = jnp.sum(size != 0, axis=axes, keepdims=keepdim)
    elif order == 1:
        value = jnp.sum(size, axis=axes, keepdims=keepdim)
    elif order == 2:
        value = jnp.sqrt(jnp.sum(size * size, axis=axes, keepdims=keepdim))
    else:
        order = np.asarray(order, size.dtype)
        value = jnp.power(jnp.sum(jnp.power(size, order), axis=axes, keepdims=keepdim), 1 / order)
    return cast(value, real_dtype(dtype))


def power_sum(x: jax.Array, order: Any, dtype: Any) -> jax.Array:
    """The sum of |x| ** order over all elements."""
    dtype = np.dtype(x.dtype) if dtype is None else to_jax(dtype)
    size = jnp.abs(cast(x, compute_dtype(dtype)))
    terms = size * size if order == 2 else jnp.power(size, np.asarray(order, size.dtype))
    return cast(jnp.sum(terms), real_dtype(dtype))


@lowers(aten.linalg_vector_norm.default, static=("ord",))
def linalg_vector_norm(x, ord, dim, keepdim, *, dtype):
    return vector_norm(x, ord, dim, keepdim, dtype)


@lowers(aten.norm.Scalar, static=("p",))
def norm_all(x, p):
    return vector_norm(x, p, None, False, None)


@lowers(aten.norm.ScalarOpt_dtype, static=("p",))
def norm_all_dtype(x, p, *, dtype):
    return vector_norm(x, 2 if p is None else p, None, False, dtype)


@lowers(aten.norm.ScalarOpt_dim, static=("p",))
def norm_dim(x, p, dim, keepdim):
    return vector_norm(x, 2 if p is None else p, dim, keepdim, None)


@lowers(aten.norm.ScalarOpt_dim_dtype, static=("p",))
def norm_dim_dtype(x, p, dim, keepdim, dtype):
    return vector_norm(x, 2 if p is None else p, dim, keepdim, dtype)


@lowers(aten.dist.default, static=("p",))
def dist(x, other, p):
    return vector_norm(x - other, p, None, False, None)


@lowers(aten.renorm.default, static=("p",))
def renorm(x, p, dim, maxnorm):
    dim = canonical_dim(dim, x.ndim)
    axes = tuple(d for d in range(x.ndim) if d != dim)
    wide = cast(x, compute_dtype(x.dtype))
    size = vector_norm(wide, p, axes, True, None)
    limit = cast(maxnorm, size.dtype)
    factor = jnp.where(size > limit, limit / (size + 1e-7), 1)
    return cast(wide * factor, x.dtype)


@lowers(aten.logsumexp.default)
def logsumexp(x, dim, keepdim):
    dtype = to_float(x.dtype)
    axes = canonical_dims(dim, x.ndim)
    wide = cast(x, compute_dtype(dtype))
    if _count(x, axes) == 0:
        shape = jnp.sum(wide, axis=axes, keepdims=keepdim).shape
        return jnp.full(shape, -jnp.inf, dtype)
    if is_complex(dtype):
        shift = jnp.max(wide.real, axis=axes, keepdims=True)
    else:
        shift = jnp.max(wide, axis=axes, keepdims=True)
    shift = jnp.where(jnp.abs(shift) == jnp.inf, 0, shift)
    total = jnp.log(jnp.sum(jnp.exp(wide - shift), axis=axes, keepdims=True)) + shift
    return cast(total if keepdim else jnp.squeeze(total, axes), dtype)


@lowers(aten.hash_tensor.default)
def hash_tensor(x, dim, keepdim, mode):
    """The exclusive or of the elements' 64 bits: floats as float64, integers sign-extended."""
    if mode != 0:
        raise Unsupported(f"unknown hash_tensor mode {mode}; 0 is the exclusive or")
    axes = canonical_dims(dim, x.ndim)
    if is_integral(x.dtype):
        bits = cast(x, np.uint64)
    else:
        bits = jax.lax.bitcast_convert_type(cast(x, np.float64), np.uint64)
    result = jax.lax.reduce(bits, np.uint64(0), jax.lax.bitwise_xor, axes)
    return jnp.expand_dims(result, axes) if keepdim else result
