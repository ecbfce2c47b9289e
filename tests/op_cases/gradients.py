"""Gradients of the operators that have a backward of their own, for every argument that changes it.

A case gives the gradients of a weighted sum of the results for all floating inputs. Only
the device computes gradients, so only its half runs these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests.op_cases.case import OpCase

randn = torch.randn


def _weighted(result: Any) -> torch.Tensor:
    """A sum in which each element has its own weight, so that no error cancels."""
    parts = result if isinstance(result, (tuple, list)) else (result,)
    total: Any = 0
    for part in parts:
        if part.is_floating_point():
            weight = torch.arange(part.numel(), device=part.device) % 7 - 2.5
            total = total + (part * weight.reshape(part.shape).to(part.dtype)).sum()
    return total


def _grads(forward: Callable[..., Any]) -> Callable[..., tuple[torch.Tensor, ...]]:
    def run(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        made = []
        for a in args:
            if isinstance(a, torch.Tensor) and a.is_floating_point():
                a = a.detach().requires_grad_()
            made.append(a)
        wanted = [a for a in made if isinstance(a, torch.Tensor) and a.requires_grad]
        return torch.autograd.grad(_weighted(forward(*made, **kwargs)), wanted)

    return run


def _case(name: str, forward: Callable[..., Any], *shapes: Any, **kwargs: Any) -> OpCase:
    """Shapes give normal inputs; a function gives an input of its own."""

    def args() -> tuple[Any, ...]:
        return tuple(s() if callable(s) else randn(s) for s in shapes)

    return OpCase(name, _grads(forward), args, kwargs, halves=("cloud",))


def _convolutions() -> list[OpCase]:
    image, weight, bias = (2, 4, 7, 6), (6, 4, 3, 2), (6,)
    two = F.conv_transpose2d
    return [
        _case("conv2d", F.conv2d, image, weight, bias),
        _case("conv2d_strided", F.conv2d, image, weight, bias, stride=(2, 3), padding=(1, 2)),
        _case("conv2d_dilated", F.conv2d, image, weight, bias, dilation=(2, 3), padding=2),
        _case("conv2d_groups", F.conv2d, image, (6, 2, 3, 2), bias, groups=2, stride=2),
        _case("conv2d_depthwise", F.conv2d, image, (8, 1, 3, 3), (8,), groups=4, padding=1),
        _case("conv2d_unbatched", F.conv2d, image[1:], weight, bias),
        _case("conv1d", F.conv1d, (2, 4, 9), (6, 4, 3), bias, stride=2, padding=1),
        _case("conv3d", F.conv3d, (1, 2, 5, 4, 6), (3, 2, 2, 3, 2), (3,), stride=2, padding=1),
        _case("transposed", two, image, (4, 3, 3, 2), (3,)),
        _case("transposed_strided", two, image, (4, 3, 3, 2), (3,), stride=(2, 3), padding=1),
        _case("transposed_extra", two, image, (4, 3, 3, 3), (3,), stride=3, output_padding=(1, 2)),
        _case("transposed_groups", two, image, (4, 3, 3, 2), (6,), groups=2, dilation=2),
        _case("transposed1d", F.conv_transpose1d, (2, 4, 5), (4, 3, 4), (3,), stride=2),
    ]


def _pools() -> list[OpCase]:
    image = (2, 3, 7, 9)
    return [
        _case("max_pool2d", F.max_pool2d, image, kernel_size=3, stride=2, padding=1),
        _case("max_pool2d_ceil", F.max_pool2d, image, kernel_size=3, stride=2, ceil_mode=True),
        _case("max_pool2d_dilated", F.max_pool2d, image, kernel_size=(2, 3), dilation=(3, 2)),
        _case("max_pool3d", F.max_pool3d, (1, 2, 5, 6, 7), kernel_size=2, stride=(1, 2, 3)),
        _case("avg_pool2d", F.avg_pool2d, image, kernel_size=3, stride=2, padding=1),
        _case(
            "avg_pool2d_without_padding",
            F.avg_pool2d,
            image,
            kernel_size=3,
            stride=2,
            padding=1,
            ceil_mode=True,
            count_include_pad=False,
        ),
        _case("avg_pool2d_divisor", F.avg_pool2d, image, kernel_size=2, divisor_override=3),
        _case("avg_pool3d", F.avg_pool3d, (1, 2, 5, 6, 7), kernel_size=2, stride=2, padding=1),
        _case("adaptive_avg", F.adaptive_avg_pool2d, image, output_size=(3, 4)),
        _case("adaptive_avg_larger", F.adaptive_avg_pool2d, image, output_size=(9, 2)),
        _case("adaptive_max", F.adaptive_max_pool2d, image, output_size=(3, 4)),
        _case("adaptive_max3d", F.adaptive_max_pool3d, (1, 2, 5, 6, 7), output_size=(2, 3, 4)),
    ]


def _batch_norm(x, weight, bias, *, training):
    mean = torch.linspace(-1, 1, 3, device=x.device, dtype=x.dtype)
    return F.batch_norm(x, mean, mean.abs() + 0.5, weight, bias, training=training)


def _norms() -> list[OpCase]:
    image = (4, 3, 5, 2)
    return [
        _case("batch_norm_train", _batch_norm, image, (3,), (3,), training=True),
        _case("batch_norm_eval", _batch_norm, image, (3,), (3,), training=False),
        _case("layer_norm", lambda x, w, b: F.layer_norm(x, (5, 2), w, b), image, (5, 2), (5, 2)),
        _case("layer_norm_plain", lambda x: F.layer_norm(x, (2,)), (3, 6, 2)),
        _case("group_norm", lambda x, w, b: F.group_norm(x, 3, w, b), (2, 6, 4), (6,), (6,)),
        _case("instance_norm", lambda x, w, b: F.instance_norm(x, None, None, w, b), image, 3, 3),
        _case("rms_norm", lambda x, w: F.rms_norm(x, (7,), w, 1e-5), (3, 4, 7), (7,)),
    ]


def _bags(mode: str, **options: Any) -> Callable[..., Any]:
    def run(weight: Any, indices: Any, offsets: Any, *scale: Any) -> Any:
        scales = scale[0] if scale else None
        return F.embedding_bag(
            indices, weight, offsets, mode=mode, per_sample_weights=scales, **options
        )

    return run


def _embeddings() -> list[OpCase]:
    def ids() -> torch.Tensor:
        return torch.tensor([1, 4, 1, 0, 6, 3, 3, 3])

    def starts() -> torch.Tensor:
        return torch.tensor([0, 3, 3, 5])

    table = (7, 5)
    return [
        _case("embedding", lambda w, i: F.embedding(i, w), table, ids),
        _case("embedding_padding", lambda w, i: F.embedding(i, w, padding_idx=3), table, ids),
        _case(
            "embedding_frequency",
            lambda w, i: F.embedding(i, w, scale_grad_by_freq=True),
            table,
            ids,
        ),
        _case("bag_sum", _bags("sum"), table, ids, starts),
        _case("bag_sum_weighted", _bags("sum"), table, ids, starts, (8,)),
        _case("bag_mean", _bags("mean"), table, ids, starts),
        _case("bag_mean_padding", _bags("mean", padding_idx=3), table, ids, starts),
        _case("bag_max", _bags("max"), table, ids, starts),
        _case("bag_last_offset", _bags("sum", include_last_offset=True), table, ids, starts),
    ]


def _resizes() -> list[OpCase]:
    image = (2, 3, 5, 6)
    up = F.interpolate
    return [
        _case("nearest", up, image, size=(8, 4), mode="nearest"),
        _case("nearest_exact", up, image, size=(8, 4), mode="nearest-exact"),
        _case("bilinear", up, image, scale_factor=1.7, mode="bilinear"),
        _case("bilinear_corners", up, image, size=(9, 3), mode="bilinear", align_corners=True),
        _case("bilinear_antialias", up, image, size=(3, 2), mode="bilinear", antialias=True),
        _case("bicubic", up, image, size=(7, 9), mode="bicubic"),
        _case("trilinear", up, (1, 2, 3, 4, 5), size=(5, 3, 6), mode="trilinear"),
        _case("pad_reflect", F.pad, image, pad=(2, 1, 0, 3), mode="reflect"),
        _case("pad_replicate", F.pad, image, pad=(2, 1, 4, 3), mode="replicate"),
        _case("fold", F.fold, (2, 12, 12), output_size=(4, 5), kernel_size=(2, 2)),
        _case("unfold", F.unfold, image, kernel_size=(2, 3), dilation=2, padding=1, stride=2),
        _case(
            "grid_sample",
            lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False),
            image,
            (2, 4, 3, 2),
        ),
    ]


def _attention(q, k, v, bias=None, **options):
    return F.scaled_dot_product_attention(q, k, v, bias, **options)


def _others() -> list[OpCase]:
    heads, longer = (2, 4, 3, 8), (2, 4, 5, 8)
    few = (2, 2, 5, 8)

    def mask() -> torch.Tensor:
        return torch.tensor([[True, False, True, True, False]] * 3)

    def place() -> torch.Tensor:
        return torch.tensor([[0, 2, 1], [3, 3, 0]])

    return [
        _case("attention", _attention, heads, longer, longer),
        _case("attention_causal", _attention, heads, heads, heads, is_causal=True),
        _case("attention_mask", _attention, heads, longer, longer, mask),
        _case("attention_bias", _attention, heads, longer, longer, (2, 1, 3, 5)),
        _case("attention_groups", _attention, heads, few, few, enable_gqa=True, scale=0.2),
        _case("gather", lambda x, i: x.gather(1, i), (2, 4), place),
        _case("scatter", lambda x, s, i: x.scatter(1, i[:, :2], s), (2, 4), (2, 2), place),
        _case("scatter_add", lambda x, s, i: x.scatter_add(1, i, s), (2, 4), (2, 3), place),
        _case("index", lambda x, i: x[:, i, 1], (2, 4, 3), place),
        _case("index_put", lambda x, v, i: x.index_put((i,), v), (4, 3), (2, 3, 3), place),
        _case("masked_select", lambda x, m: x[m], (3, 5), mask),
        _case("masked_put", lambda x, v, m: x.masked_scatter(m, v), (3, 5), (9,), mask),
        _case("solve", torch.linalg.solve, (2, 4, 4), (2, 4, 3)),
        _case("solve_transposed", lambda a, b: torch.linalg.solve(a.mT, b), (2, 4, 4), (2, 4, 3)),
        _case("det", torch.linalg.det, (2, 4, 4)),
        _case("det_transposed", lambda a: torch.linalg.det(a.mT), (2, 4, 4)),
        _case(
            "cholesky", lambda a: torch.linalg.cholesky(a @ a.mT + a.new_ones(4).diag()), (2, 4, 4)
        ),
        _case("cdist", torch.cdist, (3, 5), (4, 5)),
        _case("cdist_one", torch.cdist, (3, 5), (4, 5), p=1.0),
        _case("topk", lambda x: x.topk(3, 1)[0], (4, 6)),
        _case("as_strided", lambda x: x.as_strided((3, 4), (2, 1), 1) * 2, (12,)),
    ]


CASES = [
    *_convolutions(),
    *_pools(),
    *_norms(),
    *_embeddings(),
    *_resizes(),
    *_others(),
]
