"""`tpu-convert --to stablehlo`, `--to tpu`, `--to tpu-cache`, and `tpu-doctor cache`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch_tpu_unified.cli.doctor import main as doctor_main

from cloud_backend.cache import ProgramCache
from tests.cli.running import Run
from torch_tpu_unified.core import flags

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


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        doctor_main(["cache", *arguments])
    assert left.value.code == 0
    return capsys.readouterr().out


def test_the_doctor_keeps_the_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = ProgramCache(tmp_path, 10**6)
    for number in range(3):
        kept.put(f"key{number}", bytes([number]) * 1000)
    flipped = kept._file("key1")
    content = bytearray(flipped.read_bytes())
    content[-1] ^= 1
    flipped.write_bytes(content)
    truncated = kept._file("key2")
    truncated.write_bytes(truncated.read_bytes()[:500])
    (tmp_path / "left.part").write_bytes(b"half")
    with flags.CACHE(str(tmp_path)):
        assert "3 programs" in doctor(capsys)
        assert len(json.loads(doctor(capsys, "list", "--json"))["programs"]) == 3
        told = json.loads(doctor(capsys, "verify", "--json"))
        assert set(told["damaged"]) == {flipped.name, truncated.name} and told["entries"] == 1
        assert kept.get("key0") == bytes(1000)
        assert "1 entries removed" in doctor(capsys, "clear")
    assert list(tmp_path.iterdir()) == []
