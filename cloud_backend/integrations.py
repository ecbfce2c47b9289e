"""Other packages that pick a device by name lists instead of `torch.accelerator`.

Each is adjusted right after its own import, if it is imported at all.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any


class _AfterImport(importlib.abc.MetaPathFinder):
    """Runs `action(module)` right after the module `name` has been imported, once."""

    def __init__(self, name: str, action: Callable[[Any], None]) -> None:
        self.name, self.action = name, action

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            execute(module)
            self.action(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def after_import(name: str, action: Callable[[Any], None]) -> None:
    """Run `action(module)` now if `name` is imported, else right after it is."""
    if name in sys.modules:
        action(sys.modules[name])
    else:
        sys.meta_path.insert(0, _AfterImport(name, action))


def _accelerate_state(module: Any) -> None:
    """accelerate's default device: a tpu where it would have said cpu."""
    import torch

    theirs = module.PartialState.default_device

    def default_device(self: Any) -> torch.device:
        found: torch.device = theirs.fget(self)
        current = torch.accelerator.current_accelerator()
        ours = found.type == "cpu" and current is not None and current.type == "tpu"
        return torch.device("tpu", 0) if ours else found

    module.PartialState.default_device = property(default_device, doc=theirs.__doc__)


def _allow_recurrent_layers(module: Any) -> None:
    from cloud_backend import recurrent_layers

    recurrent_layers.allow_in_dynamo(module)


def _count_steps_on_tpu(module: Any) -> None:
    """Dynamo has optimisers keep their counts of steps beside the parameters, on the GPUs it knows.

    On the host, each count would be a copy in each direction, at each step.
    """
    theirs = module.OptimizerVariable._set_capturable

    def _set_capturable(self: Any, tx: Any) -> Any:
        for group in self.value.param_groups:
            parameters = group.get("params", [])
            fresh = all(p not in self.value.state for p in parameters)
            if "capturable" in group and fresh and all(p.device.type == "tpu" for p in parameters):
                group["capturable"] = True
        return theirs(self, tx)

    module.OptimizerVariable._set_capturable = _set_capturable


def _make_fake_shapes(module: Any) -> None:
    from cloud_backend import fake_shapes

    fake_shapes.install(module)


def _allow_flex_attention(module: Any) -> None:
    from cloud_backend import control_flow

    control_flow.allow_flex_attention(module)


def _register_process_groups(module: Any) -> None:
    from cloud_backend import distributed

    distributed.install(module)


def _check_data_parallel(module: Any) -> None:
    from cloud_backend.distributed import data_parallel

    data_parallel.install(module)


def install() -> None:
    """Arrange for the packages that need it."""
    after_import("torch.nn.parallel.distributed", _check_data_parallel)
    after_import("torch.distributed.distributed_c10d", _register_process_groups)
    after_import("accelerate.state", _accelerate_state)
    after_import("torch._dynamo.variables.builder", _allow_recurrent_layers)
    after_import("torch._dynamo.variables.optimizer", _count_steps_on_tpu)
    after_import("torch._subclasses.fake_impls", _make_fake_shapes)
    after_import("torch.nn.attention.flex_attention", _allow_flex_attention)
