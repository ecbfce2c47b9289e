"""Plans for a slice: the planned step beside PyTorch, what is counted, and the report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# As libtpu writes it: a loop of 12 turns with an asynchronous gather, and an update in place.
HLO = """HloModule jit_f, is_scheduled=true

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[]{:T(128)} parameter(0)
  %y = f32[]{:T(128)} parameter(1)
  ROOT %sum = f32[]{:T(128)} add(%x, %y)
}

%slice (a: bf16[12,512,1024], b: s32[]) -> bf16[512,1024] {
  %a = bf16[12,512,1024]{2,1,0:T(8,128)(2,1)} parameter(0)
  %b = s32[]{:T(128)S(6)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  %cut = bf16[1,512,1024]{2,1,0:T(8,128)(2,1)} dynamic-slice(%a, %b, %zero, %zero), dynamic_slice_sizes={1,512,1024}
  ROOT %flat = bf16[512,1024]{1,0:T(8,128)(2,1)} bitcast(%cut)
}

%gathering (part: bf16[512,1024]) -> bf16[1024,1024] {
  %part = bf16[512,1024]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %all-gather.1 = bf16[1024,1024]{1,0:T(8,128)(2,1)} all-gather(%part), channel_id=7, replica_groups=[4,2]<=[4,2]T(1,0), dimensions={0}
}

%body (p: (s32[], bf16[12,512,1024], f32[64])) -> (s32[], bf16[12,512,1024], f32[64]) {
  %p = (s32[]{:T(128)}, bf16[12,512,1024]{2,1,0:T(8,128)(2,1)}, f32[64]{0:T(128)}) parameter(0)
  %one = s32[]{:T(128)S(6)} constant(1)
  %i = s32[]{:T(128)S(6)} get-tuple-element(%p), index=0
  %w = bf16[12,512,1024]{2,1,0:T(8,128)(2,1)} get-tuple-element(%p), index=1
  %v = f32[64]{0:T(128)} get-tuple-element(%p), index=2
  %mine = bf16[512,1024]{1,0:T(8,128)(2,1)} fusion(%w, %i), kind=kLoop, calls=%slice
  %start = ((bf16[512,1024]{1,0:T(8,128)(2,1)}), bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)}) call-start(%mine), to_apply=%gathering
  %done = bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)} call-done(%start)
  %r = f32[64]{0:T(128)} all-reduce(%v), channel_id=2, replica_groups={{0,4},{1,5},{2,6},{3,7}}, to_apply=%add
  %next = s32[]{:T(128)S(6)} add(%i, %one)
  ROOT %t = (s32[]{:T(128)}, bf16[12,512,1024]{2,1,0:T(8,128)(2,1)}, f32[64]{0:T(128)}) tuple(%next, %w, %r)
}

%condition (q: (s32[], bf16[12,512,1024], f32[64])) -> pred[] {
  %q = (s32[]{:T(128)}, bf16[12,512,1024]{2,1,0:T(8,128)(2,1)}, f32[64]{0:T(128)}) parameter(0)
  %end = s32[]{:T(128)} constant(12)
  %j = s32[]{:T(128)} get-tuple-element(%q), index=0
  ROOT %less = pred[]{:T(512)} compare(%j, %end), direction=LT
}

ENTRY %main (w0: bf16[12,512,1024], v0: f32[64]) -> f32[64] {
  %w0 = bf16[12,512,1024]{2,1,0:T(8,128)(2,1)} parameter(0)
  %v0 = f32[64]{0:T(128)} parameter(1)
  %k = s32[]{:T(128)} constant(0)
  %init = (s32[]{:T(128)}, bf16[12,512,1024]{2,1,0:T(8,128)(2,1)}, f32[64]{0:T(128)}) tuple(%k, %w0, %v0)
  %loop = (s32[]{:T(128)}, bf16[12,512,1024]{2,1,0:T(8,128)(2,1)}, f32[64]{0:T(128)}) while(%init), condition=%condition, body=%body
  %out = f32[64]{0:T(128)} get-tuple-element(%loop), index=2
  ROOT %s = f32[64]{0:T(128)} all-reduce(%out), replica_groups=mesh['a'=2,'b'=4] {'b'}, to_apply=%add
}
"""  # noqa: E501 - lines as the compiler writes them


def test_loops_multiply_and_the_core_memory_is_no_traffic() -> None:
    from cloud_backend.pod.hlo import Module

    module = Module(HLO)
    half, whole = 512 * 1024 * 2, 1024 * 1024 * 2
    # A turn slices (read and write), gathers into memory of the core, and sums 64 floats.
    turn = 2 * half + half + whole + 2 * 256
    sums = 2 * 256
    found = module.hbm_bytes()
    # The gather's own result is written to HBM inside its computation's type.
    assert found == 12 * turn + sums, found
    by = {(t.kind, t.axes): t for t in module.traffic({"data": 2, "fsdp": 2, "tensor": 2})}
    gather = by["all-gather", ("fsdp",)]
    assert (gather.count, gather.nbytes, gather.moved) == (12, 12 * whole, 12 * whole / 2)
    assert by["all-reduce", ("fsdp", "tensor")].count == 1
    assert by["all-reduce", ("data",)].moved == 12 * 2 * 256 / 2
    assert module.unknown == 0


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", ("tensor",)),
        ("[2,4]<=[8]", ("fsdp", "tensor")),
        ("[4,2]<=[2,4]T(1,0)", ("data",)),
        ("mesh['a'=4,'b'=1,'c'=2], device_ids=([2,4]T(1,0)) {'a'}", ("fsdp", "tensor")),
        ("mesh['a'=8] {'a':(2)2}", ("fsdp",)),
        ("{}", ("data", "fsdp", "tensor")),
    ],
)
def test_every_way_to_write_groups_of_devices(groups: str, axes: tuple[str, ...]) -> None:
    from cloud_backend.pod.hlo import Module

    text = f"""ENTRY %main (a: f32[8]) -> f32[8] {{
  %a = f32[8]{{0}} parameter(0)
  ROOT %p = f32[8]{{0}} all-reduce(%a), channel_id=1, replica_groups={groups}, to_apply=%add
}}
"""
    (found,) = Module(text).traffic({"data": 2, "fsdp": 2, "tensor": 2})
    assert found.axes == axes


def test_pairs_of_devices_lie_along_the_axes_that_part_them() -> None:
    from cloud_backend.pod.hlo import Module

    text = """ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  ROOT %p = f32[8]{0} collective-permute(%a), source_target_pairs={{0,0},{1,3},{2,0}}
}
"""
    (found,) = Module(text).traffic({"fsdp": 2, "tensor": 2})
    assert (found.axes, found.moved) == (("fsdp",), 32)


def test_products_count_with_their_loops() -> None:
    import jax
    import jax.numpy as jnp

    from cloud_backend.pod import work

    def f(ws, x):
        def body(x, w):
            return jnp.tanh(x @ w), None

        return jax.lax.scan(jax.checkpoint(body), x, ws)[0].sum()

    shapes = jax.ShapeDtypeStruct((5, 16, 16), jnp.float32), jax.ShapeDtypeStruct((4, 16), "f4")
    forward = 5 * 2 * 4 * 16 * 16
    assert work.flops(jax.make_jaxpr(f)(*shapes)) == forward
    # The backward of both operands, and the forward once more.
    both = jax.make_jaxpr(jax.grad(f, argnums=(0, 1)))(*shapes)
    assert work.flops(both) == 4 * forward
    assert work.kept_bytes(both) >= 5 * 4 * 16 * 4


def test_strategies() -> None:
    from cloud_backend.pod.compiling import mesh_axes
    from torch_tpu_unified.core.errors import OptionError

    assert mesh_axes("fsdp", 128) == {"fsdp": 128}
    assert mesh_axes("fsdp", 16384) == {"data": 64, "fsdp": 256}
    assert mesh_axes("fsdp=64,tp=4", 1024) == {"data": 4, "fsdp": 64, "tensor": 4}
    assert mesh_axes("data", 8) == {"data": 8}
    for wrong in ("pipeline", "fsdp=3", "fsdp,tensor", "fsdp=x"):
        with pytest.raises(OptionError):
            mesh_axes(wrong, 128)


def test_the_planned_step_trains_as_pytorch_does() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.cloud.planned_step"],
        env={**os.environ, "TTU_QUIET": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(done.stdout)
    assert len(rows) == 2
    for row in rows:
        assert row["loss"] < 1e-5 and row["parameters"] < 1e-4, row


TINY = """
from torch import nn
import torch

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(256, 512), nn.Linear(512, 256)

    def forward(self, x):
        return self.down_proj(torch.relu(self.up_proj(x))).square().mean()

def make(batch):
    return Net(), (torch.zeros(batch, 16, 256),)
"""


@pytest.mark.tpu_compiler
@pytest.mark.slow
def test_the_command_plans_a_model_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(TINY)
    options = "--topology v6e:2x2 --topology v6e:4x4 --strategy fsdp --strategy fsdp,tensor=2"
    options += f" --batch 8 --search --beside 50 --json --plot {tmp_path}/plan.png"
    done = subprocess.run(
        [sys.executable, "-m", "cli.plan", f"{tmp_path}/net.py:make", *options.split()],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    plans = json.loads(done.stdout)["plans"]
    assert {p["chips"] for p in plans} == {4, 16}
    first = plans[0]
    assert first["fits"] and first["unknown_loops"] == 0
    products = 3 * 2 * 2 * 256 * 512 * 16 * first["batch"] - 2 * 256 * 512 * 16 * first["batch"]
    assert first["flops"] == products / first["chips"]  # the input needs no gradient
    assert first["flops_without_remat"] == first["flops"]  # there is no loop
    assert any("fsdp" in t["axes"] for t in first["traffic"])
    assert "50% MFU" in first["beside"][0]
    assert (tmp_path / "plan.png").stat().st_size > 1000
