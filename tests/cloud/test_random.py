"""Random operators follow their distributions, repeat with their seed, and keep to their bounds."""

from __future__ import annotations

import pytest
import torch

from tests.op_cases.draws import DRAWS, HALF_BOUNDED, N

# A Kolmogorov-Smirnov distance that a right sampler exceeds once in 10^9 runs; seeds are fixed.
LARGEST_DISTANCE = 3.3 / N**0.5


@pytest.mark.parametrize("name", DRAWS)
def test_distribution(name: str) -> None:
    draw, cdf = DRAWS[name]
    torch.manual_seed(1)
    x = draw("tpu").cpu().double().sort().values
    points = torch.unique(x)
    share = torch.searchsorted(x, points, right=True).double() / len(x)
    distance = (share - cdf(points)).abs().max().item()
    limit = LARGEST_DISTANCE if name != "randn_half" else LARGEST_DISTANCE + 2e-3
    assert distance < limit, f"{name}: distance {distance:.4f} from the distribution"


@pytest.mark.parametrize("name", ["randn", "uniform", "multinomial", "dropout", "poisson"])
def test_seed_repeats(name: str) -> None:
    draw, _ = DRAWS[name]
    torch.manual_seed(7)
    first, second = draw("tpu").cpu(), draw("tpu").cpu()
    torch.manual_seed(7)
    assert torch.equal(draw("tpu").cpu(), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", HALF_BOUNDED)
def test_excluded_end(name: str) -> None:
    draw, low, high = HALF_BOUNDED[name]
    torch.manual_seed(2)
    x = draw("tpu").cpu().double()
    assert x.min() >= low
    assert x.max() < high


def test_permutation_and_dropout_scale() -> None:
    assert torch.equal(torch.randperm(50, device="tpu").cpu().sort().values, torch.arange(50))
    x = torch.full((1000,), 2.0, device="tpu", requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.25)
    y.sum().backward()
    kept = y.detach().cpu()
    assert torch.allclose(kept[kept != 0], torch.tensor(2 / 0.75))
    assert torch.allclose(x.grad.cpu() * 2, y.detach().cpu())


def test_zero_weights_are_never_drawn() -> None:
    weights = torch.tensor([[0.0, 1.0, 0.0, 2.0, 0.0]], device="tpu")
    for replacement in (True, False):
        for _ in range(20):
            drawn = torch.multinomial(weights, 2, replacement).cpu()
            assert set(drawn.flatten().tolist()) <= {1, 3}
