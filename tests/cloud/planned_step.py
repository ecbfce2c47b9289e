"""A planned training step with values, over 8 virtual devices, beside PyTorch's own AdamW.

Prints the largest differences of losses and parameters for each mesh, as JSON.
"""

from __future__ import annotations

import copy
import json
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import torch_tpu_unified as ttu
from cloud_backend.pod.step import AdamW, Layout, Step
from torch_tpu_unified.planning import Planned

WIDTH, VOCABULARY, LENGTH, BATCH = 16, 24, 8, 8
MESHES = ({"data": 8}, {"data": 2, "fsdp": 2, "tensor": 2})


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.v_proj, self.o_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [f(x).unflatten(-1, (2, -1)).transpose(1, 2) for f in self.children()][:3]
        seen = F.scaled_dot_product_attention(*parts, is_causal=True)
        return x + torch.tanh(self.o_proj(seen.transpose(1, 2).flatten(2)))


class Model(nn.Module):
    """Token ids and labels [N, T] to the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(3)])
        self.lm_head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.lm_head(x).flatten(0, 1), labels.flatten())


def by_torch(model: nn.Module, ids: torch.Tensor, o: AdamW) -> list[float]:
    """Losses of 3 steps; the model is trained in place."""
    optimizer = torch.optim.AdamW(
        model.parameters(), o.rate, (o.beta1, o.beta2), o.epsilon, o.decay
    )
    losses = []
    for _ in range(3):
        loss = model(ids, ids.roll(-1, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def by_step(model: nn.Module, ids: torch.Tensor, axes: dict[str, int], o: AdamW):
    """The same by a planned step over a mesh: losses and parameters."""
    planned = Planned("test", lambda batch: (model, (ids, ids)), LENGTH, 0, 0.0)
    program = planned.program(BATCH)
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(tuple(axes.values())), tuple(axes))
    step = Step(program, Layout(program, mesh), compute=jnp.float32, optimizer=o)
    shapes = step.arguments()
    values = {n: t.detach().numpy() for n, t in program.weights.items()}
    trained = {n: jax.device_put(values[n], s.sharding) for n, s in shapes[0].items()}
    zeros = [jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype, device=s.sharding), shapes[1])]
    batch = [
        jax.device_put(x.numpy(), s.sharding)
        for x, s in zip((ids, ids.roll(-1, 1)), shapes[3], strict=True)
    ]
    run, moments, losses = jax.jit(step), zeros[0], []
    for _ in range(3):
        loss, trained, moments = run(trained, moments, {}, batch)
        losses.append(float(loss))
    return losses, trained


def main() -> None:
    torch.manual_seed(0)
    model, ids = Model(), torch.randint(VOCABULARY, (BATCH, LENGTH))
    optimizer = AdamW(rate=1e-2, epsilon=1e-5)
    scanned = ttu.scan_layers(copy.deepcopy(model))
    losses = by_torch(model, ids, optimizer)
    expected = ttu.scan_layers(model).state_dict(keep_vars=False)
    rows = []
    for axes in MESHES:
        found, weights = by_step(scanned, ids, axes, optimizer)
        other = copy.deepcopy(scanned)
        for name, value in weights.items():
            other.get_parameter(name).data = torch.from_numpy(np.array(value))
        state = other.state_dict()
        difference = max(float((state[n] - expected[n]).abs().max()) for n in expected)
        loss = max(abs(a - b) for a, b in zip(found, losses, strict=True))
        rows.append({"axes": axes, "loss": loss, "parameters": difference})
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
