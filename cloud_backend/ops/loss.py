"""Losses and their backward operators.

`reduction` is 0 for none, 1 for mean, 2 for sum. Half-precision losses compute in float32.
Class targets equal to `ignore_index` take no part; other targets out of range are not detected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast, compute_dtype, elementwise, result_dtype, rounded
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported

_NONE, _MEAN, _SUM = 0, 1, 2


def _reduced(loss: jax.Array, reduction: int) -> jax.Array:
    if reduction == _NONE:
        return loss
    total = jnp.sum(loss)
    return total / np.asarray(loss.size, loss.dtype) if reduction == _MEAN else total


def _loss(f: Callable[..., Any], reduction: int, *args: Any) -> jax.Array:
    """`f` of the promoted arguments, reduced before it is rounded to their dtype."""
    dtype = result_dtype(*args)
    wide = compute_dtype(dtype)
    return cast(_reduced(f(*(cast(a, wide) for a in args)), reduction), dtype)


def _grad(f: Callable[..., Any], reduction: int, grad_output: Any, x: Any, *args: Any) -> Any:
    """`grad_output * f(...)`, divided by the number of elements for a mean."""

    def scaled(g, v, *rest):
        slope = g * f(v, *rest)
        return slope / np.asarray(_size(v, *rest), v.dtype) if reduction == _MEAN else slope

    return elementwise(scaled, grad_output, x, *args)


def _size(*arrays: Any) -> int:
    return int(np.prod(np.broadcast_shapes(*(a.shape for a in arrays)), dtype=np.int64))


@lowers(aten.mse_loss.default)
def mse_loss(x, target, reduction):
    return _loss(lambda v, t: (v - t) * (v - t), reduction, x, target)


@lowers(aten.mse_loss_backward.default)
def mse_loss_backward(grad_output, x, target, reduction):
    return _grad(lambda v, t: 2 * (v - t), reduction, grad_output, x, target)


@lowers(aten.smooth_l1_loss.default)
def smooth_l1_loss(x, target, reduction, beta):
    def f(v, t):
        z = jnp.abs(v - t)
        if beta == 0:
            return z
        return jnp.where(z < beta, 0.5 * z * z / beta, z - 0.5 * beta)

    return _loss(f, reduction, x, target)


@lowers(aten.smooth_l1_loss_backward.default)
def smooth_l1_loss_backward(grad_output, x, target, reduction, beta):
    def f(v, t):
        z = v - t
        if beta == 0:
            return jnp.sign(z)
        return jnp.where(jnp.abs(z) < beta, z / beta, jnp.sign(z))

    return _grad(f, reduction, grad_output, x, target)


@lowers(aten.huber_loss.default)
def huber_loss(x, target, reduction, delta):
    def f(v, t):
        z = jnp.abs(v - t)
        return jnp.where(z <= delta, 0.5 * z * z, delta * (z - 0.5 * delta))

    return _loss(f, reduction, x, target)


@lowers(aten.huber_loss_backward.default)
def huber_loss_backward(grad_output, x, target, reduction, delta):
    return _grad(lambda v, t: jnp.clip(v - t, -delta, delta), reduction, grad_output, x, target)


@lowers(aten.soft_margin_loss.default)
def soft_margin_loss(x, target, reduction):
    return _loss(lambda v, t: jax.nn.softplus(-t * v), reduction, x, target)


@lowers(aten.soft_margin_loss_backward.default)
def soft_margin_loss_backward(grad_output, x, target, reduction):
    return _grad(lambda v, t: -t * jax.nn.sigmoid(-t * v), reduction, grad_output, x, target)


def _weighted(f: Callable[..., Any], weight: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    if weight is None:
        return f, ()
    return (lambda v, t, w: f(v, t) * w), (weight,)


@lowers(aten.binary_cross_entropy.default)
def binary_cross_entropy(x, target, weight, reduction):
    def f(v, t):
        # PyTorch bounds the logarithms at -100, so that a loss is finite.
        return (t - 1) * jnp.maximum(jnp.log1p(-v), -100) - t * jnp.maximum(jnp.log(v), -100)

    f, extra = _weighted(f, weight)
    return _loss(f, reduction, x, target, *extra)


@lowers(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(grad_output, x, target, weight, reduction):
    def f(v, t):
        return (v - t) / jnp.maximum((1 - v) * v, 1e-12)

    f, extra = _weighted(f, weight)
    return _grad(f, reduction, grad_output, x, target, *extra)


@lowers(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(x, target, weight, pos_weight, reduction):
    """PyTorch composes it on every device: each step is rounded to the dtype."""
    extra = tuple(a for a in (weight, pos_weight) if a is not None)
    dtype = result_dtype(x, target, *extra)

    def r(v):
        return rounded(v, dtype)

    def f(v, t, *rest):
        positive = r(jax.nn.softplus(-v))
        if pos_weight is not None:
            positive = r(r(r(r(rest[-1] - 1) * t) + 1) * positive)
        loss = r(r(r(1 - t) * v) + positive)
        return loss if weight is None else r(loss * rest[0])

    return _loss(f, reduction, x, target, *extra)


def _classes(x: jax.Array, target: jax.Array, weight: Any, ignore_index: int) -> Any:
    """For class scores [C], [N, C] or [N, C, ...]: the channel axis, each target as an index that
    is in range, whether it counts, and its weight."""
    axis = min(1, x.ndim - 1)
    counts = target != ignore_index
    index = jnp.where(counts, target, 0)
    dtype = compute_dtype(x.dtype)
    if weight is None:
        scale = counts.astype(dtype)
    else:
        scale = jnp.where(counts, cast(weight, dtype)[index], 0)
    return axis, index, scale


@lowers(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(x, target, weight, reduction, ignore_index):
    """The loss and the sum of the targets' weights (0 where the loss is not reduced)."""
    axis, index, scale = _classes(x, target, weight, ignore_index)
    wide = cast(x, scale.dtype)
    if target.ndim == x.ndim:  # one sample: scores [C] with a target [1]
        picked = jnp.take_along_axis(wide, index, axis=axis)
    else:
        picked = jnp.take_along_axis(wide, jnp.expand_dims(index, axis), axis=axis).squeeze(axis)
    # where, not a product alone: an ignored -inf must not turn into a NaN.
    loss = jnp.where(target != ignore_index, -picked * scale, 0)
    if reduction == _NONE:
        total = jnp.zeros((), x.dtype) if x.ndim > 1 else cast(jnp.sum(scale), x.dtype)
        return cast(loss, x.dtype), total
    total = jnp.sum(scale)
    value = jnp.sum(loss)
    value = value / total if reduction == _MEAN else value
    return cast(value, x.dtype), cast(total, x.dtype)


@lowers(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(grad_output, x, target, weight, reduction, ignore_index, total_weight):
    axis, index, scale = _classes(x, target, weight, ignore_index)
    grad = cast(grad_output, scale.dtype)
    if reduction == _MEAN:
        grad = grad / cast(total_weight, scale.dtype)
    grad = jnp.where(target != ignore_index, -grad * scale, 0)
    if target.ndim < x.ndim:
        index, grad = jnp.expand_dims(index, axis), jnp.expand_dims(grad, axis)
    place = jax.lax.broadcasted_iota(index.dtype, x.shape, axis)
    return cast(jnp.where(place == index, grad, 0), x.dtype)


def _margins(x: jax.Array, target: jax.Array, margin: Any) -> tuple[Any, Any, Any, Any]:
    """Rows, and for each class but the target how far it breaks the margin."""
    rows = jnp.atleast_2d(x)
    rows = cast(rows, compute_dtype(x.dtype))
    index = target.reshape(-1, 1)
    picked = jnp.take_along_axis(rows, index, axis=1)
    is_target = jax.lax.broadcasted_iota(index.dtype, rows.shape, 1) == index
    gap = cast(margin, rows.dtype) - picked + rows
    return rows, index, is_target, jnp.where(is_target, 0, jnp.maximum(gap, 0))


def _check_power(p: Any) -> None:
    if p not in (1, 2):
        raise Unsupported("only p == 1 and p == 2 supported")


@lowers(aten.multi_margin_loss.default, static=("p",))
def multi_margin_loss(x, target, p, margin, weight, reduction):
    _check_power(p)
    rows, index, _, gap = _margins(x, target, margin)
    loss = gap if p == 1 else gap * gap
    if weight is not None:
        loss = loss * cast(weight, loss.dtype)[index]
    loss = jnp.sum(loss, axis=1) / np.asarray(rows.shape[1], loss.dtype)
    return cast(_reduced(loss if target.ndim else loss.reshape(()), reduction), x.dtype)


@lowers(aten.multi_margin_loss_backward.default, static=("p",))
def multi_margin_loss_backward(grad_output, x, target, p, margin, weight, reduction):
    _check_power(p)
    rows, index, is_target, gap = _margins(x, target, margin)
    slope = (gap > 0).astype(rows.dtype) if p == 1 else 2 * gap
    if weight is not None:
        slope = slope * cast(weight, slope.dtype)[index]
    n, classes = rows.shape
    slope = slope / np.asarray(classes * (n if reduction == _MEAN else 1), slope.dtype)
    slope = jnp.where(is_target, -jnp.sum(slope, axis=1, keepdims=True), slope)
    grad = cast(grad_output, slope.dtype)
    return cast((slope * (grad.reshape(-1, 1) if grad.ndim else grad)).reshape(x.shape), x.dtype)


def _label_sets(x: jax.Array, target: jax.Array) -> tuple[Any, Any, Any, Any]:
    """Rows, the targets as indices, which of them come before the first -1, and a class mask."""
    rows = cast(jnp.atleast_2d(x), compute_dtype(x.dtype))
    targets = jnp.atleast_2d(target)
    valid = jnp.cumprod((targets >= 0).astype(np.int32), axis=1).astype(np.bool_)
    index = jnp.where(valid, targets, 0)
    classes = jax.lax.broadcasted_iota(index.dtype, (*index.shape, rows.shape[1]), 2)
    hit = (classes == index[..., None]) & valid[..., None]
    return rows, index, valid, hit


@lowers(aten.multilabel_margin_loss_forward.default)
def multilabel_margin_loss_forward(x, target, reduction):
    """The loss, and a mask (in the input's dtype) of the classes that are targets."""
    rows, index, valid, hit = _label_sets(x, target)
    is_target = jnp.any(hit, axis=1)
    picked = jnp.take_along_axis(rows, index, axis=1)
    gap = jnp.maximum(1 - picked[..., None] + rows[:, None, :], 0)
    counts = valid[..., None] & ~is_target[:, None, :]
    loss = jnp.sum(jnp.where(counts, gap, 0), axis=(1, 2)) / np.asarray(rows.shape[1], rows.dtype)
    loss = loss if x.ndim > 1 else loss.reshape(())
    return cast(_reduced(loss, reduction), x.dtype), cast(is_target.reshape(target.shape), x.dtype)


@lowers(aten.multilabel_margin_loss_backward.default)
def multilabel_margin_loss_backward(grad_output, x, target, reduction, is_target):
    rows, index, valid, hit = _label_sets(x, target)
    picked = jnp.take_along_axis(rows, index, axis=1)
    outside = jnp.atleast_2d(is_target)[:, None, :] == 0
    broken = (1 - picked[..., None] + rows[:, None, :] > 0) & valid[..., None] & outside
    broken = broken.astype(rows.dtype)
    n, classes = rows.shape
    slope = jnp.sum(broken, axis=1) - jnp.sum(hit * jnp.sum(broken, axis=2)[..., None], axis=1)
    slope = slope / np.asarray(classes * (n if reduction == _MEAN else 1), slope.dtype)
    grad = cast(grad_output, slope.dtype)
    return cast((slope * (grad.reshape(-1, 1) if grad.ndim else grad)).reshape(x.shape), x.dtype)
