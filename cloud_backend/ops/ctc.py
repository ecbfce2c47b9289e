"""Connectionist temporal classification: the loss by a scan over time, and its gradient.

States interleave blanks with labels: blank, l1, blank, l2, ... Impossible states hold a very low
finite number rather than -inf, so that gradients of the log-sum stay finite. Lengths are data: new
ones do not compile again, which is why the lowerings run outside jit and call jitted functions.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast
from torch_tpu_unified.core.aten import aten

LOW = -1e30


def _padded(targets, lengths: np.ndarray):
    """Targets as (N, longest), from either of PyTorch's forms; lengths are concrete."""
    longest = int(lengths.max(initial=0))
    if targets.ndim == 2:
        return targets[:, :longest]
    starts = np.cumsum(lengths) - lengths
    at = starts[:, None] + np.arange(longest)
    return (
        targets[np.clip(at, 0, max(targets.shape[0] - 1, 0))]
        if targets.size
        else (jnp.zeros((lengths.shape[0], longest), targets.dtype))
    )


def _alphas(log_probs, labels, blank):
    """Log of the summed probability of every prefix that ends in a state, shape (T, N, states)."""
    n, longest = labels.shape
    states = 2 * longest + 1
    extended = jnp.full((n, states), blank, labels.dtype).at[:, 1::2].set(labels)
    # A label may follow the label before it without a blank when the two differ.
    skips = jnp.zeros((n, states), bool)
    if longest > 1:
        skips = skips.at[:, 3::2].set(labels[:, 1:] != labels[:, :-1])
    emitted = jnp.take_along_axis(log_probs, extended[None], axis=2)
    emitted = jnp.maximum(emitted, LOW)
    first = jnp.full((n, states), LOW, log_probs.dtype).at[:, :2].set(emitted[0, :, :2])

    def step(alpha, probability):
        one = jnp.pad(alpha, ((0, 0), (1, 0)), constant_values=LOW)[:, :states]
        two = jnp.pad(alpha, ((0, 0), (2, 0)), constant_values=LOW)[:, :states]
        two = jnp.where(skips, two, LOW)
        alpha = jnp.logaddexp(jnp.logaddexp(alpha, one), two) + probability
        alpha = jnp.maximum(alpha, LOW)
        return alpha, alpha

    _, rest = jax.lax.scan(step, first, emitted[1:])
    return jnp.concatenate([first[None], rest])


def _likelihood(log_probs, labels, input_lengths, target_lengths, blank):
    """Negative log-likelihoods (finite, -LOW when impossible) and the alphas."""
    alphas = _alphas(log_probs, labels, blank)
    rows = jnp.arange(labels.shape[0])
    last = alphas[jnp.maximum(input_lengths - 1, 0), rows]
    end = 2 * target_lengths
    final = last[rows, end]
    before = jnp.where(target_lengths > 0, last[rows, jnp.maximum(end - 1, 0)], LOW)
    total = jnp.logaddexp(final, before)
    empty = jnp.where(target_lengths == 0, 0.0, LOW).astype(total.dtype)
    return -jnp.where(input_lengths > 0, total, empty), alphas


@functools.partial(jax.jit, static_argnames=("blank", "zero_infinity"))
def _loss(log_probs, labels, input_lengths, target_lengths, blank, zero_infinity):
    loss, alphas = _likelihood(log_probs, labels, input_lengths, target_lengths, blank)
    impossible = loss >= -LOW / 2
    loss = jnp.where(impossible, 0.0 if zero_infinity else jnp.inf, loss)
    alphas = jnp.where(alphas <= LOW / 2, -jnp.inf, alphas)
    return loss.astype(log_probs.dtype), jnp.swapaxes(alphas, 0, 1)


@functools.partial(jax.jit, static_argnames=("blank", "zero_infinity"))
def _gradient(grad, log_probs, labels, input_lengths, target_lengths, blank, zero_infinity):
    def total(values):
        return _likelihood(values, labels, input_lengths, target_lengths, blank)[0]

    loss, pull = jax.vjp(total, log_probs)
    (slope,) = pull(jnp.ones_like(loss))
    # PyTorch's gradient takes log_probs for the result of log_softmax, hence the first term.
    out = (jnp.exp(log_probs) + slope) * grad[None, :, None]
    impossible = loss >= -LOW / 2
    out = jnp.where(impossible[None, :, None], 0.0 if zero_infinity else jnp.nan, out)
    inside = jnp.arange(log_probs.shape[0])[:, None] < input_lengths
    return jnp.where(inside[:, :, None], out, 0).astype(log_probs.dtype)


def _arguments(log_probs, targets, input_lengths, target_lengths):
    lengths = np.asarray(target_lengths, np.int64)
    labels = _padded(targets, lengths)
    return log_probs, labels, jnp.asarray(np.asarray(input_lengths)), jnp.asarray(lengths)


@lowers(aten._ctc_loss.default, aten._ctc_loss.Tensor, host=True)
def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    given = _arguments(log_probs, targets, input_lengths, target_lengths)
    # The backward sees impossible targets by their infinite loss, so zeroing is left to the caller.
    return _loss(*given, blank=blank, zero_infinity=False)


@lowers(aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor, host=True)
def ctc_loss_backward(
    grad,
    log_probs,
    targets,
    input_lengths,
    target_lengths,
    neg_log_likelihood,
    log_alpha,
    blank,
    zero_infinity=False,
):
    given = _arguments(log_probs, targets, input_lengths, target_lengths)
    grad = cast(grad, log_probs.dtype)
    return _gradient(grad, *given, blank=blank, zero_infinity=zero_infinity)
