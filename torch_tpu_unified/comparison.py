"""`verify` and `compare`: a LiteRT file beside a PyTorch model, a file, or captured outputs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from torch_tpu_unified import agreement, conversion, runtime
from torch_tpu_unified.agreement import Agreement
from torch_tpu_unified.core.errors import NotYetAvailable
from torch_tpu_unified.programs import Program

Model = bytes | bytearray | str | os.PathLike[str]


def verify(
    module_or_program: torch.nn.Module | ExportedProgram | Program,
    model: Model,
    args: Sequence[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    *,
    signature: str | None = None,
    io_layout: str = "nchw",
) -> Agreement:
    """Run a LiteRT file and a PyTorch model on the same inputs.

    Args:
        model: the file's path or content.
        args, kwargs: inputs of the module; an ExportedProgram has its own.
        signature: of the file; may be left out when it has one.
        io_layout: the one that the file was converted with.

    Returns:
        A table with the error of every output; `.ok` says whether all agree.

    Raises:
        VerificationError: the file cannot be run, or has other outputs than the model.
    """
    program = conversion.as_program(module_or_program, args, kwargs)
    lite = runtime.load(model)
    key = lite.signature_key(signature)
    names = lite.signatures[key][1]
    return conversion.compare_with_file(program, model, key, names, io_layout)


def compare(
    first: torch.nn.Module | ExportedProgram | Program | Model | Sequence[Any],
    second: torch.nn.Module | ExportedProgram | Program | Model | Sequence[Any],
    args: Sequence[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    *,
    layers: bool = False,
) -> Agreement:
    """Compare the outputs of any two of: a PyTorch model, a LiteRT file, captured outputs.

    Args:
        first, second: a module, an ExportedProgram, a file, or a list of output tensors or arrays.
        args, kwargs: the inputs of both.
        layers: compare layer by layer; not available yet.

    Returns:
        A table with a row for every output; the errors are those of `first` against `second`, or
        of the file against the model when a model is given.
    """
    if layers:
        raise NotYetAvailable("compare(layers=True) is not available yet; use parity")
    if _is_model(first) and not _is_model(second):
        first, second = second, first
    names = None
    outputs: list[list[Any]] = []
    side: Any
    for side in (first, second):
        if isinstance(side, (bytes, bytearray, str, os.PathLike)):
            lite = runtime.load(side)
            names = names or lite.signatures[lite.signature_key(None)][1]
            found = lite(*(args or ()), **(kwargs or {}))
            outputs.append(list(found) if isinstance(found, tuple) else [found])
        elif _is_model(side):
            outputs.append(conversion.as_program(side, args, kwargs).reference())
        else:
            outputs.append(list(side))
    return agreement.judge(outputs[0], outputs[1], names)


def _is_model(side: Any) -> bool:
    return isinstance(side, (torch.nn.Module, ExportedProgram, Program))
