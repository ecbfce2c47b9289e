"""The whole way on real images: train on `tpu`, compile, convert, run the LiteRT file, compare.

A small ResNet learns the handwritten digits that come with scikit-learn (1797 images of 8x8), first
eagerly, then with torch.compile. `tpu-convert` makes a LiteRT file of this file's `model`, with the
weights that were learnt. The held-out images then go through CPU PyTorch, the device in both ways
and the file; one table shows accuracy and differences.

python examples/demo.py [--epochs 6] [--out FOLDER]
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F

import torch_tpu_unified as ttu

BATCH = 64
WEIGHTS = "digits.pt"


class Residual(nn.Module):
    """Two 3x3 convolutions beside a shortcut; a stride of 2 halves the image."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class DigitNet(nn.Module):
    """Grey images [N, 1, 8, 8] in 0..1 to logits [N, 10]."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width))
        self.stage1 = Residual(width, width)
        self.stage2 = Residual(width, 2 * width, 2)
        self.stage3 = Residual(2 * width, 4 * width, 2)
        self.head = nn.Linear(4 * width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stage3(self.stage2(self.stage1(F.relu(self.stem(images)))))
        return self.head(x.mean((2, 3)))


def fresh() -> DigitNet:
    """The untrained net, always the same."""
    torch.manual_seed(0)
    return DigitNet()


def model() -> nn.Module:
    """What `tpu-convert demo.py:model` converts: the net with the weights in the current folder."""
    net = fresh().eval()
    if Path(WEIGHTS).exists():
        net.load_state_dict(torch.load(WEIGHTS, map_location="cpu"))
    return net


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images [1437, 1, 8, 8] and labels, held-out images [360, 1, 8, 8] and labels."""
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(bunch.target)
    split = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    return split[0], split[2], split[1], split[3]


def train(
    run: Callable[[torch.Tensor], torch.Tensor],
    net: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    epochs: int,
    rate: float,
    progress: Callable[[float], None] = lambda loss: None,
) -> list[float]:
    """Train `net` on the device of `images` by calling `run`; the loss of every step."""
    net.train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate)
    steps = epochs * (len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    shuffled = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(epochs):
        order = torch.randperm(len(images), generator=shuffled).to(images.device)
        for start in range(0, len(images) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            optimizer.zero_grad()
            loss = F.cross_entropy(run(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            progress(losses[-1])
    return losses


def convert(out: Path, count: int) -> dict:
    """Run `tpu-convert` on `model` in the folder `out`; its JSON report."""
    tool = Path(sys.executable).with_name("tpu-convert")
    command = [tool, f"{Path(__file__).resolve()}:model", "--input", f"images={count}x1x8x8"]
    command += ["-o", "digits.tflite", "--json"]
    done = subprocess.run(command, cwd=out, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def logits_of_all(net: nn.Module, file: Path, images: torch.Tensor) -> dict[str, torch.Tensor]:
    """Logits [N, 10] of the trained net on the held-out images, by target."""
    cpu = fresh().eval()
    cpu.load_state_dict({name: value.cpu() for name, value in net.state_dict().items()})
    device = net.to("tpu").eval()
    with torch.no_grad():
        return {
            "CPU PyTorch": cpu(images),
            "tpu eager": device(images.to("tpu")).cpu(),
            "tpu compiled": torch.compile(device)(images.to("tpu")).cpu(),
            "LiteRT": ttu.load(file)(images),
        }


def trained(epochs: int, console: Console) -> tuple[DigitNet, dict[str, list[float]]]:
    """The net after half of the epochs eagerly and half compiled, and the losses of both halves."""
    images, labels, _, _ = (t.to("tpu") for t in digits())
    net = fresh().to("tpu")
    ways = {"tpu eager": (net, 3e-3), "tpu compiled": (torch.compile(net), 1e-3)}
    losses = {}
    bar = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("loss {task.fields[loss]}"),
    )
    with Progress(TextColumn("{task.description:<22}"), *bar, console=console) as shown:
        for way, (run, rate) in ways.items():
            count = max(1, epochs // 2)
            total = count * (len(images) // BATCH)
            task = shown.add_task(f"training, {way}", total=total, loss="-")

            def progress(loss: float, task: int = task) -> None:
                shown.update(task, advance=1, loss=f"{loss:.4f}")

            losses[way] = train(run, net, images, labels, count, rate, progress)
    return net, losses


@click.command()
@click.option("--epochs", default=6, help="Passes over the images, half of them compiled.")
@click.option("--out", default="out", type=click.Path(path_type=Path), help="Folder for the files.")
def main(epochs: int, out: Path) -> None:
    console, began = Console(), time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    net, _ = trained(epochs, console)
    torch.save(net.state_dict(), out / WEIGHTS)
    _, _, images, labels = digits()
    with console.status("converting with tpu-convert"):
        report = convert(out, len(images))["report"]
    console.print(
        f"converted: {report['size'] / 1000:.0f} KB, {sum(report['operators'].values())} operators"
    )
    with console.status("running all four on the held-out images"):
        found = logits_of_all(net, out / "digits.tflite", images)
    table = Table(title=f"{len(images)} held-out images")
    for name in ("target", "test accuracy", "largest logit difference"):
        table.add_column(name, justify="left" if name == "target" else "right")
    reference = found["CPU PyTorch"]
    for target, logits in found.items():
        accuracy = (logits.argmax(1) == labels).float().mean().item()
        table.add_row(target, f"{accuracy:.2%}", f"{(logits - reference).abs().max().item():.1e}")
    console.print(table)
    console.print(
        f"the model: {(out / 'digits.tflite').resolve()}", soft_wrap=True, highlight=False
    )
    console.print(f"done in {time.perf_counter() - began:.0f} s")
    worst = max((logits - reference).abs().max().item() for logits in found.values())
    if not worst < 1e-3:
        sys.exit(f"error: the targets differ by {worst:.1e}")


if __name__ == "__main__":
    main()
