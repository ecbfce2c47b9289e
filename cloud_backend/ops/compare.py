"""Comparisons, logic, bits, selection and clamping.

Comparisons promote first and give bool. NaNs are unequal to everything, and pass through clamps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast, is_complex, promoted, result_dtype
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported


def comparison(name: str, f: Callable[[Any, Any], Any]) -> None:
    """Register both overloads of a comparison."""
    packet = getattr(aten, name)

    @lowers(packet.Tensor, packet.Scalar)
    def lowering(x, other):
        return f(*promoted(x, other))


for _name, _f in {
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
}.items():
    comparison(_name, _f)


def logical(op: Any, f: Callable[[Any, Any], Any]) -> None:
    """Register a logical operator; every dtype counts as "not zero"."""

    @lowers(op)
    def lowering(x, other):
        return f(x != 0, other != 0)


logical(aten.logical_and.default, jnp.logical_and)
logical(aten.logical_or.default, jnp.logical_or)
logical(aten.logical_xor.default, jnp.logical_xor)


def bitwise(*ops: Any, f: Callable[[Any, Any], Any]) -> None:
    """Register a bitwise operator of `(self, other)`."""

    @lowers(*ops)
    def lowering(x, other):
        a, b = promoted(x, other)
        if np.dtype(a.dtype).kind not in "biu":
            raise Unsupported(f"bitwise operators take integers, not {a.dtype}")
        return f(*jnp.broadcast_arrays(a, b))


def _shift_right(a, b):
    # PyTorch fills with the sign for counts that are negative or too large.
    bits = np.dtype(a.dtype).itemsize * 8
    outside = (b < 0) | (b >= bits)
    if np.dtype(a.dtype).kind == "u":
        return jnp.where(outside, 0, jax.lax.shift_right_logical(a, b)).astype(a.dtype)
    return jax.lax.shift_right_arithmetic(a, jnp.where(outside, bits - 1, b).astype(a.dtype))


def _shift_left(a, b):
    bits = np.dtype(a.dtype).itemsize * 8
    return jnp.where((b < 0) | (b >= bits), 0, jax.lax.shift_left(a, b)).astype(a.dtype)


for _packet, _f in {
    aten.bitwise_and: jnp.bitwise_and,
    aten.bitwise_or: jnp.bitwise_or,
    aten.bitwise_xor: jnp.bitwise_xor,
}.items():
    bitwise(_packet.Tensor, _packet.Scalar, _packet.Scalar_Tensor, f=_f)
for _packet, _f in {
    aten.bitwise_left_shift: _shift_left,
    aten.bitwise_right_shift: _shift_right,
}.items():
    bitwise(_packet.Tensor, _packet.Tensor_Scalar, _packet.Scalar_Tensor, f=_f)
bitwise(aten.__lshift__.Tensor, aten.__lshift__.Scalar, f=_shift_left)
bitwise(aten.__rshift__.Tensor, aten.__rshift__.Scalar, f=_shift_right)


@lowers(aten.where.self)
def where(condition, x, other):
    a, b = promoted(x, other)
    return jnp.where(condition != 0, a, b)


@lowers(aten.clamp.default, aten.clamp.Tensor)
def clamp(x, min, max):
    dtype = result_dtype(x, min, max)
    if is_complex(dtype):
        raise Unsupported("clamp is not supported for complex types")
    value = cast(x, dtype)
    if min is not None:
        value = jnp.maximum(value, cast(min, dtype))
    if max is not None:
        value = jnp.minimum(value, cast(max, dtype))
    return value


@lowers(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(x, min):
    return jnp.maximum(*promoted(x, min))


@lowers(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(x, max):
    return jnp.minimum(*promoted(x, max))


def _isin(elements, test_elements, invert):
    a, b = promoted(elements, test_elements)
    found = jnp.isin(jnp.atleast_1d(a), jnp.atleast_1d(b)).reshape(a.shape)
    return ~found if invert else found


@lowers(aten.isin.Tensor_Tensor)
def isin(elements, test_elements, *, invert):
    return _isin(elements, test_elements, invert)


@lowers(aten.isin.Tensor_Scalar)
def isin_scalar(elements, test_element, *, invert):
    return _isin(elements, test_element, invert)


@lowers(aten.isin.Scalar_Tensor)
def isin_scalar_tensor(element, test_elements, *, invert):
    return _isin(element, test_elements, invert)


@lowers(aten.equal.default, host=True)
def equal(x, other):
    return x.shape == other.shape and bool(jnp.all(x == other))


@lowers(aten._is_all_true.default)
def is_all_true(x):
    return jnp.all(x)


@lowers(aten._is_any_true.default)
def is_any_true(x):
    return jnp.any(x)
