"""`tpu-convert --to stablehlo`, `--to tpu` and `--to tpu-cache`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import Run

compiler = pytest.mark.tpu_compiler


@compiler
def test_on_the_command_line(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "net.py"
    source.write_text(
        "import torch\ndef make():\n    return torch.nn.Linear(8, 4), (torch.randn(2, 8),)\n"
    )
    ran = run(f"{source}:make", "--to", "stablehlo", "-o", tmp_path / "net.mlirbc")
    assert ran.code == 0 and "stablehlo bytecode" in ran.out, ran.err
    ran = run(f"{source}:make", "--to", "tpu", "--topology", "v5e:2x2", "-o", tmp_path / "n.tpu",
              "--json")  # fmt: skip
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["report"]["fits"] is True
    ran = run(f"{source}:make", "--to", "tpu-cache")
    assert ran.code == 0 and "programs made" in ran.out, ran.err
    for wrong in (["--topology", "v5e:2x2"], ["--to", "stablehlo", "--io-layout", "nhwc"]):
        ran = run(f"{source}:make", *wrong)
        assert ran.code == 2 and "belongs to the target" in ran.err
