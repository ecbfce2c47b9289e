"""Views, slices, joins, repeats, diagonals, padding, channel and space rearrangements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests.op_cases.case import OpCase

_aten = torch.ops.aten
_SHAPES = {
    "view": (lambda x: x.view(3, -1), (2, 3, 5)),
    "view_scalar": (lambda x: x.view(()), (1, 1)),
    "reshape_copy": (lambda x: x.transpose(0, 1).reshape(6, 5), (2, 3, 5)),
    "flatten": (lambda x: x.flatten(1), (2, 3, 5)),
    "unflatten": (lambda x: x.unflatten(-1, (2, -1)), (3, 6)),
    "expand": (lambda x: x.expand(4, -1, 3, 5), (2, 1, 5)),
    "expand_scalar": (lambda x: x.expand(2, 3), ()),
    "permute": (lambda x: x.permute(2, -3, 1), (2, 3, 5)),
    "permute_6d": (lambda x: x.permute(5, 0, 3, 1, 4, 2), (1, 2, 3, 2, 1, 2)),
    "transpose": (lambda x: x.transpose(-1, 0), (2, 3, 5)),
    "t": (lambda x: x.t(), (2, 3)),
    "t_vector": (lambda x: x.t(), (3,)),
    "squeeze": (lambda x: x.squeeze(), (1, 3, 1, 5)),
    "squeeze_dim": (lambda x: x.squeeze(-2), (2, 3, 1, 5)),
    "squeeze_not_one": (lambda x: x.squeeze(1), (2, 3, 5)),
    "squeeze_dims": (lambda x: x.squeeze((0, 2)), (1, 3, 1, 5)),
    "unsqueeze": (lambda x: x.unsqueeze(-1), (2, 3)),
    "slice": (lambda x: x[:, 1:4], (2, 5)),
    "slice_negative": (lambda x: x[..., -3:-1], (2, 5)),
    "slice_step": (lambda x: x[::2, 1::3], (5, 8)),
    "slice_past_end": (lambda x: x[3:100], (5, 2)),
    "slice_empty": (lambda x: x[4:2], (5, 2)),
    "narrow": (lambda x: x.narrow(1, -3, 2), (2, 5)),
    "select": (lambda x: x[:, -1], (2, 5, 3)),
    "select_first": (lambda x: x.select(0, 1), (2, 5, 3)),
    "split_even": (lambda x: x.split(2, -1), (3, 6)),
    "split_rest": (lambda x: x.split(4, 1), (3, 9)),
    "split_sizes": (lambda x: x.split([1, 4, 2], 1), (3, 7)),
    "split_zero": (lambda x: x.split([0, 4], 1), (3, 4)),
    "chunk": (lambda x: x.chunk(3, 1), (2, 7, 2)),
    "tensor_split": (lambda x: x.tensor_split(3, 1), (2, 7, 2)),
    "unbind_few": (lambda x: x.unbind(0), (3, 4)),
    "unbind_many": (lambda x: x.unbind(1), (3, 7)),
    "unfold": (lambda x: x.unfold(1, 3, 2), (2, 8, 2)),
    "as_strided": (lambda x: x.as_strided((3, 2), (2, 3), 1), (12,)),
    "flip": (lambda x: x.flip(0, -1), (2, 3, 5)),
    "roll": (lambda x: x.roll((2, -1), (0, 2)), (5, 3, 4)),
    "roll_flat": (lambda x: x.roll(3), (4, 5)),
    "roll_far": (lambda x: x.roll(-17, 1), (2, 5)),
    "repeat": (lambda x: x.repeat(2, 1, 3), (2, 3)),
    "repeat_none": (lambda x: x.repeat(2, 0), (2, 3)),
    "tile": (lambda x: x.tile(2), (2, 3)),
    "repeat_interleave": (lambda x: x.repeat_interleave(3, -1), (2, 4)),
    "repeat_interleave_flat": (lambda x: x.repeat_interleave(2), (2, 3)),
    "repeat_interleave_each": (
        lambda x: x.repeat_interleave(torch.tensor([1, 0, 3]), 0, output_size=4),
        (3, 2),
    ),
    "tril": (lambda x: x.tril(), (4, 5)),
    "tril_below": (lambda x: x.tril(-1), (2, 4, 3)),
    "triu": (lambda x: x.triu(), (5, 4)),
    "triu_above": (lambda x: x.triu(2), (3, 5)),
    "diagonal": (lambda x: x.diagonal(), (4, 5)),
    "diagonal_offset": (lambda x: x.diagonal(-1, 2, 0), (4, 2, 5)),
    "diagonal_above": (lambda x: x.diagonal(2, 0, 1), (3, 4, 2)),
    "diag_embed": (lambda x: x.diag_embed(), (2, 3)),
    "diag_embed_offset": (lambda x: x.diag_embed(-1, 0, 2), (2, 3)),
    "slice_scatter": (lambda x: x.slice_scatter(torch.ones(2, 2), 1, 1, 3), (2, 5)),
    "slice_scatter_step": (lambda x: x.slice_scatter(torch.ones(2, 3), 1, 0, 5, 2), (2, 5)),
    "select_scatter": (lambda x: x.select_scatter(torch.ones(5), 0, -1), (2, 5)),
    "assign_slice": (lambda x: _assigned(x), (4, 5)),
    "movedim": (lambda x: x.movedim(0, -1), (2, 3, 4)),
    "rot90": (lambda x: x.rot90(1, (0, 1)), (2, 3)),
    "zero_size": (lambda x: x.permute(1, 0).reshape(0, 4), (2, 0)),
    "clone": (lambda x: x.clone().contiguous().detach(), (2, 3)),
    "pad": (lambda x: F.pad(x, (1, 2)), (2, 3)),
    "pad_value": (lambda x: F.pad(x, (1, 0, 2, 1), value=-1.5), (2, 3, 4)),
    "pad_crop": (lambda x: F.pad(x, (-1, 2, 1, -2)), (4, 5)),
    "pad_6d": (lambda x: F.pad(x, (0, 1, 1, 0), value=2.0), (1, 2, 1, 2, 2, 3)),
    "pad_reflect_1d": (lambda x: F.pad(x, (2, 1), mode="reflect"), (2, 3, 5)),
    "pad_reflect_2d": (lambda x: F.pad(x, (2, 1, 0, 3), mode="reflect"), (1, 2, 4, 5)),
    "pad_reflect_3d": (lambda x: F.pad(x, (1, 1, 0, 2, 1, 0), mode="reflect"), (1, 2, 3, 4, 5)),
    "pad_replicate_1d": (lambda x: F.pad(x, (2, 1), mode="replicate"), (2, 3, 5)),
    "pad_replicate_2d": (lambda x: F.pad(x, (2, 1, 0, 3), mode="replicate"), (1, 2, 4, 5)),
    "pad_replicate_3d": (
        lambda x: F.pad(x, (1, 1, 0, 2, 1, 0), mode="replicate"),
        (1, 2, 3, 4, 5),
    ),
    "pad_circular": (lambda x: F.pad(x, (2, 1, 0, 3), mode="circular"), (1, 2, 4, 5)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (2, 12, 3, 5)),
    "pixel_shuffle_one": (lambda x: F.pixel_shuffle(x, 3), (1, 9, 2, 4)),
    "pixel_shuffle_batch": (lambda x: F.pixel_shuffle(x, 2), (8, 3, 2)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), (2, 3, 4, 6)),
    "reflection_pad1d": (lambda x: _aten.reflection_pad1d(x, [1, 2]), (2, 5)),
    "reflection_pad2d": (lambda x: _aten.reflection_pad2d(x, [1, 2, 0, 1]), (2, 3, 5)),
    "reflection_pad3d": (lambda x: _aten.reflection_pad3d(x, [1] * 6), (1, 2, 3, 4)),
    "replication_pad1d": (lambda x: _aten.replication_pad1d(x, [1, 2]), (2, 5)),
    "replication_pad2d": (lambda x: _aten.replication_pad2d(x, [1, 2, 0, 1]), (2, 3, 5)),
    "replication_pad3d": (lambda x: _aten.replication_pad3d(x, [1] * 6), (1, 2, 3, 4)),
    "constant_pad_nd": (lambda x: _aten.constant_pad_nd(x, [1, -1, 0, 2], 3), (2, 3, 5)),
    "alias": (lambda x: _aten.alias(_aten.detach(x)), (2, 3)),
    "view_copy": (lambda x: _aten.view_copy(x, [3, 2]), (2, 3)),
    "unsafe_split_sizes": (lambda x: _aten.unsafe_split_with_sizes(x, [1, 2], 1), (2, 3)),
    "unsafe_split": (lambda x: _aten.unsafe_split(x, 2, 1), (2, 5)),
    "as_strided_copy": (lambda x: _aten.as_strided_copy(x, [2, 2], [1, 3]), (6,)),
    "diagonal_copy": (lambda x: _aten.diagonal_copy(x, 1), (3, 4)),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 3), (2, 6, 2, 4)),
}


def _assigned(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[1:3, ::2] = 7.0
    y[:, -1] += x[:, 0]
    return y


def _one(name: str, fn: Callable[..., Any], shape: tuple[int, ...]) -> OpCase:
    return OpCase(name, fn, lambda: (torch.randn(shape),))


def _typed(name: str, fn: Callable[..., Any], dtype: torch.dtype, *shape: int) -> OpCase:
    return OpCase(name, fn, lambda: (torch.randint(-2, 3, shape).to(dtype),))


CASES = [
    *(_one(name, fn, shape) for name, (fn, shape) in _SHAPES.items()),
    OpCase("cat", lambda *t: torch.cat(t, -1), lambda: (torch.randn(2, 3), torch.randn(2, 1))),
    OpCase(
        "cat_promotes",
        lambda *t: torch.cat(t),
        lambda: (torch.randn(2, 3), torch.ones(1, 3, dtype=torch.int64)),
    ),
    OpCase("cat_empty", lambda *t: torch.cat(t), lambda: (torch.randn(2, 3), torch.randn(0))),
    OpCase("cat_many", lambda x: torch.cat([x, x + 1] * 4, 1), lambda: (torch.randn(2, 3),)),
    OpCase("stack", lambda *t: torch.stack(t, 1), lambda: (torch.randn(2, 3), torch.randn(2, 3))),
    OpCase("stack_last", lambda x: torch.stack([x, x * 2], -1), lambda: (torch.randn(2, 3),)),
    OpCase(
        "stack_many", lambda x: torch.stack([x + i for i in range(6)]), lambda: (torch.randn(3),)
    ),
    OpCase(
        "meshgrid",
        lambda a, b: torch.meshgrid(a, b, indexing="xy"),
        lambda: (torch.randn(2), torch.randn(3)),
    ),
    _typed("stack_bool", lambda x: torch.stack([x] * 6), torch.bool, 2, 3),
    _typed("split_bool", lambda x: x.split(2, 1), torch.bool, 2, 4),
    _typed("split_int", lambda x: x.split(2, 1), torch.int64, 2, 4),
    _typed("unbind_int", lambda x: x.unbind(1), torch.int64, 2, 6),
    _typed("pad_int", lambda x: F.pad(x, (1, 2), value=7), torch.int64, 2, 4),
    _typed("pad_bool", lambda x: F.pad(x, (1, 2), value=True), torch.bool, 2, 4),
    _typed("flip_bool", lambda x: x.flip(1), torch.bool, 2, 4),
    _typed("tril_bool", lambda x: x.tril(), torch.bool, 3, 4),
    _typed("triu_int", lambda x: x.triu(1), torch.int64, 3, 4),
    _typed("to_float", lambda x: x.to(torch.float32), torch.int64, 3, 4),
    _typed("to_bool", lambda x: x.bool(), torch.int32, 3, 4),
    _typed("view_dtype", lambda x: x.view(torch.float32), torch.int32, 3, 4),
    OpCase("to_int", lambda x: x.to(torch.int64), lambda: (torch.randn(3, 4) * 3,)),
]
