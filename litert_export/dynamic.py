"""Dynamic shapes, first half: which sizes a program leaves open, and the program at given sizes.

A program with open sizes goes through the stages as a few programs of fixed sizes, so that no
lowering and no pass has to know about symbols; `passes/join.py` makes one graph of the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from torch_tpu_unified.core.errors import ConversionError

Sizes = Mapping[Any, int]  # symbol -> size

_LEAST = 11  # below, loops are unrolled and broadcasts look like equal sizes
# Differences between the sizes tried: odd and even, all remainders modulo 3 and 4, and so large
# that they differ behind strides too.
_STEPS = ((0, 37, 86, 163), (0, 3, 10, 19))
_INSTANCES = 3
_UNBOUNDED = 1 << 40

MSG_NUMBER = (
    "the input {name} is a number that may change; a LiteRT file takes tensors, and numbers are "
    "fixed. Give it as a tensor, or export the program with a fixed number."
)
MSG_TRACE = "the program cannot be traced at {sizes}, which its ranges allow: {error}"


def open_shapes(program: ExportedProgram) -> list[tuple[Any, ...]]:
    """The shape of each user tensor input, an int or a symbolic expression for every dimension.

    Raises:
        ConversionError: a number is left open.
    """
    inputs = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    found = []
    for name in program.graph_signature.user_inputs:
        value = inputs[name].meta.get("val") if isinstance(name, str) and name in inputs else None
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise ConversionError(MSG_NUMBER.format(name=name))
        if isinstance(value, torch.Tensor):
            found.append(tuple(d if isinstance(d, int) else d.node.expr for d in value.shape))
    return found


def symbols(program: ExportedProgram) -> list[Any]:
    """The symbols of the inputs' open sizes, in order of appearance."""
    found: dict[Any, None] = {}
    for shape in open_shapes(program):
        for d in shape:
            if not isinstance(d, int):
                found.update(dict.fromkeys(sorted(d.free_symbols, key=str)))
    return list(found)


def bounds(program: ExportedProgram, symbol: Any) -> tuple[int, int | None]:
    """The least and the largest size of a symbol; None: there is no largest."""
    known = program.range_constraints.get(symbol)
    if known is None:
        return 0, None
    low, high = known.lower, known.upper
    top = int(high) if high.is_number and high.is_finite and high < _UNBOUNDED else None
    return (int(low) if low.is_number and low.is_finite else 0), top


def choose(program: ExportedProgram) -> list[dict[Any, int]]:
    """Sizes at which the program is converted: far from each other and from small numbers."""
    names = symbols(program)
    count = _INSTANCES if len(names) == 1 else _INSTANCES + 1
    usual = _usual(program)
    result: list[dict[Any, int]] = [{} for _ in range(count)]
    for i, s in enumerate(names):
        low, high = bounds(program, s)
        start = max(low, usual.get(s, 0), _LEAST) + 5 * i
        choices = ([_odd_factor(start + step) for step in steps[:count]] for steps in _STEPS)
        fitting = (c for c in choices if high is None or c[-1] <= high)
        wanted = next(fitting, None) or _within(max(low, 2), high or low, count, i)
        for sizes, size in zip(result, wanted, strict=True):
            sizes[s] = size
    return [s for k, s in enumerate(result) if s not in result[:k]]


def _odd_factor(size: int) -> int:
    """The size, or the next one: powers of two as factors are treated in a way of their own."""
    return size + (size & (size - 1) == 0)


def _within(low: int, high: int, count: int, turn: int) -> list[int]:
    """Sizes of a narrow range, the largest first; another order for each symbol."""
    low = min(low, high)
    step = max(1, (high - low) // (count + 1))
    found = [max(low, high - k * step) for k in range(count)]
    return found[turn % count :] + found[: turn % count]


def _usual(program: ExportedProgram) -> dict[Any, int]:
    """The sizes that the program was exported with."""
    example = program.example_inputs
    if example is None:
        return {}
    tensors = [t for t in pytree.tree_leaves(example) if isinstance(t, torch.Tensor)]
    found: dict[Any, int] = {}
    for shape, tensor in zip(open_shapes(program), tensors, strict=False):
        for d, size in zip(shape, tensor.shape, strict=False):
            if not isinstance(d, int) and d.is_Symbol:
                found[d] = int(size)
    return found


def usual_shapes(program: ExportedProgram, io_layout: str) -> list[tuple[int, ...]] | None:
    """The shapes of a file's inputs at the example's sizes; None: there is no example."""
    usual = _usual(program)
    if set(usual) != set(symbols(program)):
        return None
    shapes = shapes_at(program, usual)
    if io_layout == "nhwc":
        shapes = [(s[0], s[2], s[3], s[1]) if len(s) == 4 else s for s in shapes]
    return shapes


def trials(program: ExportedProgram) -> list[list[tuple[int, ...]]]:
    """Shapes of the inputs at sizes for which nothing was made: the least ones, and odd others."""
    names = symbols(program)
    if not names:
        return []
    least, other = {}, {}
    for i, s in enumerate(names):
        low, high = bounds(program, s)
        usual = _usual(program).get(s, low)
        least[s] = max(low, 1)
        other[s] = min(max(low, usual + 5 + 2 * i), high if high is not None else _UNBOUNDED)
    return [shapes_at(program, least), shapes_at(program, other)]


def limit(program: ExportedProgram) -> dict[Any, int] | None:
    """Every symbol at its largest size; None where one has none."""
    found = {s: bounds(program, s)[1] for s in symbols(program)}
    return None if any(v is None for v in found.values()) else found  # type: ignore[return-value]


def shapes_at(program: ExportedProgram, sizes: Sizes) -> list[tuple[int, ...]]:
    """The shapes of the user tensor inputs at these sizes."""
    return [
        tuple(d if isinstance(d, int) else int(d.subs(dict(sizes))) for d in shape)
        for shape in open_shapes(program)
    ]


def resized(tensor: torch.Tensor, shape: Sequence[int], seed: int = 0) -> torch.Tensor:
    """A tensor of another shape with this one's values: drawn for floats, in turn for others."""
    if tuple(tensor.shape) == tuple(shape):
        return tensor
    if not tensor.numel():
        return torch.zeros(tuple(shape), dtype=tensor.dtype)
    if tensor.is_floating_point():
        source = torch.Generator().manual_seed(seed)
        count = int(torch.Size(shape).numel())
        drawn = torch.randint(0, tensor.numel(), (count,), generator=source)
        return tensor.reshape(-1)[drawn].reshape(tuple(shape))
    for d, size in enumerate(shape):
        tensor = tensor.index_select(d, torch.arange(size) % tensor.shape[d])
    return tensor


def at(program: ExportedProgram, sizes: Sizes) -> ExportedProgram:
    """The program with fixed sizes.

    Raises:
        ConversionError: PyTorch cannot run it at these sizes.
    """
    spec = program.call_spec.in_spec
    assert spec is not None
    tensors = iter(zip(_placeholders(program), shapes_at(program, sizes), strict=True))
    leaves = []
    for given in program.graph_signature.user_inputs:
        if isinstance(given, str) and given in {n.name for n in _placeholders(program)}:
            node, shape = next(tensors)
            leaves.append(torch.zeros(shape, dtype=node.meta["val"].dtype))
        else:
            leaves.append(given)
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    try:
        with torch.no_grad():
            module = program.module(check_guards=False)
            return torch.export.export(module, args, kwargs, strict=False)
    except Exception as error:  # torch.export raises many kinds
        text = ", ".join(f"{k}={v}" for k, v in sizes.items())
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConversionError(MSG_TRACE.format(sizes=text, error=line)) from error


def _placeholders(program: ExportedProgram) -> list[torch.fx.Node]:
    names = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    user = [names[n] for n in program.graph_signature.user_inputs if n in names]
    return [n for n in user if isinstance(n.meta.get("val"), torch.Tensor)]
