"""How each operator works on a permuted input: the layout pass's rules, one per kind of operator.

A rule gets the walk and the op; it appends the rewritten op and returns True, or returns False to
have the op kept on real inputs. Operators without a rule need their inputs as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from litert_export.graph import Graph, Op, Value
from litert_export.passes import perms
from litert_export.passes.perms import Perm

if TYPE_CHECKING:
    from litert_export.passes.layout import Layout

Rule = Callable[["Layout", Op], bool]
ELEMENTWISE = frozenset({
    "ADD", "SUB", "MUL", "DIV", "POW", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "FLOOR_DIV",
    "FLOOR_MOD", "ATAN2", "EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER",
    "GREATER_EQUAL", "LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT", "BITWISE_XOR", "RIGHT_SHIFT",
    "SELECT_V2", "CAST", "ABS", "NEG", "SIGN", "EXP", "LOG", "SQRT", "RSQRT", "SIN", "COS",
    "FLOOR", "CEIL", "ROUND", "SQUARE", "TANH", "LOGISTIC", "RELU", "RELU6", "RELU_N1_TO_1",
    "RELU_0_TO_1", "LEAKY_RELU", "ELU", "GELU", "HARD_SWISH", "PRELU", "STABLEHLO_AND",
    "ZEROS_LIKE",
})  # fmt: skip
REDUCTIONS = frozenset({
    "MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ANY", "REDUCE_ALL",
})  # fmt: skip
_SAME_AXES = ELEMENTWISE | frozenset({
    "CONCATENATION", "PAD", "PADV2", "MIRROR_PAD", "SLICE", "STRIDED_SLICE", "SPLIT",
    "SPLIT_V", "REVERSE_V2", "CUMSUM",
})  # fmt: skip


def demands(graph: Graph) -> dict[Value, set[Perm]]:
    """Value -> the forms in which its readers want it, followed back through agnostic ops."""
    result: dict[Value, set[Perm]] = {v: {perms.identity(v.rank)} for v in graph.outputs}
    for op in reversed(graph.ops):
        wanted: set[Perm] = set().union(*(result.get(v, set()) for v in op.outputs))
        for v in op.inputs:
            if v is None or v.is_const:
                continue
            mine = result.setdefault(v, set())
            if op.code == "TRANSPOSE" and op.inputs[1] is not None:
                axes = op.inputs[1].data
                if axes is not None and v is op.inputs[0]:
                    back = perms.inverse(tuple(axes.tolist()))
                    mine |= {perms.compose(d, back) for d in wanted}
            elif op.code in _SAME_AXES:
                mine |= {d for d in wanted if len(d) == v.rank}
            elif op.code not in RULES:
                mine.add(perms.identity(v.rank))
    return result


def _data(v: Value | None) -> np.ndarray | None:
    return None if v is None else v.data


def _ints(walk: Layout, values: Sequence[int] | np.ndarray, like: np.ndarray) -> Value:
    return walk.graph.const(np.asarray(values, like.dtype).reshape(like.shape))


def transpose(walk: Layout, op: Op) -> bool:
    axes = _data(op.inputs[1])
    if axes is None or op.inputs[0] is None:
        return False
    base, p = walk.view(op.inputs[0])
    walk.alias(op.outputs[0], base, perms.compose(p, axes.tolist()))
    return True


def elementwise(walk: Layout, op: Op) -> bool:
    out = op.outputs[0]
    inputs = [v for v in op.inputs if v is not None]
    large = [v for v in inputs if v.rank == out.rank and v.size > 1]
    indifferent = not walk.demands.get(out, set()) - {perms.identity(out.rank)}
    if not large or (indifferent and all(walk.is_plain(v) for v in inputs)):
        return False
    p = walk.choose(large, out)
    if p == perms.identity(out.rank):
        return False
    for position, v in enumerate(op.inputs):
        if v is not None and v.size > 1 and v.rank < out.rank:
            op.inputs[position] = walk.expanded(v, out.rank)
    op.inputs = [
        v if v is None else walk.in_form(v, p) if v.rank == out.rank else walk.materialise(v)
        for v in op.inputs
    ]
    walk.new_output(op, 0, p)
    walk.graph.ops.append(op)
    return True


def concatenation(walk: Layout, op: Op) -> bool:
    inputs = [v for v in op.inputs if v is not None]
    out = op.outputs[0]
    p = walk.choose(inputs, out)
    op.inputs = [walk.in_form(v, p) for v in inputs]
    op.options["axis"] = p[op.options["axis"] % out.rank]
    walk.new_output(op, 0, p)
    walk.graph.ops.append(op)
    return True


def reduction(walk: Layout, op: Op) -> bool:
    x, axes = op.inputs[0], _data(op.inputs[1])
    if x is None or axes is None or walk.is_plain(x):
        return False
    base, p = walk.view(x)
    dims = [int(a) % x.rank for a in axes.reshape(-1)]
    op.inputs = [base, walk.graph.const(np.array(sorted(p[d] for d in dims), np.int32))]
    kept = op.options.get("keep_dims", False)
    walk.new_output(op, 0, p if kept else perms.without(p, dims))
    walk.graph.ops.append(op)
    return True


def arg_reduction(walk: Layout, op: Op) -> bool:
    x, axis = op.inputs[0], _data(op.inputs[1])
    if x is None or axis is None or walk.is_plain(x):
        return False
    base, p = walk.view(x)
    dim = int(axis.reshape(-1)[0]) % x.rank
    op.inputs = [base, _ints(walk, [p[dim]], axis)]
    walk.new_output(op, 0, perms.without(p, [dim]))
    walk.graph.ops.append(op)
    return True


def _rewrite(walk: Layout, op: Op, base: Value, p: Perm, position: int = 0) -> bool:
    """Finish an op whose output keeps the axes of input `position`."""
    op.inputs[position] = base
    for i in range(len(op.outputs)):
        walk.new_output(op, i, p)
    walk.graph.ops.append(op)
    return True


def last_axis(walk: Layout, op: Op) -> bool:
    """Ops along the last axis (SOFTMAX, FULLY_CONNECTED): fine while that axis stays the last."""
    x = op.inputs[0]
    if x is None or walk.is_plain(x) or walk.view(x)[1][-1] != x.rank - 1:
        return False
    if any(v is not None and not walk.is_plain(v) for v in op.inputs[1:]):
        return False
    if op.code == "FULLY_CONNECTED" and not op.options.get("keep_num_dims"):
        return False
    return _rewrite(walk, op, *walk.view(x))


def per_axis(walk: Layout, op: Op) -> bool:
    """Ops with a row per axis in constant tables (PAD, SLICE, TILE, …)."""
    x = op.inputs[0]
    if x is None or x.rank != op.outputs[0].rank:
        return False
    masks = [k for k in op.options if k.endswith("_mask") and op.options[k]]
    if set(masks) - {"begin_mask", "end_mask"} or op.options.get("offset"):
        return False
    tables = op.inputs[1:2] if op.code in ("PADV2", "BROADCAST_TO", "TILE") else op.inputs[1:]
    if any(_data(t) is None for t in tables):
        return False
    # Before or after this op, whichever moves less: PAD makes more of it, SLICE less.
    p = walk.choose([x], op.outputs[0])
    if p == perms.identity(x.rank):
        return False
    base = walk.in_form(x, p)
    back = list(perms.inverse(p))
    for i, t in enumerate(tables, start=1):
        assert t is not None and t.data is not None
        op.inputs[i] = walk.graph.const(np.ascontiguousarray(t.data[back]))
    for k in masks:
        mask = op.options[k]
        op.options[k] = sum(((mask >> i) & 1) << p[i] for i in range(x.rank))
    return _rewrite(walk, op, base, p)


def axis_list(walk: Layout, op: Op) -> bool:
    """Ops whose second input lists axes (REVERSE_V2, CUMSUM)."""
    x, axes = op.inputs[0], _data(op.inputs[1])
    if x is None or axes is None or walk.is_plain(x):
        return False
    base, p = walk.view(x)
    moved = [p[int(a) % x.rank] for a in axes.reshape(-1)]
    op.inputs[1] = _ints(walk, moved, axes)
    return _rewrite(walk, op, base, p)


def split(walk: Layout, op: Op) -> bool:
    position, axis_position = (1, 0) if op.code == "SPLIT" else (0, 2)
    x, axis = op.inputs[position], _data(op.inputs[axis_position])
    if x is None or axis is None or walk.is_plain(x):
        return False
    base, p = walk.view(x)
    op.inputs[axis_position] = _ints(walk, [p[int(axis.reshape(-1)[0]) % x.rank]], axis)
    return _rewrite(walk, op, base, p, position)


def gather(walk: Layout, op: Op) -> bool:
    x, indices = op.inputs
    if x is None or indices is None or walk.is_plain(x) or op.options.get("batch_dims"):
        return False
    if indices.rank > 1:
        return False
    base, p = walk.view(x)
    axis = op.options.get("axis", 0) % x.rank
    op.inputs = [base, walk.materialise(indices)]
    op.options["axis"] = p[axis]
    walk.new_output(op, 0, p if indices.rank == 1 else perms.without(p, [axis]))
    walk.graph.ops.append(op)
    return True


def batch_matmul(walk: Layout, op: Op) -> bool:
    """A swap of the last two axes becomes the operator's own flag."""
    for position, flag in ((0, "adj_x"), (1, "adj_y")):
        v = op.inputs[position]
        assert v is not None
        _, p = walk.view(v)
        rank = len(p)
        swap: Perm = (*range(rank - 2), rank - 1, rank - 2)
        if walk.is_plain(v) or p[-2] < p[-1]:
            continue
        op.inputs[position] = walk.in_form(v, swap)
        op.options[flag] = not op.options.get(flag, False)
    walk.keep(op)
    return True


# reshapes


def reshape(walk: Layout, op: Op) -> bool:
    x, out = op.inputs[0], op.outputs[0]
    if x is None or walk.is_plain(x):
        return False
    base, p = walk.view(x)
    found = perms.reshape_through(base.shape, p, out.shape)
    if found is not None:
        shape, q = found
        walk.alias(out, _reshaped(walk, base, shape, op, out, q), q)
        return True
    return _flatten_into_linear(walk, op, base, p) or _gathered(walk, op, base, p)


def _gathered(walk: Layout, op: Op, base: Value, p: Perm) -> bool:
    """Merge axes that stand apart (a channel shuffle) by one small reordering; stay permuted."""
    out = op.outputs[0]
    wanted = walk.demands.get(out, set())
    if not wanted or perms.identity(out.rank) in wanted:
        return False  # the readers want the plain form: one transpose gives it
    r = perms.gather_groups(base.shape, p, out.shape)
    if r is None:
        return False
    q = tuple(r.index(axis) for axis in p)
    found = perms.reshape_through(perms.permuted(base.shape, r), q, out.shape)
    if found is None:
        return False
    made = walk.transposed(base, r)
    walk.alias(out, _reshaped(walk, made, found[0], op, out, found[1]), found[1])
    return True


def _reshaped(
    walk: Layout, base: Value, shape: tuple[int, ...], op: Op, out: Value, q: Perm
) -> Value:
    if base.shape == shape:
        return base
    if base.data is not None:
        return walk.graph.reshape(base, shape)
    name = out.name
    out.name = walk.graph.unique(f"{name}_" + "".join(map(str, q)))
    made = Value(name, shape, out.dtype, source=op.source)
    new = np.array(shape, np.int32)
    walk.graph.ops.append(
        Op("RESHAPE", [base, walk.graph.const(new)], [made], {"new_shape": new}, op.source)
    )
    return made


def _flatten_into_linear(walk: Layout, op: Op, base: Value, p: Perm) -> bool:
    """Linear(flatten(x)): permute the weight's columns instead of x."""
    out = op.outputs[0]
    logical = perms.permuted(base.shape, p)
    kept = out.rank - 1
    if p[:kept] != perms.identity(kept) or logical[:kept] != out.shape[:kept]:
        return False
    linears = _linear_readers(walk, out)
    if linears is None:
        return False
    # Logical axes in the order in which they stand in the base.
    order = [axis - kept for axis in perms.inverse(p)[kept:]]
    for linear in linears:
        weight = linear.inputs[1]
        assert weight is not None and weight.data is not None
        w = weight.data.reshape(weight.shape[0], *logical[kept:])
        w = w.transpose(0, *(1 + a for a in order)).reshape(weight.shape)
        linear.inputs[1] = walk.graph.const(np.ascontiguousarray(w), name=weight.name)
    op.inputs[0] = base
    walk.graph.ops.append(op)
    return True


def _linear_readers(walk: Layout, v: Value) -> list[Op] | None:
    """The FULLY_CONNECTED ops that read `v`, past unary ones; None when anything else reads it."""
    if v in walk.outputs:
        return None
    found: list[Op] = []
    for op in walk.consumers.get(v, []):
        if op.code == "FULLY_CONNECTED" and op.inputs[0] is v:
            weight = op.inputs[1]
            if weight is None or weight.data is None or weight.shape[1] != v.shape[-1]:
                return None
            found.append(op)
        elif op.code in ELEMENTWISE and all(i is v or i.size == 1 for i in op.inputs if i):
            further = _linear_readers(walk, op.outputs[0])
            if further is None:
                return None
            found += further
        else:
            return None
    return found or None


RULES: dict[str, Rule] = {
    "TRANSPOSE": transpose,
    "RESHAPE": reshape,
    "SQUEEZE": reshape,
    "EXPAND_DIMS": reshape,
    "CONCATENATION": concatenation,
    "ARG_MAX": arg_reduction,
    "ARG_MIN": arg_reduction,
    "BATCH_MATMUL": batch_matmul,
    "GATHER": gather,
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(("SOFTMAX", "LOG_SOFTMAX", "FULLY_CONNECTED"), last_axis),
    **dict.fromkeys(
        ("PAD", "PADV2", "MIRROR_PAD", "SLICE", "STRIDED_SLICE", "TILE", "BROADCAST_TO"), per_axis
    ),
    **dict.fromkeys(("REVERSE_V2", "CUMSUM"), axis_list),
    **dict.fromkeys(("SPLIT", "SPLIT_V"), split),
}
