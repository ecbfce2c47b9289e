"""DLRM: learns clicks on `tpu` from numbers and bags of categories, then becomes a LiteRT file.

python examples/dlrm.py --steps 10 --compile
tpu-convert examples/dlrm.py:model --input 8x13 --input bags=int64[8,26,4]:0..999
"""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import click
import torch
from torch import nn

NUMBERS, TABLES, ROWS, BAG = 13, 26, 1000, 4


def perceptron(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class DLRM(nn.Module):
    """Numbers [N, 13] and category ids [N, 26, 4] to the logit of a click [N]."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.bottom = perceptron(NUMBERS, 64, width)
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, width, mode="sum") for _ in range(TABLES))
        features = TABLES + 1
        self.register_buffer("pairs", torch.tril_indices(features, features, -1), persistent=False)
        self.top = perceptron(width + features * TABLES // 2, 64, 1)

    def forward(self, numbers: torch.Tensor, bags: torch.Tensor) -> torch.Tensor:
        dense = self.bottom(numbers)
        sparse = [table(ids) for table, ids in zip(self.tables, bags.unbind(1), strict=True)]
        features = torch.stack([dense, *sparse], 1)
        products = (features @ features.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([dense, products], 1)).squeeze(1)


def model() -> nn.Module:
    """The model to deploy, with the weights that training left in this folder, if any."""
    torch.manual_seed(0)
    net = DLRM().eval()
    if Path("dlrm.pt").exists():
        net.load_state_dict(torch.load("dlrm.pt", map_location="cpu"))
    return net


@click.command()
@click.option("--steps", default=10, help="Training steps.")
@click.option("--compile", "compiled", is_flag=True, help="Train with torch.compile.")
def main(steps: int, compiled: bool) -> None:
    net = model().train().to("tpu")
    run = torch.compile(net) if compiled else net
    numbers, bags = torch.randn(256, NUMBERS), torch.randint(ROWS, (256, TABLES, BAG))
    clicks = (numbers[:, 0] + (bags[:, 0] % 2).float().mean(1) > 0.5).float().to("tpu")
    numbers, bags = numbers.to("tpu"), bags.to("tpu")
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(run(numbers, bags), clicks)
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")
    torch.save(net.state_dict(), "dlrm.pt")
    command = [Path(sys.executable).with_name("tpu-convert"), f"{__file__}:model", "-o"]
    inputs = ["--input", "8x13", "--input", f"bags=int64[8,{TABLES},{BAG}]:0..{ROWS - 1}"]
    subprocess.run([*command, "dlrm.tflite", *inputs], check=True)


if __name__ == "__main__":
    main()
