"""`tpu-convert` on bad input: one clear error, the right exit code, nothing left behind."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cli.running import Run
from torch_tpu_unified import conversion, files
from torch_tpu_unified.core import flags


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An output that exists already and must survive every failure."""
    path = tmp_path / "old.tflite"
    path.write_bytes(b"old")
    return path


def untouched(out: Path) -> bool:
    return out.read_bytes() == b"old" and os.listdir(out.parent) == [out.name]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.pt2", b"", "is empty"),
        ("noise.pt2", bytes(range(7, 200)), "no model that is known"),
        ("text.pt", b"these are no weights\n", "no model that is known"),
        ("zip.pt2", b"PK\x03\x04" + b"\0" * 60, "truncated or corrupt"),
        ("pickle.pt", b"\x80\x02", "truncated or corrupt"),
        ("done.pt2", b"\x1c\0\0\0TFL3" + b"\0" * 60, "LiteRT model already"),
        ("keras.h5", b"\x89HDF\r\n\x1a\n" + b"\0" * 60, "HDF5"),
        ("w.safetensors", (40).to_bytes(8, "little") + b"{" + b" " * 60, "safetensors"),
    ],
)
def test_wrong_files(
    run: Run, tmp_path: Path, out: Path, name: str, content: bytes, said: str
) -> None:
    source = tmp_path.parent / f"{tmp_path.name}-{name}"
    source.write_bytes(content)
    ran = run(source, "-o", out)
    assert ran.code == 1
    assert said in ran.error and str(source) in ran.error
    assert untouched(out)


@pytest.mark.parametrize("name", ["program.pt2", "script.pt", "module.pt", "old.pt"])
@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_truncated_files(
    run: Run,
    models: Path,
    tmp_path_factory: pytest.TempPathFactory,
    out: Path,
    name: str,
    keep: float,
) -> None:
    content = (models / name).read_bytes()
    source = tmp_path_factory.mktemp("cut") / name
    source.write_bytes(content[: int(len(content) * keep)])
    ran = run(source, "-o", out, "--input", "1x3", "--trust-pickle")
    assert ran.code == 1
    assert "truncated or corrupt" in ran.error or "state_dict" in ran.error
    assert untouched(out)


def test_flipped_bytes_are_noticed(
    run: Run, models: Path, tmp_path_factory: pytest.TempPathFactory, out: Path
) -> None:
    content = bytearray((models / "program.pt2").read_bytes())
    at = content.index(b"graph_module")
    content[at : at + 5] = b"XXXXX"
    source = tmp_path_factory.mktemp("flip") / "program.pt2"
    source.write_bytes(content)
    ran = run(source, "-o", out)
    assert ran.code == 1 and "corrupt" in ran.error
    assert untouched(out)


@pytest.mark.parametrize("name", ["weights.pt", "old.pt", "checkpoint.pt"])
def test_state_dict_is_told_what_to_do(run: Run, models: Path, out: Path, name: str) -> None:
    ran = run(models / name, "--input", "1x3", "-o", out)
    assert ran.code == 1
    assert "state_dict" in ran.error and "class" in ran.error and "torch.export.save" in ran.error
    assert untouched(out)


def test_a_tensor_is_no_model(run: Run, models: Path, out: Path) -> None:
    ran = run(models / "tensor.pt", "-o", out)
    assert ran.code == 1 and "holds a Tensor" in ran.error


class Bomb:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("zipped", [True, False])
def test_no_pickle_runs_unasked(
    run: Run, tmp_path_factory: pytest.TempPathFactory, out: Path, zipped: bool
) -> None:
    folder = tmp_path_factory.mktemp("bomb")
    source, mark = folder / "module.pt", folder / "mark"
    if zipped:
        torch.save(Bomb(mark), source)
    else:
        source.write_bytes(pickle.dumps(Bomb(mark)))
    ran = run(source, "--input", "1x3", "-o", out)
    assert ran.code == 2 and "--trust-pickle" in ran.error
    assert not mark.exists() and untouched(out)


def test_no_pickle_hides_in_a_program(
    run: Run, models: Path, tmp_path_factory: pytest.TempPathFactory, out: Path
) -> None:
    import io
    import zipfile

    folder = tmp_path_factory.mktemp("hidden")
    source, mark = folder / "program.pt2", folder / "mark"
    stream = io.BytesIO()
    torch.save(Bomb(mark), stream)
    with (
        zipfile.ZipFile(models / "program.pt2") as old,
        zipfile.ZipFile(source, "w") as new,
    ):
        for name in old.namelist():
            hidden = name.endswith("sample_inputs/model.pt")
            new.writestr(name, stream.getvalue() if hidden else old.read(name))
    ran = run(source, "-o", out)
    assert ran.code == 2 and "--trust-pickle" in ran.error and "sample_inputs" in ran.error
    assert not mark.exists() and untouched(out)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing argument"),
        (["{nets}:net"], "--input"),
        (["{nets}:nett", "--input", "2x8"], "did you mean net?"),
        (["{nets}"], "FACTORY"),
        (["{folder}/absent.py:net"], "does not exist"),
        (["{folder}/absent.pt2"], "does not exist"),
        (["no.such.module:net"], "no module named 'no'"),
        (["{folder}/script.pt"], "--input"),
        (["{folder}/module.pt", "--input", "1x3"], "--trust-pickle"),
        (["{nets}:net", "--input", "float31[2]"], "unknown dtype 'float31'"),
        (["{nets}:net", "--input", "two by eight"], "is not understood"),
        (["{nets}:net", "--input", "x=2x8", "--input", "2x8"], "name it too"),
        (["{folder}/program.pt2", "--to", "edgetpu"], "needs --calibration"),
        (["{folder}/program.pt2", "--to", "paper"], "unknown"),
        (["{folder}/program.pt2", "--quantize", "int8"], "needs --calibration"),
        (["{folder}/program.pt2", "--calibration", "x.npz"], "needs --quantize"),
        (["{folder}/program.pt2", "--to", "tpu", "--quantize", "int8"], "belongs to the target"),
        (["{folder}/program.pt2", "--quantize", "int7"], "none of int8"),
        (["{folder}/program.pt2", "--io-layout", "nwhc"], "nhwc"),
        (["{folder}/program.pt2", "--no-such-option"], "No such option"),
        (["{folder}/program.pt2", "-o", "{folder}/program.pt2"], "the source itself"),
    ],
)
def test_misuse_exits_with_2(run: Run, models: Path, arguments: list[str], said: str) -> None:
    before = sorted(os.listdir(models))
    words = [a.format(folder=models, nets=models / "nets.py") for a in arguments]
    ran = run(*words)
    assert ran.code == 2
    assert said in ran.error
    assert sorted(set(os.listdir(models)) - {"__pycache__"}) == [
        name for name in before if name != "__pycache__"
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{nets}:fails"], "the weights are on the moon"),
        (["{nets}:number"], "gives a int"),
        (["{nets}:answer"], "makes no model"),
        (["{nets}:net", "--input", "2x9"], "fails on these inputs in PyTorch itself"),
        (["{nets}:net", "--input", "y=2x8"], "unexpected keyword argument 'y'"),
        (["{nets}:branches", "--input", "2x8"], "torch.export cannot trace Branches"),
        (["{folder}/script.pt", "--input", "1x5"], "in PyTorch itself"),
    ],
)
def test_failures_exit_with_1(
    run: Run, models: Path, out: Path, arguments: list[str], said: str
) -> None:
    words = [a.format(folder=models, nets=models / "nets.py") for a in arguments]
    ran = run(*words, "-o", out)
    assert ran.code == 1
    assert said in ran.error
    assert untouched(out)


def test_error_names_the_source_line(run: Run, models: Path, out: Path) -> None:
    ran = run(f"{models / 'nets.py'}:branches", "--input", "2x8", "-o", out)
    lines = (models / "nets.py").read_text().splitlines()
    number = lines.index("        if x.sum() > 0:") + 1
    assert f"nets.py:{number} in forward" in ran.error


def test_unwritable_output_is_found_before_the_work(
    run: Run, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_late(*args: object, **kwargs: object) -> None:
        raise AssertionError("the conversion has begun")

    monkeypatch.setattr(conversion, "convert_programs", too_late)
    source = models / "program.pt2"
    ran = run(source, "-o", tmp_path / "absent" / "m.tflite")
    assert ran.code == 1 and "does not exist" in ran.error
    ran = run(source, "-o", tmp_path)
    assert ran.code == 1 and "is a folder" in ran.error
    ran = run(source, "-o", "/dev/null")
    assert ran.code == 1 and "no regular file" in ran.error
    ran = run(source, "-o", "/proc/m.tflite")
    assert ran.code == 1 and "cannot write" in ran.error


def test_mismatch_fails_and_writes_nothing(
    run: Run, models: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from litert_export import verify

    right = verify.run

    def wrong(*args: object, **kwargs: object) -> list[np.ndarray]:
        return [x + 0.01 for x in right(*args, **kwargs)]

    monkeypatch.setattr(verify, "run", wrong)
    ran = run(models / "program.pt2", "-o", out)
    assert ran.code == 1
    assert "does not give PyTorch's outputs" in ran.error
    assert "DIFFERS" in ran.err and "--no-verify" in ran.err
    assert untouched(out)
    assert run(models / "program.pt2", "-o", out, "--no-verify").code == 0
    assert not untouched(out)


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize(
    "kind", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
)
def test_full_disk_and_interrupt(
    run: Run,
    models: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    kind: BaseException,
) -> None:
    def fail(*args: object) -> None:
        raise kind

    monkeypatch.setattr(files.os, step, fail)
    ran = run(models / "program.pt2", "-o", out)
    monkeypatch.undo()
    assert ran.code == 1
    assert "nothing was written" in ran.error
    assert untouched(out)


def test_a_disk_that_really_refuses(out: Path) -> None:
    script = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from torch_tpu_unified import files\n"
        "files.write(sys.argv[1], b'x' * 100000)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script, out], capture_output=True, text=True)
    assert ran.returncode == 1 and "WriteError" in ran.stderr
    assert untouched(out)


def test_traceback_only_when_asked(run: Run, models: Path, out: Path) -> None:
    with flags.DEBUG(1), pytest.raises(AssertionError):
        _ = run(models / "weights.pt", "-o", out).error
