"""NCHW -> NHWC, globally: transposes sink through everything that can do without them.

Lowerings transpose at the borders of each channels-last operator. This pass walks the graph once
and keeps, instead of emitting a transpose, the fact "this value is that one permuted". Operators
that do not care about axis order are rewritten to work on the permuted form; the others get a real
TRANSPOSE, made once per value and form. Which form an elementwise operator takes is decided by the
elements that would have to move, before and after it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from litert_export.graph import Graph, Op, Value
from litert_export.passes import layout_rules, perms
from litert_export.passes.perms import Perm


def run(graph: Graph) -> Graph:
    """Rewrite the graph and those inside it."""
    for inner in graph.subgraphs:
        run(inner)
    Layout(graph).run()
    return graph


class Layout:
    """One walk over one graph.

    Attributes:
        views: value -> (base, perm): the value equals `base.transpose(perm)` and is not computed
            unless something asks for it.
        demands: value -> the forms that its readers want.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.views: dict[Value, tuple[Value, Perm]] = {}
        self.forms: dict[tuple[Value, Perm], Value] = {}
        self.real: set[Value] = set()
        self.consumers = graph.consumers()
        self.outputs = set(graph.outputs)
        self.demands = layout_rules.demands(graph)

    def run(self) -> None:
        """Rewrite every op, then make the outputs real."""
        old, self.graph.ops = self.graph.ops, []
        for op in old:
            rule: Callable[[Layout, Op], bool] | None = layout_rules.RULES.get(op.code)
            if rule is None or not rule(self, op):
                self.keep(op)
        self.graph.outputs = [self.materialise(v) for v in self.graph.outputs]

    # what rules use

    def keep(self, op: Op) -> None:
        """Keep an op as it is, on real inputs."""
        op.inputs = [None if v is None else self.materialise(v) for v in op.inputs]
        self.graph.ops.append(op)

    def view(self, v: Value) -> tuple[Value, Perm]:
        """(base, perm) with `v == base.transpose(perm)`."""
        return self.views.get(v, (v, perms.identity(v.rank)))

    def is_plain(self, v: Value) -> bool:
        """Whether the value is computed as it stands."""
        return v not in self.views

    def materialise(self, v: Value) -> Value:
        """The value itself, by a TRANSPOSE if there is only its view."""
        if v not in self.views:
            return v
        base, perm = self.views[v]
        return self.transposed(base, perm, v)

    def in_form(self, v: Value, perm: Perm) -> Value:
        """The value b with `v == b.transpose(perm)`."""
        base, q = self.view(v)
        return self.transposed(base, perms.compose(q, perms.inverse(perm)))

    def cost(self, v: Value, perm: Perm) -> int:
        """Elements that `in_form` would move."""
        base, q = self.view(v)
        p = perms.compose(q, perms.inverse(perm))
        if base.is_const or (base, p) in self.forms or not perms.moves_data(base.shape, p):
            return 0
        return base.size

    def transposed(self, base: Value, p: Perm, wanted: Value | None = None) -> Value:
        """`base.transpose(p)`, made at most once; `wanted` is the Value to make if it is made."""
        if p == perms.identity(base.rank):
            return base
        found = self.forms.get((base, p))
        if found is None:
            found = self._make(base, p, wanted)
            self.forms[base, p] = found
            self.forms[found, perms.inverse(p)] = base
        return found

    def _make(self, base: Value, p: Perm, wanted: Value | None) -> Value:
        graph = self.graph
        if base.data is not None:
            return graph.transpose(base, p)
        shape = perms.permuted(base.shape, p)
        if wanted is None:
            label = f"{base.name}_" + "".join(map(str, p))
            wanted = Value(graph.unique(label), shape, base.dtype, source=base.source)
        if perms.moves_data(base.shape, p):
            table = graph.const(np.array(p, np.int32))
            op = Op("TRANSPOSE", [base, table], [wanted], {}, base.source)
        else:
            new = np.array(shape, np.int32)
            op = Op("RESHAPE", [base, graph.const(new)], [wanted], {"new_shape": new}, base.source)
        graph.ops.append(op)
        return wanted

    def new_output(self, op: Op, index: int, perm: Perm) -> Value:
        """Let the op make output `index` in the form `perm`; readers see a view of it."""
        old = op.outputs[index]
        if perm == perms.identity(old.rank):
            return old
        shape = perms.permuted(old.shape, perms.inverse(perm))
        new = Value(old.name, shape, old.dtype, source=old.source)
        old.name = self.graph.unique(f"{old.name}_" + "".join(map(str, perm)))
        self.views[old] = (new, perm)
        op.outputs[index] = new
        return new

    def alias(self, old: Value, base: Value, perm: Perm) -> None:
        """`old` is `base.transpose(perm)`."""
        self.views[old] = (base, perm)

    def expanded(self, v: Value, rank: int) -> Value:
        """A value of lower rank with ones in front, as broadcasting reads it."""
        if v.rank == rank:
            return v
        v = self.materialise(v)
        return self.graph.reshape(v, (1,) * (rank - v.rank) + v.shape)

    def choose(self, inputs: list[Value], output: Value) -> Perm:
        """The form of an op whose operands must all have the same one: the least data moved."""
        plain = perms.identity(output.rank)
        wanted = {p for p in self.demands.get(output, ()) if len(p) == output.rank}
        candidates = [plain]
        for p in [*(self.view(v)[1] for v in inputs), *sorted(wanted)]:
            if p not in candidates:
                candidates.append(p)

        def moved(p: Perm) -> tuple[int, int, int]:
            before = sum(self.cost(v, p) for v in inputs)
            after = output.size * len(wanted - {p})
            # Without readers that care, stay permuted: the transpose may cancel further on.
            return before + after, before if wanted else -(p != plain), p != plain

        return min(candidates, key=moved)
