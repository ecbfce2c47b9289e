"""Layers that are alike, as one loop: a program's size and compile time do not grow with depth.

The weights of all layers are stacked, [layers, ...], and one layer's code runs over them: by
PyTorch's `scan` where a graph is made (a loop of XLA, with gradients), layer by layer elsewhere.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from torch_tpu_unified.core.errors import InputError

# What says which layer a layer is, and nothing about what it computes.
_NUMBERS = ("layer_idx", "layer_id", "layer_index", "layer_number", "block_idx")
_PLAIN = (bool, int, float, str, type(None))


def scan_layers(module: nn.Module, *, minimum: int = 2) -> nn.Module:
    """Let layers that are alike run as one loop.

    Args:
        module: a `ModuleList` or `Sequential` of layers with the same code, shapes and options; or
            a whole model, in which each such list of at least `minimum` layers is replaced.
        minimum: how many layers make a loop worth it.

    Returns:
        for a list a `ScannedLayers`, to call as `x = layers(x, *others)` or to loop over, as over
        the list; for a model the model, changed in place. The names in `state_dict` stay the same,
        but the parameters are new objects: make the optimiser afterwards.

    Raises:
        InputError: the layers differ, or the model has no list of layers that are alike.
    """
    if isinstance(module, (nn.ModuleList, nn.Sequential)):
        return ScannedLayers(list(module))
    found = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if not isinstance(child, (nn.ModuleList, nn.Sequential)) or len(child) < minimum:
                continue
            if _difference(list(child)) is None:
                setattr(parent, name, ScannedLayers(list(child)))
                found += 1
    if not found:
        raise InputError(
            f"{type(module).__name__} has no list of {minimum} or more layers that are alike; "
            "scan_layers(list) says how the layers of a list differ"
        )
    return module


class ScannedLayers(nn.Module):
    """Layers that are alike, with their weights stacked.

    Called with the value that goes through the layers, and what is the same for all of them.
    Iterating over it gives itself, once, so that `for layer in layers: x = layer(x)` holds.
    """

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        if reason := _difference(layers):
            raise InputError(f"these layers cannot be one loop: {reason}")
        self.depth = len(layers)
        # Outside of the registered modules: its weights stand for those of the layer that runs.
        self.__dict__["template"] = copy.deepcopy(layers[0]).to("meta")
        self.names = [name for name, _ in layers[0].named_parameters()]
        self.buffer_names = [name for name, _ in layers[0].named_buffers()]
        self.kept = list(layers[0].state_dict())
        for name, first in layers[0].named_parameters():
            stacked = torch.stack([layer.get_parameter(name).detach() for layer in layers])
            self.register_parameter(_flat(name), nn.Parameter(stacked, first.requires_grad))
        for name, _ in layers[0].named_buffers():
            stacked = torch.stack([layer.get_buffer(name) for layer in layers])
            self.register_buffer(_flat(name), stacked)
        self.training = layers[0].training

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """All layers one after the other; each takes what the one before returned.

        Args:
            x: the value that goes through; a layer returns one of the same shape and dtype.
            args, kwargs: given to every layer as they are.
        """
        names = [*self.names, *self.buffer_names]
        stacked = [getattr(self, _flat(name)) for name in names]
        if not torch.compiler.is_compiling():
            for i in range(self.depth):
                x = self._layer(names, [s[i] for s in stacked], x, args, kwargs)
            return x
        from torch._higher_order_ops.scan import scan

        def step(carry: torch.Tensor, weights: list[torch.Tensor]) -> Any:
            found = self._layer(names, weights, carry, args, kwargs)
            return found, found.new_zeros(())

        last, _ = scan(step, x, stacked)
        return last  # type: ignore[no-any-return]

    def _layer(self, names: list[str], weights: Any, x: Any, args: Any, kwargs: Any) -> Any:
        given = dict(zip(names, weights, strict=True))
        return torch.func.functional_call(self.template, given, (x, *args), kwargs)

    def train(self, mode: bool = True) -> ScannedLayers:
        self.template.train(mode)
        return super().train(mode)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter((self,))

    def __len__(self) -> int:
        return self.depth

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) and index.indices(self.depth) == (0, self.depth, 1):
            return [self]
        raise InputError(f"layers of a loop cannot be taken apart: [{index}] of {self.depth}")

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for i in range(self.depth):
            for name in self.kept:
                part = getattr(self, _flat(name))[i]
                destination[f"{prefix}{i}.{name}"] = part if keep_vars else part.detach()

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        known = {f"{prefix}{i}.{n}" for i in range(self.depth) for n in self.kept}
        unexpected_keys += [k for k in state_dict if k.startswith(prefix) and k not in known]
        for name in self.kept:
            stacked = getattr(self, _flat(name))
            for i in range(self.depth):
                key = f"{prefix}{i}.{name}"
                if key not in state_dict:
                    missing_keys.append(key)
                elif state_dict[key].shape != stacked.shape[1:]:
                    error_msgs.append(
                        f"size mismatch for {key}: {tuple(state_dict[key].shape)} in the "
                        f"checkpoint, {tuple(stacked.shape[1:])} in the model"
                    )
                else:
                    with torch.no_grad():
                        stacked[i].copy_(state_dict[key])


def _flat(name: str) -> str:
    return name.replace(".", "__")


def _difference(layers: list[nn.Module]) -> str | None:
    """How layers differ, in words; None if they are alike."""
    if not layers:
        return "there are none"
    first = layers[0]
    for number, layer in enumerate(layers[1:], 1):
        if type(layer) is not type(first):
            return f"layer 0 is a {type(first).__name__}, layer {number} a {type(layer).__name__}"
        ours, theirs = (dict(m.named_modules()) for m in (first, layer))
        if ours.keys() != theirs.keys():
            return f"layers 0 and {number} have other parts"
        for name in ours:
            if found := _other_options(ours[name], theirs[name]):
                return f"layer {number} has another {f'{name}.{found}'.lstrip('.')} than layer 0"
        for name, value in first.state_dict(keep_vars=True).items():
            other = layer.state_dict(keep_vars=True).get(name)
            same = other is not None and other.shape == value.shape and other.dtype == value.dtype
            if not same or other.requires_grad != value.requires_grad:
                return f"layer {number} has another {name} than layer 0"
    held = [id(p) for layer in layers for p in layer.parameters()]
    if len(set(held)) != len(held):
        return "they share parameters"
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in first.modules()):
        return "they keep running statistics"
    return None


def _other_options(ours: nn.Module, theirs: nn.Module) -> str:
    """The name of a plain attribute that two modules have with different values."""
    if type(ours) is not type(theirs):
        return "class"
    for name, value in vars(ours).items():
        if isinstance(value, _PLAIN) and name not in _NUMBERS and not name.startswith("_"):
            if vars(theirs).get(name) != value:
                return name
    return ""
