"""Small models, each made of one pattern whose graph the exporter must get right.

`MODELS` maps a name to (module factory, example inputs, export options). They are seeded, so that
their graphs are the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Apply(nn.Module):
    """Layers under names, and the function that joins them."""

    def __init__(self, join: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.join = join
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: torch.Tensor) -> Any:
        return self.join(self, x)


def _block(i: int, o: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())


def _residual() -> nn.Module:
    def join(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = F.max_pool2d(m.stem(x), 3, 2, 1)
        y = F.relu(y + m.norm(m.conv(m.body(y))))
        return m.head(F.adaptive_avg_pool2d(y, 1).flatten(1))

    return Apply(
        join,
        stem=_block(3, 8, 2),
        body=_block(8, 8),
        conv=nn.Conv2d(8, 8, 3, 1, 1, bias=False),
        norm=nn.BatchNorm2d(8),
        head=nn.Linear(8, 5),
    )


def _squeeze_excite() -> nn.Module:
    def join(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(m.depthwise(m.stem(x)))
        gate = m.up(F.silu(m.down(y.mean((2, 3), keepdim=True))))
        linear = m.linear(y.mean((2, 3)))[:, :, None, None]
        return m.out(y * torch.sigmoid(gate) * torch.sigmoid(linear)).mean((2, 3))

    return Apply(
        join,
        stem=_block(3, 8),
        depthwise=nn.Conv2d(8, 8, 3, padding=1, groups=8),
        down=nn.Conv2d(8, 2, 1),
        up=nn.Conv2d(2, 8, 1),
        linear=nn.Linear(8, 8),
        out=nn.Conv2d(8, 4, 1),
    )


def _unet() -> nn.Module:
    def join(m: Any, x: torch.Tensor) -> torch.Tensor:
        a = m.down1(x)
        b = m.down2(F.max_pool2d(a, 2))
        c = torch.cat([a, m.up(b)], 1)
        d = torch.cat([c, F.interpolate(b, scale_factor=2, mode="bilinear")], 1)
        return m.out(d)

    return Apply(
        join,
        down1=_block(3, 4),
        down2=_block(4, 8),
        up=nn.ConvTranspose2d(8, 4, 2, 2),
        out=nn.Conv2d(16, 2, 1),
    )


def _patches() -> nn.Module:
    def join(m: Any, x: torch.Tensor) -> torch.Tensor:
        tokens = m.patch(x).flatten(2).transpose(1, 2)
        return m.head(m.norm(tokens)).mean(1)

    return Apply(join, patch=nn.Conv2d(3, 6, 4, 4), norm=nn.LayerNorm(6), head=nn.Linear(6, 3))


def _attention() -> nn.Module:
    def join(m: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = m.qkv(x).reshape(1, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + m.out(y.transpose(1, 2).reshape(1, 5, 8))

    return Apply(join, qkv=nn.Linear(8, 24), out=nn.Linear(8, 8))


def _flatten() -> nn.Module:
    def join(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.head(F.relu(F.dropout(m.conv(x), 0.5, False).flatten(1)))

    return Apply(join, conv=nn.Conv2d(3, 4, 3), head=nn.Linear(4 * 6 * 6, 5))


def _axes() -> nn.Module:
    def join(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.conv(x)
        a, b = y.chunk(2, 1)
        y = torch.cat([a.softmax(1), F.pad(b, (0, 0, 0, 0, 0, 0))[:, :, :, :]], 1)
        y = F.pad(y, (1, 2, 0, 1))[:, 1:, ::2]
        return m.last(y + m.offset(y.amax(1, keepdim=True)))

    return Apply(join, conv=nn.Conv2d(3, 8, 3), last=nn.Conv2d(7, 2, 1), offset=nn.Conv2d(1, 7, 1))


def _shuffle() -> nn.Module:
    def join(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.conv(x)
        y = y.reshape(1, 2, 4, 8, 8).transpose(1, 2).reshape(1, 8, 8, 8)
        return F.pixel_shuffle(m.last(y), 2)

    return Apply(join, conv=nn.Conv2d(3, 8, 3, padding=1), last=nn.Conv2d(8, 8, 1))


def _one_dim() -> nn.Module:
    def join(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.second(F.relu(m.norm(m.first(x)))).mean(2)

    return Apply(
        join,
        first=nn.Conv1d(3, 6, 3, padding=1),
        norm=nn.BatchNorm1d(6),
        second=nn.Conv1d(6, 4, 3, padding=1),
    )


def _branches() -> nn.Module:
    def join(m: Any, x: torch.Tensor) -> torch.Tensor:
        return F.relu(m.three(x) + m.one(x) + m.scale(x))

    return Apply(
        join,
        three=nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4)),
        one=nn.Sequential(nn.Conv2d(3, 4, 1, 2, bias=False), nn.BatchNorm2d(4)),
        scale=nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(3, 4, 3, 2)),
    )


def _group_norm() -> nn.Module:
    def join(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.last(F.silu(m.norm(m.conv(x))))

    return Apply(join, conv=nn.Conv2d(3, 8, 3), norm=nn.GroupNorm(2, 8), last=nn.Conv2d(8, 2, 1))


_IMAGE = (1, 3, 8, 8)
# name -> (factory, input shape, options, most TRANSPOSEs allowed)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, Any], int]] = {
    "residual": (_residual, (1, 3, 16, 16), {}, 1),
    "residual_nhwc": (_residual, (1, 3, 16, 16), {"io_layout": "nhwc"}, 0),
    "squeeze_excite": (_squeeze_excite, _IMAGE, {}, 1),
    "unet": (_unet, _IMAGE, {}, 2),
    "unet_nhwc": (_unet, _IMAGE, {"io_layout": "nhwc"}, 0),
    "patches": (_patches, _IMAGE, {}, 1),
    "attention": (_attention, (1, 5, 8), {}, 4),
    "flatten": (_flatten, _IMAGE, {}, 1),
    "axes": (_axes, _IMAGE, {}, 2),
    "shuffle": (_shuffle, _IMAGE, {}, 3),
    "one_dim": (_one_dim, (1, 3, 9), {}, 1),
    "branches": (_branches, _IMAGE, {}, 2),
    "group_norm": (_group_norm, _IMAGE, {}, 2),
}


def build(name: str) -> tuple[nn.Module, torch.Tensor]:
    """The model in evaluation mode, with statistics that are not the initial ones, and an input."""
    factory, shape, _, _ = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = factory().eval()
        for m in module.modules():
            if isinstance(m, nn.modules.batchnorm._BatchNorm):
                m.running_mean.normal_()
                m.running_var.uniform_(0.5, 2)
        return module, torch.randn(shape)
