"""ResNet: trains on `tpu`, then `tpu-convert examples/resnet.py:model --input 1x3x32x32`."""

import subprocess
import sys
from pathlib import Path

import click
import torch
from torch import nn


class Block(nn.Module):
    """Convolutions with batch norms beside a shortcut; `wide`: the bottleneck of ResNet-50."""

    def __init__(self, inputs: int, width: int, stride: int, wide: bool):
        super().__init__()
        shapes = [(inputs, width, 3, stride), (width, width, 3, 1)]
        if wide:
            shapes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]
        self.outputs = shapes[-1][1]
        self.body, self.shortcut = nn.Sequential(), nn.Sequential()
        for i, o, k, s in shapes:
            layer = nn.Conv2d(i, o, k, s, k // 2, bias=False)
            self.body.extend([layer, nn.BatchNorm2d(o), nn.ReLU()])
        self.body.pop(-1)  # the last activation follows the sum
        if stride != 1 or inputs != self.outputs:
            self.shortcut.append(nn.Conv2d(inputs, self.outputs, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(self.outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.body(x) + self.shortcut(x))


def resnet(depth: int = 18, classes: int = 10, width: int = 64) -> nn.Sequential:
    """ResNet-18 or -50: images [N, 3, H, W] to logits [N, classes]."""
    blocks, wide = {18: ([2, 2, 2, 2], False), 50: ([3, 4, 6, 3], True)}[depth]
    stem = nn.Conv2d(3, width, 7, 2, 3, bias=False)
    net = nn.Sequential(stem, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    channels = width
    for stage, count in enumerate(blocks):
        for stride in [2 if stage else 1] + [1] * (count - 1):
            net.append(Block(channels, width << stage, stride, wide))
            channels = net[-1].outputs
    return net.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)])


def model() -> nn.Module:
    """The model to deploy, with the weights that training left in this folder, if any."""
    torch.manual_seed(0)
    net = resnet().eval()
    if Path("resnet.pt").exists():
        net.load_state_dict(torch.load("resnet.pt", map_location="cpu"))
    return net


@click.command()
@click.option("--steps", default=6, help="Training steps.")
@click.option("--compile", "compiled", is_flag=True, help="Train with torch.compile.")
def main(steps: int, compiled: bool) -> None:
    net = model().train().to("tpu")
    run = torch.compile(net) if compiled else net
    images, labels = torch.randn(16, 3, 32, 32).to("tpu"), torch.randint(10, (16,)).to("tpu")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(run(images), labels)
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")
    torch.save(net.state_dict(), "resnet.pt")
    command = [Path(sys.executable).with_name("tpu-convert"), f"{__file__}:model", "-o"]
    subprocess.run([*command, "resnet.tflite", "--input", "1x3x32x32"], check=True)


if __name__ == "__main__":
    main()
