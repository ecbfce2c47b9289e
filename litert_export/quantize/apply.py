"""The stages of a quantisation, one graph at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from litert_export import versions
from litert_export.graph import Graph, Op
from litert_export.quantize import calibrate, prepare, regions, scales, static, traits, weights
from litert_export.quantize.calibrate import Progress, Sample
from litert_export.quantize.config import QuantConfig
from torch_tpu_unified.core.errors import ConversionError, OptionError


@dataclasses.dataclass
class Quantized:
    """What a quantisation did.

    Attributes:
        mode: of the config.
        samples: how many calibrated it.
        float_ops: (operator, value it makes) of what stayed in float32.
        warnings: sentences for the user.
    """

    mode: str
    samples: int = 0
    float_ops: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)


def apply(
    graph: Graph,
    config: QuantConfig,
    samples: Iterable[Sample] | None = None,
    progress: Progress | None = None,
) -> Quantized:
    """Quantise a finished float graph in place.

    Args:
        samples: input arrays in the graph's order and layout; static modes need some.
        progress: called with (samples done, samples in all).

    Raises:
        OptionError: a static mode without samples.
        InputError: a sample does not fit the model.
        ConversionError: operators have no integer form, or shapes are dynamic.
    """
    done = Quantized(config.mode)
    if not config.is_static:
        weights.quantize(graph, config, done.warnings)
        return done
    if samples is None:
        raise OptionError(
            f"quantize={config.mode!r} needs calibration: an iterable of argument tuples like the "
            "inputs that the model will see (32 to 500 of them)"
        )
    if open_sizes := [v.name for v in graph.inputs if v.dynamic]:
        raise ConversionError(
            f"{config.mode} needs static shapes; the input {open_sizes[0]} has open sizes: leave "
            "out dynamic_shapes (--dynamic), or use int8-dynamic"
        )
    prepare.run(graph, config.activations)
    if config.target == "edgetpu":
        floating, found = _for_edgetpu(graph, config), regions.Regions()
    else:
        found = regions.find(graph, static.named_ops(graph, config))
        floating = static.float_ops(graph, config, found)
    observed = calibrate.observe(graph, samples, config, progress)
    decided = scales.assign(graph, observed, config, floating | found.inside, set(found.of))
    done.samples = observed.samples
    done.float_ops = [(op.code, op.outputs[0].name) for op in graph.ops if op in floating]
    done.warnings += decided.warnings
    static.quantize(graph, decided, config, floating, found)
    return done


def _for_edgetpu(graph: Graph, config: QuantConfig) -> set[Op]:
    """Rewrite for the Edge TPU; returns what stays in float32.

    That is what runs on the CPU anyhow and has no integer form that the compiler knows: a form that
    it does not know makes it refuse the whole file.
    """
    from litert_export.edgetpu import rewrite, rules

    rewrite.run(graph)
    touched = [op for op in graph.ops if traits.touches_float(op)]
    return static.named_ops(graph, config) | {
        op
        for op in touched
        if traits.function(op, "int8") is not None
        or not traits.has_integer_form(op, "int8")
        or op.code in traits.COMPARE
        or op.code in ("CAST", "DIV")
        or rules.refusal(op, versions.version(op, "int8"))
    }
