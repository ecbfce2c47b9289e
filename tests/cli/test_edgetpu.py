"""`tpu-convert --to edgetpu` and `tpu-convert check`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.running import Run

NETS = """
import torch
from torch import nn

def small():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.LeakyReLU(0.1), nn.Conv2d(8, 8, 3), nn.Hardswish())
    return net.eval(), (torch.rand(1, 3, 12, 12),)

class Sine(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)

    def forward(self, x):
        return self.b(self.a(x).sin()).relu()

def sine():
    return Sine().eval(), (torch.rand(1, 3, 12, 12),)

def samples():
    return [torch.rand(1, 3, 12, 12) for _ in range(4)]
"""
COMPILER = """#!{python}
import shutil, sys
shutil.copy(sys.argv[-1], sys.argv[-1].replace(".tflite", "_edgetpu.tflite"))
print("On-chip memory used for caching model parameters: 612.00KiB")
print("anything else")
sys.exit({code})
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "conv.py").write_text(NETS)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def compiler(folder: Path, code: int = 0) -> None:
    script = folder / "edgetpu_compiler"
    script.write_text(COMPILER.format(python=sys.executable, code=code))
    script.chmod(0o755)


def arguments(folder: Path, name: str) -> list[str]:
    return [
        f"{folder}/conv.py:{name}", "--to", "edgetpu", "--calibration",
        f"{folder}/conv.py:samples", "-o", f"{folder}/{name}.tflite",
    ]  # fmt: skip


def test_one_command_and_the_checker(run: Run, nets: Path) -> None:
    ran = run(*arguments(nets, "small"), "--require-mapped", "100")
    assert ran.code == 0, ran.err
    assert "(100.0 %)" in ran.out and "edgetpu_compiler is not installed" in ran.out

    ran = run("check", nets / "small.tflite", "--target", "edgetpu", "--json")
    told = json.loads(ran.out)
    assert ran.code == 0 and told["percent"] == 100
    operators = told["signatures"]["serving_default"]["operators"]
    assert any("forward" in op["source"] for op in operators)


def test_what_is_not_mapped_is_named_and_fails_on_request(run: Run, nets: Path) -> None:
    ran = run(*arguments(nets, "sine"), "--require-mapped", "95")
    assert ran.code == 1 and "SIN" in ran.err and "95 % are asked for" in ran.err
    assert not (nets / "sine.tflite").exists()
    ran = run(*arguments(nets, "sine"))
    assert ran.code == 0 and "the graph is cut at SIN (sin)" in ran.out
    assert "an operator before it runs on the CPU" in ran.out
    assert "conv.py:1" in ran.out
    ran = run("check", nets / "sine.tflite", "--require-mapped", "95")
    assert ran.code == 1 and "SIN (sin)" in ran.err


def test_the_compiler_runs_where_it_is_installed(run: Run, nets: Path) -> None:
    compiler(nets)
    ran = run(*arguments(nets, "small"))
    assert ran.code == 0, ran.err
    assert "small_edgetpu.tflite" in ran.out and "612.00KiB" in ran.out
    assert "anything else" not in ran.out and (nets / "small_edgetpu.tflite").exists()
    compiler(nets, code=1)
    ran = run(*arguments(nets, "small"))
    assert ran.code == 1 and "edgetpu_compiler failed" in ran.err


def test_refusals(run: Run, nets: Path) -> None:
    for given, word in (
        ([*arguments(nets, "small"), "--quantize", "int16x8"], "computes in int8"),
        ([*arguments(nets, "small"), "--dynamic", "b=0"], "static shapes"),
        ([f"{nets}/conv.py:small", "--require-mapped", "9"], "belongs to --to edgetpu"),
        (["check", nets / "absent.tflite"], "no such file"),
    ):
        ran = run(*given)
        assert ran.code in (1, 2) and word in ran.err, ran.err
