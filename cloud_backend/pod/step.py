"""A training or inference step of an exported program over a mesh, as one function of JAX.

Weights, AdamW's moments and the batch are arguments known by shape and partition alone. Layers that
`scan_layers` made one loop are rematerialised: the backward computes each layer again from its
input. Weights spread along `fsdp` are cast, gathered for the layer that uses them, and their
gradients reduced and scattered back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cloud_backend import control_flow
from cloud_backend.pod.attention import over
from cloud_backend.stablehlo import PureProgram
from torch_tpu_unified.core.errors import InputError

BATCH_AXES = ("data", "fsdp")
TENSOR = "tensor"
# Dimensions from the end that tensor parallelism splits, by the names that models give weights.
TENSOR_RULES: dict[str, int] = {
    r".*(q|k|v|gate|up)_proj(\.|__)weight": -2,
    r".*(o|down)_proj(\.|__)weight": -1,
    r".*(lm_head|embed_tokens)(\.|__)weight": -2,
}


class AdamW(NamedTuple):
    """The numbers of AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization")."""

    rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    decay: float = 0.1


class Layout:
    """Where the weights of a program lie on a mesh.

    Args:
        program: whose weights.
        mesh: with axes among `data`, `fsdp`, `tensor`.
        rules: pattern of weight names -> dimension, from the end, that `tensor` splits.

    Attributes:
        specs: name -> partition of each weight.
        whole: name -> its partition while it is used, without `fsdp`.
    """

    def __init__(
        self, program: PureProgram, mesh: Mesh, rules: Mapping[str, int] = TENSOR_RULES
    ) -> None:
        self.mesh = mesh
        self.batch = tuple(a for a in BATCH_AXES if a in mesh.shape)
        self.heads = TENSOR if TENSOR in mesh.shape else None
        self.loops = program.looped()
        stacked = {name for loop in self.loops for name in loop}
        self.specs: dict[str, list[Any]] = {}
        self.whole: dict[str, list[Any]] = {}
        for name, t in program.weights.items():
            spec = self._spec(name, tuple(t.shape), name in stacked, rules)
            self.specs[name] = spec
            self.whole[name] = [None if axis == "fsdp" else axis for axis in spec]

    def _spec(
        self, name: str, shape: tuple[int, ...], stacked: bool, rules: Mapping[str, int]
    ) -> list[Any]:
        spec: list[Any] = [None] * len(shape)
        if self.heads:
            for pattern, dim in rules.items():
                if len(shape) >= 2 and re.fullmatch(pattern, name):
                    if shape[dim] % self.mesh.shape[TENSOR]:
                        raise InputError(
                            f"{name} {list(shape)} does not divide by {self.mesh.shape[TENSOR]} "
                            "chips of the axis tensor; take fewer"
                        )
                    spec[dim] = TENSOR
        count = self.mesh.shape.get("fsdp", 1)
        free = [d for d in range(int(stacked), len(shape)) if spec[d] is None]
        free = [d for d in free if shape[d] % count == 0 and shape[d] >= count]
        if count > 1 and free:
            spec[max(free, key=lambda d: shape[d])] = "fsdp"
        return spec

    def sharding(self, spec: Sequence[Any]) -> NamedSharding:
        """The sharding of a partition."""
        return NamedSharding(self.mesh, PartitionSpec(*spec))


def gathered(x: Any, layout: Layout, spec: Sequence[Any], whole: Sequence[Any]) -> Any:
    """`x`, gathered along `fsdp`; its gradient is scattered as `x` was."""
    if list(spec) == list(whole):
        return x
    inside, outside = layout.sharding(whole), layout.sharding(spec)

    @jax.custom_vjp
    def gather(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x, inside)

    def backward(_: None, grad: Any) -> tuple[Any]:
        return (jax.lax.with_sharding_constraint(grad, outside),)

    gather.defvjp(lambda x: (gather(x), None), backward)
    # Without the barrier XLA may move the cast behind the gather and double its bytes.
    return gather(jax.lax.optimization_barrier(x))


class Step:
    """A step of a program over a mesh.

    Args:
        program: its first result is the loss (training), or what inference returns.
        layout: where its weights lie.
        train: forward, backward and AdamW's update; else the forward alone.
        compute: the dtype of products; parameters and moments of training are float32.
        remat: compute the layers of loops again in the backward.
        optimizer: AdamW's numbers.
    """

    def __init__(
        self,
        program: PureProgram,
        layout: Layout,
        *,
        train: bool = True,
        compute: Any = jnp.bfloat16,
        remat: bool = True,
        optimizer: AdamW | None = None,
    ) -> None:
        self.program, self.layout, self.train = program, layout, train
        self.compute, self.remat = compute, remat
        self.optimizer = optimizer or AdamW()
        self.looped = {name for loop in layout.loops for name in loop}

    def arguments(self) -> tuple[Any, ...]:
        """Shapes and shardings of what the step takes: parameters, constants, moments, inputs."""
        weights, inputs = self.program.shapes()[:2]
        trained: dict[str, Any] = {}
        constants: dict[str, Any] = {}
        for name, shape in weights.items():
            sharding = self.layout.sharding(self.layout.specs[name])
            is_trained = name in self.program.trained
            dtype = shape.dtype
            if is_trained:
                dtype = jnp.float32 if self.train else self.compute
            struct = jax.ShapeDtypeStruct(shape.shape, dtype, sharding=sharding)
            (trained if is_trained else constants)[name] = struct
        spread = self.layout.sharding([self.layout.batch])
        batch = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=spread) for x in inputs]
        if not self.train:
            return trained, constants, batch
        count = jax.ShapeDtypeStruct((), jnp.int32, sharding=self.layout.sharding([]))
        return trained, (dict(trained), dict(trained), count), constants, batch

    def __call__(self, *arguments: Any) -> Any:
        """The traced step: (loss, parameters, moments), or the results of the forward."""
        if not self.train:
            trained, constants, batch = arguments
            return self._forward(trained, constants, batch)
        trained, moments, constants, batch = arguments

        def loss_of(trained: Any) -> Any:
            return self._forward(trained, constants, batch)[0].astype(jnp.float32)

        loss, grads = jax.value_and_grad(loss_of)(trained)
        return (loss, *self._updated(trained, moments, grads))

    def donated(self) -> tuple[int, ...]:
        """Which arguments the results replace."""
        return (0, 1) if self.train else ()

    def _forward(self, trained: Any, constants: Any, batch: Any) -> list[Any]:
        layout = self.layout
        weights = dict(constants)
        for name, value in trained.items():
            value = value.astype(self.compute)
            if name not in self.looped:
                value = gathered(value, layout, layout.specs[name], layout.whole[name])
            weights[name] = value
        token = control_flow.BODY.set(self._body(iter(layout.loops)))
        try:
            with over(layout.mesh, layout.batch, layout.heads):
                return self.program(weights, batch)  # type: ignore[no-any-return]
        finally:
            control_flow.BODY.reset(token)

    def _body(self, loops: Any) -> Callable[[Any], Any]:
        layout = self.layout

        def wrap(step: Any) -> Any:
            names = next(loops)

            def gathering(state: Any, slices: Any) -> Any:
                whole = [
                    gathered(x, layout, layout.specs[n][1:], layout.whole[n][1:])
                    for n, x in zip(names, slices, strict=True)
                ]
                return step(state, whole)

            return jax.checkpoint(gathering) if self.remat and self.train else gathering

        return wrap

    def _updated(self, trained: Any, moments: Any, grads: Any) -> tuple[Any, Any]:
        """AdamW, in float32: m and v of the gradients, decay beside the step."""
        o = self.optimizer
        first, second, count = moments
        count = count + 1
        correction1 = 1 - o.beta1 ** count.astype(jnp.float32)
        correction2 = 1 - o.beta2 ** count.astype(jnp.float32)
        new: dict[str, Any] = {}
        new_first: dict[str, Any] = {}
        new_second: dict[str, Any] = {}
        for name, p in trained.items():
            sharding = self.layout.sharding(self.layout.specs[name])
            g = jax.lax.with_sharding_constraint(grads[name], sharding)
            m = o.beta1 * first[name] + (1 - o.beta1) * g
            v = o.beta2 * second[name] + (1 - o.beta2) * g * g
            change = (m / correction1) / (jnp.sqrt(v / correction2) + o.epsilon)
            new[name] = p - o.rate * (change + o.decay * p)
            new_first[name], new_second[name] = m, v
        return new, (new_first, new_second, count)
