"""The `torch.compile` backend: AOTAutograd's forward and backward graphs, each one XLA program.

A graph is interpreted over the same op table as eager mode, under `jax.jit` tracing. Symbolic sizes
arrive as Python ints; each new combination of them is traced anew.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from cloud_backend import (
    control_flow,
    dispatch,
    events,
    explain,
    recurrent_layers,
    rng,
    runtime,
    tensor,
    views,
)
from cloud_backend.dtypes import to_jax
from torch_tpu_unified.core import flags
from torch_tpu_unified.core.errors import InputError, LoweringError, Unsupported
from torch_tpu_unified.core.report import as_text, missing_operators

MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
aten = torch.ops.aten
_ASSERTS = (
    aten._assert_async.default,
    aten._assert_async.msg,
    aten._functional_assert_async.msg,
)
# Nodes that compute with Python numbers (symbolic sizes), not with tensors.
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)


def tpu_backend(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a Dynamo graph for the tpu device; `torch.compile(backend="tpu")` calls it.

    Args:
        gm: the graph that Dynamo captured.
        example_inputs: its inputs, fake or real.
        mode: one of PyTorch's modes; XLA optimises the same way in all of them.
        options: none exist yet.

    Raises:
        InputError: an unknown mode or option.
        LoweringError: operators without lowering, all of them at once.
    """
    if mode not in MODES:
        raise InputError(f"mode={mode!r} is not one of {', '.join(map(str, MODES))}")
    if options:
        raise InputError(
            f"the tpu backend has no option {next(iter(options))!r}; leave options out"
        )
    dispatch.boot()
    recurrent_layers.install()
    from functorch.compile import min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    compile_graph = functools.partial(_compile_graph, _recompile_reason())
    return aot_autograd(
        fw_compiler=compile_graph,
        bw_compiler=compile_graph,
        inference_compiler=compile_graph,
        decompositions=decompositions(),
        partition_fn=min_cut_rematerialization_partition,
    )(gm, example_inputs)


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's core ATen decompositions, less what the table lowers whole."""
    from torch._decomp import core_aten_decompositions, get_decompositions

    from cloud_backend.ops import TABLE

    found = dict(core_aten_decompositions())
    found.update(get_decompositions([op for op in _EXTRA if op not in found]))
    return {op: f for op, f in found.items() if op not in TABLE}


_EXTRA = [
    torch.ops.aten.embedding_dense_backward,
    torch.ops.aten.native_layer_norm_backward,
    torch.ops.aten.native_group_norm_backward,
    torch.ops.aten.native_dropout_backward,
    torch.ops.aten.elu_backward,
    torch.ops.aten.leaky_relu_backward,
    torch.ops.aten.softplus_backward,
]


def _recompile_reason() -> str:
    """Why PyTorch compiles this function again; "" when it does so for the first time."""
    from torch._dynamo.utils import get_metrics_context

    compile_id = torch._guards.CompileContext.current_compile_id()
    if compile_id is None or not compile_id.frame_compile_id:
        return ""
    told = getattr(get_metrics_context(), "_metrics", {}).get("recompile_reason")
    return str(told or "a guard of PyTorch failed; TORCH_LOGS=recompiles tells which").strip()


def _compile_graph(
    reason: str, gm: GraphModule, example_inputs: Sequence[Any]
) -> Callable[..., Any]:
    """A boxed function (takes a list of inputs, returns a list of outputs) for an ATen graph."""
    from functorch.compile import make_boxed_func

    _refuse_missing(gm)
    return make_boxed_func(CompiledGraph(gm, reason))


def known_operators() -> set[Any]:
    """Every operator that a graph may hold: PyTorch's and the user's."""
    from cloud_backend.ops import CUSTOM, TABLE

    return {*TABLE, *CUSTOM, *_ASSERTS, aten._make_dep_token.default}


def _refuse_missing(gm: GraphModule) -> None:
    missing = missing_operators(all_nodes(gm), known_operators())
    if missing:
        raise LoweringError(f"tpu: cannot compile this graph\n{as_text(missing)}")


class CompiledGraph:
    """An ATen graph as one jitted function per combination of symbolic sizes.

    Args:
        gm: the graph.
        reason: why PyTorch compiled its function again, "" for the first graph.
    """

    def __init__(self, gm: GraphModule, reason: str = "") -> None:
        self.gm, self.reason = gm, reason
        nodes = list(gm.graph.nodes)
        self.placeholders = [n for n in nodes if n.op == "placeholder"]
        self.outputs = list(next(n for n in nodes if n.op == "output").args[0])
        self.attributes = [
            n
            for n in nodes
            if n.op == "get_attr" and isinstance(_attribute(gm, str(n.target)), torch.Tensor)
        ]
        self.constants = [_attribute(gm, str(n.target)) for n in self.attributes]
        self.called = [str(n.target) for n in nodes if n.op == "call_function"]
        self.random = any(is_random(n) for n in all_nodes(gm))
        self.programs: dict[Any, tuple[Any, list[Any]]] = {}

    def __call__(self, *inputs: Any) -> list[Any]:
        arrays = [_to_array(x) for x in inputs if isinstance(x, torch.Tensor)]
        sizes = tuple(None if isinstance(x, torch.Tensor) else x for x in inputs)
        arrays += [_to_array(c) for c in self.constants]
        words = rng.take(None) if self.random else None
        if sizes not in self.programs:
            self._count(sizes)
            with events.span("tpu::make_program"):
                self.programs[sizes] = self._trace(sizes, arrays, words)
        events.operators(self.called)
        run, kinds = self.programs[sizes]
        with events.span("tpu::compiled_graph"):
            results = iter(run(arrays, words))
        made = [_output(kind, results) for kind in kinds]
        return made[: len(self.outputs)]  # behind them are the assertions

    def _count(self, sizes: tuple[Any, ...]) -> None:
        """Tell that a program is made, and why if it is not the first."""
        name = f"a graph of {len(self.called)} operators"
        known = next(reversed(self.programs)) if self.programs else None
        reason = self.reason
        if known is not None:
            shown = [[n for n in s if n is not None] for s in (sizes, known)]
            reason = f"new sizes {shown[0]}, after {shown[1]}"
        events.graph_made(name, reason)
        if flags.DEBUG.value:
            print(f"tpu: program for {name}", file=sys.stderr)

    def _trace(self, sizes: tuple[Any, ...], arrays: Any, words: Any) -> tuple[Any, list[Any]]:
        jax = runtime.start()
        kinds: list[Any] = []

        def run(arrays: Any, words: Any) -> list[Any]:
            kinds.clear()
            given = iter(arrays)
            environment: dict[Node, Any] = {}
            for node, size in zip(self.placeholders, sizes, strict=True):
                environment[node] = next(given) if size is None else size
            for node in self.attributes:
                environment[node] = next(given)
            checks: list[Any] = []
            key = None if words is None else rng.key(words)
            interpret(self.gm, environment, key, checks)
            results = self._results(environment, kinds)
            kinds.extend(("check", message) for _, message in checks)
            return [*results, *(condition for condition, _ in checks)]

        compiled = jax.jit(run)
        compiled.eval_shape(arrays, words)
        return compiled, list(kinds)

    def _results(self, environment: dict[Node, Any], kinds: list[Any]) -> list[Any]:
        """The arrays that leave the program; `kinds` says what each output is made of."""
        results = []
        for out in self.outputs:
            value = environment[out] if isinstance(out, Node) else out
            fake = out.meta.get("val") if isinstance(out, Node) else None
            if value is None or not isinstance(fake, torch.Tensor):
                kinds.append(("value", value))
                continue
            value = runtime.start().numpy.asarray(value)
            m = _meta_like(fake, value)
            value = value.astype(to_jax(m.dtype)).reshape(m.size)
            kinds.append(("host" if fake.device.type == "cpu" else "tensor", m))
            results.append(views.lay_out(value, m.size, m.stride))
        return results


def _meta_like(fake: torch.Tensor, value: Any) -> tensor.Meta:
    """Metadata of an output: the fake tensor's strides where they are numbers, else contiguous."""
    size = tuple(value.shape)
    stride = fake.stride()
    if all(isinstance(s, int) for s in (*stride, *fake.shape)):
        return tensor.meta(fake.shape, stride, fake.dtype)
    return tensor.meta(size, views.contiguous_stride(size), fake.dtype)


def _output(kind: Any, results: Any) -> Any:
    what, value = kind
    if what == "check":
        return _checked(next(results), value)
    if what == "value":
        return value
    result = tensor.wrap(next(results), value)
    return result.cpu() if what == "host" else result


def _checked(condition: Any, message: str) -> None:
    """Waits for an assertion of a compiled program."""
    events.host_sync("assertion")
    if not bool(condition):
        raise RuntimeError(message)


def _to_array(x: torch.Tensor) -> Any:
    return tensor.read(x) if x.device.type == "tpu" else tensor.host_array(x)


def _attribute(gm: GraphModule, target: str) -> Any:
    return functools.reduce(getattr, target.split("."), gm)


def is_random(node: Node) -> bool:
    """Whether a node draws random numbers."""
    from cloud_backend.ops import find

    entry = find(node.target) if node.op == "call_function" else None
    return entry is not None and bool(entry.traits["random"])


def all_nodes(gm: GraphModule) -> list[Node]:
    """The nodes of a graph and of the graphs inside it that are interpreted."""
    # The gradient of flex_attention comes from its forward graph; its joint graph is not read.
    parts = [
        module
        for name, module in gm.named_modules()
        if isinstance(module, GraphModule) and "joint_graph" not in name
    ]
    return [n for part in parts for n in part.graph.nodes]


def interpret(
    gm: GraphModule, environment: dict[Node, Any], key: Any, checks: list[Any] | None = None
) -> None:
    """Run the graph's call nodes over the op table; values are jax arrays or tracers.

    Args:
        environment: the values of the placeholders; filled with those of all nodes.
        key: a PRNG key if something is random, else None.
        checks: gets (condition, message) of each asynchronous assertion; None leaves them out.

    Raises:
        LoweringError: a node's call is not supported; names node, call and source line.
    """
    draws = 0
    for node in gm.graph.nodes:
        if node.op == "get_attr" and node not in environment:
            environment[node] = _held(_attribute(gm, str(node.target)))
        if node.op != "call_function":
            continue
        args = _values(node.args, environment)
        kwargs = _values(node.kwargs, environment)
        inner = None
        if key is not None and (is_random(node) or _is_higher(node)):
            inner = runtime.start().random.fold_in(key, draws)
            draws += 1
        extra: dict[str, Any] = {"key": inner} if is_random(node) else {}
        if name := _wants_layout(node):
            extra["contiguous"] = _fake_argument(node, name).is_contiguous()
        try:
            if _is_higher(node):
                found = control_flow.lower(node, args, kwargs, _inside, inner)
            elif node.target in _ASSERTS:
                found = _assertion(args, checks)
            elif node.target is aten._make_dep_token.default:
                found = runtime.start().numpy.zeros(())
            elif isinstance(node.target, torch._ops.OpOverload):
                found = _call(node, args, kwargs, extra)
            else:
                found = _python(node, args, kwargs)
            environment[node] = found
        except Unsupported as e:
            if _is_higher(node):
                raise LoweringError(f"tpu: {e} (node {node.name})") from e
            where = (node.stack_trace or "").strip().splitlines()[-2:]
            source = " ".join(line.strip() for line in where) or "?"
            reason = explain.explain(node.target, tuple(args), kwargs, str(e))
            raise LoweringError(f"{reason}\n  node    {node.name}: {source}") from e


def _wants_layout(node: Node) -> str:
    from cloud_backend.ops import find

    entry = find(node.target)
    return entry.traits["contiguous"] if entry is not None else ""


def _fake_argument(node: Node, name: str) -> Any:
    target: Any = node.target
    position = [a.name for a in target._schema.arguments].index(name)
    given = node.args[position] if position < len(node.args) else node.kwargs[name]
    return given.meta["val"]  # type: ignore[union-attr]


def _call(node: Node, args: Any, kwargs: Any, extra: dict[str, Any]) -> Any:
    from cloud_backend.ops import find

    entry = find(node.target)
    if entry is None:
        raise Unsupported("no lowering")
    return entry.function(**entry.bind(tuple(args), kwargs), **extra)


def _python(node: Node, args: Any, kwargs: Any) -> Any:
    """Nodes that are Python functions: tuple access and arithmetic on symbolic sizes."""
    function: Any = node.target
    if function is operator.getitem or isinstance(node.meta.get("val"), _SYMBOLIC):
        return function(*args, **kwargs)
    raise LoweringError(f"tpu: cannot compile a call of {function} (node {node.name})")


def _assertion(args: Any, checks: list[Any] | None) -> Any:
    """Notes an assertion; the functional form returns its token."""
    if checks is not None:
        message = args[1] if len(args) > 1 else "Expected Tensor with single nonzero value"
        checks.append(((args[0] != 0).all(), message))
    return args[2] if len(args) > 2 else None


def _is_higher(node: Node) -> bool:
    return isinstance(node.target, torch._ops.HigherOrderOperator)


def _inside(gm: GraphModule, values: list[Any], key: Any) -> list[Any]:
    """The results of a graph inside a graph."""
    nodes = list(gm.graph.nodes)
    placeholders = [n for n in nodes if n.op == "placeholder"]
    environment = dict(zip(placeholders, values, strict=True))
    interpret(gm, environment, key)
    result = next(n for n in nodes if n.op == "output").args[0]
    results = result if isinstance(result, (list, tuple)) else [result]
    return [environment[r] if isinstance(r, Node) else r for r in results]


def _held(value: Any) -> Any:
    """What a graph holds: a graph, or a constant."""
    if isinstance(value, torch.Tensor):
        return runtime.start().numpy.asarray(_to_array(value))
    return value


def _values(tree: Any, environment: dict[Node, Any]) -> Any:
    return torch.fx.node.map_arg(tree, lambda n: environment[n])
