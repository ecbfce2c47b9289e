"""Adapter of this project's exporter for the converter zoo (`zoo.py --adapter zoo_ours`).

The zoo runs one process per model and measures `convert`; PYTHONPATH holds this folder.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from litert_export import export_module

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
