"""For the tests of the command line: model files of every kind, and a way to run the command."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch_tpu_unified.cli.main import main

from tests.cli.running import Ran, Run

FACTORIES = """
import torch

class Net(torch.nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 16), torch.nn.Linear(16, width)

    def forward(self, x, scale=None):
        y = self.b(self.a(x))
        return y if scale is None else y * scale

class Branches(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x + 1
        return x - 1

class Chatty(Net):
    def forward(self, x):
        print("a print of the model")
        return super().forward(x)

def net():
    return Net()

def with_inputs():
    return Net(), (torch.ones(2, 8),)

def chatty():
    return Chatty(), (torch.ones(2, 8),)

def branches():
    return Branches()

def fails():
    raise ValueError("the weights are on the moon")

def number():
    return 7

ready = Net()
answer = 42
"""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `tpu-convert` in this process with the given arguments."""

    def go(*arguments: object) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return Ran(left.value.code, out, err)

    return go


class Plain(torch.nn.Module):
    """A model whose class the tests can import, so that it can be unpickled."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model file of every kind."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    model, args = Plain().eval(), (torch.randn(1, 3),)
    torch.export.save(torch.export.export(model, args), folder / "program.pt2")
    torch.jit.save(torch.jit.trace(model, args), str(folder / "script.pt"))
    torch.save(torch.nn.Linear(3, 2), folder / "module.pt")
    torch.save(model.state_dict(), folder / "weights.pt")
    torch.save(model.state_dict(), folder / "old.pt", _use_new_zipfile_serialization=False)
    torch.save({"model": model.state_dict(), "epoch": 3}, folder / "checkpoint.pt")
    torch.save(torch.ones(3), folder / "tensor.pt")
    (folder / "nets.py").write_text(FACTORIES)
    return folder
