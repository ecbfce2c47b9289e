"""`torch.distributions` on the device, and that draws which should be independent are.

Samples of both devices are compared by the largest distance of their distribution functions; the
densities by value, on the same points.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributions as D
from torch.utils.checkpoint import checkpoint

N = 4000
# Two right samplers of N draws each differ by more once in 10^9 runs; seeds are fixed.
LARGEST_DISTANCE = 3.3 * (2 / N) ** 0.5


def t(*values: float, device: str) -> torch.Tensor:
    return torch.tensor(values, device=device)


DISTRIBUTIONS = {
    "Bernoulli": lambda d: D.Bernoulli(t(0.3, device=d)),
    "Beta": lambda d: D.Beta(t(0.5, device=d), t(2.0, device=d)),
    "Binomial": lambda d: D.Binomial(40, t(0.6, device=d)),
    "Categorical": lambda d: D.Categorical(t(0.1, 0.2, 0.7, device=d)),
    "Cauchy": lambda d: D.Cauchy(t(1.0, device=d), t(2.0, device=d)),
    "Chi2": lambda d: D.Chi2(t(3.0, device=d)),
    "ContinuousBernoulli": lambda d: D.ContinuousBernoulli(t(0.3, device=d)),
    "Exponential": lambda d: D.Exponential(t(2.0, device=d)),
    "FisherSnedecor": lambda d: D.FisherSnedecor(t(3.0, device=d), t(6.0, device=d)),
    "Gamma": lambda d: D.Gamma(t(0.4, device=d), t(2.0, device=d)),
    "Geometric": lambda d: D.Geometric(t(0.3, device=d)),
    "Gumbel": lambda d: D.Gumbel(t(0.5, device=d), t(2.0, device=d)),
    "HalfCauchy": lambda d: D.HalfCauchy(t(2.0, device=d)),
    "HalfNormal": lambda d: D.HalfNormal(t(2.0, device=d)),
    "InverseGamma": lambda d: D.InverseGamma(t(3.0, device=d), t(2.0, device=d)),
    "Kumaraswamy": lambda d: D.Kumaraswamy(t(2.0, device=d), t(3.0, device=d)),
    "Laplace": lambda d: D.Laplace(t(1.0, device=d), t(2.0, device=d)),
    "LogNormal": lambda d: D.LogNormal(t(0.5, device=d), t(0.7, device=d)),
    "NegativeBinomial": lambda d: D.NegativeBinomial(t(5.0, device=d), t(0.4, device=d)),
    "Normal": lambda d: D.Normal(t(1.0, device=d), t(2.0, device=d)),
    "Pareto": lambda d: D.Pareto(t(1.0, device=d), t(3.0, device=d)),
    "Poisson": lambda d: D.Poisson(t(30.0, device=d)),
    "RelaxedBernoulli": lambda d: D.RelaxedBernoulli(t(0.5, device=d), t(0.3, device=d)),
    "StudentT": lambda d: D.StudentT(t(4.0, device=d)),
    "Uniform": lambda d: D.Uniform(t(-1.0, device=d), t(2.0, device=d)),
    "VonMises": lambda d: D.VonMises(t(0.5, device=d), t(3.0, device=d)),
    "Weibull": lambda d: D.Weibull(t(2.0, device=d), t(1.5, device=d)),
    "Dirichlet": lambda d: D.Dirichlet(t(0.5, 1.0, 2.0, device=d)),
    "Multinomial": lambda d: D.Multinomial(8, t(0.2, 0.3, 0.5, device=d)),
    "OneHotCategorical": lambda d: D.OneHotCategorical(t(0.2, 0.3, 0.5, device=d)),
    "MultivariateNormal": lambda d: D.MultivariateNormal(
        t(1.0, -1.0, device=d), torch.tensor([[2.0, 0.5], [0.5, 1.0]], device=d)
    ),
    "LowRankMultivariateNormal": lambda d: D.LowRankMultivariateNormal(
        t(1.0, -1.0, device=d), t(1.0, 0.5, device=d).unsqueeze(-1), t(0.5, 0.3, device=d)
    ),
    "Mixture": lambda d: D.MixtureSameFamily(
        D.Categorical(t(0.3, 0.7, device=d)),
        D.Normal(t(-2.0, 1.0, device=d), t(0.5, 1.0, device=d)),
    ),
}


# Made of others that are always tested.
COMPOSED = """Chi2 ContinuousBernoulli FisherSnedecor Gumbel HalfCauchy HalfNormal InverseGamma
Kumaraswamy LowRankMultivariateNormal OneHotCategorical Pareto RelaxedBernoulli Weibull""".split()


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference of two samples' distribution functions."""
    a, b = a.double().sort().values, b.double().sort().values
    points = torch.cat([a, b])
    shares = [torch.searchsorted(s, points, right=True).double() / len(s) for s in (a, b)]
    return (shares[0] - shares[1]).abs().max().item()


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in COMPOSED)) for n in DISTRIBUTIONS],
)
def test_samples_and_densities(name: str) -> None:
    torch.manual_seed(11)
    ours, theirs = DISTRIBUTIONS[name]("tpu"), DISTRIBUTIONS[name]("cpu")
    drawn, expected = ours.sample((N,)), theirs.sample((N,))
    assert drawn.device.type == "tpu" and drawn.shape == expected.shape
    columns = zip(drawn.cpu().reshape(N, -1).T, expected.reshape(N, -1).T, strict=True)
    for column, other in columns:
        assert distance(column, other) < LARGEST_DISTANCE
    points = expected[:50]
    torch.testing.assert_close(
        ours.log_prob(points.to("tpu")).cpu(), theirs.log_prob(points), rtol=1e-4, atol=1e-4
    )


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return abs(torch.corrcoef(torch.stack([a.cpu().flatten(), b.cpu().flatten()]))[0, 1].item())


def test_streams_are_independent() -> None:
    size, limit = (20000,), 6.1 / 20000**0.5  # exceeded once in 10^9 runs
    torch.manual_seed(5)
    first, second = torch.randn(size, device="tpu"), torch.randn(size, device="tpu")
    streams = {"next call": second}
    for seed in (6, 5 + 2**32, 5 + 2**40):
        generator = torch.Generator(device="tpu").manual_seed(seed)
        streams[f"seed {seed}"] = torch.randn(size, device="tpu", generator=generator)
    cpu = torch.Generator().manual_seed(5)
    streams["the CPU's"] = torch.randn(size, generator=cpu)
    streams["itself, shifted"] = first.roll(1)
    for name, other in streams.items():
        assert correlation(first, other) < limit, name


def test_a_mask_of_dropout_is_new_at_each_call_and_the_same_in_checkpoints() -> None:
    x = torch.ones(4096, device="tpu", requires_grad=True)
    torch.manual_seed(3)
    masks = [torch.nn.functional.dropout(x, 0.5).detach().cpu() != 0 for _ in range(3)]
    assert 0.4 < (masks[0] == masks[1]).double().mean() < 0.6
    assert not torch.equal(masks[1], masks[2])
    for reentrant in (False, True):
        seen = []

        def layer(a: torch.Tensor, seen: list = seen) -> torch.Tensor:
            out = torch.nn.functional.dropout(a, 0.5)
            seen.append(out.detach().cpu())
            return out * out

        checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
        assert len(seen) == 2 and torch.equal(*seen)


def test_state_of_the_generator_comes_back() -> None:
    state = torch.tpu.get_rng_state()
    first = torch.rand(8, device="tpu").cpu()
    assert not torch.equal(torch.rand(8, device="tpu").cpu(), first)
    torch.tpu.set_rng_state(state)
    assert torch.equal(torch.rand(8, device="tpu").cpu(), first)
    with torch.random.fork_rng(devices=[0], device_type="tpu"):
        torch.rand(8, device="tpu")
    torch.tpu.set_rng_state(state)
    torch.rand(8, device="tpu")
    with torch.random.fork_rng(devices=[0], device_type="tpu"):
        inside = torch.rand(8, device="tpu").cpu()
    assert torch.equal(torch.rand(8, device="tpu").cpu(), inside)
