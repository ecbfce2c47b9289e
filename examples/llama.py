"""Llama of transformers: a few training steps on `tpu`, then a LiteRT file of the same model.

python examples/llama.py --steps 10 --compile
tpu-convert examples/llama.py:model --input ids=int64[1,32]:0..127
"""

import subprocess
import sys
from pathlib import Path

import click
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


class Llama(nn.Module):
    """Token ids [N, T] to logits of the next token [N, T, vocabulary]: no cache, no loss."""

    def __init__(self) -> None:
        super().__init__()
        config = LlamaConfig(
            vocab_size=128,
            hidden_size=64,
            intermediate_size=160,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            use_cache=False,
        )
        self.lm = LlamaForCausalLM(config)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.lm(input_ids=ids).logits


def model() -> nn.Module:
    """The model to deploy, with the weights that training left in this folder, if any."""
    torch.manual_seed(0)
    net = Llama().eval()
    if Path("llama.pt").exists():
        net.load_state_dict(torch.load("llama.pt", map_location="cpu"))
    return net


@click.command()
@click.option("--steps", default=10, help="Training steps.")
@click.option("--compile", "compiled", is_flag=True, help="Train with torch.compile.")
def main(steps: int, compiled: bool) -> None:
    net = model().train().to("tpu")
    run = torch.compile(net) if compiled else net
    text = torch.tensor(list(Path(__file__).read_bytes())).clamp(max=127)
    ids = text[: 33 * (len(text) // 33)].view(-1, 33)[:32].to("tpu")
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    for step in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(run(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        print(f"step {step}: loss {loss.item():.4f}")
    torch.save(net.state_dict(), "llama.pt")
    command = [Path(sys.executable).with_name("tpu-convert"), f"{__file__}:model", "-o"]
    subprocess.run([*command, "llama.tflite", "--input", "ids=int64[1,32]:0..127"], check=True)


if __name__ == "__main__":
    main()
