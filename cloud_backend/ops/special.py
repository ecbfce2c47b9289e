"""Special functions that XLA lacks: Bessel, Airy, zeta, scaled error function, polygamma.

Rarely on a hot path, so they are evaluated in float64 from power series, asymptotic series and the
trapezoidal rule on integral representations, and rounded at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast, elementwise, result_dtype, to_float
from cloud_backend.ops.pointwise import digamma
from torch_tpu_unified.core.aten import aten

_SERIES_END = 12.0  # power series below, Hankel's asymptotic series above: both good to 1e-10
_EULER = 0.57721566490153286


def in_float64(op: Any, f: Callable[[Any], Any]) -> None:
    """Register `f`, evaluated in float64 and rounded to the floating result dtype."""

    @lowers(op)
    def lowering(x):
        return cast(f(cast(x, np.float64)), to_float(x.dtype))


def _horner(coefficients: list[float], t: Any) -> Any:
    total = jnp.zeros_like(t)
    for c in reversed(coefficients):
        total = total * t + c
    return total


def _harmonic(k: int) -> float:
    return sum(1 / i for i in range(1, k + 1))


def _series(order: int, weight: Callable[[int], float], sign: int) -> list[float]:
    """Coefficients in (x/2)^2 of a Bessel-like series of order 0 or 1."""
    return [
        sign**k * weight(k) / (math.factorial(k) * math.factorial(k + order)) for k in range(45)
    ]


def _hankel(order: int) -> tuple[list[float], list[float]]:
    """Coefficients in 1/x^2 of Hankel's P and, less a factor 1/x, Q."""
    mu, term, terms = 4 * order * order, 1.0, []
    for k in range(24):
        terms.append(term)
        term *= (mu - (2 * k + 1) ** 2) / ((k + 1) * 8)
    signs = [(-1) ** (k // 2) for k in range(24)]
    signed = [s * t for s, t in zip(signs, terms, strict=True)]
    return signed[0::2], signed[1::2]


def _bessel(order: int, second: bool, x: Any) -> Any:
    """J or Y (`second`) of order 0 or 1 at x >= 0."""
    low = jnp.minimum(x, _SERIES_END)
    square = low * low / 4
    first = _horner(_series(order, lambda k: 1.0, -1), square) * (low / 2) ** order
    if second:

        def weight(k: int) -> float:
            return _harmonic(k) + (_harmonic(k + 1) if order else _harmonic(k))

        rest = _horner(_series(order, weight, -1), square) * (low / 2) ** order
        pole = 2 / (math.pi * low) if order else 0.0
        low_value = (2 * (jnp.log(low / 2) + _EULER) * first - rest) / math.pi - pole
    else:
        low_value = first
    high = jnp.maximum(x, _SERIES_END)
    p, q = _hankel(order)
    inverse = 1 / (high * high)
    p_value, q_value = _horner(p, inverse), _horner(q, inverse) / high
    angle = high - (2 * order + 1) * math.pi / 4
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    wave = p_value * sin + q_value * cos if second else p_value * cos - q_value * sin
    high_value = jnp.where(jnp.isinf(high), 0, jnp.sqrt(2 / (math.pi * high)) * wave)
    return jnp.where(x < _SERIES_END, low_value, high_value)


def _second_kind(order: int) -> Callable[[Any], Any]:
    def f(x):
        value = jnp.where(x == 0, -jnp.inf, _bessel(order, True, jnp.where(x > 0, x, 1)))
        return jnp.where((x < 0) | jnp.isnan(x), jnp.nan, value)

    return f


def _bessel_j1(x):
    return jnp.sign(x) * _bessel(1, False, jnp.abs(x))


in_float64(aten.special_bessel_j0.default, lambda x: _bessel(0, False, jnp.abs(x)))
in_float64(aten.special_bessel_j1.default, _bessel_j1)
in_float64(aten.special_bessel_y0.default, _second_kind(0))
in_float64(aten.special_bessel_y1.default, _second_kind(1))
in_float64(aten.special_modified_bessel_i0.default, jsp.i0)
in_float64(aten.special_modified_bessel_i1.default, jsp.i1)


def _scaled_k(order: float, x: Any) -> Any:
    """exp(x) K_order(x) at x > 0: the integral of exp(-x (cosh t - 1)) cosh(order t)."""
    points = 96
    end = jnp.arccosh(1 + 45 / x)
    step = end / points
    total = jnp.full_like(x, 0.5)
    for i in range(1, points + 1):
        t = step * i
        total = total + jnp.exp(-x * 2 * jnp.sinh(t / 2) ** 2) * jnp.cosh(order * t)
    return total * step


def _modified_k(order: int, scaled: bool) -> Callable[[Any], Any]:
    """K_order, or exp(x) K_order: by series near 0, by the integral elsewhere."""

    def f(x):
        low = jnp.clip(x, 1e-300, 2)
        square = low * low / 4
        regular = _horner(_series(order, lambda k: 1.0, 1), square) * (low / 2) ** order

        def weight(k: int) -> float:
            return (_harmonic(k) + (_harmonic(k + 1) if order else _harmonic(k))) / 2

        rest = _horner(_series(order, weight, 1), square) * (low / 2) ** order
        log = (jnp.log(low / 2) + _EULER) * regular
        near = 1 / low + log - rest if order else rest - log
        high = jnp.clip(x, 2, 1e300)
        far = _scaled_k(order, high)
        value = jnp.where(
            x <= 2,
            near * (jnp.exp(low) if scaled else 1),
            far if scaled else far * jnp.exp(-high),
        )
        value = jnp.where(x == 0, jnp.inf, jnp.where(x == jnp.inf, 0, value))
        return jnp.where((x < 0) | jnp.isnan(x), jnp.nan, value)

    return f


in_float64(aten.special_modified_bessel_k0.default, _modified_k(0, False))
in_float64(aten.special_modified_bessel_k1.default, _modified_k(1, False))
in_float64(aten.special_scaled_modified_bessel_k0.default, _modified_k(0, True))
in_float64(aten.special_scaled_modified_bessel_k1.default, _modified_k(1, True))


def _spherical_j0(x):
    safe = jnp.where(x == 0, 1, x)
    return jnp.where(jnp.isinf(x), 0, jnp.where(x == 0, 1, jnp.sin(safe) / safe))


in_float64(aten.special_spherical_bessel_j0.default, _spherical_j0)


def _airy_series(x: Any) -> Any:
    """Ai near 0, from the two solutions f and g of y'' = x y."""
    f_terms, g_terms = [1.0], [1.0]
    for k in range(1, 45):
        f_terms.append(f_terms[-1] / ((3 * k - 1) * (3 * k)))
        g_terms.append(g_terms[-1] / ((3 * k) * (3 * k + 1)))
    cube = x * x * x
    at_zero = 3 ** (-2 / 3) / math.gamma(2 / 3)
    slope = 3 ** (-1 / 3) / math.gamma(1 / 3)
    return at_zero * _horner(f_terms, cube) - slope * x * _horner(g_terms, cube)


def _airy_wave(z: Any) -> Any:
    """Ai(-z) for large z, by its asymptotic series."""
    xi = 2 / 3 * z * jnp.sqrt(z)
    terms = [1.0]
    for k in range(1, 24):
        terms.append(terms[-1] * (6 * k - 5) * (6 * k - 3) * (6 * k - 1) / ((2 * k - 1) * 216 * k))
    signed = [(-1) ** (k // 2) * t for k, t in enumerate(terms)]
    inverse = 1 / (xi * xi)
    angle = xi + math.pi / 4
    wave = jnp.sin(angle) * _horner(signed[0::2], inverse)
    wave = wave - jnp.cos(angle) * _horner(signed[1::2], inverse) / xi
    return wave / (math.sqrt(math.pi) * z**0.25)


def _airy(x):
    middle = _airy_series(jnp.clip(x, -8, 1))
    high = jnp.clip(x, 1, 1e100)
    xi = 2 / 3 * high * jnp.sqrt(high)
    decay = jnp.sqrt(high / 3) / math.pi * _scaled_k(1 / 3, xi) * jnp.exp(-xi)
    low = _airy_wave(jnp.maximum(-x, 8))
    value = jnp.where(x > 1, decay, jnp.where(x < -8, low, middle))
    return jnp.where(jnp.isnan(x) | (x == -jnp.inf), jnp.nan, value)


in_float64(aten.special_airy_ai.default, _airy)


def _erfcx(x):
    """exp(x^2) erfc(x): a continued fraction where erfc would underflow."""
    size = jnp.abs(x)
    near = jnp.minimum(size, 5)
    near_value = jnp.exp(near * near) * jax.lax.erfc(near)
    far = jnp.maximum(size, 5)
    fraction = far
    for k in range(40, 0, -1):
        fraction = far + k / 2 / fraction
    value = jnp.where(size < 5, near_value, 1 / (math.sqrt(math.pi) * fraction))
    return jnp.where(x < 0, 2 * jnp.exp(x * x) - value, value)


in_float64(aten.special_erfcx.default, _erfcx)


_MOST_ZETA_TERMS = 100_000


def _zeta(x, q):
    """The Hurwitz zeta function; below 0 by its recurrence, which jax cuts short."""
    x, q = jnp.broadcast_arrays(x, q)
    terms = jnp.where(q < 0, jnp.minimum(jnp.ceil(-q), _MOST_ZETA_TERMS), 0)
    terms = jnp.where(jnp.isfinite(q), terms, 0)

    def more(state):
        return state[0] < jnp.max(terms, initial=0)

    def add(state):
        k, total = state
        return k + 1, total + jnp.where(k < terms, jnp.power(q + k, -x), 0)

    _, total = jax.lax.while_loop(more, add, (jnp.zeros((), q.dtype), jnp.zeros_like(q)))
    value = total + jsp.zeta(x, jnp.where(q < 0, q + terms, q))
    value = jnp.where((q < 0) & (x != jnp.floor(x)), jnp.nan, value)
    # The first term decides for an infinite exponent.
    first = jnp.where(q == 1, 1, jnp.where(q < 1, jnp.inf, value))
    value = jnp.where(x == jnp.inf, first, value)
    value = jnp.where((q <= 0) & (q == jnp.floor(q)) & (x != 1), jnp.inf, value)
    return jnp.where(x < 1, jnp.nan, value)


@lowers(aten.special_zeta.default, aten.special_zeta.self_scalar, aten.special_zeta.other_scalar)
def zeta(x, other):
    return elementwise(_zeta, x, other, floating=True)


def _trigamma(x):
    """zeta(2, x), but as PyTorch at the ends: 1/x where x is large, NaN at -inf."""
    value = jnp.where(x > 1e17, 1 / x, _zeta(jnp.asarray(2, x.dtype), x))
    return jnp.where(x == -jnp.inf, jnp.nan, value)


@lowers(aten.polygamma.default)
def polygamma(n, x):
    if n == 0:
        return elementwise(digamma, x, floating=True)
    if n == 1:
        return elementwise(_trigamma, x, floating=True)
    # (-1)^(n+1) n! zeta(n + 1, x)
    factor = (-1.0) ** (n + 1) * math.gamma(n + 1)
    return elementwise(lambda v: factor * _zeta(jnp.asarray(n + 1, v.dtype), v), x, floating=True)


@lowers(aten.mvlgamma.default)
def mvlgamma(x, p):
    def f(v):
        offsets = np.arange(p, dtype=v.dtype) / 2
        total = jnp.sum(jax.lax.lgamma(v[..., None] - offsets), axis=-1)
        return total + np.asarray(p * (p - 1) / 4 * math.log(math.pi), v.dtype)

    return elementwise(f, x, floating=True)


@lowers(aten._dirichlet_grad.default)
def dirichlet_grad(x, alpha, total):
    """d sample / d alpha of a Dirichlet sample, through its beta-distributed marginal."""
    dtype = result_dtype(x, alpha, total)
    value, a, b = (cast(v, np.float64) for v in (x, alpha, total - alpha))
    # The marginal's distribution function F(value; a, b) is constant along the path, so
    # d value / d a = -(dF/da) / density; the total moves with alpha.
    step = 1e-5 * jnp.maximum(a, 1e-3)
    slope = (jsp.betainc(a + step, b, value) - jsp.betainc(a - step, b, value)) / (2 * step)
    log_density = (a - 1) * jnp.log(value) + (b - 1) * jnp.log1p(-value) - jsp.betaln(a, b)
    return cast(-slope / jnp.exp(log_density) / (1 - value), dtype)
