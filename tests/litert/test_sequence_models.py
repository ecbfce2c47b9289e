"""Small sequence models end to end: they convert, agree with PyTorch, keep nothing between calls.

The architectures are real (transformers' own classes, PyTorch's recurrent layers), the sizes tiny.
Each file is run twice on the first input and once on another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from litert_export import capture, export, reader, verify
from torch_tpu_unified.core.errors import LoweringError

_TOLERANCE = 1e-4
_LLM = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}


class Block(nn.Module):
    """A pre-norm transformer block with a causal mask as a buffer, written out by hand."""

    def __init__(self, dim: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.register_buffer("mask", torch.ones(length, length).tril().view(1, 1, length, length))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        parts = self.qkv(self.first(x)).split(c, dim=2)
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in parts)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.shape[-1])
        scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        y = (scores.softmax(-1) @ v).transpose(1, 2).contiguous().view(b, t, c)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


class MinGpt(nn.Module):
    """Token and position embeddings, blocks, a tied-free head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(97, 24), nn.Embedding(16, 24)
        self.blocks = nn.Sequential(Block(24, 3, 16), Block(24, 3, 16))
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 97, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


class Dlrm(nn.Module):
    """Embedding bags, the dot products of all pairs of features, a top tower."""

    def __init__(self, rows: tuple[int, ...] = (30, 20, 10), dim: int = 8) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(n, dim, mode="sum") for n in rows)
        self.bottom = nn.Sequential(nn.Linear(5, dim), nn.ReLU())
        k = len(rows) + 1
        self.register_buffer("pairs", torch.tril_indices(k, k, -1))
        self.top = nn.Sequential(nn.Linear(dim + k * (k - 1) // 2, 1), nn.Sigmoid())

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        features = torch.stack([x, *(bag(sparse[:, i]) for i, bag in enumerate(self.bags))], 1)
        products = torch.bmm(features, features.transpose(1, 2))
        return self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], 1))


class Recurrent(nn.Module):
    """A recurrent stack and a head; gives the last states too."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(6, 8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> Any:
        y, last = self.rnn(x)
        return self.head(y), last


class Outputs(nn.Module):
    """A transformers model called by keyword, reduced to named fields of its result."""

    def __init__(self, model: nn.Module, takes: list[str], gives: list[str], **fixed: Any) -> None:
        super().__init__()
        self.model, self.takes, self.gives, self.fixed = model, takes, gives, fixed

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = self.model(**dict(zip(self.takes, inputs, strict=True)), **self.fixed)
        return tuple(getattr(result, name) for name in self.gives)


def _ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, 97, shape)


def _causal(name: str, **options: Any) -> nn.Module:
    import transformers

    config = getattr(transformers, f"{name}Config")(**{**_LLM, **options})
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    return Outputs(model, ["input_ids"], ["logits"], use_cache=False)


def _bert() -> nn.Module:
    import transformers

    config = transformers.BertConfig(
        vocab_size=97,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
    )
    takes = ["input_ids", "attention_mask"]
    return Outputs(transformers.BertModel(config), takes, ["last_hidden_state", "pooler_output"])


def _vit() -> nn.Module:
    import transformers

    config = transformers.ViTConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        image_size=16,
        patch_size=8,
        num_labels=5,
    )
    return Outputs(transformers.ViTForImageClassification(config), ["pixel_values"], ["logits"])


def _masked() -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, 7:] = 0
    return _ids(2, 12), mask


_Inputs = Callable[[], tuple[torch.Tensor, ...]]
MODELS: dict[str, tuple[Callable[[], nn.Module], _Inputs]] = {
    "mingpt": (MinGpt, lambda: (_ids(1, 12),)),
    "dlrm": (Dlrm, lambda: (torch.randn(4, 5), torch.randint(0, 10, (4, 3, 2)))),
    "lstm": (lambda: Recurrent("LSTM"), lambda: (torch.randn(2, 9, 6),)),
    "gru": (lambda: Recurrent("GRU"), lambda: (torch.randn(2, 9, 6),)),
    "llama": (lambda: _causal("Llama"), lambda: (_ids(1, 12),)),
    "qwen3": (lambda: _causal("Qwen3", head_dim=8), lambda: (_ids(1, 12),)),
    "bert": (_bert, _masked),
    "vit": (_vit, lambda: (torch.randn(1, 3, 16, 16),)),
}


def _reference(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[np.ndarray]:
    with torch.no_grad():
        return [t.numpy() for t in torch.utils._pytree.tree_leaves(module(*inputs))]


@pytest.mark.parametrize("name", MODELS)
def test_model(name: str) -> None:
    make, inputs = MODELS[name]
    module, first, other = make().eval(), inputs(), inputs()
    model = export({"f": capture.capture(module, first)}).model
    (names, results) = reader.signatures(model)["f"]
    runner = verify.interpreter(model).get_signature_runner("f")

    def call(given: tuple[torch.Tensor, ...]) -> list[np.ndarray]:
        found = runner(**{k: t.numpy() for k, t in zip(names, given, strict=True)})
        return [found[r].copy() for r in results]

    once, again = call(first), call(first)
    for a, b in zip(once, again, strict=True):
        np.testing.assert_array_equal(a, b)  # no state is left from the call before
    for given, found in ((first, once), (other, call(other))):
        for i, (ours, theirs) in enumerate(zip(found, _reference(module, given), strict=True)):
            error = verify.compare_one(f"output {i}", ours, theirs)
            assert error.ok(_TOLERANCE), f"{name}: {error}"


def _codes(module: nn.Module, *inputs: torch.Tensor) -> dict[str, int]:
    graph = export({"f": capture.capture(module.eval(), inputs)}).graphs["f"]
    return graph.histogram()


def test_grouped_attention_repeats_nothing() -> None:
    class Grouped(nn.Module):
        def forward(self, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, kv, kv, enable_gqa=True)

    codes = _codes(Grouped(), torch.randn(1, 4, 3, 8), torch.randn(1, 2, 5, 8))
    assert codes["BATCH_MATMUL"] == 2
    assert not codes.keys() & {"TILE", "BROADCAST_TO", "GATHER", "CONCATENATION"}


def test_recurrent_file_does_not_grow_with_the_sequence() -> None:
    sizes = [_codes(nn.GRU(3, 4), torch.randn(t, 1, 3)) for t in (10, 20)]
    assert sizes[0] == sizes[1]
    assert sizes[0]["WHILE"] == 1


def test_linear_layers_are_fully_connected() -> None:
    codes = _codes(nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2)), torch.randn(3, 4))
    assert codes == {"FULLY_CONNECTED": 2}


class Call(nn.Module):
    """A module around a function."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.fn(*inputs)


def _scattered(x: torch.Tensor) -> torch.Tensor:
    return x.scatter_reduce(0, torch.zeros_like(x, dtype=torch.int64), x, "amax")


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "attention_dropout": (
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
        "dropout in attention",
    ),
    "float64": (lambda x: x.double().sum(1).float(), "no float64 kernel"),
    "masked_values": (
        lambda x: torch.ops.aten.index_put(x, [x > 0], x[0, 0].expand(2)),
        "through a mask that the program computes",
    ),
    "scatter_amax": (_scattered, "'amax' is not one of sum, mean"),
    "bicubic": (
        lambda x: F.grid_sample(x[None, None], x[None, :2, :2, None].expand(-1, -1, -1, 2),
                                "bicubic", align_corners=False),
        "bicubic grid sampling",
    ),
    "computed_weights": (
        lambda x: torch.gru(
            x[:, None], x[:1, None], [x.repeat(3, 1)[:12], x.repeat(3, 1)[:12]],
            False, 1, 0.0, False, False, False,
        ),
        "recurrent weights that the program computes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusal(name: str) -> None:
    fn, reason = REFUSED[name]
    program = capture.capture(Call(fn), (torch.randn(4, 4),))
    with pytest.raises(LoweringError, match=reason):
        export({"f": program})
