"""`tpu-convert` on good input: every kind of source, every option, what it prints and writes."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import torch

import torch_tpu_unified as ttu
from tests.cli.running import Run


def outputs(path: Path, *args: torch.Tensor) -> torch.Tensor:
    found = ttu.load(path)(*args)
    assert isinstance(found, torch.Tensor)
    return found


def test_exported_program(run: Run, models: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.tflite"
    ran = run(models / "program.pt2", "--to", "litert", "-o", out)
    assert ran.code == 0, ran.err
    x = torch.randn(1, 3)
    expected = torch.export.load(models / "program.pt2").module()(x)
    torch.testing.assert_close(outputs(out, x), expected)
    assert "max abs" in ran.out and "ok" in ran.out
    assert [p.name for p in tmp_path.iterdir()] == ["model.tflite"]


def test_torchscript(run: Run, models: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.tflite"
    ran = run(models / "script.pt", "--input", "float32[1,3]", "--output", out)
    assert ran.code == 0, ran.err
    x = torch.randn(1, 3)
    torch.testing.assert_close(outputs(out, x), torch.jit.load(models / "script.pt")(x))
    assert ttu.load(out).signatures["serving_default"][0] == ["x"]


def test_trusted_pickle(run: Run, models: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.tflite"
    ran = run(models / "module.pt", "--trust-pickle", "--input", "1x3", "-o", out)
    assert ran.code == 0, ran.err
    x = torch.randn(1, 3)
    expected = torch.load(models / "module.pt", weights_only=False)(x)
    torch.testing.assert_close(outputs(out, x), expected)


@pytest.mark.parametrize(
    ("source", "options"), [("script.pt", ()), ("module.pt", ("--trust-pickle",))]
)
def test_dynamic_batch(
    source: str, options: tuple[str, ...], run: Run, models: Path, tmp_path: Path
) -> None:
    out = tmp_path / "model.tflite"
    given = ("--input", "float32[1,3]", "--dynamic", "batch=0", "-o", out)
    ran = run(models / source, *options, *given)
    assert ran.code == 0, ran.err
    assert "at 6x3" in ran.out
    x = torch.randn(5, 3)
    load = functools.partial(torch.load, weights_only=False) if options else torch.jit.load
    torch.testing.assert_close(outputs(out, x), load(models / source)(x))


@pytest.mark.parametrize(
    ("factory", "inputs"),
    [
        ("net", ["2x8"]),
        ("Net", ["x=float32[2,8]"]),
        ("ready", ["2x8"]),
        ("with_inputs", []),
        ("net", ["2x8", "scale=float32[1]:2..3"]),
    ],
)
def test_factory_in_a_file(
    run: Run, models: Path, tmp_path: Path, factory: str, inputs: list[str]
) -> None:
    out = tmp_path / "model.tflite"
    options = [part for text in inputs for part in ("--input", text)]
    ran = run(f"{models / 'nets.py'}:{factory}", *options, "-o", out, "--quiet")
    assert (ran.code, ran.out) == (0, ""), ran.err
    names = ttu.load(out).signatures["serving_default"][0]
    assert names == ["x", "scale"][: max(1, len(inputs))]


def test_factory_of_a_module_and_default_output(
    run: Run, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(models)
    assert run("nets:with_inputs").code == 0
    assert (tmp_path / "with_inputs.tflite").exists()


def test_json_is_alone_on_stdout(run: Run, models: Path, tmp_path: Path) -> None:
    ran = run(f"{models / 'nets.py'}:chatty", "--json", "-o", tmp_path / "m.tflite")
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert told["ok"] is True
    assert told["report"]["size"] == (tmp_path / "m.tflite").stat().st_size
    (table,) = told["report"]["verified"].values()
    assert table["ok"] and table["outputs"][0]["max_abs"] < 1e-5
    assert "a print of the model" in ran.err


def test_json_of_a_failure(run: Run, models: Path) -> None:
    ran = run(models / "weights.pt", "--json")
    assert ran.code == 1
    told = json.loads(ran.out)
    assert told["ok"] is False and "state_dict" in told["error"]["message"]


def test_progress_by_stage_and_quiet(run: Run, models: Path, tmp_path: Path) -> None:
    ran = run(models / "program.pt2", "-o", tmp_path / "m.tflite")
    for stage in ("load", "decompose", "lower", "write", "verify", "save"):
        assert f"\n  {stage} " in "\n" + ran.err
    ran = run(models / "program.pt2", "-o", tmp_path / "m.tflite", "-q")
    assert ran.out == "" and "load" not in ran.err


def test_names_of_inputs_and_outputs(run: Run, models: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.tflite"
    names = ["--input-name", "pixels", "--output-name", "scores"]
    assert run(models / "program.pt2", *names, "-o", out).code == 0
    assert ttu.load(out).signatures["serving_default"] == (["pixels"], ["scores"])


def test_no_verify_leaves_the_comparison_out(run: Run, models: Path, tmp_path: Path) -> None:
    ran = run(models / "program.pt2", "--no-verify", "-o", tmp_path / "m.tflite")
    assert ran.code == 0 and "not verified" in ran.out and "verify " not in ran.err


def test_parity_table(run: Run, models: Path, tmp_path: Path) -> None:
    ran = run(models / "program.pt2", "--parity", "-o", tmp_path / "m.tflite")
    assert ran.code == 0, ran.out + ran.err
    for target in ("cpu", "tpu eager", "tpu compiled", "litert"):
        assert f"\n{target} " in ran.out


def test_image_layout(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "conv.py"
    source.write_text(
        "import torch\n"
        "def make():\n"
        "    return torch.nn.Conv2d(3, 4, 3), (torch.randn(1, 3, 8, 9),)\n"
    )
    out = tmp_path / "m.tflite"
    assert run(f"{source}:make", "--io-layout", "nhwc", "-o", out).code == 0
    (signature,) = ttu.inspect(out).signatures
    assert signature.inputs[0].shape == (1, 8, 9, 3)
    assert signature.outputs[0].shape == (1, 6, 7, 4)
