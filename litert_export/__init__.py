"""torch.export -> LiteRT flatbuffer, in float32 or quantised.

    capture   torch.export, decomposed to the operators that the table (ops/) lowers
    emit      each call's lowering adds LiteRT operators to a graph
    passes    layout (NCHW -> NHWC), constant folding, fusion, clean-up
    quantize  integers in place of float32
    writer    graph -> bytes; reader goes back; verify runs the file beside PyTorch

`export` and `export_program` are the entries; torch is imported on their first use.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from litert_export.graph import Graph
    from litert_export.pipeline import Report

DEFAULT_SIGNATURE = "serving_default"


@dataclasses.dataclass(frozen=True)
class Exported:
    """A finished model.

    Attributes:
        model: the file's content.
        report: seconds by stage, operators, sizes, names.
        graphs: signature -> the graph that was written.
    """

    model: bytes | bytearray
    report: Report
    graphs: dict[str, Graph]


def export(
    signatures: Mapping[str, ExportedProgram],
    *,
    io_layout: str = "nchw",
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    lowerings: Mapping[Any, Callable[..., Any]] | None = None,
    quantize: Any = None,
    calibration: Mapping[str, Iterable[Sequence[Any]]] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Exported:
    """Convert programs to one LiteRT file, a signature each; equal weights are stored once.

    Args:
        signatures: signature name -> program of `torch.export.export`.
        io_layout: `nchw` keeps the program's shapes; `nhwc` makes rank-4 inputs and outputs NHWC.
        input_names, output_names: names in the signatures; default: those of `forward`'s
            parameters, and the keys of a dict result, `output`, or `output_0`, `output_1`, ….
        lowerings: operator overload -> function, used before the table for this call.
        quantize: a mode such as `int8`, or a `quantize.QuantConfig`; None: float32.
        calibration: signature name -> samples, each the input arrays in the program's order.
        progress: called with (stage, its number, count of stages) as each stage starts, and
            with (`calibrate`, samples done, samples) during that stage.

    Raises:
        LoweringError: operators that have no lowering, all of them, or a call that one refuses.
        ConversionError: training mode, dynamic shapes, mutated state.
        InputError: an option is not usable.
    """
    from litert_export import ops, pipeline

    table = ops.load()
    if lowerings:
        table = table.extended(lowerings)
    model, report, graphs = pipeline.run(
        signatures,
        table=table,
        io_layout=io_layout,
        input_names=input_names,
        output_names=output_names,
        quantize=quantize,
        calibration=calibration,
        progress=progress,
    )
    return Exported(model, report, graphs)


def export_program(
    program: ExportedProgram, *, signature: str = DEFAULT_SIGNATURE, **options: Any
) -> Exported:
    """`export` of one program."""
    return export({signature: program}, **options)


def export_module(
    module: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    signature: str = DEFAULT_SIGNATURE,
    **options: Any,
) -> Exported:
    """Trace an nn.Module on example inputs, then `export` it."""
    from litert_export import capture

    return export({signature: capture.capture(module, args, kwargs)}, **options)
