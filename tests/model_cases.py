"""Models that the tests train on the device and convert: those of `examples/`, and a few more.

`CASES` is the one list; a case makes the model, its inputs and a loss, and nothing in it is random
besides seeds. Sizes are the smallest that keep every kind of layer of the full model.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

EXAMPLES = Path(__file__).parent.parent / "examples"


@functools.cache
def example(name: str) -> ModuleType:
    """The module of an example, loaded from its file."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Dynamo looks it up there
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class ModelCase:
    """A model, inputs and a loss; `adam` trains it with AdamW, else with SGD and momentum."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    adam: bool = True

    def model(self, seed: int = 0) -> nn.Module:
        """The model in training mode, on the CPU, float32."""
        torch.manual_seed(seed)
        return self.make().train()

    def example(self, seed: int = 1) -> tuple[torch.Tensor, ...]:
        """Inputs of `forward`, on the CPU; floating ones are float32."""
        torch.manual_seed(seed)
        return self.inputs()

    def loss(self, output: torch.Tensor) -> torch.Tensor:
        """Cross entropy of logits [..., classes]; of rank 1 or 4: binary cross entropy."""
        if output.ndim in (2, 3):
            labels = torch.arange(output[..., 0].numel()) % output.shape[-1]
            return F.cross_entropy(output.flatten(0, -2), labels.to(output.device))
        target = torch.linspace(0, 1, output.numel(), dtype=output.dtype).view(output.shape)
        return F.binary_cross_entropy_with_logits(output, target.to(output.device))


class ViT(nn.Module):
    """Images [N, 3, 16, 16] to logits [N, 5]: a class token, PyTorch's own encoder layers."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.position = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 2, 2 * width, 0.0, F.gelu, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.norm(self.encoder(x))[:, 0])


class LSTM(nn.Module):
    """Token ids [N, T] to logits [N, 7]: two layers, both directions, last step."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 12, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(24, 7)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embedding(ids))[0][:, -1])


class Logits(nn.Module):
    """A language model of transformers as a function from token ids to its first output."""

    def __init__(self, lm: nn.Module):
        super().__init__()
        self.lm = lm

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.lm(input_ids=ids)[0]


_SIZES: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}


def _causal(family: str, **options: Any) -> nn.Module:
    import transformers

    config = getattr(transformers, f"{family}Config")
    kind = getattr(transformers, f"{family}ForCausalLM")
    return Logits(kind(config(**_SIZES, num_key_value_heads=2, use_cache=False, **options)))


def _bert() -> nn.Module:
    import transformers

    sizes = {**_SIZES, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return Logits(transformers.BertForMaskedLM(transformers.BertConfig(**sizes)))


def _images(count: int, channels: int, size: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randn(count, channels, size, size),)


def _ids(rows: int, length: int, vocabulary: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randint(vocabulary, (rows, length)),)


def _clicks() -> tuple[torch.Tensor, ...]:
    return torch.randn(6, 13), torch.randint(1000, (6, 26, 4))


CASES = (
    ModelCase("resnet18", lambda: example("resnet").resnet(18, width=8), _images(8, 3, 32), False),
    ModelCase("resnet50", lambda: example("resnet").resnet(50, width=4), _images(8, 3, 32), False),
    ModelCase("vit", ViT, _images(2, 3, 16)),
    ModelCase("unet", lambda: example("unet").UNet(width=4, levels=2), _images(2, 1, 16), False),
    ModelCase("mingpt", lambda: example("mingpt").GPT(32, 16, 16, 2, 2), _ids(2, 12, 32)),
    ModelCase("dlrm", lambda: example("dlrm").DLRM(4), _clicks),
    ModelCase("lstm", LSTM, _ids(3, 6, 20)),
    ModelCase("llama", lambda: _causal("Llama"), _ids(2, 10, 32)),
    ModelCase(
        "qwen3", lambda: _causal("Qwen3", head_dim=8, tie_word_embeddings=True), _ids(2, 10, 32)
    ),
    ModelCase("bert", _bert, _ids(2, 10, 32)),
)
BY_NAME = {case.name: case for case in CASES}
