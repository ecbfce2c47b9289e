"""`tpu-convert inspect` and `tpu-convert diff`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import torch_tpu_unified as ttu
from tests.cli.running import Run


class Net(nn.Module):
    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.conv, self.act = nn.Conv2d(3, 4, 3), act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.conv(x)).flatten(1).cumsum(1)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for name, act in (("relu", nn.ReLU()), ("gelu", nn.GELU())):
        made = ttu.convert(Net(act).eval(), (torch.rand(1, 3, 9, 9),), verify=False)
        (folder / f"{name}.tflite").write_bytes(made.model)
    return folder


def test_inspect(run: Run, files: Path) -> None:
    done = run("inspect", str(files / "relu.tflite"), "--profile")
    assert done.code == 0, done.err
    for told in ("input   x: float32[1,3,9,9]", "CONV_2D", "one call", "XNNPACK takes", "slowest"):
        assert told in done.out
    found = json.loads(run("inspect", str(files / "relu.tflite"), "--profile", "--json").out)
    ops = {op["code"]: op for op in found["profile"]["operators"]}
    assert ops["CONV_2D"]["xnnpack"] and not ops["CUMSUM"]["xnnpack"]
    assert all(op["seconds"] > 0 for op in ops.values())
    assert found["signatures"][0]["operators"]["CUMSUM"] == 1
    assert "profile" not in json.loads(run("inspect", str(files / "relu.tflite"), "--json").out)


def test_diff(run: Run, files: Path) -> None:
    a, b = str(files / "relu.tflite"), str(files / "gelu.tflite")
    same = run("diff", a, a, "--exit-code")
    assert same.code == 0 and "the same operators" in same.out
    assert run("diff", a, b, "--exit-code").code == 1
    other = run("diff", a, b)
    assert other.code == 0 and "GELU" in other.out and "+1" in other.out
    found = json.loads(run("diff", a, b, "--json").out)
    assert found["rows"]["serving_default"]["GELU"] == [0, 1] and not found["same"]


@pytest.mark.parametrize("command", ["inspect", "diff"])
def test_bad_files(run: Run, files: Path, command: str) -> None:
    (files / "bad.tflite").write_bytes(b"nothing of the kind")
    given = [str(files / "bad.tflite")] * (2 if command == "diff" else 1)
    done = run(command, *given)
    assert done.code == 1 and "LiteRT" in done.error
    assert "no such file" in run(command, *(str(files / "none.tflite") for _ in given)).error
