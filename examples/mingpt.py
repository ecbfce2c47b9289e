"""minGPT: learns its own source on `tpu`, letter by letter, then becomes a LiteRT file.

python examples/mingpt.py --steps 10 --compile
tpu-convert examples/mingpt.py:model --input ids=int64[1,64]:0..127
"""

import subprocess
import sys
from pathlib import Path

import click
import torch
from torch import nn


class Block(nn.Module):
    """Causal self-attention and a perceptron, each behind a layer norm and beside a shortcut."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, hidden = heads, 4 * width
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Token ids [N, T] to logits of the next token [N, T, vocabulary]; embedding and head tied."""

    def __init__(self, vocabulary=128, length=64, width=96, heads=4, depth=3):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.token.weight, std=0.02)
        self.head.weight = self.token.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.position.weight[: ids.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def model() -> nn.Module:
    """The model to deploy, with the weights that training left in this folder, if any."""
    torch.manual_seed(0)
    net = GPT().eval()
    if Path("mingpt.pt").exists():
        net.load_state_dict(torch.load("mingpt.pt", map_location="cpu"))
    return net


@click.command()
@click.option("--steps", default=10, help="Training steps.")
@click.option("--compile", "compiled", is_flag=True, help="Train with torch.compile.")
def main(steps: int, compiled: bool) -> None:
    net = model().train().to("tpu")
    run = torch.compile(net) if compiled else net
    text = torch.tensor(list(Path(__file__).read_bytes()), device="tpu").clamp(max=127)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    for step in range(steps):
        ids = torch.stack([text[i : i + 65] for i in torch.randint(2000, (16,)).tolist()])
        loss = nn.functional.cross_entropy(run(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")
    torch.save(net.state_dict(), "mingpt.pt")
    command = [Path(sys.executable).with_name("tpu-convert"), f"{__file__}:model", "-o"]
    subprocess.run([*command, "mingpt.tflite", "--input", "ids=int64[1,64]:0..127"], check=True)


if __name__ == "__main__":
    main()
