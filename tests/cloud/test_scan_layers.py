"""`scan_layers`: one loop instead of layers, with the same numbers, gradients and checkpoints."""

import copy

import pytest
import torch
from torch import nn

import torch_tpu_unified as ttu
from torch_tpu_unified.core.errors import InputError


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self, width=8, drop=0.0):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.down, self.drop = nn.Linear(2 * width, width), nn.Dropout(drop)
        self.register_buffer("scale", torch.rand(width))

    def forward(self, x, bias):
        return x + self.drop(self.down(torch.tanh(self.up(self.norm(x))))) * self.scale + bias


class Stack(nn.Module):
    def __init__(self, depth=3, drop=0.0):
        super().__init__()
        self.layers = nn.ModuleList([Block(drop=drop) for _ in range(depth)])

    def forward(self, x, bias):
        for layer in self.layers:
            x = layer(x, bias=bias)
        return x


def both(depth=3):
    torch.manual_seed(0)
    model = Stack(depth)
    return model, ttu.scan_layers(copy.deepcopy(model))


def gradients(model, device):
    x = torch.linspace(-1, 1, 32, device=device).reshape(4, 8)
    bias = torch.linspace(0, 1, 8).to(device).requires_grad_()
    y = model(x, bias)
    y.square().sum().backward()
    return y.detach().cpu(), bias.grad.cpu()


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_the_same_numbers_and_gradients(compiled):
    model, scanned = both()
    expected = gradients(model, "cpu")
    scanned.to("tpu")
    found = gradients(torch.compile(scanned, fullgraph=True) if compiled else scanned, "tpu")
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    stacked = scanned.layers.up__weight.grad.cpu()
    for i, layer in enumerate(model.layers):
        torch.testing.assert_close(stacked[i], layer.up.weight.grad, rtol=1e-4, atol=1e-5)


def test_the_loop_is_one_loop_in_the_program():
    from torch._dynamo.testing import EagerAndRecordGraphs

    sizes = []
    for depth in (3, 9):
        recorded = EagerAndRecordGraphs()
        model = both(depth)[1]
        torch.compile(model, backend=recorded)(torch.ones(2, 8), torch.zeros(8))
        sizes.append(len(recorded.graphs[0].graph.nodes))
        torch._dynamo.reset()
    assert sizes[0] == sizes[1]


def test_checkpoints_keep_their_names():
    model, scanned = both()
    saved = scanned.state_dict()
    assert list(saved) == list(model.state_dict())
    other = Stack()
    other.load_state_dict(saved)
    x, bias = torch.randn(4, 8), torch.randn(8)
    torch.testing.assert_close(other(x, bias), model(x, bias))
    fresh = ttu.scan_layers(Stack())
    fresh.load_state_dict(model.state_dict())
    torch.testing.assert_close(fresh(x, bias), model(x, bias))
    short = {k: v for k, v in saved.items() if not k.startswith("layers.2.")}
    with pytest.raises(RuntimeError, match=r"layers\.2\.up\.weight"):
        fresh.load_state_dict(short)
    with pytest.raises(RuntimeError, match=r"layers\.3\.up\.weight"):
        fresh.load_state_dict({**saved, "layers.3.up.weight": torch.ones(1)})


def test_modes_reach_the_layers():
    scanned = ttu.scan_layers(Stack(drop=0.9))
    x, bias = torch.ones(4, 8), torch.zeros(8)
    assert not torch.equal(scanned(x, bias), scanned(x, bias))
    scanned.eval()
    assert torch.equal(scanned(x, bias), scanned(x, bias))


def test_what_is_no_loop_is_refused_with_the_reason():
    mixed = nn.ModuleList([Block(), Block(drop=0.5)])
    with pytest.raises(InputError, match=r"another drop\.p"):
        ttu.scan_layers(mixed)
    with pytest.raises(InputError, match=r"layer 1 a ReLU"):
        ttu.scan_layers(nn.ModuleList([Block(), nn.ReLU()]))
    with pytest.raises(InputError, match="running statistics"):
        ttu.scan_layers(nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3)))
    with pytest.raises(InputError, match="no list"):
        ttu.scan_layers(nn.Linear(2, 2))
    with pytest.raises(InputError, match="taken apart"):
        both()[1].layers[1:]


def test_a_model_of_transformers():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=3,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, use_cache=False,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).eval()
    ids = torch.randint(50, (2, 5))
    expected = model(ids).logits
    scanned = ttu.scan_layers(model).to("tpu")
    found = torch.compile(scanned, fullgraph=True)(ids.to("tpu")).logits
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)
