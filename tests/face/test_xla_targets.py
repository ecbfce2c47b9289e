"""StableHLO and TPU executables of programs, made and checked on a machine without a TPU."""

from __future__ import annotations

import json
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from torch import nn
from torch._higher_order_ops.scan import scan

import torch_tpu_unified as ttu
from cloud_backend import ahead
from cloud_backend.ahead_report import Collective, OutOfMemory
from torch_tpu_unified import xla_targets
from torch_tpu_unified.core.errors import (
    ConversionError,
    InputError,
    OptionError,
    VerificationError,
)

compiler = pytest.mark.tpu_compiler


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.conv(image))).mean((2, 3)))


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(image), label)


def wide(device: str, depth: int) -> nn.Linear:
    return nn.Linear(depth, depth, bias=False, device=device, dtype=torch.bfloat16)


IMAGE = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_stablehlo_text_and_bytecode() -> None:
    made = ttu.convert(Net(), (IMAGE,), to="stablehlo")
    assert made.verified.ok and made.kind == "stablehlo text"
    text = made.model.decode()
    assert "stablehlo.convolution" in text and "tensor<4x3x8x8xf32>" in text
    portable = ttu.convert(Net(), (IMAGE,), to="stablehlo", text=False, stablehlo_version="1.9.0")
    assert portable.model.startswith(b"ML\xefR") and b"StableHLO_v1.9.0" in portable.model
    with jax_mlir.make_ir_context():
        module = stablehlo.deserialize_portable_artifact(ir.Context.current, portable.model)
        assert "stablehlo.convolution" in str(module)


def test_a_training_step_has_the_gradients() -> None:
    made = ttu.convert(Loss(), (IMAGE, torch.arange(4)), to="stablehlo", train=True)
    names = {row.name for row in made.verified.rows}
    assert made.verified.ok
    assert {"gradient of net.conv.weight", "new net.norm.running_mean"} <= names


def test_a_training_step_may_convert_dtypes_in_a_region_without_gradients() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                scale = x.to(torch.float64).square().sum().to(torch.float32)
            return (self.head(x) / scale).square().sum()

    made = ttu.convert(Scaled(), (IMAGE[0, 0],), to="stablehlo", train=True)
    assert made.verified.ok


def test_wrong_programs_and_options_are_refused() -> None:
    with pytest.raises(ConversionError, match="returns the loss"):
        ttu.convert(Net(), (IMAGE,), to="stablehlo", train=True)
    with pytest.raises(OptionError, match=r"1\.999\.0"):
        ttu.convert(Net(), (IMAGE,), to="stablehlo", text=False, stablehlo_version="1.999.0")
    with pytest.raises(OptionError, match="needs a topology"):
        ttu.convert(Net(), (IMAGE,), to="tpu")
    with pytest.raises(OptionError, match="LiteRT"):
        ttu.convert(Net(), (IMAGE,), to="stablehlo", io_layout="nhwc")
    dynamic = torch.export.export(
        Net(), (IMAGE,), dynamic_shapes={"image": {0: torch.export.Dim("n")}}
    )
    with pytest.raises(ConversionError, match="dynamic shapes"):
        ttu.convert(dynamic, to="stablehlo")


def test_a_wrong_lowering_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from cloud_backend import ops

    entry = ops.load().entries[torch.ops.aten.relu.default]
    monkeypatch.setitem(entry.__dict__, "function", lambda x: x + 1)
    with pytest.raises(VerificationError):
        ttu.convert(Net(), (IMAGE,), to="stablehlo")


@compiler
def test_an_executable_and_its_report(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as of a cache entry that cannot be loaded
        for _ in range(2):
            made = ttu.convert(
                Net(), (IMAGE,), to="tpu", topology="v6e:2x4", shard="batch", verify=False
            )
    report = made.report
    assert report.fits and report.devices == 8
    single = ttu.convert(wide("cpu", 512), (torch.ones(64, 512).bfloat16(),), to="tpu",
                         topology="v5p:2x2x1").report  # fmt: skip
    # A product of [64, 512] and [512, 512]: the compiler counts 2 FLOPs for each term.
    assert single.flops == pytest.approx(2 * 64 * 512 * 512, rel=0.02)
    assert single.arguments == 2 * (64 * 512 + 512 * 512) and single.results >= 2 * 64 * 512
    slowest = max(single.flops / 459e12, single.bytes_accessed / 2765e9)
    assert single.seconds == pytest.approx(slowest)
    assert single.utilisation == pytest.approx(single.flops / (slowest * 459e12))
    path = made.save(tmp_path / "net.tpu")
    with zipfile.ZipFile(path) as archive:
        told = json.loads(archive.read("program.json"))
        assert len(archive.read("executable")) > 1000
    assert told["signature"]["inputs"] == {"image": ["float32", [4, 3, 8, 8]]}
    with pytest.raises(InputError, match=r"v6e:2x4 .* this machine has 1 of the kind cpu"):
        ttu.load_executable(path)


@compiler
def test_every_turn_of_a_loop_counts() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.empty(6, 256, 256, dtype=torch.bfloat16))

        def turn(self, carry: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
            step = lambda c, w: (c @ w, c.new_zeros(()))  # noqa: E731
            twice = scan(step, carry, torch.stack([weight, weight.T]))[0]
            return torch.tanh(twice @ weight), carry.new_zeros(())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return scan(self.turn, x, self.weights)[0]

    with torch.device("meta"):
        module, x = Loop(), torch.empty(128, 256, dtype=torch.bfloat16)
    report = ttu.convert(module, (x,), to="tpu", topology="v6e:2x4").report
    assert [(loop.turns, loop.again) for loop in report.loops] == [(6, 5), (2, 6)]
    # Three products of [128, 256] and [256, 256] in each of six turns.
    assert report.flops == pytest.approx(6 * 3 * 2 * 128 * 256 * 256, rel=0.05)
    assert "loops of 6, 2 turns" in str(report)


@compiler
def test_what_does_not_fit_is_explained() -> None:
    module = wide("meta", 1 << 17)
    args = (torch.empty(8, 1 << 17, dtype=torch.bfloat16),)
    with pytest.raises(OutOfMemory, match=r"32\.00 GiB  weight") as raised:
        ttu.convert(module, args, to="tpu", topology="v6e:2x4")
    assert not raised.value.report.fits and "exceeds" in raised.value.report.refusal
    spread = ttu.convert(module, args, to="tpu", topology="v6e:2x4", shard="weights")
    assert spread.report.fits and spread.report.arguments < 5 << 30 and spread.verified is None
    assert spread.report.collectives and spread.report.times()["links"] > 0


@compiler
def test_pallas_kernels_compile_for_a_tpu() -> None:
    class Attention(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            heads = torch.tpu.pallas.flash_attention(q, k, k, causal=True)
            sizes = torch.full((2,), 65, dtype=torch.int32)
            rows = heads.reshape(-1, heads.shape[-1])
            return torch.tpu.pallas.ragged_matmul(rows, k[0, 0].reshape(2, 64, -1), sizes)

    q, k = torch.randn(1, 1, 130, 64), torch.randn(1, 1, 130, 64)[:, :, :128]
    made = ttu.convert(Attention(), (q.bfloat16(), k.bfloat16()), to="tpu",
                       topology="tpu7x:2x2x1", verify=False)  # fmt: skip
    assert made.report.fits


def test_unknown_topologies_are_refused() -> None:
    for topology in ("v9:2x2", "v6e", "v6e:"):
        with pytest.raises(OptionError, match="v6e:2x4"):
            ttu.convert(Net(), (IMAGE,), to="tpu", topology=topology, verify=False)


def test_collectives_are_read_from_the_compiled_text() -> None:
    text = """
  %a = bf16[1024,16]{1,0:T(8,128)} all-gather(%p), channel_id=2, dimensions={0}
  %b = (f32[8]{0}, f32[32]{0}) all-reduce-start(%q), to_apply=%r
  %c = f32[32]{0} all-reduce-done(%b)
  ROOT %d = bf16[1024,16]{1,0} all-gather(%x), dimensions={0}
"""
    assert ahead.collectives(text) == [
        Collective("all-gather", 2, 1024 * 16 * 2), Collective("all-reduce", 1, 32 * 4)
    ]  # fmt: skip


def test_executables_are_checked(tmp_path: Path) -> None:
    broken = tmp_path / "broken.tpu"
    broken.write_bytes(b"nothing")
    with pytest.raises(InputError, match="no file of tpu-convert"):
        ttu.load_executable(broken)
    with pytest.raises(InputError, match="does not exist"):
        ttu.load_executable(tmp_path / "absent.tpu")
    wanted = {"b": ["float32", [2]], "a": ["float32", [3]]}
    given = {"a": torch.ones(3), "b": torch.ones(2)}
    assert [len(t) for t in ahead.check_tensors("weight", wanted, given)] == [3, 2]
    with pytest.raises(InputError, match="weight b is"):
        ahead.check_tensors("weight", wanted, {**given, "b": torch.ones(5)})


def test_the_cache_can_be_warmed() -> None:
    from torch_tpu_unified import programs

    program = programs.from_module(Net(), (IMAGE,))
    first = xla_targets.warm_cache(program)
    torch._dynamo.reset()
    again = xla_targets.warm_cache(program)
    assert first["made"] + first["found"] >= 1 and again["made"] == 0 and again["found"] >= 1
