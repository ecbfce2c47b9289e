"""PyTorch's higher-order operators in a compiled graph, as the control flow of XLA.

`torch.cond`, `while_loop`, `scan`, `map`, `associative_scan`, `flex_attention` and regions compiled
once hold graphs of their own. Each such graph is interpreted where XLA traces the branch or the
body, so a loop is one loop in the program, whatever its length. PyTorch makes the backward graphs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch.fx import GraphModule, Node

from cloud_backend import runtime
from cloud_backend.dtypes import to_jax
from torch_tpu_unified.core.errors import LoweringError, Unsupported

# The interpreter: (graph, values of its placeholders, PRNG key or None) -> its results.
Interpret = Callable[[GraphModule, list[Any], Any], list[Any]]
_LOWERINGS: dict[str, Callable[..., Any]] = {}
# What to make of the body of each `scan`, a function (state, slices) -> (state, outputs).
BODY: ContextVar[Callable[[Any], Any] | None] = ContextVar("body", default=None)
MSG_TRITON = (
    "tpu: {name} (node {node}) is a Triton kernel, and a TPU has no Triton. Write the kernel in "
    "JAX or Pallas and make an operator of it: torch.tpu.pallas.jax_op(function)"
)
MSG_UNKNOWN = (
    "tpu: cannot compile the higher-order operator {name} (node {node}); those that compile are "
    "{known}. Take that part out of the compiled function (torch.compiler.disable)"
)


def lower(node: Node, args: Any, kwargs: Any, interpret: Interpret, key: Any) -> Any:
    """The value of a node that calls a higher-order operator.

    Args:
        args, kwargs: its arguments, with graph modules for the graphs.
        interpret: runs a graph.
        key: a PRNG key for what is random inside, or None.

    Raises:
        LoweringError: the operator, or this use of it, has no lowering.
    """
    name = str(getattr(node.target, "_name", node.target))
    function = _LOWERINGS.get(name)
    if function is None:
        text = MSG_TRITON if "triton" in name else MSG_UNKNOWN
        known = ", ".join(sorted(_LOWERINGS))
        raise LoweringError(text.format(name=name, node=node.name, known=known))
    return function(interpret, key, *args, **kwargs)


def _lowers(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        _LOWERINGS.update(dict.fromkeys(names, function))
        return function

    return add


class _Graph:
    """A graph as a function of arrays whose results have the dtypes and shapes that PyTorch says.

    Results that are no tensors (None for what has no gradient) are left out, and put back by
    `restored`.
    """

    def __init__(self, interpret: Interpret, module: GraphModule) -> None:
        self.interpret, self.module = interpret, module
        result = next(n for n in module.graph.nodes if n.op == "output").args[0]
        self.results = list(result) if isinstance(result, (list, tuple)) else [result]
        self.fakes = [
            n.meta.get("val", n.meta.get("example_value")) if isinstance(n, Node) else None
            for n in self.results
        ]
        self.none = [r is None for r in self.results]

    def __call__(self, arrays: list[Any], key: Any = None) -> tuple[Any, ...]:
        found = self.interpret(self.module, list(arrays), key)
        pairs = zip(found, self.fakes, strict=True)
        return tuple(_like(v, fake) for v, fake in pairs if v is not None)

    def restored(self, arrays: Any) -> list[Any]:
        left = iter(arrays)
        return [None if absent else next(left) for absent in self.none]


def _like(value: Any, fake: Any) -> Any:
    value = runtime.start().numpy.asarray(value)
    return value.astype(to_jax(fake.dtype)) if isinstance(fake, torch.Tensor) else value


def _arrays(values: Any) -> list[Any]:
    return [runtime.start().numpy.asarray(v) for v in values]


def _folded(key: Any, number: Any) -> Any:
    return None if key is None else runtime.start().random.fold_in(key, number)


@_lowers("cond")
def cond(interpret, key, pred, true_graph, false_graph, operands=()):
    jax = runtime.start()
    branches = [_Graph(interpret, g) for g in (true_graph, false_graph)]
    if isinstance(pred, bool):
        branch = branches[0 if pred else 1]
        return branch.restored(branch(list(operands), key))
    # Sizes are numbers of the trace, not values of the program: they stay outside the branches.
    places = [i for i, v in enumerate(operands) if not isinstance(v, (int, float))]

    def run(branch):
        def call(arrays):
            full = list(operands)
            for i, a in zip(places, arrays, strict=True):
                full[i] = a
            return branch(full, key)

        return call

    given = [operands[i] for i in places]
    found = jax.lax.cond(pred.reshape(()), *map(run, branches), given)
    return branches[0].restored(found)


@_lowers("while_loop")
def while_loop(interpret, key, condition, body, carried, additional=()):
    jax = runtime.start()
    test, step = _Graph(interpret, condition), _Graph(interpret, body)

    def proceed(state):
        return test([*state[1], *additional])[0].reshape(())

    def advance(state):
        number, values = state
        return number + 1, step([*values, *additional], _folded(key, number))

    start = (jax.numpy.zeros((), "int32"), tuple(_arrays(carried)))
    return list(jax.lax.while_loop(proceed, advance, start)[1])


@_lowers("while_loop_stack_output")
def while_loop_stack_output(interpret, key, *args, **kwargs):
    raise Unsupported(
        "the gradient of while_loop keeps every step, and XLA must know their number; use scan "
        "or a Python loop of fixed length, or call while_loop under torch.no_grad()"
    )


@_lowers("scan")
def scan(interpret, key, combine, init, xs, additional=()):
    jax = runtime.start()
    graph, count = _Graph(interpret, combine), len(init)

    def step(state, slices):
        number, carry = state
        found = graph([*carry, *slices, *additional], _folded(key, number))
        return (number + 1, found[:count]), found[count:]

    start = (jax.numpy.zeros((), "int32"), tuple(_arrays(init)))
    wrap = BODY.get()
    (_, carry), ys = jax.lax.scan(wrap(step) if wrap else step, start, tuple(xs))
    return [*carry, *ys]


@_lowers("map_impl")
def map_impl(interpret, key, body, xs, additional=()):
    jax = runtime.start()
    graph = _Graph(interpret, body)

    def step(number, slices):
        return number + 1, graph([*slices, *additional], _folded(key, number))

    _, ys = jax.lax.scan(step, jax.numpy.zeros((), "int32"), tuple(xs))
    return graph.restored(ys)


@_lowers("associative_scan")
def associative_scan(interpret, key, combine, xs, additional=()):
    jax = runtime.start()
    graph = _Graph(interpret, combine)

    def pair(a, b):
        return graph([*a, *b, *additional])

    # XLA combines many pairs at once; the graph is written for one.
    return list(jax.lax.associative_scan(jax.vmap(pair), tuple(xs)))


@_lowers("invoke_subgraph")
def invoke_subgraph(interpret, key, graph, identifier, *operands):
    return list(interpret(graph, list(operands), key))


# ---- attention with scores and masks that a user writes


def _scores(interpret, query, key, score_graph, block_mask, scale, score_buffers, mask_buffers):
    """Masked scores in the compute dtype, log-sum-exp ready."""
    jax = runtime.start()
    jnp = jax.numpy
    wide = jnp.promote_types(query.dtype, jnp.float32)
    groups = query.shape[1] // key.shape[1]
    key = jnp.repeat(key, groups, 1) if groups > 1 else key
    key = jnp.broadcast_to(key, (query.shape[0], *key.shape[1:]))
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key, preferred_element_type=wide) * scale
    places = [jnp.arange(n, dtype=jnp.int32) for n in scores.shape]

    def over_all(function, first):
        """`function(value, b, h, q, k)` at every place, or without a value."""
        for axis in (3, 2, 1, 0):
            inside = [0 if a == axis else None for a in range(4)]
            function = jax.vmap(function, in_axes=((0,) if first else ()) + tuple(inside))
        return function

    score, mask = _Graph(interpret, score_graph), _Graph(interpret, block_mask[-1])
    changed = over_all(lambda s, *at: score([s, *at, *score_buffers])[0], True)(scores, *places)
    seen = over_all(lambda *at: mask([*at, *mask_buffers])[0], False)(*places)
    return jnp.where(seen, changed.astype(wide), -jnp.inf)


def _attend(query, value, scores):
    jax = runtime.start()
    jnp = jax.numpy
    highest = jnp.max(scores, -1, keepdims=True)
    highest = jnp.where(jnp.isfinite(highest), highest, 0)
    weights = jnp.exp(scores - highest)
    total = weights.sum(-1, keepdims=True)
    groups = query.shape[1] // value.shape[1]
    value = jnp.repeat(value, groups, 1) if groups > 1 else value
    value = jnp.broadcast_to(value, (query.shape[0], *value.shape[1:]))
    weights = weights / jnp.where(total == 0, 1, total)
    out = jnp.einsum("bhqk,bhkd->bhqd", weights, value.astype(weights.dtype))
    logsum = jnp.log(total[..., 0]) + highest[..., 0]
    return out.astype(query.dtype), logsum, jnp.max(scores, -1)


@_lowers("flex_attention")
def flex_attention(
    interpret, key, query, keys, values, score_graph, block_mask, scale, options,
    score_buffers=(), mask_buffers=(),
):  # fmt: skip
    scores = _scores(
        interpret, query, keys, score_graph, block_mask, scale, score_buffers, mask_buffers
    )
    out, logsum, highest = _attend(query, values, scores)
    base2 = 1 / math.log(2)  # PyTorch keeps both as powers of two
    return out, (logsum * base2).astype("float32"), (highest * base2).astype("float32")


@_lowers("flex_attention_backward")
def flex_attention_backward(
    interpret, key, query, keys, values, out, logsumexp, grad_out, grad_logsumexp, score_graph,
    joint_graph, block_mask, scale, options, score_buffers=(), mask_buffers=(),
):  # fmt: skip
    jax = runtime.start()
    jnp = jax.numpy
    floats = [i for i, b in enumerate(score_buffers) if _is_float(jnp, b)]

    def forward(query, keys, values, chosen):
        buffers = list(score_buffers)
        for i, b in zip(floats, chosen, strict=True):
            buffers[i] = b
        scores = _scores(
            interpret, query, keys, score_graph, block_mask, scale, buffers, mask_buffers
        )
        found, logsum, _ = _attend(query, values, scores)
        return found, (logsum / math.log(2)).astype("float32")

    chosen = [score_buffers[i] for i in floats]
    _, pull = jax.vjp(forward, query, keys, values, chosen)
    if grad_logsumexp is None:
        grad_logsumexp = jnp.zeros(logsumexp.shape, "float32")
    *grads, captured = pull((grad_out.astype(query.dtype), grad_logsumexp.astype("float32")))
    by_place = dict(zip(floats, captured, strict=True))
    return (*grads, tuple(by_place.get(i) for i in range(len(score_buffers))))


def _is_float(jnp: Any, value: Any) -> bool:
    return hasattr(value, "dtype") and bool(jnp.issubdtype(value.dtype, jnp.floating))


def allow_flex_attention(module: Any) -> None:
    """Lets `torch.nn.attention.flex_attention` take tensors of this device, which it lists."""
    theirs = module._validate_device

    def validate(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != "tpu":
            theirs(query, key, value)

    module._validate_device = validate
