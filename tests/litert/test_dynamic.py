"""Dynamic shapes: one file at several sizes, beside PyTorch; nothing of the example is baked in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import torch_tpu_unified as ttu
from litert_export import dynamic, reader, verify
from torch_tpu_unified.core.errors import ConversionError, OptionError
from torch_tpu_unified.opensizes import OpenSize, parse

B, T = Dim("b", min=1, max=64), Dim("t", min=2, max=128)
H, W = Dim("h", min=16, max=512), Dim("w", min=16, max=512)


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def causal(x: torch.Tensor) -> torch.Tensor:
    q = x.view(x.shape[0], x.shape[1], 4, 4).transpose(1, 2)
    y = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    return y.transpose(1, 2).reshape(x.shape) / x.shape[1]


class Language(nn.Module):
    """Learned positions and a mask made of the length."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 16), nn.Embedding(128, 16)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        n = ids.shape[1]
        x = self.tokens(ids) + self.places(torch.arange(n))
        y: torch.Tensor = self.layer(x, torch.triu(torch.full((n, n), float("-inf")), 1))
        return y


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 8, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rnn(x)[0]  # type: ignore[no-any-return]


def classifier() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(4, 2),
    )  # fmt: skip


def image_to_image() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.SiLU(), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2),
        nn.ConvTranspose2d(8, 4, 2, 2), nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.PixelShuffle(2), nn.Conv2d(1, 2, 1),
    )  # fmt: skip


# name -> (module, example, dynamic_shapes, shapes to run at)
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Any, list[tuple[int, ...]]]] = {
    "classifier": (classifier, (2, 3, 8, 8), {0: B}, [(1, 3, 8, 8), (7, 3, 8, 8)]),
    "one in the batch": (classifier, (1, 3, 8, 8), {0: B}, [(2, 3, 8, 8), (7, 3, 8, 8)]),
    "any image": (
        classifier, (1, 3, 32, 48), {0: B, 2: H, 3: W}, [(2, 3, 16, 33), (3, 3, 101, 40)],
    ),
    "image to image": (
        image_to_image, (1, 3, 32, 48), {2: H, 3: W}, [(1, 3, 16, 16), (1, 3, 101, 37)],
    ),
    "signal": (
        lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU()), (2, 3, 9), {0: B},
        [(1, 3, 9), (5, 3, 9)],
    ),
    "halves": (
        lambda: Function(lambda x: x[:, :2] * x.split([2, 4], 1)[1][:, :2]), (2, 6, 5), {0: B},
        [(1, 6, 5), (5, 6, 5)],
    ),
    "causal attention": (
        lambda: Function(causal), (2, 10, 16), {0: B, 1: T}, [(1, 5, 16), (7, 33, 16)],
    ),
    "language": (Language, (2, 10), {0: B, 1: T}, [(1, 5), (7, 33)]),
    "recurrent": (Recurrent, (2, 12, 6), {0: B}, [(1, 12, 6), (7, 12, 6)]),
    "last element": (
        lambda: Function(lambda x: x[:, -1] + x.flip(1)[:, 0]), (2, 5, 3), {0: B, 1: T},
        [(1, 2, 3), (4, 9, 3)],
    ),
    "both flattened": (
        lambda: Function(lambda x: x.flatten(0, 1).relu().view(x.shape)), (2, 5, 3), {0: B, 1: T},
        [(1, 2, 3), (4, 9, 3)],
    ),
    "positions": (
        lambda: Function(lambda x: x + torch.arange(x.shape[1]).float()[None, :, None]),
        (2, 5, 3), {0: B, 1: Dim("n", min=2)}, [(1, 2, 3), (4, 300, 3)],
    ),
    "new rows": (
        lambda: Function(lambda x: torch.cat([torch.ones(x.shape[0], 1, 3), x], 1)), (2, 5, 3),
        {0: B}, [(1, 5, 3), (4, 5, 3)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_file_at_several_sizes(name: str) -> None:
    make, shape, dims, others = CASES[name]
    torch.manual_seed(0)
    module = make().eval()

    def example(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randint(0, 50, shape) if name == "language" else torch.randn(shape)

    made = ttu.convert(module, (example(shape),), dynamic_shapes=(dims,))
    (graph,) = (g for n, g in reader.read(made.model).items() if n == "serving_default")
    assert graph.inputs[0].shape == shape
    assert graph.inputs[0].dynamic == tuple(dims)
    assert graph.outputs[0].dynamic
    for other in [shape, *others]:
        x = example(other)
        right = module(x).detach().numpy()
        for delegate in (True, False):
            (found,) = verify.run(made.model, [x.numpy()], xnnpack=delegate)
            assert found.shape == right.shape
            np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


def test_the_layout_of_open_images() -> None:
    module = classifier().eval()
    x = torch.randn(2, 3, 16, 20)
    made = ttu.convert(module, (x,), dynamic_shapes=({0: B, 2: H, 3: W},), io_layout="nhwc")
    assert "TRANSPOSE" not in made.report.operators
    assert ttu.inspect(made.model).signatures[0].inputs[0].shape == (2, 16, 20, 3)
    assert len(made.report.verified["serving_default"].rows) == 3


def test_two_inputs_with_one_size() -> None:
    class Add(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.cat([a, b * 2], 1)

    x = torch.randn(1, 4)
    made = ttu.convert(Add(), (x, x + 1), dynamic_shapes=({0: B}, {0: B}))
    y = torch.randn(3, 4)
    (found,) = verify.run(made.model, [y.numpy(), y.numpy()])
    np.testing.assert_array_equal(found, torch.cat([y, y * 2], 1).numpy())


def test_what_pytorch_fixes_is_told_with_its_line() -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(2, 3)  # this line

    with pytest.raises(ConversionError, match=r"specialized it to be a constant \(2\)") as caught:
        ttu.convert(Fixed(), (torch.ones(2, 3),), dynamic_shapes=({0: B},))
    assert "test_dynamic.py" in str(caught.value) and "this line" in str(caught.value)


def test_a_graph_that_depends_on_sizes_is_refused() -> None:
    def waves(x: torch.Tensor) -> torch.Tensor:
        return x * torch.arange(x.shape[1]).cos()

    endless = ({1: Dim("n", min=2)},)
    with pytest.raises(ConversionError, match="Give the dimension a largest size") as caught:
        ttu.convert(Function(waves), (torch.ones(2, 7),), dynamic_shapes=endless)
    assert "test_dynamic.py" in str(caught.value)
    assert ttu.convert(Function(waves), (torch.ones(2, 7),), dynamic_shapes=({1: T},)).report.ok


def test_repeated_conversion_is_the_same_file() -> None:
    x, module = torch.randn(2, 10, 16), Function(causal)
    files = [ttu.convert(module, (x,), dynamic_shapes=({0: B, 1: T},)).model for _ in range(2)]
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("batch=0", OpenSize("batch", 0)),
        ("length=ids.1", OpenSize("length", 1, "ids")),
        ("n=1@2..512", OpenSize("n", 1, None, 2, 512)),
        ("n=1@..512", OpenSize("n", 1, None, None, 512)),
    ],
)
def test_the_option(text: str, wanted: OpenSize) -> None:
    assert parse(text) == wanted


@pytest.mark.parametrize("text", ["batch", "batch=x", "0", "b=0@5..2", "b=0@3"])
def test_the_option_refuses(text: str) -> None:
    with pytest.raises(OptionError, match="--dynamic"):
        parse(text)


def test_sizes_that_differ_behind_strides() -> None:
    program = torch.export.export(
        Function(torch.relu), (torch.ones(2, 32),), dynamic_shapes=({0: B, 1: H},)
    )
    chosen = dynamic.choose(program)
    for symbol in chosen[0]:
        assert len({s[symbol] for s in chosen}) == len(chosen)
        low, high = dynamic.bounds(program, symbol)
        assert all(low <= s[symbol] <= (high or 1 << 40) for s in chosen)
