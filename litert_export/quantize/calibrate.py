"""Ranges of all values of a float graph, from samples run in the LiteRT interpreter.

Every value is made an output, so that the runtime's fast kernels compute it and it can be read
where it lies. `minmax` needs one pass; the other observers take a second one that fills a histogram
of each value between its extremes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from litert_export import verify, writer
from litert_export.graph import Graph, Value
from litert_export.quantize.config import QuantConfig
from litert_export.quantize.params import Range
from torch_tpu_unified.core.errors import ConversionError, InputError

Sample = Sequence[np.ndarray[Any, Any]]
Progress = Callable[[int, int], None]
_BINS = 2048
_CANDIDATES = 64  # ranges that the `mse` observer tries
# Beyond this a softmax input's distance to its row's maximum no longer changes an 8-bit result.
SOFTMAX_REACH = 10.0


@dataclasses.dataclass
class Observed:
    """What calibration saw.

    Attributes:
        ranges: of every float value that the samples reached, finite numbers only.
        row_maximum: value read by a SOFTMAX -> the least of its rows' maxima.
        samples: how many.
    """

    ranges: dict[Value, Range] = dataclasses.field(default_factory=dict)
    row_maximum: dict[Value, float] = dataclasses.field(default_factory=dict)
    samples: int = 0


class Runner:
    """A float graph in the interpreter, with its float values to read after each sample."""

    def __init__(self, graph: Graph) -> None:
        self.watched = [v for op in graph.ops for v in op.outputs if v.dtype == "float32"]
        self.watched += [v for v in graph.inputs if v.dtype == "float32"]
        probe = Graph(graph.name)
        probe.ops, probe.inputs, probe.subgraphs = graph.ops, graph.inputs, graph.subgraphs
        probe.input_names = graph.input_names
        inputs = set(graph.inputs)
        probe.outputs = [v for v in self.watched if v not in inputs] or graph.outputs
        probe.output_names = [v.name for v in probe.outputs]
        numbers = {v: i for i, v in enumerate(probe.values)}
        self.index = {v: numbers[v] for v in self.watched if v in numbers}
        self.inputs = graph.inputs
        self._at = [numbers[v] for v in graph.inputs]
        try:
            self.interpreter = verify.interpreter(writer.write({"main": probe}))
            self.interpreter.allocate_tensors()
        except (ValueError, RuntimeError) as err:
            raise ConversionError(f"LiteRT cannot run the float graph to calibrate: {err}") from err

    def run(self, sample: Sample, visit: Callable[[Value, Any], None]) -> None:
        """Call `visit` with every watched value and what it holds for the sample.

        The arrays lie in the interpreter's memory: read them, and keep copies only.

        Raises:
            InputError: the sample's arrays are not those that the model takes.
        """
        if len(sample) != len(self.inputs):
            raise InputError(
                f"a calibration sample has {len(sample)} arrays, the model {len(self.inputs)} "
                "inputs"
            )
        for v, at, array in zip(self.inputs, self._at, sample, strict=True):
            if array.shape != v.shape or array.dtype.name != v.dtype:
                raise InputError(
                    f"a calibration sample has {array.dtype}{list(array.shape)} for the input "
                    f"{v.name}, which is {v.type_text()}"
                )
            self.interpreter.set_tensor(at, np.ascontiguousarray(array))
        self.interpreter.invoke()
        for v, at in self.index.items():
            visit(v, self.interpreter.tensor(at)())


def observe(
    graph: Graph,
    samples: Iterable[Sample],
    config: QuantConfig,
    progress: Progress | None = None,
) -> Observed:
    """Run the samples and find the range of every float value.

    Args:
        samples: the inputs in the graph's order, each array of the input's shape and type.
        progress: called with (samples done, samples in all) before each.

    Raises:
        InputError: there is no sample, or one does not fit.
        ConversionError: the float graph does not run.
    """
    kept = list(samples)
    if not kept:
        raise InputError("calibration has no samples; give some argument tuples")
    found = Observed(samples=len(kept))
    runner = Runner(graph)
    rows = {op.inputs[0] for op in graph.ops if op.code == "SOFTMAX"}
    passes = 1 if config.observer == "minmax" else 2
    for number, sample in enumerate(kept):
        if progress:
            progress(number, len(kept) * passes)
        runner.run(sample, lambda v, array: _extend(found, v, array, v in rows))
    if passes == 2:
        _narrow(found, runner, kept, config, progress)
    return found


def finite(array: np.ndarray[Any, Any]) -> Range | None:
    """Least and largest finite number; None when there is none."""
    if not array.size:
        return None
    low, high = float(array.min()), float(array.max())
    if not np.isfinite(low) or not np.isfinite(high):
        array = array[np.isfinite(array)]
        return finite(array) if array.size else None
    return Range(low, high)


def _extend(found: Observed, v: Value, array: np.ndarray[Any, Any], rows: bool) -> None:
    seen = finite(array)
    if seen is None:
        return
    before = found.ranges.get(v)
    found.ranges[v] = seen if before is None else before.union(seen)
    if rows:
        least = float(array.max(-1).min())
        found.row_maximum[v] = min(found.row_maximum.get(v, least), least)


def _narrow(
    found: Observed,
    runner: Runner,
    samples: list[Sample],
    config: QuantConfig,
    progress: Progress | None,
) -> None:
    counts: dict[Value, np.ndarray[Any, Any]] = {}

    def count(v: Value, array: np.ndarray[Any, Any]) -> None:
        if (r := found.ranges.get(v)) is not None and r.high > r.low:
            made, _ = np.histogram(array, _BINS, (r.low, r.high))
            counts[v] = counts.get(v, 0) + made

    for number, sample in enumerate(samples):
        if progress:
            progress(len(samples) + number, 2 * len(samples))
        runner.run(sample, count)
    pick = _percentile if config.observer == "percentile" else _least_error
    for v, histogram in counts.items():
        found.ranges[v] = pick(histogram, found.ranges[v], config)


def _percentile(counts: np.ndarray[Any, Any], r: Range, config: QuantConfig) -> Range:
    share = np.cumsum(counts) / counts.sum()
    left = (1 - config.percentile) / 2
    edges = np.linspace(r.low, r.high, _BINS + 1)
    low = edges[np.searchsorted(share, left, "right")]
    high = edges[min(np.searchsorted(share, 1 - left) + 1, _BINS)]
    return Range(float(low), float(high))


def _least_error(counts: np.ndarray[Any, Any], r: Range, config: QuantConfig) -> Range:
    """The range, both ends moved inwards alike or one by one, with the least squared error."""
    middles = r.low + (np.arange(_BINS) + 0.5) * (r.high - r.low) / _BINS
    levels = 65534 if config.activations == "int16" else 255

    def error(low: float, high: float) -> float:
        low, high = min(low, 0.0), max(high, 0.0)
        step = (high - low) / levels or 1.0
        near = np.clip(np.rint((middles - low) / step), 0, levels) * step + low
        return float((counts * np.square(near - middles)).sum())

    best = (error(r.low, r.high), r)
    for share in np.linspace(1, 0.2, _CANDIDATES)[1:]:
        for low, high in (
            (r.low * share, r.high * share),
            (r.low, r.high * share),
            (r.low * share, r.high),
        ):
            best = min(best, (error(low, high), Range(float(low), float(high))))
    return best[1]
