"""Where a cold compile's time goes, and how it grows with depth; with and without `scan_layers`.

    python -m benchmarks.compile_time                  # 12 layers, then 4 and 48 as a loop
    python -m benchmarks.compile_time --depths 4,48 --unrolled

Each figure comes from a process of its own without a disk cache: the first forward and backward of
a small GPT. `trace` and `lower` are ours (the op table under jax, and MLIR from it), `xla` is the
compiler, `pytorch` the rest: Dynamo, autograd, partitioning.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "xla",
}


def measure(layers: int, scanned: bool) -> dict[str, Any]:
    """The seconds of a first training step in this process, by what they went to."""
    import jax
    import torch

    import torch_tpu_unified as ttu
    from benchmarks.eager_modes import Gpt

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Gpt(layers, 64, 32)
    if scanned:
        model.blocks = ttu.scan_layers(model.blocks)
    model.to("tpu")
    ids = torch.randint(65, (2, 32)).to("tpu")
    torch.compile(lambda x: x + 1)(torch.ones(3, device="tpu"))  # what only a first compile loads
    found = dict.fromkeys(["trace", "lower", "xla"], 0.0)

    def listen(event: str, seconds: float, **_: Any) -> None:
        if event in EVENTS:
            found[EVENTS[event]] += seconds

    jax.monitoring.register_event_duration_secs_listener(listen)
    step = torch.compile(model, fullgraph=True)
    start = time.perf_counter()
    loss = step(ids).float().square().mean()
    loss.backward()
    torch.tpu.synchronize()
    total = time.perf_counter() - start
    return {
        "layers": layers,
        "loop": scanned,
        "total": total,
        **found,
        "pytorch": total - sum(found.values()),
        "share of trace and lower": (found["trace"] + found["lower"]) / total,
        "loss": loss.item(),
    }


def in_process(layers: int, scanned: bool) -> dict[str, Any]:
    """`measure` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.compile_time", "--one", str(layers)]
    environment = {**os.environ, "TTU_CACHE": "off", "TTU_QUIET": "1"}
    done = subprocess.run(
        command + ["--loop"] * scanned, env=environment, capture_output=True, text=True, check=True
    )
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print("  ".join(f"{k} {v:.3g}" for k, v in row.items()), flush=True)
    return row


def main() -> None:
    """Print one line a process, and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12, help="of the model without a loop")
    parser.add_argument("--depths", default="4,48")
    parser.add_argument("--unrolled", action="store_true", help="the depths without a loop as well")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--loop", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.loop)))
        return
    in_process(options.layers, False)
    depths = [int(d) for d in options.depths.split(",")]
    for scanned in (True, False) if options.unrolled else (True,):
        rows = [in_process(depth, scanned) for depth in depths]
        ratio = rows[-1]["total"] / rows[0]["total"]
        kind = "as a loop" if scanned else "unrolled"
        print(f"{depths[-1]} layers / {depths[0]} layers {kind}: {ratio:.2f}")


if __name__ == "__main__":
    main()
