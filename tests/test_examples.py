"""Every example runs as a user runs it, from an empty folder: trains on `tpu`, then converts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest

from tests.distributed import ranks

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = ("dlrm", "llama", "mingpt", "qwen", "resnet", "unet")


def run(folder: Path, name: str, *options: str) -> str:
    """What the example prints, on both streams."""
    environment = {**os.environ, "TTU_QUIET": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *options]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def test_no_example_is_left_out() -> None:
    assert {p.stem for p in EXAMPLES.glob("*.py")} == {
        *SCRIPTS,
        "data_parallel",
        "demo",
        "many_chips",
        "quickstart",
    }


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 80


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_trains_and_converts(name: str, tmp_path: Path) -> None:
    told = run(tmp_path, name, "--steps", "3", *(["--compile"] if name == "resnet" else []))
    losses = [float(x) for x in re.findall(r"step \d+: loss ([\d.]+)", told)]
    assert len(losses) == 3 and losses[-1] < losses[0], losses
    relative = re.search(r"float32\[[\d,]+\]\s+\S+\s+\S+\s+(\S+)\s+ok", told)
    assert relative and float(relative[1]) < 1e-4, told
    assert {p.name for p in tmp_path.iterdir()} == {f"{name}.pt", f"{name}.tflite"}


def test_data_parallel_resumes_with_another_number_of_ranks(tmp_path: Path) -> None:
    script = [str(EXAMPLES / "data_parallel.py"), "--steps", "2"]
    with chdir(tmp_path):
        two = ranks.run(2, script, limit=240)
        one = ranks.run(1, [*script, "--shard"], limit=240)
    losses = [float(x) for x in re.findall(r"step \d+: loss ([\d.]+)", two[0] + one[0])]
    assert len(losses) == 4 and losses[-1] < losses[0], losses


def test_demo(tmp_path: Path) -> None:
    told = run(tmp_path, "demo", "--epochs", "4", "--out", "files")
    rows = re.findall(r"│ (.+?) +│ +([\d.]+)% │ +(\S+) │", told)
    assert [row[0] for row in rows] == ["CPU PyTorch", "tpu eager", "tpu compiled", "LiteRT"], told
    accuracies = [float(row[1]) for row in rows]
    assert min(accuracies) > 80 and max(float(row[2]) for row in rows) < 1e-3
    assert max(accuracies) - min(accuracies) < 0.5
    assert (tmp_path / "files" / "digits.tflite").stat().st_size > 100_000
    assert "digits.tflite" in told


def test_quickstart_runs_as_a_script(tmp_path: Path) -> None:
    told = run(tmp_path, "quickstart", "2")
    assert "LiteRT beside PyTorch" in told
    written = {"quickstart_loss.png", "quickstart_predictions.png", "quickstart.tflite"}
    assert {p.name for p in tmp_path.iterdir()} == written
