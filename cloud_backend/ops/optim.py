"""Fused optimiser steps and the loss-scaling kernels of mixed precision.

A step takes lists of parameters, gradients and states, and returns the new lists in the order of
the schema's returns. Where `found_inf` is 1 everything stays as it was. `lr` is traced, so that a
schedule does not compile again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast, compute_dtype
from torch_tpu_unified.core.aten import aten


def _keeper(found_inf: Any) -> Callable[[Any, Any], Any]:
    """Chooses between a new value and the old one, which stays when infinities were found."""
    if found_inf is None:
        return lambda new, old: cast(new, old.dtype)
    skip = found_inf.reshape(()) == 1
    return lambda new, old: jnp.where(skip, old, cast(new, old.dtype))


def _gradient(grad: jax.Array, scale: Any, dtype: np.dtype, maximize: bool) -> tuple[Any, Any]:
    """The unscaled gradient (which is written back), and the direction to go down."""
    unscaled = cast(grad, dtype)
    if scale is not None:
        unscaled = unscaled / cast(scale.reshape(()), dtype)
    return unscaled, -unscaled if maximize else unscaled


def _adam(decoupled: bool) -> Callable[..., Any]:
    def step(
        x,
        grads,
        exp_avgs,
        exp_avg_sqs,
        max_exp_avg_sqs,
        state_steps,
        *,
        lr,
        beta1,
        beta2,
        weight_decay,
        eps,
        amsgrad,
        maximize,
        grad_scale,
        found_inf,
    ):
        keep = _keeper(found_inf)
        out: tuple[list[Any], ...] = ([], [], [], [], [])
        for i, (p, g, m, v, n) in enumerate(
            zip(x, grads, exp_avgs, exp_avg_sqs, state_steps, strict=True)
        ):
            dtype = compute_dtype(p.dtype)
            top = max_exp_avg_sqs[i] if amsgrad else None
            unscaled, grad = _gradient(g, grad_scale, dtype, maximize)
            old = (cast(a, dtype) for a in (p, m, v))
            new = _adam_one(
                *old, grad, top, cast(n, dtype), cast(lr, dtype),
                (beta1, beta2, weight_decay, eps), decoupled,
            )  # fmt: skip
            out[0].append(keep(new[0], p))
            out[1].append(g if grad_scale is None else keep(unscaled, g))
            out[2].append(keep(new[1], m))
            out[3].append(keep(new[2], v))
            if amsgrad:
                out[4].append(keep(new[3], top))
        return (*out[:4], out[4] if amsgrad else list(max_exp_avg_sqs))

    return step


def _adam_one(param, mean, square, grad, top, step, lr, numbers, decoupled):
    """One parameter's new value and states: (param, mean, square, largest square)."""
    beta1, beta2, weight_decay, eps = numbers
    if weight_decay != 0:
        if decoupled:
            param = param * (1 - lr * weight_decay)
        else:
            grad = grad + param * weight_decay
    mean = mean + (grad - mean) * (1 - beta1)
    square = square * beta2 + grad * grad * (1 - beta2)
    first = 1 - jnp.power(jnp.asarray(beta1, param.dtype), step)
    second = 1 - jnp.power(jnp.asarray(beta2, param.dtype), step)
    used = square
    if top is not None:
        used = top = jnp.maximum(cast(top, param.dtype), square)
    denominator = jnp.sqrt(used) / jnp.sqrt(second) + eps
    return param - (lr / first) * mean / denominator, mean, square, top


for _packet, _step in ((aten._fused_adam, _adam(False)), (aten._fused_adamw, _adam(True))):
    lowers(_packet.default, dynamic=("lr",))(_step)
    lowers(_packet.tensor_lr)(_step)


@lowers(aten._fused_sgd.tensor_lr)
@lowers(aten._fused_sgd.default, dynamic=("lr",))
def fused_sgd(
    x,
    grads,
    momentum_buffer_list,
    *,
    weight_decay,
    momentum,
    lr,
    dampening,
    nesterov,
    maximize,
    is_first_step,
    grad_scale,
    found_inf,
):
    keep = _keeper(found_inf)
    params, unscaled_grads, buffers = [], [], []
    for i, (p, g) in enumerate(zip(x, grads, strict=True)):
        dtype = compute_dtype(p.dtype)
        param = cast(p, dtype)
        unscaled, grad = _gradient(g, grad_scale, dtype, maximize)
        if weight_decay != 0:
            grad = grad + param * weight_decay
        if momentum != 0:
            old = momentum_buffer_list[i]
            if is_first_step:
                buffer = grad
            else:
                buffer = cast(old, dtype) * momentum + grad * (1 - dampening)
            buffers.append(keep(buffer, old))
            grad = grad + buffer * momentum if nesterov else buffer
        params.append(keep(param - cast(lr, dtype) * grad, p))
        unscaled_grads.append(g if grad_scale is None else keep(unscaled, g))
    return params, unscaled_grads, buffers if momentum != 0 else list(momentum_buffer_list)


def _adagrad(x, grads, state_sums, state_steps, lr, numbers, maximize, grad_scale, found_inf):
    lr_decay, weight_decay, eps = numbers
    keep = _keeper(found_inf)
    params, unscaled_grads, sums = [], [], []
    for p, g, total, step in zip(x, grads, state_sums, state_steps, strict=True):
        dtype = compute_dtype(p.dtype)
        param = cast(p, dtype)
        unscaled, grad = _gradient(g, grad_scale, dtype, maximize)
        if weight_decay != 0:
            grad = grad + param * weight_decay
        rate = cast(lr, dtype) / (1 + (cast(step, dtype) - 1) * lr_decay)
        new_total = cast(total, dtype) + grad * grad
        params.append(keep(param - rate * grad / (jnp.sqrt(new_total) + eps), p))
        unscaled_grads.append(g if grad_scale is None else keep(unscaled, g))
        sums.append(keep(new_total, total))
    return params, unscaled_grads, sums


@lowers(aten._fused_adagrad.default, dynamic=("lr",))
def fused_adagrad(
    x, grads, state_sums, state_steps,
    *, lr, lr_decay, weight_decay, eps, maximize, grad_scale, found_inf,
):  # fmt: skip
    numbers = (lr_decay, weight_decay, eps)
    new = _adagrad(x, grads, state_sums, state_steps, lr, numbers, maximize, grad_scale, found_inf)
    return (*new, list(state_steps))


@lowers(aten._fused_adagrad.tensor_lr)
def fused_adagrad_tensor_lr(
    x, grads, state_sums, state_steps,
    *, lr, lr_decay, weight_decay, eps, maximize, grad_scale, found_inf,
):  # fmt: skip
    numbers = (lr_decay, weight_decay, eps)
    return _adagrad(x, grads, state_sums, state_steps, lr, numbers, maximize, grad_scale, found_inf)


@lowers(aten._amp_foreach_non_finite_check_and_unscale.default)
def amp_unscale(x, found_inf, inv_scale):
    """Gradients times `inv_scale`, and 1.0 where any of them was not finite."""
    bad = found_inf.reshape(()) != 0
    scale = inv_scale.reshape(())
    unscaled = []
    for grad in x:
        bad = bad | ~jnp.all(jnp.isfinite(grad))
        wide = cast(grad, compute_dtype(grad.dtype))
        product = jnp.where(scale == 1, wide, wide * cast(scale, wide.dtype))
        unscaled.append(cast(product, grad.dtype))
    return unscaled, jnp.where(bad, 1, found_inf).astype(found_inf.dtype)


@lowers(aten._amp_update_scale.default)
def amp_update_scale(
    x, growth_tracker, found_inf, scale_growth_factor, scale_backoff_factor, growth_interval
):
    """The new scale and growth tracker: back off after infinities, grow after enough good steps."""
    bad = found_inf.reshape(()) != 0
    good_steps = growth_tracker + 1
    grow = good_steps == growth_interval
    grown = cast(x * np.asarray(scale_growth_factor, x.dtype), x.dtype)
    # A scale that would become infinite stays.
    grown = jnp.where(jnp.isfinite(grown), grown, x)
    backed = cast(x * np.asarray(scale_backoff_factor, x.dtype), x.dtype)
    scale = jnp.where(bad, backed, jnp.where(grow, grown, x))
    tracker = jnp.where(bad | grow, 0, good_steps)
    return scale, tracker.astype(growth_tracker.dtype)
