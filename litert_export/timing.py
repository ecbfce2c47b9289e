"""How long each operator of a LiteRT file takes here, and which of them XNNPACK takes."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from litert_export import verify, writer
from litert_export.graph import Graph, Op, Value
from torch_tpu_unified.core.errors import InputError

# They refer to other graphs of the file, or to code that is not in it.
_NOT_ALONE = ("WHILE", "IF", "CALL", "CALL_ONCE", "CUSTOM", "VAR_HANDLE", "READ_VARIABLE",
              "ASSIGN_VARIABLE")  # fmt: skip
_LEAST = 0.01  # seconds that a measurement lasts at least


@dataclasses.dataclass(frozen=True)
class OpTime:
    """One operator.

    Attributes:
        code, name: LiteRT's spelling; the name of its first result.
        seconds: median of a call of it alone; None where it cannot run alone.
        xnnpack: whether the XNNPACK delegate takes it in the whole graph.
    """

    code: str
    name: str
    seconds: float | None
    xnnpack: bool


def profile(
    model: bytes | bytearray,
    graph: Graph,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[float, list[OpTime]]:
    """(seconds of a call of the whole graph, the times of its operators), on one thread.

    LiteRT's own profiler cannot be reached from Python, so each operator is written to a file of
    its own and timed alone, on random inputs: sums leave out what operators do to each other's
    caches, and what passes between the delegate and the rest.

    Args:
        model: the file; `graph` is the one of its first signature.
        progress: called with (operators done, operators).

    Raises:
        InputError: LiteRT cannot run the file.
    """
    runner = verify.interpreter(model)
    whole = _seconds(runner)
    taken = _delegated(runner._get_ops_details())
    found = []
    for number, op in enumerate(graph.ops):
        if progress:
            progress(number, len(graph.ops))
        found.append(OpTime(op.code, op.outputs[0].name, _alone(op), number in taken))
    return whole, found


def _delegated(nodes: list[dict[str, Any]]) -> set[int]:
    """Places of the operators that a delegate's node stands for: those between its ends."""
    makers = {int(t): i for i, n in enumerate(nodes) if n["op_name"] != "DELEGATE"
              for t in n["outputs"]}  # fmt: skip
    found: set[int] = set()
    for node in nodes:
        if node["op_name"] != "DELEGATE":
            continue
        ends = {int(t) for t in node["inputs"]}
        left = [int(t) for t in node["outputs"]]
        while left:
            t = left.pop()
            if t in ends or t not in makers or makers[t] in found:
                continue
            found.add(makers[t])
            left += [int(i) for i in nodes[makers[t]]["inputs"]]
    return found


def _alone(op: Op) -> float | None:
    if op.code in _NOT_ALONE or not any(v is not None and not v.is_const for v in op.inputs):
        return None
    graph = Graph("main")
    new: dict[Value, Value] = {}
    for v in op.inputs:
        if v is not None and v not in new:
            name = graph.unique(v.name)
            new[v] = dataclasses.replace(v, name=name, dynamic=())
            if not v.is_const:
                graph.inputs.append(new[v])
                graph.input_names.append(name)
    outputs = [dataclasses.replace(v, name=graph.unique(v.name), dynamic=()) for v in op.outputs]
    inputs = [None if v is None else new[v] for v in op.inputs]
    graph.ops.append(Op(op.code, inputs, outputs, dict(op.options)))
    graph.outputs, graph.output_names = outputs, [v.name for v in outputs]
    try:
        return _seconds(verify.interpreter(bytes(writer.write({"main": graph}))))
    except InputError:  # such as indices that random numbers do not make
        return None


def _seconds(runner: Any) -> float:
    """Median seconds of a call on random inputs."""
    rng = np.random.default_rng(0)
    try:
        runner.allocate_tensors()
        for detail in runner.get_input_details():
            runner.set_tensor(detail["index"], _random(rng, detail))
        runner.invoke()
        times: list[float] = []
        while len(times) < 3 or (sum(times) < _LEAST and len(times) < 1000):
            start = time.perf_counter()
            runner.invoke()
            times.append(time.perf_counter() - start)
    except (ValueError, RuntimeError) as err:
        raise InputError(f"LiteRT cannot run the model: {err}") from err
    return statistics.median(times)


def _random(rng: np.random.Generator, detail: dict[str, Any]) -> np.ndarray[Any, Any]:
    dtype, shape = np.dtype(detail["dtype"]), tuple(detail["shape"])
    if dtype.kind in "iub":  # zeros are valid indices, sizes and conditions
        return np.zeros(shape, dtype)
    return rng.random(shape).astype(dtype)
