"""An exported program as one JAX function, and that function as StableHLO.

The graph is interpreted over the device's op table. Weights are arguments of the function, known by
their shapes alone, so a program is lowered without ever allocating them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from cloud_backend import dispatch, rng, runtime, tensor
from cloud_backend.compile import decompositions
from cloud_backend.dtypes import to_jax
from cloud_backend.interpret import all_nodes, interpret, is_random, known_operators
from torch_tpu_unified.core.errors import ConversionError, LoweringError, OptionError
from torch_tpu_unified.core.report import as_text, missing_operators

_USERS = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


class PureProgram:
    """A function of JAX: `program(weights, inputs)` gives the list of results.

    Args:
        exported: with static shapes; its weights may be on `meta`.
        instead: decompositions of operators that shall be others than PyTorch's.

    Attributes:
        weights: name -> tensor, in order; `trained`: the names of parameters among them.
        inputs: names of the user's tensors, in order.
        outputs: names of the results: `output`s of the user, then `new <name>` of what it writes.

    Raises:
        LoweringError: operators without a lowering, all of them.
        ConversionError: dynamic shapes, or inputs that are no tensors.
    """

    def __init__(self, exported: ExportedProgram, instead: Mapping[Any, Any] | None = None) -> None:
        dispatch.boot()
        _check_static(exported)
        kept = {**decompositions(composites=True), **(instead or {})}
        lowered = exported.run_decompositions(kept)
        self.module = lowered.graph_module
        missing = missing_operators(all_nodes(self.module), known_operators())
        if missing:
            raise LoweringError(f"tpu: cannot compile this program\n{as_text(missing)}")
        self.random = any(is_random(n) for n in all_nodes(self.module))
        signature = lowered.graph_signature
        self.weights: dict[str, torch.Tensor] = {}
        self.inputs: list[str] = []
        self._places: list[tuple[str, Any]] = []
        for spec in signature.input_specs:
            if spec.kind in _WEIGHTS:
                target = str(spec.target)
                held = lowered.state_dict if target in lowered.state_dict else lowered.constants
                self.weights[target] = held[target]
                self._places.append(("weight", target))
            elif spec.kind == InputKind.USER_INPUT and hasattr(spec.arg, "value"):
                self._places.append(("constant", spec.arg.value))
            elif spec.kind == InputKind.USER_INPUT:
                self._places.append(("input", len(self.inputs)))
                self.inputs.append(spec.arg.name)
            else:
                raise ConversionError(f"the program has an input of the kind {spec.kind.name}")
        nodes = list(self.module.graph.nodes)
        self._placeholders = [n for n in nodes if n.op == "placeholder"]
        self._results = list(next(n for n in nodes if n.op == "output").args[0])
        self.outputs = [_result_name(s, i) for i, s in enumerate(signature.output_specs)]
        self.user_outputs = [i for i, s in enumerate(signature.output_specs) if s.kind in _USERS]
        self.trained = set(signature.parameters)
        values = [n.meta["val"] for n in self._placeholders]
        self.input_values = [
            v for v, (kind, _) in zip(values, self._places, strict=True) if kind == "input"
        ]

    def __call__(self, weights: Mapping[str, Any], inputs: Sequence[Any], seed: Any = None) -> Any:
        """Trace or run the program on arrays.

        Args:
            weights, inputs: by name, and in order.
            seed: uint32[4], the state of the generator, if `random`.
        """
        environment: dict[torch.fx.Node, Any] = {}
        for node, (kind, what) in zip(self._placeholders, self._places, strict=True):
            source: Any = weights if kind == "weight" else inputs
            environment[node] = what if kind == "constant" else source[what]
        interpret(self.module, environment, None if seed is None else rng.key(seed))
        return [self._result(r, environment) for r in self._results]

    def _result(self, result: Any, environment: dict[torch.fx.Node, Any]) -> Any:
        jnp = runtime.start().numpy
        if not isinstance(result, torch.fx.Node):
            return jnp.asarray(result)
        fake = result.meta["val"]
        if not isinstance(fake, torch.Tensor):
            return jnp.asarray(environment[result])
        value = jnp.asarray(environment[result])
        return value.astype(to_jax(fake.dtype)).reshape(tuple(fake.shape))

    def looped(self) -> list[list[str]]:
        """For each loop of the graph, the names of the stacked weights that it walks over."""
        places = zip(self._placeholders, self._places, strict=True)
        names = {node: what for node, (kind, what) in places if kind == "weight"}
        loops = []
        for node in self.module.graph.nodes:
            if str(getattr(node.target, "_name", "")) == "scan":
                loops.append([names[x] for x in node.args[2]])
        return loops

    def shapes(self, place: Any = None) -> tuple[Any, ...]:
        """The arguments as `ShapeDtypeStruct`s; `place(shape, is_weight)` gives their shardings."""
        jax = runtime.start()

        def shape(t: torch.Tensor, is_weight: bool) -> Any:
            size = tuple(t.shape)
            sharding = place(size, is_weight) if place is not None else None
            return jax.ShapeDtypeStruct(size, to_jax(t.dtype), sharding=sharding)

        weights = {name: shape(t, True) for name, t in self.weights.items()}
        arguments: tuple[Any, ...] = (weights, [shape(t, False) for t in self.input_values])
        if self.random:
            arguments += (shape(torch.empty(4, dtype=torch.uint32, device="meta"), True),)
        return arguments

    def run(
        self, inputs: Sequence[torch.Tensor], *, everything: bool = False
    ) -> list[torch.Tensor]:
        """The user's results (or all) on CPU tensors, by XLA here; weights must have values."""
        jax = runtime.start()
        weights = {name: tensor.host_array(t) for name, t in self.weights.items()}
        seed = [jax.numpy.zeros(4, jax.numpy.uint32)] if self.random else []
        found = jax.jit(self.__call__)(weights, [tensor.host_array(t) for t in inputs], *seed)
        wanted = range(len(found)) if everything else self.user_outputs
        return [tensor.to_tensor(found[i]).cpu() for i in wanted]

    def in_torch(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """All results by the same graph in PyTorch on the CPU."""
        flat: list[Any] = []
        for kind, what in self._places:
            source: Any = self.weights if kind == "weight" else inputs
            value = what if kind == "constant" else source[what]
            flat.append(value.detach().clone() if isinstance(value, torch.Tensor) else value)
        with torch.no_grad():
            return list(self.module(*flat))


def _check_static(exported: ExportedProgram) -> None:
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and isinstance(value, torch.Tensor):
            if any(not isinstance(n, int) for n in value.shape):
                raise ConversionError(
                    f"the program has dynamic shapes ({node.name}: {list(value.shape)}); export it "
                    "without dynamic_shapes, for the sizes that you deploy"
                )


def _result_name(spec: Any, number: int) -> str:
    if spec.kind in _USERS:
        return str(getattr(spec.arg, "name", f"output_{number}"))
    gradient = spec.kind in (OutputKind.GRADIENT_TO_PARAMETER, OutputKind.GRADIENT_TO_USER_INPUT)
    return f"{'gradient of' if gradient else 'new'} {spec.target}"


def training_step(exported: ExportedProgram) -> ExportedProgram:
    """A program that gives a scalar loss, with the gradients of its parameters as further results.

    Raises:
        ConversionError: its first result is no scalar, or PyTorch cannot differentiate it.
    """
    from torch.export.experimental import _export_forward_backward

    first = list(next(n for n in exported.graph.nodes if n.op == "output").args[0])
    users = [
        r
        for r, s in zip(first, exported.graph_signature.output_specs, strict=True)
        if s.kind in _USERS
    ]
    loss = users[0].meta["val"] if users and isinstance(users[0], torch.fx.Node) else None
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ConversionError(
            "a training step needs a module whose forward returns the loss, a tensor of one element"
        )
    try:
        return _export_forward_backward(exported)
    except Exception as err:  # whatever autograd refuses
        reason = (str(err).strip().splitlines() or [type(err).__name__])[0]
        raise ConversionError(f"PyTorch cannot differentiate this program: {reason}") from err


@functools.cache
def _bindings() -> Any:
    runtime.start()
    from jaxlib.mlir.dialects import stablehlo

    return stablehlo


def version() -> str:
    """The StableHLO version of the installed jaxlib, such as `1.14.0`."""
    return str(_bindings().get_current_version())


def lowered(program: PureProgram, platform: str) -> Any:
    """The program lowered for `tpu` or `cpu`; no such device is needed."""
    jax = runtime.start()
    # An argument that is not read keeps its place, so that the names tell the places.
    traced = jax.jit(program.__call__, keep_unused=True).trace(*program.shapes())
    return traced.lower(lowering_platforms=(platform,))


def text(program: PureProgram, platform: str = "tpu") -> str:
    """The program as StableHLO text."""
    return str(lowered(program, platform).as_text())


def portable(program: PureProgram, platform: str = "tpu", target: str | None = None) -> bytes:
    """The program as a portable StableHLO artifact, readable by that version and later ones.

    Args:
        target: the oldest version that shall read it; default: the installed one's.

    Raises:
        OptionError: the version is no version, or outside what this jaxlib can write.
    """
    bindings = _bindings()
    oldest, newest = bindings.get_minimum_version(), version()
    chosen = target or newest
    try:
        fits = _numbers(oldest) <= _numbers(chosen) <= _numbers(newest)
    except ValueError:
        fits = False
    if not fits:
        raise OptionError(
            f"StableHLO {chosen!r} cannot be written; give {oldest} to {newest}, or leave it out"
        )
    module = str(lowered(program, platform).as_text())
    result: bytes = bindings.serialize_portable_artifact_str(module.encode(), chosen)
    return result


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split("."))
