"""U-Net: a few training steps on `tpu`, then a LiteRT file from the same definition.

python examples/unet.py --steps 10 --compile
tpu-convert examples/unet.py:model --input 1x1x64x64
"""

import subprocess
import sys
from pathlib import Path

import click
import torch
from torch import nn


def double(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3x3 convolutions, each with batch norm and ReLU."""
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Images [N, inputs, H, W] to logits [N, classes, H, W]; H, W divisible by 2 ** levels."""

    def __init__(self, inputs: int = 1, classes: int = 1, width: int = 16, levels: int = 3):
        super().__init__()
        widths = [width << level for level in range(levels)]
        self.stem = double(inputs, width)
        self.down = nn.ModuleList(double(w, 2 * w) for w in widths)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in widths)
        self.merge = nn.ModuleList(double(2 * w, w) for w in widths)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = [self.stem(x)]
        for down in self.down:
            skips.append(down(nn.functional.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for up, merge in zip(reversed(self.up), reversed(self.merge), strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], 1))
        return self.head(x)


def model() -> nn.Module:
    """The model to deploy, with the weights that training left in this folder, if any."""
    torch.manual_seed(0)
    net = UNet().eval()
    if Path("unet.pt").exists():
        net.load_state_dict(torch.load("unet.pt", map_location="cpu"))
    return net


@click.command()
@click.option("--steps", default=6, help="Training steps.")
@click.option("--compile", "compiled", is_flag=True, help="Train with torch.compile.")
def main(steps: int, compiled: bool) -> None:
    net = model().train().to("tpu")
    run = torch.compile(net) if compiled else net
    row, column = torch.meshgrid(torch.arange(64), torch.arange(64), indexing="ij")
    x, y, radius = torch.randint(12, 52, (3, 8, 1, 1, 1))
    discs = ((row - y) ** 2 + (column - x) ** 2 < (radius / 3) ** 2).float()
    images, masks = (discs + 0.5 * torch.randn(discs.shape)).to("tpu"), discs.to("tpu")
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for step in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(run(images), masks)
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")
    torch.save(net.state_dict(), "unet.pt")
    command = [Path(sys.executable).with_name("tpu-convert"), f"{__file__}:model", "-o"]
    subprocess.run([*command, "unet.tflite", "--input", "1x1x64x64"], check=True)


if __name__ == "__main__":
    main()
