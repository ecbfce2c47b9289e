"""Adapter of this project's exporter for the converter zoo (`zoo.py --adapter zoo_ours`).

The zoo runs one process per model and measures `convert`; PYTHONPATH holds this folder.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from litert_export import export_module
from litert_export.quantize.config import MODES as QUANTIZATIONS
from litert_export.quantize.config import STATIC

NAME = "torch-tpu-unified"


def version() -> str:
    """The installed version, or `checkout`."""
    try:
        return importlib.metadata.version("torch-tpu-unified")
    except importlib.metadata.PackageNotFoundError:
        return "checkout"


def convert(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], out_path: str
) -> dict[str, Any]:
    """Write the module as a LiteRT file; returns the stages' seconds."""
    exported = export_module(module, args, kwargs)
    Path(out_path).write_bytes(exported.model)
    return {stage: round(s, 3) for stage, s in exported.report.seconds.items()}


def _quantized(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    calibration: Sequence[tuple[Any, ...]],
    out_path: str,
    *,
    mode: str,
) -> dict[str, Any]:
    """As `convert`, in one of the modes of the quantiser; only the static ones read samples."""
    samples = [[x.detach().numpy() for x in _leaves(s, kwargs)] for s in calibration]
    exported = export_module(
        module,
        args,
        kwargs,
        quantize=mode,
        calibration={"serving_default": samples} if mode in STATIC else None,
    )
    Path(out_path).write_bytes(exported.model)
    return {stage: round(s, 3) for stage, s in exported.report.seconds.items()}


def _leaves(args: Any, kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    found = torch.utils._pytree.tree_leaves((args, kwargs))
    return [x for x in found if isinstance(x, torch.Tensor)]


MODES = {mode: functools.partial(_quantized, mode=mode) for mode in QUANTIZATIONS}
