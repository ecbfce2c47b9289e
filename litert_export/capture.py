"""Stage one: a module becomes an ExportedProgram of operators that the table lowers.

Decomposes with PyTorch's core ATen decompositions less the table's own keys, so that what LiteRT
has as one operator stays whole. What a LiteRT file cannot express (training mode, mutated
state) is refused here, before any lowering, in words about the user's model.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram

from litert_export import expand
from torch_tpu_unified.core import custom
from torch_tpu_unified.core.errors import ConversionError, InputError
from torch_tpu_unified.core.optable import OpTable
from torch_tpu_unified.core.report import source_line

MSG_TRAINING = (
    "{op} runs in training mode{where}; a LiteRT file holds an inference program. "
    "Call model.eval() before exporting."
)
MSG_MUTATION = (
    "the program writes to {what}; a LiteRT program has no state that outlives a call. "
    "Return the new value as an output and pass it in as an input instead."
)
# Norms and dropout whose `training` argument (its position) must be False.
_TRAINING = {
    "aten::batch_norm": 5,
    "aten::native_batch_norm": 5,
    "aten::_native_batch_norm_legit": 5,
    "aten::_native_batch_norm_legit_functional": 5,
    "aten::dropout": 2,
    "aten::native_dropout": 2,
    "aten::feature_dropout": 2,
    "aten::alpha_dropout": 2,
}


def capture(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> ExportedProgram:
    """Trace the module with `torch.export` on the example inputs, as it is (call `.eval()` first).

    Raises:
        ConversionError: torch.export cannot trace it; its own error is the cause.
        InputError: `module` is not an nn.Module.
    """
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"expected a torch.nn.Module, got {type(module).__name__}")
    try:
        with torch.no_grad():
            return torch.export.export(module, tuple(args), dict(kwargs or {}), strict=False)
    except Exception as err:  # torch.export raises many kinds
        text = str(err).strip().splitlines() or [type(err).__name__]
        raise ConversionError(f"torch.export cannot trace the model: {text[0]}") from err


def nodes(module: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """The nodes of a graph module and of every graph module inside it."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield from part.graph.nodes


def check_inference(program: ExportedProgram) -> None:
    """Refuse what no LiteRT file can express.

    Raises:
        ConversionError: training-mode layers, mutated buffers or inputs.
    """
    for node in nodes(program.graph_module):
        position = _TRAINING.get(getattr(getattr(node.target, "_schema", None), "name", ""))
        if position is None:
            continue
        training = node.args[position] if position < len(node.args) else None
        if training is True:
            line = source_line(node)
            where = f" ({line})" if line else ""
            raise ConversionError(MSG_TRAINING.format(op=node.target, where=where))


def _check_mutation(program: ExportedProgram) -> None:
    signature = program.graph_signature
    written = [f"the buffer '{b}'" for b in signature.buffers_to_mutate.values()]
    written += [f"its input '{i}'" for i in signature.user_inputs_to_mutate.values()]
    if written:
        raise ConversionError(MSG_MUTATION.format(what=", ".join(written)))


def decompose(program: ExportedProgram, table: OpTable) -> ExportedProgram:
    """The program in terms of core ATen and the table's keys.

    Raises:
        ConversionError: see `check_inference`; also when buffers or inputs are written.
    """
    check_inference(program)
    _check_mutation(program)
    if (expanded := expand.expand(program, table)) is not None:
        return expanded
    decompositions = torch.export.default_decompositions()
    for op in table:
        # Materialising the table first is slow; `pop` only touches the one key.
        decompositions.pop(op, None)
    decompositions.update(custom.TORCH_FORMS)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        result = program.run_decompositions(decompositions)
    _check_mutation(result)
    return result
