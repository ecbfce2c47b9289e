"""What PyTorch holds of the device before its first operator: a fallback that starts it.

All this loads with `import torch`, so it is little; kernels, plans and jax load on first use.
"""

from __future__ import annotations

from typing import Any

import torch

libraries: list[Any] = []  # what is registered lives as long as its library


def hide_from_dynamo(*functions: Any) -> None:
    """Dynamo must not trace what a kernel does when one runs between compiled graphs."""
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    for function in functions:
        if code := getattr(function, "__code__", None):
            frames.set_code_exec_strategy(code, skip)


def _fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    from cloud_backend import dispatch

    return dispatch.fallback(op, *args, **kwargs)


def install() -> None:
    """Register the fallback of the device; the rest follows on the first call."""
    library = torch.library.Library("_", "IMPL", "PrivateUse1")
    library.fallback(_fallback)
    hide_from_dynamo(_fallback)
    libraries.append(library)
    # `module.to("tpu")` then moves parameters in place, as for CUDA: ties and optimisers keep them.
    moving = torch.library.Library("aten", "IMPL")
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        moving.m.impl("_has_compatible_shallow_copy_type", key, _may_become, False)
    libraries.append(moving)


def _may_become(self: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether `self.data = other` may change the tensor's device."""
    return {self.device.type, other.device.type} <= {"cpu", "tpu"} and not other.is_sparse


def take_over_storages() -> None:
    """Let the methods of `UntypedStorage` that C++ cannot do for this device come to `storage`."""
    for name, ours in _OF_STORAGE.items():
        _take_over(name, ours)
    theirs = torch.UntypedStorage.to

    def to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
        there = torch.device(device).type
        if "tpu" not in (self.device.type, there):
            return theirs(self, device=device, non_blocking=non_blocking)
        from cloud_backend import storage

        return storage.moved(self, there)

    to.__doc__ = theirs.__doc__
    torch.UntypedStorage.to = to  # type: ignore[method-assign]


# method -> the function of `storage`
_OF_STORAGE = {
    "clone": "clone",
    "cpu": "to_cpu",
    "copy_": "copy_",
    "resize_": "resize_",
    "_write_file": "write_file",
    "_set_from_file": "set_from_file",
    "tolist": "tolist",
}


def _take_over(name: str, ours: str) -> None:
    theirs = getattr(torch.UntypedStorage, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.device.type != "tpu":
            return theirs(self, *args, **kwargs)
        from cloud_backend import storage

        return getattr(storage, ours)(self, *args, **kwargs)

    method.__name__, method.__doc__ = name, theirs.__doc__
    setattr(torch.UntypedStorage, name, method)
