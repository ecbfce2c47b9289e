"""Random operators: pure functions of a jax PRNG key, which the engine supplies as `key`.

The numbers differ from CPU PyTorch's for the same seed; the distributions, shapes and dtypes are
the same. Half-precision samples are drawn in float32 and rounded, without reaching an excluded
bound.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import (
    cast,
    compute_dtype,
    is_complex,
    is_integral,
    result_dtype,
    to_float,
)
from cloud_backend.ops.create import chosen_dtype
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported


def _uniform(key: Any, shape: Any, dtype: np.dtype) -> jax.Array:
    """Uniform on [0, 1) in `dtype` itself, so that rounding never gives 1."""
    if is_complex(dtype):
        real, imag = jax.random.split(key)
        part = np.empty(0, dtype).real.dtype
        return jax.lax.complex(_uniform(real, shape, part), _uniform(imag, shape, part))
    return jax.random.uniform(key, tuple(shape), dtype)


def _normal(key: Any, shape: Any, dtype: np.dtype) -> jax.Array:
    return cast(jax.random.normal(key, tuple(shape), compute_dtype(dtype)), dtype)


def _open_uniform(key: Any, shape: Any, dtype: np.dtype) -> jax.Array:
    """Uniform on (0, 1], so that a logarithm of it is finite."""
    return 1 - jax.random.uniform(key, tuple(shape), dtype)


def _integers(key: Any, shape: Any, low: int, span: int, dtype: np.dtype) -> jax.Array:
    """`low + (0 .. span - 1)`, evenly; `span` is at most 2**64. The bias is below span / 2**64."""
    bits = jax.random.bits(key, tuple(shape), np.uint64)
    if span < 1 << 64:
        bits = bits % np.uint64(span)
    return cast((bits + np.uint64(low % (1 << 64))).astype(np.int64), dtype)


@lowers(aten.rand.default, aten.rand.generator, random=True)
def rand(size, *, dtype, key):
    return _uniform(key, size, chosen_dtype(dtype))


@lowers(aten.rand_like.default, aten.rand_like.generator, random=True)
def rand_like(x, *, dtype, key):
    return _uniform(key, x.shape, chosen_dtype(dtype, x.dtype))


@lowers(aten.randn.default, aten.randn.generator, random=True)
def randn(size, *, dtype, key):
    return _normal(key, size, chosen_dtype(dtype))


@lowers(aten.randn_like.default, aten.randn_like.generator, random=True)
def randn_like(x, *, dtype, key):
    return _normal(key, x.shape, chosen_dtype(dtype, x.dtype))


def _randint(key: Any, size: Any, low: int, high: int, dtype: np.dtype) -> jax.Array:
    if high <= low:
        raise Unsupported(f"random_ expects 'from' to be less than 'to', but got {low} >= {high}")
    return _integers(key, size, low, high - low, dtype)


@lowers(aten.randint.default, aten.randint.generator, random=True)
def randint(high, size, *, dtype, key):
    return _randint(key, size, 0, high, chosen_dtype(dtype, np.int64))


@lowers(aten.randint.low, aten.randint.low_generator, random=True)
def randint_low(low, high, size, *, dtype, key):
    return _randint(key, size, low, high, chosen_dtype(dtype, np.int64))


@lowers(aten.randint_like.default, aten.randint_like.generator, random=True)
def randint_like(x, high, *, dtype, key):
    return _randint(key, x.shape, 0, high, chosen_dtype(dtype, x.dtype))


@lowers(aten.randint_like.low_dtype, aten.randint_like.low_generator_dtype, random=True)
def randint_like_low(x, low, high, *, dtype, key):
    return _randint(key, x.shape, low, high, chosen_dtype(dtype, x.dtype))


@lowers(aten.randint_like.Tensor, aten.randint_like.Tensor_generator, random=True)
def randint_like_tensor(x, high, *, dtype, key):
    bits = jax.random.bits(key, x.shape, np.uint64) % cast(high, np.uint64)
    return cast(bits.astype(np.int64), chosen_dtype(dtype, x.dtype))


@lowers(aten.randperm.default, aten.randperm.generator, random=True)
def randperm(n, *, dtype, key):
    return cast(jax.random.permutation(key, n), chosen_dtype(dtype, np.int64))


def _integer_limit(dtype: np.dtype) -> int:
    """The largest number that `random_` draws: all integers up to it are exact in `dtype`."""
    if dtype == np.bool_:
        return 1
    if is_integral(dtype):
        return int(np.iinfo(dtype).max)
    return 1 << (jnp.finfo(dtype).nmant + 1)


@lowers(aten.random.default, random=True)
def random(x, *, key):
    return _integers(key, x.shape, 0, _integer_limit(x.dtype) + 1, x.dtype)


@lowers(aten.random.to, random=True)
def random_to(x, to, *, key):
    return _randint(key, x.shape, 0, to, x.dtype)


@lowers(getattr(aten.random, "from"), random=True)
def random_from(x, from_, to, *, key):
    end = _integer_limit(x.dtype) + 1 if to is None else to
    return _randint(key, x.shape, from_, end, x.dtype)


@lowers(aten.uniform.default, random=True, dynamic=("from", "to"))
def uniform(x, from_, to, *, key):
    unit = _uniform(key, x.shape, compute_dtype(x.dtype))
    value = cast(unit * (to - from_) + from_, x.dtype)
    # Rounding may reach the excluded end; PyTorch's kernel puts those at the start.
    return jnp.where((value >= to) & (to > from_), cast(from_, x.dtype), value)


@lowers(aten.normal_functional.default, random=True, dynamic=("mean", "std"))
def normal_functional(x, mean, std, *, key):
    return cast(_normal(key, x.shape, compute_dtype(x.dtype)) * std + mean, x.dtype)


@lowers(aten.normal.float_float, random=True, dynamic=("mean", "std"))
def normal_sizes(mean, std, size, *, dtype, key):
    dtype = chosen_dtype(dtype)
    return cast(_normal(key, size, compute_dtype(dtype)) * std + mean, dtype)


def _normal_like(key: Any, mean: Any, std: Any, dtype: np.dtype) -> jax.Array:
    shape = np.broadcast_shapes(np.shape(mean), np.shape(std))
    wide = compute_dtype(dtype)
    return cast(_normal(key, shape, wide) * cast(std, wide) + cast(mean, wide), dtype)


@lowers(aten.normal.Tensor_Tensor, random=True)
def normal_tensors(mean, std, *, key):
    return _normal_like(key, mean, std, mean.dtype)


@lowers(aten.normal.Tensor_float, random=True, dynamic=("std",))
def normal_mean(mean, std, *, key):
    return _normal_like(key, mean, std, mean.dtype)


@lowers(aten.normal.float_Tensor, random=True, dynamic=("mean",))
def normal_std(mean, std, *, key):
    return _normal_like(key, mean, std, std.dtype)


@lowers(aten.bernoulli.default, random=True)
def bernoulli(x, *, key):
    dtype = compute_dtype(x.dtype)
    return cast(jax.random.uniform(key, x.shape, dtype) < cast(x, dtype), x.dtype)


@lowers(aten.bernoulli.p, random=True)
def bernoulli_p(x, p, *, key):
    return cast(jax.random.uniform(key, x.shape, np.float32) < p, x.dtype)


@lowers(aten.bernoulli.Tensor, random=True)
def bernoulli_tensor(x, p, *, key):
    dtype = compute_dtype(p.dtype)
    return cast(jax.random.uniform(key, x.shape, dtype) < cast(p, dtype), x.dtype)


def _float_for(dtype: np.dtype) -> np.dtype:
    """The dtype to draw in: float32 for integers and halves."""
    return np.dtype(np.float32) if is_integral(dtype) else compute_dtype(dtype)


@lowers(aten.exponential.default, random=True, dynamic=("lambd",))
def exponential(x, lambd, *, key):
    draw = -jnp.log(_open_uniform(key, x.shape, _float_for(x.dtype))) / lambd
    return cast(draw, x.dtype)


@lowers(aten.geometric.default, random=True)
def geometric(x, p, *, key):
    if not 0 < p < 1:
        raise Unsupported(f"geometric_ expects p to be in (0, 1), but got p={p}")
    u = _open_uniform(key, x.shape, _float_for(x.dtype))
    return cast(jnp.maximum(jnp.ceil(jnp.log(u) / np.log1p(-p)), 1), x.dtype)


@lowers(aten.log_normal.default, random=True, dynamic=("mean", "std"))
def log_normal(x, mean, std, *, key):
    return cast(jnp.exp(_normal(key, x.shape, _float_for(x.dtype)) * std + mean), x.dtype)


@lowers(aten.cauchy.default, random=True, dynamic=("median", "sigma"))
def cauchy(x, median, sigma, *, key):
    return cast(jax.random.cauchy(key, x.shape, _float_for(x.dtype)) * sigma + median, x.dtype)


@lowers(aten.poisson.default, random=True)
def poisson(x, *, key):
    return cast(jax.random.poisson(key, cast(x, compute_dtype(x.dtype)), dtype=np.int64), x.dtype)


@lowers(aten.binomial.default, random=True)
def binomial(count, prob, *, key):
    dtype = _float_for(result_dtype(count, prob))
    draw = jax.random.binomial(key, cast(count, dtype), cast(prob, dtype), dtype=dtype)
    return cast(draw, count.dtype)


@lowers(aten._standard_gamma.default, random=True)
def standard_gamma(x, *, key):
    wide = cast(x, compute_dtype(x.dtype))
    smallest = jnp.finfo(wide.dtype).tiny
    return cast(jnp.maximum(jax.random.gamma(key, wide, dtype=wide.dtype), smallest), x.dtype)


@lowers(aten._standard_gamma_grad.default)
def standard_gamma_grad(x, output):
    return jax.lax.random_gamma_grad(x, output)


@lowers(aten._sample_dirichlet.default, random=True)
def sample_dirichlet(x, *, key):
    wide = cast(x, compute_dtype(x.dtype))
    draw = jnp.exp(jax.random.loggamma(key, wide, dtype=wide.dtype))
    draw = draw / jnp.sum(draw, axis=-1, keepdims=True)
    return cast(jnp.maximum(draw, jnp.finfo(wide.dtype).tiny), x.dtype)


@lowers(aten.multinomial.default, random=True)
def multinomial(x, num_samples, replacement, *, key):
    """Indices drawn by weight from each row; weights of 0 are never drawn."""
    weights = cast(x, compute_dtype(x.dtype))
    log_weights = jnp.where(weights > 0, jnp.log(jnp.where(weights > 0, weights, 1)), -jnp.inf)
    if replacement:
        total = jnp.cumsum(weights, axis=-1)
        shape = (*x.shape[:-1], num_samples)
        draw = jax.random.uniform(key, shape, weights.dtype) * total[..., -1:]
        find = jnp.vectorize(
            lambda t, d: jnp.searchsorted(t, d, side="right"), signature="(n),(k)->(k)"
        )
        # Rounding may put a draw at the total itself: then the last class with a weight.
        last = x.shape[-1] - 1 - jnp.argmax((weights > 0)[..., ::-1], axis=-1, keepdims=True)
        return jnp.minimum(find(total, draw), last).astype(np.int64)
    if num_samples > x.shape[-1]:
        raise Unsupported("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    # The largest of Gumbel-perturbed log weights are a draw without replacement.
    noise = jax.random.gumbel(key, x.shape, weights.dtype)
    return jax.lax.top_k(log_weights + noise, num_samples)[1].astype(np.int64)


@lowers(aten.native_dropout.default, random=True)
def native_dropout(input, p, train, *, key):
    """The scaled input and the bool mask of what was kept."""
    if train is False:
        return input, jnp.ones(input.shape, np.bool_)
    if p == 1:
        return jnp.zeros_like(input), jnp.zeros(input.shape, np.bool_)
    mask = jax.random.uniform(key, input.shape, np.float32) >= p
    wide = cast(input, compute_dtype(input.dtype))
    # A product, so that a dropped infinity or NaN gives NaN, as in PyTorch.
    scale = np.asarray(1 / (1 - p), wide.dtype)
    return cast(wide * mask * scale, input.dtype), mask


@lowers(aten.native_dropout_backward.default)
def native_dropout_backward(grad_output, mask, scale):
    dtype = to_float(grad_output.dtype)
    wide = cast(grad_output, compute_dtype(dtype))
    return cast(wide * mask * np.asarray(scale, wide.dtype), dtype)


@lowers(aten.rrelu_with_noise_functional.default, random=True, static=("lower", "upper"))
def rrelu_with_noise(x, noise, lower, upper, training, *, key):
    """The result and the slopes used (1 for positive elements)."""
    wide = cast(x, compute_dtype(x.dtype))
    if not training:
        return cast(jnp.where(wide >= 0, wide, wide * ((lower + upper) / 2)), x.dtype), noise
    slope = jax.random.uniform(key, x.shape, wide.dtype) * (upper - lower) + lower
    slope = jnp.where(wide <= 0, slope, 1)
    return cast(wide * slope, x.dtype), cast(slope, noise.dtype)


@lowers(aten.rrelu_with_noise_backward.default, static=("lower", "upper"))
def rrelu_with_noise_backward(grad_output, x, noise, lower, upper, training, self_is_result):
    wide = cast(grad_output, compute_dtype(grad_output.dtype))
    if training and upper - lower > 1e-6:
        return cast(wide * cast(noise, wide.dtype), grad_output.dtype)
    slope = (lower + upper) / 2
    return cast(jnp.where(x > 0, wide, wide * slope), grad_output.dtype)
