"""Known models compiled for real TPU chips, without one: memory, work beside a formula, roofline.

    python -m benchmarks.tpu_reports
    python -m benchmarks.tpu_reports --only qwen3-8b --chips v6e

Weights are on `meta`, bfloat16: nothing of their size is allocated, and the peak memory of the
process that compiles is printed to show it. `formula` is PyTorch's own count for products and
convolutions (`torch.utils.flop_counter`), beside the TPU compiler's count of everything.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

# The smallest topology that a chip's hosts are sold in; one of its chips runs the program, unless
# its work is spread.
TOPOLOGIES = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x4", "tpu7x": "tpu7x:2x2x1"}
TOKENS = 2048


class Logits(nn.Module):
    """A transformers model that gives one tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
        """The first result: logits, or the last hidden state."""
        return self.model(x, **more)[0]  # type: ignore[no-any-return]


class Block(nn.Module):
    """One decoder layer of Llama 3 8B with a loss: hidden states [N, T, 4096] to a scalar."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.llama import modeling_llama as llama

        config = llama.LlamaConfig(
            hidden_size=4096, intermediate_size=14336, num_attention_heads=32,
            num_key_value_heads=8, max_position_embeddings=8192, attn_implementation="sdpa",
        )  # fmt: skip
        self.rotary = llama.LlamaRotaryEmbedding(config)
        self.layer = llama.LlamaDecoderLayer(config, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean of the squared results."""
        places = self.rotary(x, torch.arange(x.shape[1], device=x.device)[None])
        return self.layer(x, position_embeddings=places).float().square().mean()  # type: ignore


def resnet50() -> tuple[nn.Module, torch.Tensor]:
    """ResNet-50 and 32 images of 224 x 224."""
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig(num_labels=1000))
    return Logits(model), torch.empty(32, 3, 224, 224)


def bert() -> tuple[nn.Module, torch.Tensor]:
    """BERT base and 32 sentences of 128 tokens."""
    from transformers import BertConfig, BertModel

    return Logits(BertModel(BertConfig())), _ids(32, 128)


def llama_block() -> tuple[nn.Module, torch.Tensor]:
    """A layer of Llama 3 8B and 2048 tokens."""
    return Block(), torch.empty(1, TOKENS, 4096)


def qwen3_8b() -> tuple[nn.Module, torch.Tensor]:
    """Qwen3 8B, as published: 36 layers, 8.2e9 parameters, and 2048 tokens."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=151936, hidden_size=4096, intermediate_size=12288, num_hidden_layers=36,
        num_attention_heads=32, num_key_value_heads=8, head_dim=128, use_cache=False,
        max_position_embeddings=40960, rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=False,
    )  # fmt: skip
    return Logits(Qwen3ForCausalLM(config)), _ids(1, TOKENS)


def _ids(*size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.int64)


# Program: what makes it, whether it is a training step, whether its layers become a loop, chips.
ALL = tuple(TOPOLOGIES)
PROGRAMS: dict[str, tuple[Callable[[], Any], bool, bool, tuple[str, ...]]] = {
    "resnet-50": (resnet50, False, False, ALL),
    "bert": (bert, False, False, ALL),
    "llama block, training step": (llama_block, True, False, ALL),
    "qwen3-8b": (qwen3_8b, False, True, ("v6e",)),
}


def made(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A program's module and input on `meta`, floats in bfloat16."""
    make, train, _, _ = PROGRAMS[name]
    with torch.device("meta"):
        model, x = make()
    return model.to(torch.bfloat16).train(train), x.bfloat16() if x.is_floating_point() else x


def formula(name: str) -> float:
    """PyTorch's count of the FLOPs of a program, layer by layer."""
    from torch.utils.flop_counter import FlopCounterMode

    _, train, loop, _ = PROGRAMS[name]
    model, x = made(name)
    more = {}
    if loop:  # without a mask the decoder reads a value of the positions, and meta has none
        more["attention_mask"] = x.new_empty(1, 1, TOKENS, TOKENS, dtype=torch.bool)
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(train):
        result = model(x, **more)
        if train:
            result.backward()
    return float(counter.get_total_flops())


def measure(name: str, chip: str, shard: str) -> dict[str, Any]:
    """Compile a program for a chip in this process; the report and what making it took."""
    import torch_tpu_unified as ttu
    from cloud_backend.ahead_report import OutOfMemory

    _, train, loop, _ = PROGRAMS[name]
    told: dict[str, Any] = {"program": name, "formula": formula(name)}
    model, x = made(name)
    if loop:
        ttu.scan_layers(model)
    start = time.perf_counter()
    try:
        report = ttu.convert(
            model, (x,), to="tpu", topology=TOPOLOGIES[chip], train=train, shard=shard
        ).report
    except OutOfMemory as err:
        report = err.report
    told["took"] = time.perf_counter() - start
    told["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return {**report.as_json(), **told}


def in_process(name: str, chip: str, shard: str) -> dict[str, Any]:
    """`measure` in a process of its own, so that its peak memory is its own."""
    command = [sys.executable, "-m", "benchmarks.tpu_reports", "--one", f"{name}/{chip}/{shard}"]
    environment = {**os.environ, "TTU_QUIET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name} for {chip}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


HEAD = (
    f"{'program':<27}{'topology':<13}{'devices':>8}{'fits':>6}{'memory':>17}{'FLOPs':>11}"
    f"{'formula':>11}{'ratio':>7}{'FLOPs/B':>9}{'step':>11}{'bound by':>9}{'of peak':>9}"
    f"{'weights':>9}{'peak here':>10}{'took':>7}"
)


def line(row: dict[str, Any]) -> str:
    """A report in one line; memory and FLOPs are those of one device."""
    gib, expected = float(1 << 30), row["formula"] / row["devices"]
    fits = "no" if not row["fits"] else "yes"
    memory = f"{row['needed'] / gib:.2f}/{row['hbm'] / gib:.0f} GiB"
    return (
        f"{row['program']:<27}{row['topology']:<13}{row['devices']:>8}{fits:>6}{memory:>17}"
        f"{row['flops']:>11.3e}{expected:>11.3e}{row['flops'] / expected:>7.2f}"
        f"{row['intensity']:>9.0f}{row['seconds'] * 1e3:>8.3f} ms{row['bound']:>9}"
        f"{row['utilisation']:>9.1%}{row['weights'] / gib:>8.2f}G{row['peak'] / gib:>9.2f}G"
        f"{row['took']:>6.0f}s"
    )


def main() -> None:
    """Print a line for each program and chip, and the formula of the estimate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help=f"of {', '.join(PROGRAMS)}; the start is enough")
    parser.add_argument("--chips", default="", help=f"of {', '.join(ALL)}, by commas")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one.split("/"))))
        return
    print(HEAD)
    for name, (_, _, loop, chips) in PROGRAMS.items():
        for chip in chips:
            wanted = not options.chips or chip in options.chips.split(",")
            if name.startswith(options.only) and wanted:
                for shard in ("none", "weights") if loop else ("none",):
                    print(line(in_process(name, chip, shard)), flush=True)


if __name__ == "__main__":
    main()
