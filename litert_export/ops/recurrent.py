"""LSTM, GRU and plain RNN layers, kept whole.

The input's part of every step is one matrix product over all steps. The recurrent part is a WHILE
loop whose body is one step (few steps are unrolled), so that the file's size does not grow with the
sequence. Loops carry their state as values: a second call of the model starts afresh.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from litert_export.graph import Graph, Value
from litert_export.ops._dims import (
    UNROLLED,
    binary,
    computes,
    concat,
    filled,
    i32,
    scalar,
    slice_dim,
    take,
)
from litert_export.ops.matmul import fully_connected
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported


@dataclasses.dataclass(frozen=True)
class Weights:
    """One direction of one layer, gates stacked in PyTorch's order; all are constants.

    Attributes:
        w_ih, w_hh: [gates * H, I] and [gates * H, H or projection].
        b_ih, b_hh: [gates * H] or None.
        w_hr: [projection, H] or None.
    """

    w_ih: Value
    w_hh: Value
    b_ih: Value | None = None
    b_hh: Value | None = None
    w_hr: Value | None = None


# One step of a cell: (graph, projected input, state, weights) -> state, whose first part is output.
Step = Callable[[Graph, Value, list[Value], Weights], list[Value]]


def _lstm_step(g: Graph, x: Value, state: list[Value], w: Weights) -> list[Value]:
    h, c = state
    gates = binary(g, "ADD", x, fully_connected(g, h, w.w_hh, w.b_hh))
    n = c.shape[1]
    i, f, z, o = (slice_dim(g, gates, 1, k * n, (k + 1) * n) for k in range(4))
    keep = binary(g, "MUL", g.emit("LOGISTIC", f), c)
    c = binary(g, "ADD", keep, binary(g, "MUL", g.emit("LOGISTIC", i), g.emit("TANH", z)))
    h = binary(g, "MUL", g.emit("LOGISTIC", o), g.emit("TANH", c))
    return [h if w.w_hr is None else fully_connected(g, h, w.w_hr, None), c]


def _gru_step(g: Graph, x: Value, state: list[Value], w: Weights) -> list[Value]:
    (h,) = state
    n = h.shape[1]
    mine = fully_connected(g, h, w.w_hh, w.b_hh)
    both = binary(g, "ADD", slice_dim(g, x, 1, 0, 2 * n), slice_dim(g, mine, 1, 0, 2 * n))
    both = g.emit("LOGISTIC", both)
    reset, update = slice_dim(g, both, 1, 0, n), slice_dim(g, both, 1, n, 2 * n)
    fresh = binary(g, "MUL", reset, slice_dim(g, mine, 1, 2 * n, 3 * n))
    fresh = g.emit("TANH", binary(g, "ADD", slice_dim(g, x, 1, 2 * n, 3 * n), fresh))
    return [binary(g, "ADD", fresh, binary(g, "MUL", update, binary(g, "SUB", h, fresh)))]


def _rnn_step(code: str) -> Step:
    def step(g: Graph, x: Value, state: list[Value], w: Weights) -> list[Value]:
        return [g.emit(code, binary(g, "ADD", x, fully_connected(g, state[0], w.w_hh, w.b_hh)))]

    return step


# one direction of one layer


def _unrolled(
    g: Graph, x: Value, state: list[Value], w: Weights, step: Step, backward: bool
) -> tuple[Value, list[Value]]:
    steps = range(x.shape[0])
    outputs: dict[int, Value] = {}
    for t in reversed(steps) if backward else steps:
        now = g.reshape(slice_dim(g, x, 0, t, t + 1), x.shape[1:])
        state = step(g, now, state, w)
        outputs[t] = g.reshape(state[0], (1, *state[0].shape))
    return concat(g, [outputs[t] for t in steps], 0), state


def _loop(
    g: Graph, x: Value, state: list[Value], w: Weights, step: Step, backward: bool
) -> tuple[Value, list[Value]]:
    """The same as `_unrolled`, as a WHILE over (t, x, outputs, state)."""
    steps, shape = x.shape[0], (x.shape[0], *state[0].shape)
    carried = [scalar(g, 0, "int32"), x, filled(g, shape, 0, x.dtype), *state]
    body = _subgraph(g, "step", carried)
    t, xs, ys, *inner = body.inputs
    at = binary(body, "SUB", scalar(body, steps - 1, "int32"), t) if backward else t
    after = step(body, take(body, xs, at, 0), inner, w)
    start = concat(body, [body.reshape(at, (1,)), i32(body, [0] * (len(shape) - 1))], 0)
    row = body.reshape(after[0], (1, *after[0].shape))
    ys = body.emit("DYNAMIC_UPDATE_SLICE", ys, row, start, shape=shape)
    body.outputs = [binary(body, "ADD", t, scalar(body, 1, "int32")), xs, ys, *after]
    condition = _subgraph(g, "more", carried)
    more = condition.emit(
        "LESS", condition.inputs[0], scalar(condition, steps, "int32"), dtype="bool"
    )
    condition.outputs = [more]
    for inside in (body, condition):
        inside.output_names = [f"output_{i}" for i in range(len(inside.outputs))]
    results = g.emit(
        "WHILE",
        *carried,
        outputs=[(v.shape, v.dtype) for v in carried],
        body_subgraph_index=g.subgraphs.index(body) + 1,
        cond_subgraph_index=g.subgraphs.index(condition) + 1,
    )
    return results[2], results[3:]


def _subgraph(g: Graph, role: str, like: Sequence[Value]) -> Graph:
    inner = Graph(f"{g.name}/{g.scope}/{role}_{len(g.subgraphs)}")
    inner.scope, inner.source = g.scope, g.source
    for i, v in enumerate(like):
        inner.input(f"input_{i}", v.shape, v.dtype)
    g.subgraphs.append(inner)
    return inner


def _direction(
    g: Graph, x: Value, state: list[Value], w: Weights, step: Step, backward: bool
) -> tuple[Value, list[Value]]:
    """(outputs [T, B, H], last state) of x [T, B, I]."""
    steps, batch, width = x.shape
    flat = g.reshape(x, (steps * batch, width))
    projected = fully_connected(g, flat, w.w_ih, w.b_ih)
    projected = g.reshape(projected, (steps, batch, w.w_ih.shape[0]))
    run = _unrolled if steps <= UNROLLED else _loop
    return run(g, projected, state, w, step, backward)


# whole stacks


def _weights(params: Sequence[Value], biases: bool, sets: int) -> list[Weights]:
    size = len(params) // sets
    if any(p.data is None for p in params):
        raise Unsupported("recurrent weights that the program computes")
    result = []
    for k in range(sets):
        part = list(params[k * size : (k + 1) * size])
        w_ih, w_hh, *rest = part
        b_ih, b_hh = (rest.pop(0), rest.pop(0)) if biases else (None, None)
        result.append(Weights(w_ih, w_hh, b_ih, b_hh, rest[0] if rest else None))
    return result


def _stack(
    g: Graph,
    x: Value,
    initial: Sequence[Value],
    params: Sequence[Value],
    step: Step,
    *,
    biases: bool,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Value, ...]:
    """(output, last state of each kind [layers * directions, B, H])."""
    if not x.size:
        raise Unsupported("a sequence without elements")
    x = g.transpose(x, (1, 0, 2)) if batch_first else x
    directions = 2 if bidirectional else 1
    weights = _weights(params, biases, layers * directions)
    last: list[list[Value]] = []
    for layer in range(layers):
        outputs = []
        for d in range(directions):
            k = layer * directions + d
            state = [g.reshape(slice_dim(g, s, 0, k, k + 1), s.shape[1:]) for s in initial]
            y, end = _direction(g, x, state, weights[k], step, backward=bool(d))
            outputs.append(y)
            last.append(end)
        x = concat(g, outputs, 2)
    x = g.transpose(x, (1, 0, 2)) if batch_first else x
    finals = (
        concat(g, [g.reshape(s[i], (1, *s[i].shape)) for s in last], 0) for i in range(len(initial))
    )
    return x, *finals


def _inference(dropout: float, train: bool) -> None:
    if train and dropout:
        raise Unsupported("dropout between layers; call model.eval() before exporting")


@computes(aten.lstm.input)
def lstm(
    g: Graph,
    input: Value,
    hx: Sequence[Value],
    params: Sequence[Value],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Value, ...]:
    _inference(dropout, train)
    return _stack(
        g, input, hx, params, _lstm_step, biases=has_biases, layers=num_layers,
        bidirectional=bidirectional, batch_first=batch_first,
    )  # fmt: skip


def _single_state(step: Step) -> Callable[..., tuple[Value, ...]]:
    def lowering(
        g: Graph,
        input: Value,
        hx: Value,
        params: Sequence[Value],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Value, ...]:
        _inference(dropout, train)
        return _stack(
            g, input, [hx], params, step, biases=has_biases, layers=num_layers,
            bidirectional=bidirectional, batch_first=batch_first,
        )  # fmt: skip

    return lowering


computes(aten.gru.input)(_single_state(_gru_step))
computes(aten.rnn_tanh.input)(_single_state(_rnn_step("TANH")))
computes(aten.rnn_relu.input)(_single_state(_rnn_step("RELU")))
