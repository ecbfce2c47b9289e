"""Makes PyTorch know the device `tpu`: the name, the hooks, `torch.tpu`, loading of checkpoints.

`register()` is light and imports no jax; jax starts with the first operator.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from cloud_backend import registration, rng

_registered = False


class _Hooks(torch._C._acc.PrivateUse1Hooks):  # type: ignore[name-defined, misc]
    """What PyTorch's core asks an accelerator."""

    def is_available(self) -> bool:
        return True

    def has_primary_context(self, dev_id: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


class _Guard(torch._C._acc.DeviceGuard):  # type: ignore[name-defined, misc]
    """The current device never changes: a process sees one logical device."""

    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


def register() -> None:
    """Register the device `tpu`. Idempotent.

    Raises:
        RuntimeError: another package (Google's torch_tpu) already owns the name.
    """
    global _registered
    if _registered:
        return
    owner = torch._C._get_privateuse1_backend_name()
    if owner != "privateuseone" or hasattr(torch, "tpu"):
        who = "torch_tpu" if "torch_tpu" in sys.modules else f"a package that registered '{owner}'"
        raise RuntimeError(
            f"torch_tpu_unified cannot register the device 'tpu': {who} has done so already. Both "
            "cannot own it in one process; uninstall one of them, or set "
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 and import the one you want."
        )
    _registered = True
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    from cloud_backend import (
        autocast,
        eager_modes,
        integrations,
        precision,
        serialization,
        tpu_module,
    )

    _setup_privateuseone_for_python_backend(
        "tpu", backend_module=tpu_module, hook=_Hooks(), device_guard=_Guard()
    )
    tpu_module.install_submodules()
    _methods_of_tensor()
    rng.install()
    registration.install()
    serialization.install()
    autocast.install()
    precision.install()
    integrations.install()
    _compile_by_default()
    _accelerator()
    eager_modes.start()


def _methods_of_tensor() -> None:
    """What C++ or Python in torch cannot do for this device: storage methods, printing, pinning."""
    registration.take_over_storages()
    format_values = torch._tensor_str._tensor_str

    def on_host(self: torch.Tensor, indent: int) -> str:
        # Formatting takes a dozen small operators; one copy to the host is cheaper.
        return str(format_values(self.cpu() if self.device.type == "tpu" else self, indent))

    torch._tensor_str._tensor_str = on_host
    pin, pinned = torch.Tensor.pin_memory, torch.Tensor.is_pinned

    def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        # There is no pinned memory here (XLA stages transfers itself), so host tensors stay as they
        # are.
        return pin(self) if torch.cuda.is_available() else self

    def is_pinned(self: torch.Tensor, device: Any = None) -> bool:
        return pinned(self) if torch.cuda.is_available() else False

    torch.Tensor.pin_memory, torch.Tensor.is_pinned = pin_memory, is_pinned  # type: ignore


def _accelerator() -> None:
    """`torch.accelerator` asks C++ hooks that Python cannot give; they are answered here."""
    from cloud_backend import tpu_module

    accelerator = torch.accelerator

    def is_ours() -> bool:
        current = accelerator.current_accelerator()
        return current is not None and current.type == "tpu"

    def answer(name: str, ours: Any) -> None:
        theirs = getattr(accelerator, name, None)
        if theirs is None:
            return

        def call(*args: Any, **kwargs: Any) -> Any:
            return ours(*args, **kwargs) if is_ours() else theirs(*args, **kwargs)

        call.__name__, call.__doc__ = name, theirs.__doc__
        setattr(accelerator, name, call)

    for name in (
        "synchronize",
        "current_stream",
        "set_stream",
        "empty_cache",
        "memory_stats",
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
        "reset_peak_memory_stats",
        "reset_accumulated_memory_stats",
        "get_memory_info",
    ):
        answer(name, getattr(tpu_module, name))


def _compile_by_default() -> None:
    """`torch.compile` without a backend: graphs on tpu go to ours, all others where they went."""
    inductor = torch._TorchCompileInductorWrapper

    class InductorOrTpu(inductor):  # type: ignore[misc, valid-type]
        __doc__ = inductor.__doc__

        def __call__(self, model_: Any, inputs_: Any) -> Any:
            if any(isinstance(x, torch.Tensor) and x.device.type == "tpu" for x in inputs_):
                from cloud_backend.compile import tpu_backend

                return tpu_backend(model_, inputs_)
            return super().__call__(model_, inputs_)

        def get_compiler_config(self) -> dict[str, Any]:
            # As inductor's, but without its compiler, whose import takes most of a second.
            from torch._inductor import config

            with config.patch(self.config):
                found: dict[str, Any] = config.get_config_copy()
            return found

    InductorOrTpu.__name__, InductorOrTpu.__qualname__ = inductor.__name__, inductor.__qualname__
    InductorOrTpu.__module__ = inductor.__module__
    torch._TorchCompileInductorWrapper = InductorOrTpu
