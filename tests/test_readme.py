"""The README is true: its code and commands run, its map and its table of flags are complete.

A Python block under `<!-- file: name -->` is written to that file; bash blocks are run line by line
in the same folder, in the README's order. `make` lines are checked to be targets, not run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from torch_tpu_unified.core import flags

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
_BLOCK = re.compile(
    r"(?:<!-- file: (?P<file>\S+) -->\n)?^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.M | re.S
)
FLAGS = re.compile(r"(<!-- flags: [^>]*-->\n)(.*?)(<!-- end of flags -->)", re.S)


def commands() -> list[str]:
    blocks = [m["code"] for m in _BLOCK.finditer(README) if m["language"] == "bash"]
    return [line for code in blocks for line in code.splitlines() if line.strip()]


def test_its_code_and_commands_run(tmp_path: Path) -> None:
    for block in _BLOCK.finditer(README):
        if block["language"] == "python":
            assert block["file"], f"a Python block without a file name:\n{block['code']}"
            (tmp_path / block["file"]).write_text(block["code"], encoding="utf-8")
    scripts = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": scripts + os.pathsep + os.environ["PATH"]}
    ran = 0
    for line in commands():
        if line.startswith("make"):
            continue
        done = subprocess.run(
            ["bash", "-ec", line], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"$ {line}\n{done.stdout}\n{done.stderr}"
        ran += 1
    assert ran >= 4
    assert (tmp_path / "net.tflite").exists()


def test_its_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    used = {line.split()[1] for line in commands() if line.startswith("make ")}
    assert {"demo", "test"} <= used <= targets
    assert (ROOT / ".ci" / "run").read_text(encoding="utf-8").rstrip().endswith("make test")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_its_map_is_complete() -> None:
    listed = set(re.findall(r"^\| `([\w/]+)/` \|", README, re.M))
    present = {
        path.name
        for path in ROOT.iterdir()
        if path.is_dir() and not path.name.startswith((".", "_")) and any(path.glob("*.*"))
    }
    present -= {"build", "dist", "out"} | {p for p in present if p.endswith(".egg-info")}
    assert present <= listed
    assert all((ROOT / folder).is_dir() for folder in listed)


def test_its_flags_are_those_of_the_code() -> None:
    found = FLAGS.search(README)
    assert found, "the markers of the table of flags are gone"
    assert found[2] == flags.markdown_table(), "run: python tests/test_readme.py"


if __name__ == "__main__":
    new = FLAGS.sub(lambda m: m[1] + flags.markdown_table() + m[3], README)
    (ROOT / "README.md").write_text(new, encoding="utf-8")
