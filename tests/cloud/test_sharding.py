"""One process, many chips: sharded models equal the same model on one chip; plans and refusals.

The meshes need 8 virtual devices, which a process gets before jax starts: each test that runs
programs is a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def python(*arguments: str) -> str:
    """What a new Python prints in the project's folder, with 8 virtual devices."""
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "TTU_QUIET": "1"}
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **devices},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def check(rows: list[dict[str, float]], names: set[str], tolerance: float) -> None:
    assert {(r["plan"], r["compiled"]) for r in rows} == {(n, c) for n in names for c in (0, 1)}
    for row in rows:
        # Compiled functions compute some of it in another order, or in float32.
        bound = 1e-5 if row["compiled"] else tolerance
        assert row["loss"] < bound, row
        assert row["parameters"] < bound, row
        if row["plan"] in ("fsdp", "2d"):  # parameters and the two moments, over 8 chips
            assert row["bytes"] <= 0.15 * 3 * row["whole"], row
            assert row["gradients"] <= 0.15 * row["whole"], row
        if row["plan"] == "data":
            assert row["bytes"] >= 3 * row["whole"], row


def test_training_over_a_mesh_equals_one_chip() -> None:
    arguments = ["--steps", "2", "--plans", "2d"]
    rows = json.loads(python("-m", "tests.cloud.sharded_training", *arguments))
    check(rows, {"2d"}, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "tolerance"), [("mingpt", 1e-9), ("llama", 1e-5)])
def test_all_plans(model: str, tolerance: float) -> None:
    # In float64, so that AdamW amplifies no rounding; parts of Llama compute in float32 even so.
    rows = json.loads(python("-m", "tests.cloud.sharded_training", "--model", model))
    check(rows, {"data", "fsdp", "tensor", "2d"}, tolerance)


PIECES = """
    import torch, torch_tpu_unified as ttu
    from torch import nn
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    def array(t):
        return t.untyped_storage().buffer.array

    def refused(text, call):
        try:
            call()
        except ValueError as e:
            assert text in str(e), e
        else:
            raise AssertionError(f"not refused: {text}")

    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 24), nn.Linear(24, 8))

    ids = torch.arange(16)
    expected = make()(ids).detach()
    mesh = ttu.Mesh(data=-1, tensor=2)
    assert mesh.axes == {"data": 4, "tensor": 2}, mesh
    early = torch.ones(8, device="tpu")  # made before the mesh is used: copied to it when met

    # Each kind of plan, and where the parameters are afterwards.
    styles = {"0": RowwiseParallel(), "1": ColwiseParallel(), "2": RowwiseParallel()}
    model = ttu.shard(make(), mesh, styles)
    found = [tuple(array(p).sharding.spec) for p in model.parameters()]
    assert found == [("tensor", None), ("tensor", None), ("tensor",), (None, "tensor"), (None,)]
    out = model(mesh.shard_batch(ids))
    assert array(out).sharding.spec[0] == "data", array(out).sharding
    torch.testing.assert_close(out.cpu(), expected)
    torch.testing.assert_close((out + early).cpu(), expected + 1)

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    regex = {r"\\d\\.weight": (None, "tensor")}
    again = ttu.shard(model, mesh, [regex, "fsdp"])
    found = [tuple(array(p).sharding.spec) for p in again.parameters()]
    matrix = ("data", "tensor")
    assert found == [matrix, matrix, ("data",), matrix, ("data",)], found
    assert optimizer.param_groups[0]["params"][0] is next(iter(again.parameters()))
    torch.testing.assert_close(again(ids.to("tpu")).cpu(), expected)

    # A checkpoint keeps the places; so does what is written in place.
    before = [array(p).sharding for p in model.parameters()]
    model.load_state_dict(make().state_dict())
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.0).add_(torch.zeros_like(p))
            p.copy_(p.clone())
    assert [array(p).sharding for p in model.parameters()] == before
    torch.testing.assert_close(model(ids.to("tpu")).cpu(), expected)

    tied = nn.ModuleList([nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)])
    tied[1].weight = tied[0].weight
    ttu.shard(tied, mesh)
    assert tied[1].weight is tied[0].weight and tied[0].weight.device.type == "tpu"

    refused("is unknown", lambda: ttu.shard(make(), mesh, "pipeline"))
    refused("matches no module", lambda: ttu.shard(make(), mesh, {"7": ColwiseParallel()}))
    refused("matches no parameter", lambda: ttu.shard(make(), mesh, {"x": (None,)}))
    refused("splits Linear", lambda: ttu.shard(nn.LayerNorm(8), mesh, {"": "colwise"}))
    refused("does not divide", lambda: ttu.shard(nn.Linear(8, 3), mesh, {"": "colwise"}))
    refused("brings no tp_plan", lambda: ttu.shard(make(), mesh, "tensor"))
    refused("needs an axis 'fsdp'", lambda: ttu.shard(make(), ttu.Mesh(tensor=8), "fsdp"))
    refused("does not divide into 4", lambda: mesh.shard_batch(torch.ones(6, 2)))
    refused("does not fit", lambda: ttu.Mesh(data=9))
    refused("on meta", lambda: ttu.shard(nn.Linear(8, 8, device="meta"), mesh))
    refused("fused", lambda: torch.tpu.set_eager_mode("fused"))
"""


def test_plans_places_and_refusals() -> None:
    python("-c", textwrap.dedent(PIECES))
