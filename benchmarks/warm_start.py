"""Time to the first training step in a new process, with an empty cache and with a filled one.

    python -m benchmarks.warm_start            # a GPT of 4 layers
    python -m benchmarks.warm_start --layers 12 --repeat 3

Each figure is from a process of its own, from before the model is compiled until the loss of the
first step is known; the imports before it are shown apart. The ratio is of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

STEP = """
import json, sys, time
start = time.perf_counter()
import torch, torch_tpu_unified
from benchmarks.eager_modes import Gpt
torch.set_num_threads(1)
torch.manual_seed(0)
torch.ones(1, device="tpu").item()
imported = time.perf_counter()
model = Gpt({layers}, 128, 64).to("tpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
ids = torch.randint(65, (4, 64)).to("tpu")
built = time.perf_counter()
step = torch.compile(model)
logits = step(ids)
loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
loss.backward()
optimizer.step()
value = loss.item()
torch.tpu.synchronize()
done = time.perf_counter()
print(json.dumps(dict(imports=imported - start, build=built - imported, step=done - built,
                      loss=value, **torch.tpu.cache_stats())))
"""


def first_step(folder: str, layers: int) -> dict:
    """The times of one process with its cache in `folder`."""
    environment = {**os.environ, "TTU_CACHE": folder, "TTU_QUIET": "1", "PYTHONPATH": os.getcwd()}
    script = STEP.replace("{layers}", str(layers))
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure and print one line a process, then the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=1, help="pairs of a cold and a warm process")
    options = parser.parse_args()
    times: dict[str, list[float]] = {"cold": [], "warm": []}
    losses = set()
    for _ in range(options.repeat):
        with tempfile.TemporaryDirectory() as folder:
            for kind in times:
                found = first_step(folder, options.layers)
                times[kind].append(found["step"])
                losses.add(found["loss"])
                print(
                    f"{kind}  first step {found['step']:6.2f} s  (imports {found['imports']:.2f} s,"
                    f" model {found['build']:.2f} s)  programs read {found['hits']},"
                    f" compiled {found['misses']}",
                    flush=True,
                )
    cold, warm = (statistics.median(times[kind]) for kind in ("cold", "warm"))
    print(f"warm / cold {warm / cold:.2f}; losses equal: {len(losses) == 1}")


if __name__ == "__main__":
    main()
