"""timm's architectures: of every module that registers models, the smallest one, made shallower."""

from __future__ import annotations

import copy
import enum
import importlib.machinery
import sys
import types
from typing import Any

import torch
from torch import nn

from benchmarks.model_families.judge import NotJudged, Sample

GROUPS = ("timm",)
CANDIDATES = 6  # models of a module that are looked at for the smallest
SMALL = (64, 96, 128)  # pixels

_PARTS = (
    *("", ".ops", ".ops.misc", ".ops.boxes", ".transforms", ".transforms.functional"),
    *(".datasets", ".utils", ".models", ".models.feature_extraction"),
)


class FrozenBatchNorm2d(nn.Module):
    """What timm asks `isinstance` of; none of its models builds one."""


class InterpolationMode(enum.Enum):
    """The names that timm's transforms mention; no transform runs here."""

    NEAREST, BILINEAR, BICUBIC = "nearest", "bilinear", "bicubic"
    BOX, HAMMING, LANCZOS = "box", "hamming", "lanczos"


class _Placeholder(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = {c.__name__: c for c in (FrozenBatchNorm2d, InterpolationMode)}
        return sys.modules.get(f"{self.__name__}.{name}") or known.get(name) or type(name, (), {})


def library() -> Any:
    """timm; without a torchvision that fits this PyTorch, beside placeholders for its imports."""
    try:
        import torchvision  # noqa: F401
    except Exception:
        for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        for part in _PARTS:
            module = _Placeholder("torchvision" + part)
            module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None, is_package=True)
            module.__path__ = []
            sys.modules[module.__name__] = module
    import timm

    return timm


def architectures(group: str) -> list[str]:
    """The names of timm's modules that register models."""
    return list(library().list_modules())


def make(group: str, name: str) -> Sample:
    """The smallest model of a module, with as few blocks as it lets itself be given."""
    timm = library()
    models = timm.list_models(module=name)
    step = max(1, len(models) // CANDIDATES)
    sizes = {}
    for model in models[::step]:
        with torch.device("meta"):
            try:
                sizes[model] = sum(p.numel() for p in timm.create_model(model).parameters())
            except Exception:  # some build with values; they are then not the smallest
                continue
    if not sizes:
        raise NotJudged("no model builds on meta")
    model = min(sizes, key=sizes.__getitem__)
    built = _shallow(timm, model)
    config = built.pretrained_cfg
    channels, *size = config.get("min_input_size") or config["input_size"]
    torch.manual_seed(1)
    image = _image(built, channels, size)
    return Sample(_without_repeats(built, image), {"x": image}, model)


def _image(model: nn.Module, channels: int, size: list[int]) -> torch.Tensor:
    """Two images, small where the model takes them: XLA's convolutions on a CPU are slow."""
    for pixels in SMALL:
        image = torch.randn(2, channels, pixels, pixels)
        # Otherwise the size is fixed, or has to be a multiple of something else.
        if min(size) > pixels and _runs(model, image):
            return image
    return torch.randn(2, channels, *size)


def _runs(model: nn.Module, image: torch.Tensor) -> bool:
    try:
        with torch.no_grad():
            model.eval()(image)
        return True
    except Exception:
        return False


def _without_repeats(model: nn.Module, image: torch.Tensor) -> nn.Module:
    """A copy in which of layers in a row that are alike two are left, if it runs; else the model.

    Two, since every second one may do something else (shifted windows).
    """
    small = copy.deepcopy(model)
    for parent in small.modules():
        if isinstance(parent, (nn.Sequential, nn.ModuleList)):
            before: list[Any] = []
            for name, layer in list(parent.named_children()):
                alike = [type(layer)] + [(n, t.shape) for n, t in layer.state_dict().items()]
                before = [*before, alike] if before[-1:] == [alike] else [alike]
                if len(before) > 2 and len(alike) > 1:
                    delattr(parent, name)
    return small if _runs(small, image) else model


class _Adapter(nn.Module):
    """timm names the argument of forward `x`, `input` or `pixel_values`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.pretrained_cfg = model.pretrained_cfg

    def forward(self, x: torch.Tensor) -> Any:
        return self.model(x)


def _shallow(timm: Any, name: str) -> nn.Module:
    small = ({"depth": 2}, {"depths": (1, 1, 1, 1)}, {"layers": (1, 1, 1, 1)})
    small = (*small, {"block_config": (2, 2, 2, 2)}, {})
    for options in small:
        torch.manual_seed(0)
        try:
            return _Adapter(timm.create_model(name, num_classes=8, **options))
        except Exception:  # the model has no such option
            if not options:
                raise
    raise AssertionError
