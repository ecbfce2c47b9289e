"""`tpu-convert --quantize`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from litert_export import reader
from tests.cli.running import Run

SAMPLES = """
import torch

def samples():
    return [torch.rand(2, 8) for _ in range(5)]
"""


def test_int8_with_samples_of_a_function(run: Run, models: Path, tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text(SAMPLES)
    out = tmp_path / "net.tflite"
    ran = run(
        f"{models}/nets.py:with_inputs", "--quantize", "int8",
        "--calibration", f"{tmp_path}/data.py:samples", "--inference-type", "uint8,float",
        "-o", out, "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)["report"]
    assert report["quantized"]["serving_default"]["samples"] == 5
    graph = reader.read(out)["serving_default"]
    assert [v.dtype for v in (*graph.inputs, *graph.outputs)] == ["uint8", "float32"]


def test_folders_and_modes_without_samples(run: Run, models: Path, tmp_path: Path) -> None:
    folder = tmp_path / "samples"
    folder.mkdir()
    np.save(folder / "a.npy", np.random.default_rng(0).random((1, 3), np.float32))
    out = tmp_path / "net.tflite"
    ran = run(models / "program.pt2", "--quantize", "int8", "--calib", folder, "-o", out)
    assert ran.code == 0, ran.err
    assert "int8, 1 calibration samples; left in float32: nothing" in ran.out
    assert run(models / "program.pt2", "--quantize", "float16", "-o", out).code == 0


def test_a_layer_kept_in_float_is_told(run: Run, models: Path, tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text(SAMPLES)
    ran = run(
        f"{models}/nets.py:with_inputs", "--quantize", "int8",
        "--calibration", f"{tmp_path}/data.py:samples", "--float-layer", "linear_1*",
        "-o", tmp_path / "net.tflite",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "left in float32: FULLY_CONNECTED (linear_1)" in ran.out
