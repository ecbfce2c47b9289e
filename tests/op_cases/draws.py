"""Random operators: how to draw, and the distribution function that the draws must follow.

`DRAWS` maps a name to `(draw, cdf)`: `draw(device)` gives a tensor of samples, and `cdf(x)` the
probability of at most x in float64 (of the point itself included, for integers).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

Draw = Callable[[str], torch.Tensor]
Cdf = Callable[[torch.Tensor], torch.Tensor]
N = 20000
aten = torch.ops.aten


def _uniform(low: float, high: float) -> Cdf:
    return lambda x: ((x - low) / (high - low)).clamp(0, 1)


def _integers(low: int, high: int) -> Cdf:
    return lambda x: ((x.floor() + 1 - low) / (high - low)).clamp(0, 1)


def _normal(mean: float = 0.0, std: float = 1.0) -> Cdf:
    return lambda x: torch.special.ndtr((x - mean) / std)


def _bernoulli(p: float) -> Cdf:
    return lambda x: torch.where(x >= 1, 1.0, torch.where(x >= 0, 1 - p, 0.0))


def _discrete(*weights: float) -> Cdf:
    steps = torch.tensor([0.0, *weights], dtype=torch.float64).cumsum(0) / sum(weights)
    return lambda x: steps[(x.floor() + 1).clamp(0, len(weights)).long()]


def _empty(device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(N, device=device, dtype=dtype)


def _generator(device: str) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(3)


def _poisson(rate: float) -> Cdf:
    return lambda x: torch.special.gammaincc(x.floor() + 1, torch.full_like(x, rate))


def _binomial(n: int, p: float) -> Cdf:
    return _discrete(*(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)))


_HALF = torch.bfloat16
DRAWS: dict[str, tuple[Draw, Cdf]] = {
    "rand": (lambda d: torch.rand(N, device=d), _uniform(0, 1)),
    "rand_generator": (
        lambda d: torch.rand(N, device=d, generator=_generator(d)),
        _uniform(0, 1),
    ),
    "rand_like": (lambda d: torch.rand_like(_empty(d)), _uniform(0, 1)),
    "randn": (lambda d: torch.randn(N, device=d), _normal()),
    "randn_float64": (lambda d: torch.randn(N, device=d, dtype=torch.float64), _normal()),
    "randn_generator": (lambda d: torch.randn(N, device=d, generator=_generator(d)), _normal()),
    "randn_like": (lambda d: torch.randn_like(_empty(d)), _normal()),
    "randn_half": (lambda d: torch.randn(N, device=d, dtype=torch.float16), _normal()),
    "randint": (lambda d: torch.randint(7, (N,), device=d), _integers(0, 7)),
    "randint_generator": (
        lambda d: torch.randint(7, (N,), device=d, generator=_generator(d)),
        _integers(0, 7),
    ),
    "randint_low": (lambda d: torch.randint(-5, 9, (N,), device=d), _integers(-5, 9)),
    "randint_low_generator": (
        lambda d: torch.randint(-5, 9, (N,), device=d, generator=_generator(d)),
        _integers(-5, 9),
    ),
    "randint_wide": (
        lambda d: torch.randint(-(2**62), 2**62, (N,), device=d),
        _uniform(-(2.0**62), 2.0**62),
    ),
    "randint_like": (lambda d: torch.randint_like(_empty(d), 7), _integers(0, 7)),
    "randint_like_low": (lambda d: torch.randint_like(_empty(d), -3, 7), _integers(-3, 7)),
    "randint_like_tensor": (
        lambda d: torch.randint_like(_empty(d), torch.tensor(7)),
        _integers(0, 7),
    ),
    "rand_like_generator": (
        lambda d: aten.rand_like.generator(_empty(d), generator=_generator(d)),
        _uniform(0, 1),
    ),
    "randn_like_generator": (
        lambda d: aten.randn_like.generator(_empty(d), generator=_generator(d)),
        _normal(),
    ),
    "randint_like_generator": (
        lambda d: aten.randint_like.generator(_empty(d), 7, generator=_generator(d)),
        _integers(0, 7),
    ),
    "randint_like_low_generator": (
        lambda d: aten.randint_like.low_generator_dtype(_empty(d), -3, 7, generator=_generator(d)),
        _integers(-3, 7),
    ),
    "randint_like_tensor_generator": (
        lambda d: aten.randint_like.Tensor_generator(
            _empty(d), torch.tensor(7), generator=_generator(d)
        ),
        _integers(0, 7),
    ),
    "random_to": (lambda d: _empty(d, torch.int32).random_(9), _integers(0, 9)),
    "random_from": (lambda d: _empty(d).random_(-4, 9), _integers(-4, 9)),
    "random_int8": (lambda d: _empty(d, torch.int8).random_(), _integers(0, 128)),
    "random_float": (lambda d: _empty(d).random_(), _integers(0, 2**24 + 1)),
    "random_int64": (
        lambda d: _empty(d, torch.int64).random_(),
        _uniform(0, 2.0**63),
    ),
    "randperm": (lambda d: torch.randperm(N, device=d), _integers(0, N)),
    "randperm_generator": (
        lambda d: torch.randperm(N, device=d, generator=_generator(d)),
        _integers(0, N),
    ),
    "uniform": (lambda d: _empty(d).uniform_(-2, 5), _uniform(-2, 5)),
    "normal_in_place": (lambda d: _empty(d).normal_(3, 2), _normal(3, 2)),
    "normal_sizes": (lambda d: torch.normal(1.0, 2.0, (N,), device=d), _normal(1, 2)),
    "normal_tensor_float": (lambda d: torch.normal(_empty(d) + 1, 2.0), _normal(1, 2)),
    "normal_float_tensor": (lambda d: torch.normal(1.0, _empty(d) + 2), _normal(1, 2)),
    "normal_tensors": (lambda d: torch.normal(_empty(d) + 1, _empty(d) + 2), _normal(1, 2)),
    "bernoulli": (lambda d: torch.bernoulli(_empty(d) + 0.3), _bernoulli(0.3)),
    "bernoulli_p": (lambda d: _empty(d, torch.int64).bernoulli_(0.3), _bernoulli(0.3)),
    "bernoulli_default": (lambda d: _empty(d).bernoulli_(), _bernoulli(0.5)),
    "bernoulli_tensor": (lambda d: _empty(d).bernoulli_(_empty(d) + 0.7), _bernoulli(0.7)),
    "exponential": (
        lambda d: _empty(d).exponential_(2.0),
        lambda x: 1 - torch.exp(-2 * x.clamp(0)),
    ),
    "geometric": (
        lambda d: _empty(d).geometric_(0.3),
        lambda x: 1 - 0.7 ** x.floor().clamp(0),
    ),
    "geometric_int": (
        lambda d: _empty(d, torch.int32).geometric_(0.3),
        lambda x: 1 - 0.7 ** x.floor().clamp(0),
    ),
    "log_normal": (
        lambda d: _empty(d).log_normal_(0.5, 0.8),
        lambda x: torch.special.ndtr((x.clamp(1e-30).log() - 0.5) / 0.8),
    ),
    "cauchy": (
        lambda d: _empty(d).cauchy_(1, 2),
        lambda x: 0.5 + torch.atan((x - 1) / 2) / math.pi,
    ),
    "poisson": (lambda d: torch.poisson(_empty(d) + 3.5), _poisson(3.5)),
    "binomial": (
        lambda d: torch.binomial(_empty(d) + 10, _empty(d) + 0.3),
        _binomial(10, 0.3),
    ),
    "gamma": (
        lambda d: torch._standard_gamma(_empty(d) + 2.5),
        lambda x: torch.special.gammainc(torch.full_like(x, 2.5), x.clamp(0)),
    ),
    "dirichlet": (
        # The first of three parts of a flat Dirichlet is Beta(1, 2).
        lambda d: torch._sample_dirichlet(torch.ones(N, 3, device=d))[:, 0],
        lambda x: 1 - (1 - x.clamp(0, 1)) ** 2,
    ),
    "multinomial": (
        lambda d: torch.multinomial(torch.tensor([1.0, 0.0, 3.0, 4.0], device=d), N, True),
        _discrete(1, 0, 3, 4),
    ),
    "multinomial_without_replacement": (
        lambda d: torch.multinomial(torch.ones(N, 4, device=d), 2)[:, 1],
        _discrete(1, 1, 1, 1),
    ),
    "dropout": (
        lambda d: torch.nn.functional.dropout(_empty(d) + 1, 0.4) * 0.6,
        _bernoulli(0.6),
    ),
    "dropout_mask": (
        lambda d: torch.ops.aten.native_dropout(_empty(d) + 1, 0.4, True)[1].float(),
        _bernoulli(0.6),
    ),
    "rrelu": (
        lambda d: torch.nn.functional.rrelu(_empty(d) - 1, 0.1, 0.4, training=True),
        _uniform(-0.4, -0.1),
    ),
}
HALF_BOUNDED: dict[str, tuple[Draw, float, float]] = {
    "rand_half": (lambda d: torch.rand(N, device=d, dtype=_HALF), 0, 1),
    "uniform_half": (lambda d: _empty(d, _HALF).uniform_(-1, 1), -1, 1),
    "uniform_float": (lambda d: _empty(d).uniform_(1, 1.0000001), 1, 2),
}
