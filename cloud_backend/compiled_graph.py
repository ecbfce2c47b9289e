"""A graph of `torch.compile` at work: one XLA program per combination of symbolic sizes, and calls.

A call gathers the arrays behind its tensors and starts the program. Inputs that the graph writes
(parameters of a compiled optimiser step, running statistics) are donated: the new values take the
memory of the old ones.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule, Node

from cloud_backend import (
    events,
    graph_placement,
    mesh,
    precision,
    program_index,
    rng,
    runtime,
    tensor,
    views,
)
from cloud_backend.dtypes import to_jax
from cloud_backend.graph_text import graph_text
from cloud_backend.interpret import all_nodes, attribute, interpret, is_random, to_array
from cloud_backend.program import Program, on_device
from torch_tpu_unified.core import flags

Tensor = torch.Tensor
# To an array that nobody else holds, as `_own` sees them: of the buffer, the list, the call.
_OWN_REFERENCES = 3


class CompiledGraph:
    """An ATen graph as one program per combination of symbolic sizes.

    Takes a list of inputs, returns a list of outputs (PyTorch's boxed convention).

    Args:
        gm: the graph. A `copy_` into an input is its new value, written when the program has run.
        reason: why PyTorch compiled its function again, "" for the first graph.
        pair: what a forward and a backward graph of one function share.
        backward: whether this is the backward graph.
    """

    def __init__(
        self,
        gm: GraphModule,
        reason: str = "",
        pair: graph_placement.Pair | None = None,
        *,
        backward: bool = False,
    ) -> None:
        self.gm, self.reason = gm, reason
        self.pair, self.backward = pair or graph_placement.Pair(), backward
        self._boxed_call = True  # on the instance: PyTorch's wrappers copy what stands there
        nodes = list(gm.graph.nodes)
        self.placeholders = [n for n in nodes if n.op == "placeholder"]
        is_tensor = [isinstance(n.meta.get("val"), Tensor) for n in self.placeholders]
        self.places = [i for i, t in enumerate(is_tensor) if t]
        self.numbers = [i for i, t in enumerate(is_tensor) if not t]
        self.outputs = list(next(n for n in nodes if n.op == "output").args[0])
        self.attributes = [
            n
            for n in nodes
            if n.op == "get_attr" and isinstance(attribute(gm, str(n.target)), Tensor)
        ]
        self.constants: list[Any] | None = None
        self.called = [str(n.target) for n in nodes if n.op == "call_function"]
        self.random = any(is_random(n) for n in all_nodes(gm))
        self.ranks = _ranks_of(gm)
        order = {n: i for i, n in enumerate(self.placeholders)}
        self.written = {  # place of the input -> the node of its new value
            order[n.args[0]]: n
            for n in nodes
            if n.target is torch.ops.aten.copy_.default and n.args[0] in order
        }
        self.donated = [self.places.index(i) for i in self.written]
        self.fixed = [_fixed_size(self.placeholders[i]) for i in self.places]
        # What the base array of each input looked like, where that says that it is the input.
        self.plain: list[Any] = [None] * len(self.places)
        self.programs: dict[Any, tuple[Program, list[Any]]] = {}
        self.last: Any = None

    def __call__(self, inputs: list[Any]) -> list[Any]:
        numbers = tuple([inputs[i] for i in self.numbers])
        tensors = [inputs[i] for i in self.places] if numbers else inputs
        setting = precision.Setting.name
        arrays = self._plain_arrays(tensors) if mesh.Active.mesh is None else None
        if arrays is None or self.last is None or self.last[0] != (numbers, setting):
            arrays = self._find(numbers, setting, tensors, inputs)
        _, program, kinds = self.last
        for place in self.donated:
            _own(arrays, place)
        arrays += self._held()
        if self.random:
            arrays += on_device([rng.take(None)])
        events.operators(self.called)
        with events.span("tpu::compiled_graph"):
            results = iter(program.execute(arrays).consume_with_handlers(program.handlers))
        arrays.clear()
        made = [_output(kind, results, inputs) for kind in kinds]
        return made[: len(self.outputs)]  # behind them are writes and assertions

    def _plain_arrays(self, tensors: list[Any]) -> list[Any] | None:
        """The arrays of inputs that all look as they did; None if one does not."""
        arrays = []
        append = arrays.append
        for x, aval in zip(tensors, self.plain, strict=True):
            buffer = getattr(x.untyped_storage(), "buffer", None)
            if buffer is None:
                return None
            base = buffer.array
            if base is None or base.aval is not aval:
                return None
            append(base)
        return arrays

    def _find(self, numbers: Any, setting: Any, tensors: list[Any], inputs: Any) -> list[Any]:
        """The arrays of any inputs; the program for them becomes the last one."""
        arrays = on_device([self._array(i, x) for i, x in enumerate(tensors)])
        placement = None
        if mesh.Active.mesh is not None:
            arrays, placement = graph_placement.settle(
                tensors, arrays, self.pair, self.backward, inputs
            )
        looks = tuple([(a.shape, a.dtype) for a in arrays])
        key = (numbers, setting, looks, placement)
        if key not in self.programs:
            self._count(numbers, looks)
            with events.span("tpu::make_program"):
                self.programs[key] = self._make(numbers, arrays, placement)
        self.last = ((numbers, setting), *self.programs[key])
        return arrays

    def _array(self, i: int, x: Tensor) -> Any:
        array = to_array(x)
        base = getattr(getattr(x.untyped_storage(), "buffer", None), "array", None)
        self.plain[i] = base.aval if array is base and array.shape == self.fixed[i] else None
        return array

    def _held(self) -> list[Any]:
        """The constants of the graph, on the device."""
        if self.constants is None:
            held = [attribute(self.gm, str(n.target)) for n in self.attributes]
            self.constants = on_device([to_array(c) for c in held])
        if mesh.Active.mesh is not None:
            self.constants = [mesh.settled(c) for c in self.constants]
        return self.constants

    def _count(self, numbers: Any, looks: Any) -> None:
        """Tell that a program is made, and why if it is not the first."""
        name = f"a graph of {len(self.called)} operators"
        reason = self.reason
        if self.programs:
            before, _, shapes, _ = next(reversed(self.programs))
            reason = "another precision of products"
            if numbers != before:
                reason = f"new sizes {list(numbers)}, after {list(before)}"
            elif looks != shapes:
                changed = [(a[0], b[0]) for a, b in zip(looks, shapes, strict=True) if a != b]
                reason = f"an input of shape {changed[0][0]}, after {changed[0][1]}"
        events.graph_made(name, reason)
        if flags.DEBUG.value:
            print(f"tpu: program for {name}", file=sys.stderr)

    def _make(
        self, numbers: tuple[Any, ...], arrays: list[Any], placement: Any
    ) -> tuple[Program, list[Any]]:
        kinds: list[Any] = []

        def run(*arguments: Any) -> list[Any]:
            kinds.clear()
            given = iter(arguments)
            environment: dict[Node, Any] = {}
            for place in self.places:
                environment[self.placeholders[place]] = next(given)
            if placement is not None:
                placement.gather([self.placeholders[i] for i in self.places], environment)
            for place, number in zip(self.numbers, numbers, strict=True):
                environment[self.placeholders[place]] = number
            for node in self.attributes:
                environment[node] = next(given)
            checks: list[Any] = []
            interpret(self.gm, environment, rng.key(next(given)) if self.random else None, checks)
            results = self._results(environment, kinds)
            if placement is not None:
                results = placement.settled(results, kinds)
            for place, node in self.written.items():
                kinds.append(("write", place))
                value = environment[node]
                if placement is not None:
                    value = placement.pinned(self.places.index(place), value)
                results.append(value)
            kinds.extend(("check", message) for _, message in checks)
            return [*results, *(condition for condition, _ in checks)]

        jitted = runtime.start().jit(run, keep_unused=True, donate_argnums=tuple(self.donated))
        state = [np.zeros(4, np.uint32)] if self.random else []
        given = [*arrays, *self._held(), *on_device(state)]
        if self.ranks is not None:
            return self.ranks.program(run, given, self.donated), kinds
        # Programs over several chips depend on where their inputs lie, too.
        alone = placement is None and mesh.Active.mesh is None
        name = self._name(numbers, given) if alone else None
        program = Program(
            jitted, given, name, lambda: [_to_json(kind) for kind in kinds], placement is None
        )
        return program, [_from_json(kind) for kind in program.extra]

    def _name(self, numbers: Any, arrays: list[Any]) -> str | None:
        """What the index of programs on disk knows the program by."""
        if self.text is None:
            return None
        looks = [(a.shape, str(a.dtype), a.weak_type) for a in arrays]
        return program_index.key("graph", self.text, numbers, precision.Setting.name, looks)

    @functools.cached_property
    def text(self) -> str | None:
        """The digest of the graph's text; None if it has none."""
        text = graph_text(self.gm)
        return None if text is None else hashlib.sha256(text.encode()).hexdigest()

    def _results(self, environment: dict[Node, Any], kinds: list[Any]) -> list[Any]:
        """The arrays that leave the program; `kinds` says what each output is made of."""
        results = []
        jnp = runtime.start().numpy
        order = {n: i for i, n in enumerate(self.placeholders)}
        for out in self.outputs:
            value = environment[out] if isinstance(out, Node) else out
            fake = out.meta.get("val") if isinstance(out, Node) else None
            if out in order:  # what is kept for backward, a gradient that passes through
                kinds.append(("input", order[out]))
            elif isinstance(fake, Tensor):
                value = jnp.asarray(value)
                m = _meta_like(fake, value)
                value = value.astype(to_jax(m.dtype)).reshape(m.size)
                kinds.append(("host" if fake.device.type == "cpu" else "tensor", m))
                results.append(views.lay_out(value, m.size, m.stride))
            elif hasattr(value, "aval"):  # a number that values decide
                kinds.append(("number", None))
                results.append(value)
            else:
                kinds.append(("value", value))
        return results


def _to_json(kind: Any) -> Any:
    what, value = kind
    if isinstance(value, tensor.Meta):
        return what, (value.size, value.stride, str(value.dtype).removeprefix("torch."))
    return kind


def _from_json(kind: Any) -> Any:
    what, value = kind
    if what in ("tensor", "host"):
        size, stride, dtype = value
        return what, tensor.meta(size, stride, getattr(torch, dtype))
    return what, value


def _ranks_of(gm: GraphModule) -> Any:
    """The ranks that run the graph together, if it has collectives; else None."""
    from cloud_backend.distributed import functional

    return functional.ranks_of(all_nodes(gm))


def _fixed_size(node: Node) -> tuple[int, ...] | None:
    """The size of an input that is always contiguous and has one size; None for others."""
    fake = node.meta["val"]
    numbers = (*fake.shape, *fake.stride())
    if not all(isinstance(n, int) for n in numbers) or fake.dtype.is_complex:
        return None
    size = tuple(fake.shape)
    return size if views.is_contiguous(size, tuple(fake.stride())) else None


def _own(arrays: list[Any], place: int) -> None:
    """See that the array at a place may be donated: others that hold it keep it, we take a copy."""
    if sys.getrefcount(arrays[place]) > _OWN_REFERENCES:
        arrays[place] = runtime.start().numpy.copy(arrays[place])


def _meta_like(fake: Tensor, value: Any) -> tensor.Meta:
    """Metadata of an output: the fake tensor's strides where they are numbers, else contiguous."""
    size = tuple(value.shape)
    stride = fake.stride()
    if all(isinstance(s, int) for s in (*stride, *fake.shape)):
        return tensor.meta(fake.shape, stride, fake.dtype)
    return tensor.meta(size, views.contiguous_stride(size), fake.dtype)


def _output(kind: Any, results: Any, inputs: list[Any]) -> Any:
    what, value = kind
    if what == "tensor":
        return tensor.wrap(next(results), value)
    if what == "input":
        return inputs[value]
    if what == "value":
        return value
    if what == "write":
        return _write(inputs[value], next(results))
    if what == "check":
        return _checked(next(results), value)
    if what == "number":
        events.host_sync("a number that leaves a compiled program")
        return next(results).item()
    return tensor.wrap(next(results), value).cpu()


def _write(target: Tensor, value: Any) -> None:
    if target.device.type == "tpu":
        tensor.write(target, value)
        return
    # A number on the host beside tensors of the device, such as an optimiser's count of steps.
    events.host_sync("a tensor on the host that a compiled program writes")
    m = tensor.meta(value.shape, views.contiguous_stride(value.shape), target.dtype)
    with torch.no_grad():
        target.copy_(tensor.wrap(value, m))


def _checked(condition: Any, message: str) -> None:
    """Waits for an assertion of a compiled program."""
    events.host_sync("assertion")
    if not bool(condition):
        raise RuntimeError(message)
