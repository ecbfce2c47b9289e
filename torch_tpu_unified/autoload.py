"""Registers the `tpu` device when torch is imported.

`autoload` is the body of the `torch.backends` entry point; `after_torch` does the same for
programs that import this package before torch, installed or not. Neither ever raises into `import
torch`: what goes wrong becomes one warning, and the program goes on without the device.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
import warnings
from collections.abc import Sequence


def autoload() -> None:
    """Register the device; on failure warn and go on."""
    try:
        from cloud_backend import device

        device.register()
    except Exception as error:
        warnings.warn(
            f"the tpu device is not available: {type(error).__name__}: {error} "
            "(import torch_tpu_unified shows the full error; TORCH_DEVICE_BACKEND_AUTOLOAD=0 "
            "leaves the device out)",
            RuntimeWarning,
            stacklevel=2,
        )


def after_torch() -> None:
    """Register the device right after torch has been imported."""
    if not any(isinstance(finder, _TorchFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TorchFinder())


class _TorchFinder:
    """Waits on `sys.meta_path` for the one import of torch, and leaves."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


class _Loader:
    """torch's own loader, followed by the registration; torch keeps its own loader afterwards."""

    def __init__(self, real: importlib.abc.Loader) -> None:
        self._real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        module.__loader__ = self._real
        self._real.exec_module(module)
        autoload()
