"""ATen graphs as functions of arrays: each node is a call of the op table.

`torch.compile`, StableHLO export and ahead-of-time executables trace this under `jax.jit`; the
graphs of higher-order operators are interpreted inside those that call them.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from cloud_backend import control_flow, explain, runtime, tensor
from torch_tpu_unified.core.errors import LoweringError, Unsupported

aten = torch.ops.aten
_ASSERTS = (
    aten._assert_async.default,
    aten._assert_async.msg,
    aten._functional_assert_async.msg,
)
# What a graph says of sizes and dtypes; PyTorch has checked it, and XLA checks shapes anyway.
_RANGES = (
    aten._assert_tensor_metadata.default,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
)
_SIZES = {
    aten.sym_size.int: lambda x, dim: x.shape[dim],
    aten.sym_numel.default: lambda x: x.size,
}
# Nodes that compute with Python numbers (symbolic sizes), not with tensors.
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)
# Python functions of numbers, where a number is a value of the program.
_OF_VALUES: dict[Any, Callable[..., Any]] = {
    torch.sym_not: lambda jnp, a: jnp.logical_not(a),
    torch.sym_float: lambda jnp, a: a.astype("float64"),
    torch.sym_int: lambda jnp, a: jnp.trunc(a).astype("int64"),
    torch.sym_max: lambda jnp, a, b: jnp.maximum(a, b),
    torch.sym_min: lambda jnp, a, b: jnp.minimum(a, b),
    torch.sym_ite: lambda jnp, c, a, b: jnp.where(c, a, b),
    math.floor: lambda jnp, a: jnp.floor(a).astype("int64"),
    math.ceil: lambda jnp, a: jnp.ceil(a).astype("int64"),
}
MSG_SIZE = (
    "tpu: the size of a result depends on values (node {node}: {target}), and XLA wants sizes "
    "before it runs. Compute it outside the compiled function, or pad to a fixed size\n"
    "  node    {source}"
)


def known_operators() -> set[Any]:
    """Every operator that a graph may hold: PyTorch's and the user's."""
    from cloud_backend.distributed import functional
    from cloud_backend.ops import CUSTOM, TABLE

    special = (aten._make_dep_token.default, aten._local_scalar_dense.default, aten.copy_.default)
    special += tuple(functional.operators())
    return {*TABLE, *CUSTOM, *_ASSERTS, *_RANGES, *special, *_SIZES, aten._assert_scalar.default}


def attribute(gm: GraphModule, target: str) -> Any:
    """What a `get_attr` node names."""
    return functools.reduce(getattr, target.split("."), gm)


def is_random(node: Node) -> bool:
    """Whether a node draws random numbers."""
    from cloud_backend.ops import find

    entry = find(node.target) if node.op == "call_function" else None
    return entry is not None and bool(entry.traits["random"])


def parts(gm: GraphModule) -> list[GraphModule]:
    """A graph and the graphs inside it that are interpreted."""
    # The gradient of flex_attention comes from its forward graph; its joint graph is not read.
    return [
        module
        for name, module in gm.named_modules()
        if isinstance(module, GraphModule) and "joint_graph" not in name
    ]


def all_nodes(gm: GraphModule) -> list[Node]:
    """The nodes of a graph and of the graphs inside it that are interpreted."""
    return [n for part in parts(gm) for n in part.graph.nodes]


def interpret(
    gm: GraphModule, environment: dict[Node, Any], key: Any, checks: list[Any] | None = None
) -> None:
    """Run the graph's call nodes over the op table; values are jax arrays or tracers.

    Args:
        environment: the values of the placeholders; filled with those of all nodes.
        key: a PRNG key if something is random, else None.
        checks: gets (condition, message) of each assertion; None leaves them out.

    Raises:
        LoweringError: a node's call is not supported; names node, call and source line.
    """
    draws = 0
    for node in gm.graph.nodes:
        if node.op == "get_attr" and node not in environment:
            environment[node] = _held(attribute(gm, str(node.target)))
        if node.op != "call_function":
            continue
        args = _values(node.args, environment)
        kwargs = _values(node.kwargs, environment)
        inner = None
        if key is not None and (is_random(node) or _is_higher(node)):
            inner = runtime.start().random.fold_in(key, draws)
            draws += 1
        try:
            environment[node] = _evaluate(node, args, kwargs, inner, checks)
        except Unsupported as e:
            if _is_higher(node):
                raise LoweringError(f"tpu: {e} (node {node.name})") from e
            reason = explain.explain(node.target, tuple(args), kwargs, str(e))
            raise LoweringError(f"{reason}\n  node    {node.name}: {_source(node)}") from e


def _evaluate(node: Node, args: Any, kwargs: Any, key: Any, checks: list[Any] | None) -> Any:
    target: Any = node.target
    if _is_higher(node):
        return control_flow.lower(node, args, kwargs, _inside, key)
    if target in _ASSERTS or target is aten._assert_scalar.default:
        return _assertion(target, args, kwargs, checks)
    if target in _RANGES:
        return None
    if target in _SIZES:
        return _SIZES[target](*args)
    if target is aten._make_dep_token.default:
        return runtime.start().numpy.zeros(())
    if target is aten._local_scalar_dense.default:
        return args[0].reshape(())
    if target is aten.copy_.default:  # the new value of an input, at the end of the graph
        return runtime.start().numpy.broadcast_to(args[1], args[0].shape).astype(args[0].dtype)
    if isinstance(target, torch._ops.OpOverload):
        return _call(node, args, kwargs, key)
    return _python(node, args, kwargs)


def _source(node: Node) -> str:
    where = (node.stack_trace or "").strip().splitlines()[-2:]
    return " ".join(line.strip() for line in where) or "?"


def _wants_layout(node: Node) -> str:
    from cloud_backend.ops import find

    entry = find(node.target)
    return entry.traits["contiguous"] if entry is not None else ""


def _fake_argument(node: Node, name: str) -> Any:
    target: Any = node.target
    position = [a.name for a in target._schema.arguments].index(name)
    given = node.args[position] if position < len(node.args) else node.kwargs[name]
    return given.meta["val"]  # type: ignore[union-attr]


def _call(node: Node, args: Any, kwargs: Any, key: Any) -> Any:
    from cloud_backend.distributed import functional
    from cloud_backend.ops import find

    if functional.is_collective(node):
        return functional.lower(node, args, kwargs)
    entry = find(node.target)
    if entry is None:
        raise Unsupported("no lowering")
    extra: dict[str, Any] = {"key": key} if is_random(node) else {}
    if name := _wants_layout(node):
        extra["contiguous"] = _fake_argument(node, name).is_contiguous()
    try:
        return entry.function(**entry.bind(tuple(args), kwargs), **extra)
    except TypeError as e:
        if not _has_value_size(node, args):
            raise
        message = MSG_SIZE.format(node=node.name, target=node.target, source=_source(node))
        raise LoweringError(message) from e


def _is_value(a: Any) -> bool:
    return hasattr(a, "aval")


def _has_value_size(node: Node, args: Any) -> bool:
    """Whether a list of sizes, or an index, is a value of the program."""
    lists = [a for a in args if isinstance(a, (list, tuple))]
    numbers = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.SymInt)]
    return bool(numbers) or any(_is_value(x) for a in lists for x in a)


def _python(node: Node, args: Any, kwargs: Any) -> Any:
    """Nodes that are Python functions: tuple access and arithmetic on numbers."""
    function: Any = node.target
    if function is operator.getitem or isinstance(node.meta.get("val"), _SYMBOLIC):
        if function in _OF_VALUES and any(map(_is_value, args)):
            return _OF_VALUES[function](runtime.start().numpy, *args, **kwargs)
        return function(*args, **kwargs)
    raise LoweringError(f"tpu: cannot compile a call of {function} (node {node.name})")


def _assertion(target: Any, args: Any, kwargs: Any, checks: list[Any] | None) -> Any:
    """Notes an assertion; the functional form returns its token."""
    condition = args[0]
    message = args[1] if len(args) > 1 else kwargs.get("assert_msg")
    message = message or "Expected Tensor with single nonzero value"
    if not _is_value(condition):
        if not condition:
            raise RuntimeError(message)
    elif checks is not None:
        checks.append(((condition != 0).all(), message))
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
        jnp = runtime.start().numpy
        return jnp.asarray(to_array(value))
    return value


def to_array(x: torch.Tensor) -> Any:
    """A tensor's values for a program, wherever it is."""
    return tensor.read(x) if x.device.type == "tpu" else tensor.host_array(x)


def _values(tree: Any, environment: dict[Node, Any]) -> Any:
    return torch.fx.node.map_arg(tree, lambda n: environment[n])
