"""`tpu-doctor env`: versions, the device that stands behind tpu, the flags in force."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from typing import Any

import click

from torch_tpu_unified import __version__
from torch_tpu_unified.core import flags
from torch_tpu_unified.tables import readable_bytes

PACKAGES = (
    "torch",
    "jax",
    "jaxlib",
    "libtpu",
    "numpy",
    "ml_dtypes",
    "flatbuffers",
    "ai-edge-litert",
)


def run(as_json: bool) -> None:
    """Print what this environment is.

    Args:
        as_json: print one JSON object instead of tables.
    """
    found = {"versions": _versions(), "device": _device(), "flags": _flags()}
    if as_json:
        click.echo(json.dumps({"ok": True, **found}, indent=2))
        return
    for title, values in found.items():
        width = max(map(len, values))
        click.echo(title)
        for name, value in values.items():
            click.echo(f"  {name.ljust(width)}  {_shown(name, value)}")


def _shown(name: str, value: Any) -> str:
    return readable_bytes(value) if name == "memory" and isinstance(value, int) else str(value)


def _versions() -> dict[str, str]:
    found = {"torch-tpu-unified": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _device() -> dict[str, Any]:
    import torch

    properties = torch.tpu.get_device_properties()  # type: ignore[attr-defined]
    return {
        "name": properties.name,
        "platform": properties.platform,
        "chips": properties.chips,
        "memory": properties.total_memory or "not told by the platform",
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "machine": f"{platform.system()} {platform.machine()}",
    }


def _flags() -> dict[str, str]:
    return {
        name: f"{flag.value!s}" + ("" if flag.value != flag.default else " (default)")
        for name, flag in flags.REGISTRY.items()
    }
