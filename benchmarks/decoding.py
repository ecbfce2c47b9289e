"""Greedy decoding with transformers on tpu beside CPU eager: tokens a second, programs, equality.

    python -m benchmarks.decoding
    python -m benchmarks.decoding --models qwen3 --cache dynamic --tokens 128 --json decoding.jsonl

The models are small and random; CPU eager decodes with the same cache. A first run compiles; speeds
are the best of `--repeat` further runs, in turns, so that drift of the machine falls on both.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

LAYERS, WIDTH, PROMPT = 4, 256, 16


def make(name: str) -> torch.nn.Module:
    """A random Llama or Qwen3 of 1000 words on the CPU."""
    import transformers

    options = {
        "vocab_size": 1000,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": WIDTH // 4,
        "max_position_embeddings": 512,
    }
    prefix = {"llama": "Llama", "qwen3": "Qwen3"}[name]
    config = getattr(transformers, f"{prefix}Config")(**options)
    torch.manual_seed(0)
    return getattr(transformers, f"{prefix}ForCausalLM")(config).eval()


def decoder(model: Any, cache: str, tokens: int, prompt: torch.Tensor) -> Callable[[], Any]:
    """A function that decodes; on tpu it is compiled (a static cache: by transformers)."""
    options: dict[str, Any] = {
        "max_new_tokens": tokens,
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    if cache == "static":
        options["cache_implementation"] = "static"
    elif model.device.type == "tpu":
        model.forward = torch.compile(model.forward)
    return lambda: model.generate(prompt, **options).cpu()


def compare(name: str, cache: str, tokens: int, repeat: int) -> dict[str, Any]:
    """Decode on both devices; returns the figures."""
    torch._dynamo.reset()
    torch.manual_seed(1)
    prompt = torch.randint(5, 900, (1, PROMPT))
    runs = {}
    for device in ("cpu", "tpu"):
        model = make(name).to(device)
        runs[device] = decoder(model, cache, tokens, prompt.to(device))
    before = torch.tpu.compile_stats()
    start = time.perf_counter()
    found = {device: run() for device, run in runs.items()}
    first = time.perf_counter() - start
    compiled = torch.tpu.compile_stats()
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeat):
        for device, run in runs.items():
            start = time.perf_counter()
            run()
            best[device] = min(best[device], time.perf_counter() - start)
    later = torch.tpu.compile_stats()
    return {
        "model": name,
        "cache": cache,
        "tokens": tokens,
        "equal": bool(torch.equal(found["cpu"], found["tpu"])),
        "compiled programs": compiled["graphs"] - before["graphs"],
        "compiled later": later["graphs"] - compiled["graphs"],
        "first run, s": round(first, 2),
        "cpu tokens/s": round(tokens / best["cpu"], 1),
        "tpu tokens/s": round(tokens / best["tpu"], 1),
        "ratio": round(best["cpu"] / best["tpu"], 2),
    }


def main() -> None:
    """Print a line for each model and cache."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="llama,qwen3")
    parser.add_argument("--cache", default="static,dynamic")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", help="a file that gets one result a line")
    options = parser.parse_args()
    for name in options.models.split(","):
        for cache in options.cache.split(","):
            row = compare(name, cache, options.tokens, options.repeat)
            print("  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
            if options.json:
                with Path(options.json).open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
