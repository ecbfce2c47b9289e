"""Training steps written by hand in plain jax, for the models of `train_step`: the yardstick.

Each loss takes a dictionary of arrays under the names of the torch model's parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Params = dict[str, Any]


def cross_entropy(logits: Any, labels: Any) -> Any:
    """The mean over all rows."""
    logits = logits.reshape(-1, logits.shape[-1])
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels.reshape(-1, 1), 1)
    return -chosen.mean()


def linear(p: Params, name: str, x: Any) -> Any:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def layer_norm(p: Params, name: str, x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def mlp_loss(p: Params, x: Any, labels: Any) -> Any:
    """Linear layers `0`, `2`, `4` with ReLU between them."""
    for name in ("0", "2"):
        x = jax.nn.relu(linear(p, name, x))
    return cross_entropy(linear(p, "4", x), labels)


def gpt_loss(p: Params, ids: Any, labels: Any) -> Any:
    """The GPT of `eager_modes`, four heads."""
    x = p["tokens.weight"][ids] + p["places.weight"]
    batch, length, width = x.shape
    mask = jnp.triu(jnp.ones((length, length), bool), 1)
    layers = len({name.split(".")[1] for name in p if name.startswith("blocks.")})
    for i in range(layers):
        b = f"blocks.{i}"
        parts = jnp.split(linear(p, f"{b}.qkv", layer_norm(p, f"{b}.norm1", x)), 3, 2)
        q, k, v = (a.reshape(batch, length, 4, width // 4).swapaxes(1, 2) for a in parts)
        scores = q @ k.swapaxes(-2, -1) / (width // 4) ** 0.5
        mixed = jax.nn.softmax(jnp.where(mask, -jnp.inf, scores)) @ v
        x = x + linear(p, f"{b}.out", mixed.swapaxes(1, 2).reshape(batch, length, width))
        hidden = jax.nn.gelu(linear(p, f"{b}.up", layer_norm(p, f"{b}.norm2", x)), approximate=True)
        x = x + linear(p, f"{b}.down", hidden)
    return cross_entropy(linear(p, "head", layer_norm(p, "norm", x)), labels)


def _conv(x: Any, weight: Any, stride: int) -> Any:
    pad = weight.shape[-1] // 2
    return lax.conv_general_dilated(x, weight, (stride, stride), [(pad, pad)] * 2)


def _batch_norm(p: Params, name: str, x: Any) -> Any:
    mean = x.mean((0, 2, 3), keepdims=True)
    variance = ((x - mean) ** 2).mean((0, 2, 3), keepdims=True)
    scale, shift = (p[f"{name}.{n}"][:, None, None] for n in ("weight", "bias"))
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + shift


def resnet_loss(p: Params, x: Any, labels: Any) -> Any:
    """ResNet-18 for small images, without running statistics."""
    x = jax.nn.relu(_batch_norm(p, "norm", _conv(x, p["conv.weight"], 1)))
    for i in range(8):
        b, stride = f"blocks.{i}", 2 if i in (2, 4, 6) else 1
        y = jax.nn.relu(_batch_norm(p, f"{b}.norm1", _conv(x, p[f"{b}.conv1.weight"], stride)))
        y = _batch_norm(p, f"{b}.norm2", _conv(y, p[f"{b}.conv2.weight"], 1))
        if f"{b}.short.weight" in p:
            x = _batch_norm(p, f"{b}.norm3", _conv(x, p[f"{b}.short.weight"], stride))
        x = jax.nn.relu(x + y)
    return cross_entropy(linear(p, "head", x.mean((2, 3))), labels)


def adamw(params: Params, grads: Params, state: Any, rate: float = 1e-3) -> tuple[Params, Any]:
    """PyTorch's AdamW with its defaults."""
    step, first, second = state
    step = step + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grads)
    size, root = rate / (1 - 0.9**step), jnp.sqrt(1 - 0.999**step)

    def update(w: Any, m: Any, v: Any) -> Any:
        return w * (1 - rate * 0.01) - size * m / (jnp.sqrt(v) / root + 1e-8)

    return jax.tree.map(update, params, first, second), (step, first, second)


def training_step(loss: Callable[..., Any], params: Params, *batch: Any) -> Callable[[], Any]:
    """A function that makes one step, in one program with donated arguments; returns the loss."""

    def step(params: Params, state: Any, *batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        return *adamw(params, grads, state), value

    run = jax.jit(step, donate_argnums=(0, 1))
    zeros = jax.tree.map(jnp.zeros_like, params)
    held = [params, (jnp.zeros((), "float32"), zeros, jax.tree.map(jnp.zeros_like, params))]

    def call() -> Any:
        *held[:], value = run(*held, *batch)
        return value

    return call
