"""The wheel: what is in it, and that it works in an environment of its own.

The heavy dependencies are borrowed from the running environment by a path file, so that nothing is
downloaded; the package itself is only what the wheel holds.
"""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FACTORY = """
import torch

def make():
    return torch.nn.Linear(8, 4), (torch.ones(2, 8),)
"""


def run(*command: object, cwd: Path, **environment: str) -> str:
    """The standard output of a command that must succeed."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(c) for c in command],
        cwd=cwd,
        env={**clean, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the sources."""
    folder = tmp_path_factory.mktemp("build")
    copy = folder / "source"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("torch_tpu_unified", "cloud_backend", "litert_export", "cli", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", folder, cwd=copy)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the wheel, and nothing of the checkout."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    run(*pip, "install", "--no-deps", "--no-index", "--quiet", wheel, cwd=home)
    (site,) = home.glob("lib/python*/site-packages")
    borrowed = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    # A path file after the package's own place; path files inside the borrowed place do not count,
    # so an editable install there is out of sight.
    (site / "zz_borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return home / "bin"


def test_what_the_wheel_holds(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (info,) = {n.split("/")[0] for n in names if ".dist-info/" in n}
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
        metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
    tops = {name.split("/")[0] for name in names} - {info}
    assert tops == {"torch_tpu_unified", "cloud_backend", "litert_export"}
    assert "torch_tpu_unified/cli/main.py" in names and "torch_tpu_unified/py.typed" in names
    assert f"{info}/licenses/LICENSE" in names
    for text in (
        "tpu-convert = ",
        "tpu-doctor = ",
        "tpu-plan = ",
        "[torch.backends]",
        "[torch_dynamo_backends]",
    ):
        assert text in entry_points
    assert metadata["License-Expression"] == "Apache-2.0"
    needed = [r for r in metadata.get_all("Requires-Dist") or [] if "extra ==" not in r]
    assert not [r for r in needed if r.startswith(("transformers", "tensorflow", "torchvision"))]
    sources = {
        p.relative_to(ROOT).as_posix().replace("cli/", "torch_tpu_unified/cli/", 1)
        for package in ("torch_tpu_unified", "cloud_backend", "litert_export", "cli")
        for p in (ROOT / package).rglob("*.py")
    }
    assert sources <= set(names)


def test_the_command_works_where_the_wheel_is_installed(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(FACTORY)
    assert "--trust-pickle" in run(installed / "tpu-convert", "--help", cwd=tmp_path)
    run(installed / "tpu-convert", "net.py:make", "-o", "net.tflite", cwd=tmp_path)
    assert (tmp_path / "net.tflite").read_bytes()[4:8] == b"TFL3"


def test_the_package_is_the_wheels_own(installed: Path, tmp_path: Path) -> None:
    script = (
        "import importlib.util, torch; x = torch.ones(2, device='tpu') + 1; print(x.tolist())\n"
        "import torch_tpu_unified, torch_tpu_unified.cli\n"
        "print(torch_tpu_unified.__file__, torch_tpu_unified.cli.__file__, sep='\\n')\n"
        "print(importlib.util.find_spec('cli'))"
    )
    printed = run(installed / "python", "-c", script, cwd=tmp_path, TTU_QUIET="1").splitlines()
    assert printed[0] == "[2.0, 2.0]"
    home = str(installed.parent)
    assert printed[1].startswith(home) and printed[2].startswith(home)
    assert printed[3] == "None"
