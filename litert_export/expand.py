"""Decomposition call by call: only what the table lacks is traced, equal calls once.

PyTorch's `run_decompositions` traces the whole program again, several milliseconds an operator.
Here each operator that has no lowering is traced alone on its recorded shapes and put in its place;
what repeats, as the blocks of a transformer do, is traced once. In-place operators on fresh values
become their functional forms. A program that needs more than that gives None: aliases that are
written, symbolic shapes, blocks with graphs of their own.
"""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from litert_export import scan
from torch_tpu_unified.core import custom
from torch_tpu_unified.core.optable import OpTable
from torch_tpu_unified.core.schema import functional_form, is_view, written_arguments

_CUSTOM = torch._C.DispatchKey.CompositeImplicitAutograd
# Composite operators that never hand their input on as their result.
_FRESH = (
    "batch_norm", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "linear", "layer_norm", "group_norm", "instance_norm", "matmul",
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "max_pool1d",
    "max_pool2d", "max_pool3d", "softmax", "log_softmax", "cat", "stack", "silu", "relu6", "prelu",
)  # fmt: skip


class _Refused(Exception):
    """This program needs PyTorch's own pass."""


def expand(program: ExportedProgram, table: OpTable) -> ExportedProgram | None:
    """The program with every call that has no entry decomposed; None when that takes more.

    The given program stays as it is.
    """
    try:
        graph, module = _Expansion(program, table).run()
    except _Refused:
        return None
    result = copy.copy(program)
    result._graph_module = torch.fx.GraphModule(module, graph)
    result._graph_module.meta = dict(program.graph_module.meta)
    return result


def _is_composite(op: OpOverload) -> bool:
    return op.has_kernel_for_dispatch_key(_CUSTOM)


def _fresh(node: torch.fx.Node) -> bool:
    """Whether the node's result certainly shares memory with nothing else."""
    op = node.target
    if node.op != "call_function" or not isinstance(op, OpOverload) or is_view(op):
        return False
    name = op._schema.name.partition("::")[2]
    return name.removesuffix("_") in _FRESH or not _is_composite(op)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [v for v in tree_leaves(tree) if isinstance(v, torch.Tensor)]


class _Expansion:
    def __init__(self, program: ExportedProgram, table: OpTable) -> None:
        self.program, self.table = program, table
        self.graph = torch.fx.Graph()
        self.module = torch.nn.Module()
        self.module.__dict__.update(program.graph_module.__dict__)
        self.new: dict[torch.fx.Node, Any] = {}
        self.latest: dict[torch.fx.Node, torch.fx.Node] = {}
        self.traced: dict[Any, torch.fx.GraphModule] = {}
        self.rules: Mapping[Any, Callable[..., Any]] = {
            op: rule
            for op, rule in torch._decomp._core_aten_decompositions_post_autograd().items()
            if op not in table
        } | custom.TORCH_FORMS

    def run(self) -> tuple[torch.fx.Graph, torch.nn.Module]:
        for node in self.program.graph.nodes:
            # Taken, so that nodes of the traces get names of their own.
            self.graph._graph_namespace.create_name(node.name, None)
        for node in self.program.graph.nodes:
            _check_static(node)
            if node.op != "call_function":
                self._copy(node)
            else:
                self.new[node] = self._call(node)
                if _writes(node):
                    self.latest.update(dict.fromkeys(self._chain(self._root(node)), node))
        # Results that nobody reads must not ask for what a lowering does not offer.
        self.graph.eliminate_dead_code()
        return self.graph, self.module

    def _mapped(self, tree: Any) -> Any:
        return torch.fx.node.map_arg(tree, lambda n: self.new[self.latest.get(n, n)])

    def _copy(self, node: torch.fx.Node, target: Any = None) -> torch.fx.Node:
        args, kwargs = self._mapped(node.args), self._mapped(node.kwargs)
        made = self.graph.create_node(
            node.op, target or node.target, args, kwargs, node.name, node.type
        )
        # The signature refers to nodes by name; a graph alone would rename `input` and the like.
        made.name = node.name
        made.meta = dict(node.meta)
        self.new[node] = made
        return made

    def _call(self, node: torch.fx.Node) -> Any:
        op = node.target
        if op is operator.getitem:
            source = self._mapped(node.args[0])
            return source[node.args[1]] if isinstance(source, tuple) else self._copy(node)
        if not isinstance(op, OpOverload):
            raise _Refused
        if written_arguments(op):
            op = self._functional(node)
        if op in self.table or op._schema.name in scan.CHECKS or op in scan.SIZES:
            return self._copy(node, op)
        return self._inline(node, op)

    def _functional(self, node: torch.fx.Node) -> OpOverload:
        """The functional form of a call that writes its first argument alone, a fresh value."""
        op = node.target
        assert isinstance(op, OpOverload)
        form, x = functional_form(op), node.args[0] if node.args else None
        if form is None or written_arguments(op) != (op._schema.arguments[0].name,):
            raise _Refused
        if not isinstance(x, torch.fx.Node) or len(op._schema.returns) != 1:
            raise _Refused
        root = self._root(x)
        if not all(_fresh(u) or u.op == "output" for n in self._chain(root) for u in n.users):
            raise _Refused
        if not _fresh(root):
            raise _Refused
        return form

    def _root(self, x: torch.fx.Node) -> torch.fx.Node:
        """The value that a chain of in-place calls writes."""
        while isinstance(x.target, OpOverload) and written_arguments(x.target):
            assert isinstance(x.args[0], torch.fx.Node)
            x = x.args[0]
        return x

    def _chain(self, root: torch.fx.Node) -> list[torch.fx.Node]:
        """The value and the in-place calls on it, which are the same tensor."""
        found = [root]
        for n in found:
            for user in n.users:
                if isinstance(user.target, OpOverload) and written_arguments(user.target):
                    if user.args[0] is n and user not in found:
                        found.append(user)
        return found

    def _inline(self, node: torch.fx.Node, op: OpOverload) -> Any:
        flat, spec = tree_flatten((node.args, node.kwargs))
        places = [i for i, a in enumerate(flat) if isinstance(a, torch.fx.Node)]
        values = [flat[i].meta.get("val") for i in places]
        if not all(isinstance(v, torch.Tensor) for v in values):
            raise _Refused
        rest = tuple("node" if i in places else _constant(a) for i, a in enumerate(flat))
        kinds = tuple((tuple(v.shape), v.stride(), v.dtype) for v in values)
        key = (op, rest, kinds, str(spec))
        if key not in self.traced:

            def call(*tensors: torch.Tensor) -> Any:
                given = list(flat)
                for i, t in zip(places, tensors, strict=True):
                    given[i] = t
                args, kwargs = tree_unflatten(given, spec)
                return op(*args, **kwargs)

            self.traced[key] = self._trace(call, values)
        return self._insert(node, self.traced[key], [flat[i] for i in places])

    def _trace(self, call: Callable[..., Any], values: list[torch.Tensor]) -> torch.fx.GraphModule:
        if not values:
            raise _Refused
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = make_fx(call, decomposition_table=self.rules)(*values)
            module.graph.eliminate_dead_code()
            if any(_writes(n) for n in module.graph.nodes):
                functional = torch.func.functionalize(call)
                module = make_fx(functional, decomposition_table=self.rules)(*values)
                module.graph.eliminate_dead_code()
        if any(_writes(n) for n in module.graph.nodes):
            raise _Refused
        return module

    def _insert(
        self, node: torch.fx.Node, module: torch.fx.GraphModule, inputs: list[torch.fx.Node]
    ) -> Any:
        given = iter(self._mapped(inputs))
        inside: dict[torch.fx.Node, Any] = {}
        (output,) = (n for n in module.graph.nodes if n.op == "output")
        for inner in module.graph.nodes:
            if inner.op == "placeholder":
                inside[inner] = next(given)
            elif inner.op == "output":
                break
            else:
                made = self.graph.node_copy(inner, inside.__getitem__)
                if inner is output.args[0]:
                    made.name = node.name
                if inner.op == "get_attr":
                    name = f"_{node.name}_{inner.target}".replace(".", "_")
                    setattr(self.module, name, getattr(module, str(inner.target)))
                    made.target = name
                made.meta = {**node.meta, "val": inner.meta.get("val")}
                inside[inner] = made
        found = torch.fx.node.map_arg(output.args[0], inside.__getitem__)
        return tuple(found) if isinstance(found, list) else found


def _constant(a: Any) -> Any:
    # 1, 1.0 and True are equal keys and different arguments.
    return type(a).__name__, str(a)


def _writes(node: torch.fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and bool(written_arguments(node.target))


def _check_static(node: torch.fx.Node) -> None:
    """Refuse symbols: a trace on recorded shapes would fix them."""
    for v in tree_leaves(node.meta.get("val")):
        if isinstance(v, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise _Refused
        if isinstance(v, torch.Tensor) and not all(isinstance(d, int) for d in v.shape):
            raise _Refused
