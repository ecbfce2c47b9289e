"""Stage two: walks the FX graph, binds each call by its schema and lets its lowering add operators.

Calls on constants alone are computed here with PyTorch itself. The result of every lowering is
checked against the shape and dtype that PyTorch recorded. What has no lowering is reported at once,
before any (`scan`); a lowering's `Unsupported` becomes one full message.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, TensorArgument
from torch.utils._pytree import tree_leaves

from litert_export import control_flow, scan, schema
from litert_export.graph import Graph, Pair, ResultType, Value
from litert_export.ops import complex as complexes
from torch_tpu_unified.core import report
from torch_tpu_unified.core.errors import ConversionError, LoweringError, Unsupported
from torch_tpu_unified.core.optable import OpTable
from torch_tpu_unified.core.schema import format_call

MSG_COMPLEX = (
    "the {what} is complex; a LiteRT file's inputs and outputs are real. Use view_as_real and "
    "view_as_complex inside the model."
)
# Results up to this size are always folded; larger ones only when no bigger than what they read.
_FOLD_BYTES = 1 << 20


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The tensor's data without a copy where that is possible."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(schema.numpy_dtype("bfloat16"))
    return tensor.numpy()


def to_torch(value: Value) -> torch.Tensor:
    """A constant Value as a torch tensor, sharing memory."""
    data = value.data
    assert data is not None
    if value.dtype == "bfloat16":
        return torch.from_numpy(data.view(np.uint16)).view(torch.bfloat16)
    if not data.flags.writeable:
        data = data.copy()
    return torch.from_numpy(np.ascontiguousarray(data)).reshape(value.shape)


def result_types(value: Any) -> tuple[ResultType | None, ...]:
    """Shape and LiteRT type of the tensors that a call gives, None for its other results."""

    def one(value: Any) -> ResultType | None:
        if not isinstance(value, torch.Tensor):
            return None
        return ResultType(tuple(int(d) for d in value.shape), schema.dtype_name(value.dtype))

    return tuple(map(one, value)) if isinstance(value, (tuple, list)) else (one(value),)


class Emitter:
    """Turns one ExportedProgram (decomposed) into a Graph."""

    def __init__(
        self, program: ExportedProgram, table: OpTable, *, io_layout: str, any_size: bool = False
    ) -> None:
        self.program, self.table, self.io_layout = program, table, io_layout
        self.values: dict[torch.fx.Node, Any] = {}
        self.graph = Graph()
        self.graph.any_size = any_size
        self.names: dict[torch.fx.Node, str] = {}

    def run(self, input_names: Sequence[str] | None, output_names: Sequence[str] | None) -> Graph:
        """Emit everything.

        Raises:
            LoweringError: operators without a lowering, or a call that its lowering refuses.
            ConversionError: the given names do not fit.
        """
        self._placeholders(input_names)
        scan.check(self.program.graph, self.table, self._constants())
        for node in self.program.graph.nodes:
            if node.op not in ("placeholder", "output"):
                self.values[node] = self._node(node)
        self._outputs(output_names)
        return self.graph

    # inputs and outputs

    def _placeholders(self, given: Sequence[str] | None) -> None:
        nodes = {n.name: n for n in self.program.graph.nodes if n.op == "placeholder"}
        specs = self.program.graph_signature.input_specs
        user = [
            s for s in specs if s.kind == InputKind.USER_INPUT and isinstance(s.arg, TensorArgument)
        ]
        names = [s.arg.name for s in user] if given is None else list(given)
        if len(names) != len(user):
            raise ConversionError(
                f"input_names has {len(names)} names, the model has {len(user)} inputs"
            )
        label = {s.arg.name: n for s, n in zip(user, names, strict=True)}
        for spec in specs:
            node = nodes[spec.arg.name]
            if spec.kind == InputKind.USER_INPUT:
                if isinstance(spec.arg, ConstantArgument):
                    self.values[node] = spec.arg.value
                else:
                    self.values[node] = self._input(node, label[spec.arg.name])
            elif isinstance(spec.arg, TensorArgument):
                self.values[node] = self._state(spec.target, spec.kind)

    def _input(self, node: torch.fx.Node, label: str) -> Value:
        (kind,) = result_types(node.meta["val"])
        assert kind is not None
        if "complex" in kind.dtype:
            raise ConversionError(MSG_COMPLEX.format(what=f"input {label}"))
        shape = kind.shape
        if self.io_layout == "nhwc" and len(shape) == 4:
            n, c, h, w = shape
            x = self.graph.input(label, (n, h, w, c), kind.dtype)
            self.graph.scope = f"{label}_nchw"
            return self.graph.transpose(x, (0, 3, 1, 2))
        return self.graph.input(label, shape, kind.dtype)

    def _state(self, target: str, kind: InputKind) -> Value:
        tensor = self.program.state_dict.get(target)
        if tensor is None:
            tensor = self.program.constants[target]
        return self.graph.const(to_numpy(tensor), name=target)

    def _outputs(self, given: Sequence[str] | None) -> None:
        (output,) = (n for n in self.program.graph.nodes if n.op == "output")
        leaves = output.args[0]
        labels = output_labels(self.program)
        found = []
        for label, leaf in zip(labels, leaves, strict=True):
            value = self.values[leaf] if isinstance(leaf, torch.fx.Node) else leaf
            if value is None:
                continue
            if isinstance(value, (bool, int, float)):
                value = self.graph.const(np.asarray(value))
            if isinstance(value, Pair) or "complex" in value.dtype:
                raise ConversionError(MSG_COMPLEX.format(what=f"output {label}"))
            found.append((label, value))
        names = [label for label, _ in found] if given is None else list(given)
        if len(names) != len(found):
            raise ConversionError(
                f"output_names has {len(names)} names, the model has {len(found)} outputs"
            )
        for name, (_, value) in zip(names, found, strict=True):
            if self.io_layout == "nhwc" and value.rank == 4:
                self.graph.scope = f"{name}_nhwc"
                value = self.graph.transpose(value, (0, 2, 3, 1))
            self.graph.outputs.append(value)
        self.graph.output_names = names

    def _constants(self) -> list[torch.fx.Node]:
        return [n for n, v in self.values.items() if not isinstance(v, Value) or v.is_const]

    # nodes

    def _node(self, node: torch.fx.Node) -> Any:
        if node.op == "get_attr":
            found: Any = node.graph.owning_module
            for part in str(node.target).split("."):
                found = getattr(found, part)
            if isinstance(found, torch.Tensor):
                return self.graph.const(to_numpy(found), name=str(node.target))
            return found
        args = self._resolve(node.args)
        kwargs = self._resolve(node.kwargs)
        if node.target is operator.getitem:
            return self._item(node, args[0], args[1])
        if scan.is_block(node):
            graph, operands = scan.block(node)
            return self.emit_graph(graph, self._resolve(operands))
        if control_flow.is_control_flow(node):
            return self._control_flow(node, args)
        if scan.on_numbers(node):
            return node.target(*args, **kwargs)  # type: ignore[operator]
        assert isinstance(node.target, OpOverload)
        if node.target._schema.name in scan.CHECKS:
            return None
        if node.target in scan.SIZES:
            return args[0].shape[args[1]] if len(args) > 1 else args[0].size
        if (folded := self._fold(node, args, kwargs)) is not None:
            return folded
        return self._lower(node, args, kwargs)

    def _item(self, node: torch.fx.Node, values: Any, index: int) -> Any:
        found = values[index]
        if found is None:
            source = node.args[0]
            assert isinstance(source, torch.fx.Node)
            raise self._error(source, f"its result {index} is not supported")
        return found

    def _resolve(self, tree: Any) -> Any:
        return torch.fx.node.map_arg(tree, lambda n: self.values[n])

    def emit_graph(self, graph: torch.fx.Graph, inputs: Sequence[Any]) -> list[Any]:
        """Emit a graph of the program, such as a block under no_grad, into the current one.

        Args:
            inputs: Values, or other arguments, for its placeholders.
        """
        given = iter(inputs)
        for inner in graph.nodes:
            if inner.op == "placeholder":
                self.values[inner] = next(given)
            elif inner.op != "output":
                self.values[inner] = self._node(inner)
        found = self._resolve(graph.output_node().args[0])
        return list(found) if isinstance(found, (list, tuple)) else [found]

    def _control_flow(self, node: torch.fx.Node, args: Any) -> tuple[Value, ...]:
        line = report.source_line(node)
        self.graph.scope, self.graph.source = node.name, str(line) if line else None
        try:
            result = control_flow.lower(node, args, self)
        except Unsupported as err:
            raise self._error(node, str(err)) from err
        self._check(node, result, result_types(node.meta["val"]))
        return result

    def _expected(
        self, node: torch.fx.Node, args: Any, kwargs: Any
    ) -> tuple[ResultType | None, ...]:
        """What the call's results are, as PyTorch recorded it.

        Sizes that come from constants, such as a mask in a buffer, are symbols there; then the
        call runs on meta tensors.
        """
        recorded = node.meta.get("val")
        tensors = [v for v in tree_leaves(recorded) if isinstance(v, torch.Tensor)]
        if any(not isinstance(d, int) for v in tensors for d in v.shape):
            with torch.no_grad():
                recorded = node.target(*_meta(args), **_meta(kwargs))  # type: ignore[operator]
        return result_types(recorded)

    def _fold(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        if scan.is_random(node.target):
            return None
        read = flat_values((args, kwargs))
        if any(v.data is None for v in read):
            return None
        if any(isinstance(a, Pair) for a in tree_leaves((args, kwargs))):
            return None
        entry = self.table.get(node.target)
        expected = self._expected(node, args, kwargs)
        size = sum(int(np.prod(r.shape)) * 4 for r in expected if r is not None)
        bound = max(_FOLD_BYTES, 2 * sum(v.data.nbytes for v in read if v.data is not None))
        if entry is not None and (size > bound or not entry.traits["fold"]):
            return None
        with torch.no_grad():
            result = node.target(*_torch(args), **_torch(kwargs))

        def keep(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return self.graph.const(to_numpy(value), name=node.name)
            return value

        return tuple(map(keep, result)) if isinstance(result, (tuple, list)) else keep(result)

    def _lower(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        entry = self.table.get(node.target)
        if entry is None:
            raise self._error(node, "it has no lowering")
        graph = self.graph
        line = report.source_line(node)
        graph.scope, graph.source = node.name, str(line) if line else None
        try:
            expected = self._expected(node, args, kwargs)
            graph.result = expected  # type: ignore[assignment]
            before = len(graph.ops)
            bound = entry.bind(args, kwargs)
            made = any(kind is not None and "complex" in kind.dtype for kind in expected)
            if made or complexes.is_complex([*bound.values()]):
                result = complexes.lower(graph, node.target, bound)
            else:
                result = entry.function(graph, **bound)
        except (Unsupported, TypeError) as err:
            if isinstance(err, TypeError) and "LiteRT has no tensors" not in str(err):
                raise
            raise self._error(node, str(err)) from err
        self._check(node, result, expected)
        if len(graph.ops) > before:
            self._rename(node, result)
        return result

    def _check(self, node: torch.fx.Node, result: Any, expected: Sequence[Any]) -> None:
        found = result if isinstance(result, (tuple, list)) else (result,)
        if len(found) < len(expected):
            raise LoweringError(f"{node.target}: {len(found)} results for {len(expected)}")
        for value, kind in zip(found, expected, strict=False):
            if value is None or kind is None:
                continue
            if value.shape != kind.shape or value.dtype != kind.dtype:
                raise LoweringError(
                    f"internal error in the lowering of {node.target} (node {node.name}): it made "
                    f"{value.type_text()}, PyTorch {kind.dtype}{list(kind.shape)}"
                )

    def _rename(self, node: torch.fx.Node, result: Any) -> None:
        made = set(self.graph.ops[-1].outputs) if self.graph.ops else set()
        if isinstance(result, Value) and result in made and result.name != node.name:
            if node.name not in self.graph._names:
                result.name = self.graph.unique(node.name)

    def _error(self, node: torch.fx.Node, reason: str) -> LoweringError:
        lines = [f"litert: cannot lower {node.target}   [node {node.name}]", f"  reason  {reason}"]
        if isinstance(node.target, OpOverload):
            call = format_call(node.target, *torch.fx.node.map_arg((node.args, node.kwargs), _fake))
            lines.append(f"  call    {call}")
        if line := report.source_line(node):
            lines.append(f"  from    {line}")
        lines.append("  next    TTU_DUMP=folder shows the graph; lowerings={op: function} adds one")
        return LoweringError("\n".join(lines))


def _fake(node: torch.fx.Node) -> Any:
    return node.meta.get("val", node.name)


def _torch(tree: Any) -> Any:
    """The tree with constant Values as torch tensors."""
    return _mapped(to_torch, tree)


def _meta(tree: Any) -> Any:
    """The tree with Values as torch tensors: constants whole, the others on device meta."""

    def one(value: Value) -> torch.Tensor:
        if value.is_const:
            return to_torch(value)
        return torch.empty(value.shape, dtype=getattr(torch, value.dtype), device="meta")

    return _mapped(one, tree)


def _mapped(f: Callable[[Value], torch.Tensor], tree: Any) -> Any:
    if isinstance(tree, Value):
        return f(tree)
    if isinstance(tree, (list, tuple)):
        return type(tree)(_mapped(f, part) for part in tree)
    if isinstance(tree, Mapping):
        return {k: _mapped(f, v) for k, v in tree.items()}
    return tree


def flat_values(tree: Any) -> list[Value]:
    """Every Value in nested lists, tuples and mappings."""
    if isinstance(tree, Value):
        return [tree]
    if isinstance(tree, Pair):
        return [tree.re, tree.im]
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        return [v for part in tree for v in flat_values(part)]
    return []


def output_labels(program: ExportedProgram) -> list[str]:
    """A name for every leaf of the output: dict keys, `output`, or `output_0`, `output_1`, …"""
    count = len(program.graph_signature.output_specs)
    spec = program.call_spec.out_spec
    leaves = list(range(count))
    labels: list[str] = []
    if spec is not None and spec.num_leaves == count:
        tree = torch.utils._pytree.tree_unflatten(leaves, spec)
        for path, _ in torch.utils._pytree.tree_flatten_with_path(tree)[0]:
            keys = [getattr(k, "key", getattr(k, "idx", getattr(k, "name", None))) for k in path]
            named = any(isinstance(k, str) for k in keys)
            joined = "_".join(map(str, keys))
            labels.append(joined if named else f"output_{joined}" if keys else "output")
    if len(set(labels)) != count:
        labels = ["output"] if count == 1 else [f"output_{i}" for i in leaves]
    return labels
