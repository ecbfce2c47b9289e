"""`tpu-doctor`: the operators and their page, what a script did, the environment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from torch_tpu_unified.cli.doctor import main

from tests.cli.running import Ran

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operators.md"


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]):
    """Runs `tpu-doctor` in this process with the given arguments."""

    def go(*arguments: object) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return Ran(left.value.code, out, err)

    return go


def operators(doctor, *arguments: object) -> dict[str, dict]:
    ran = doctor("ops", "--json", *arguments)
    assert ran.code == 0, ran.err
    return {row["op"]: row for row in json.loads(ran.out)["operators"]}


def test_every_overload_is_listed(doctor) -> None:
    import torch

    known = {n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")}
    assert {"aten::" + name for name in operators(doctor)} == known


@pytest.mark.parametrize(
    ("name", "way", "via", "backward", "trait"),
    [
        ("relu", "native", "", "yes", None),
        ("relu_", "derived", "relu", "yes", "in-place"),
        ("add.out", "derived", "add.Tensor", "no", "out="),
        ("transpose.int", "view", "", "yes", None),
        ("as_strided", "view", "", "yes", None),
        ("conv1d", "composite", "", "through its parts", None),
        ("nonzero", "native", "", "not differentiable", "host sync"),
        ("rand", "native", "", "no", "random"),
        ("_cudnn_rnn", "foreign", "", "", "random"),
        ("mkldnn_linear", "foreign", "", "", None),
    ],
)
def test_ways(doctor, name: str, way: str, via: str, backward: str, trait: str | None) -> None:
    row = operators(doctor, f"^{name}$")[name]
    assert (row["way"], row["via"], row["backward"]) == (way, via, backward)
    if trait is not None:
        assert trait in row["traits"]


def test_the_table_and_what_is_wrong(doctor, tmp_path: Path) -> None:
    ran = doctor("ops", "^softmax")
    assert ran.code == 0 and "softmax.int" in ran.out and "overloads" in ran.out
    assert doctor("ops", "--way", "magic").code == 2
    assert doctor("ops", "(").code == 2
    assert doctor("ops", "--conformance", tmp_path / "absent").code == 1
    assert doctor("ops", "--no-such-option").code == 2
    assert doctor("model", tmp_path / "absent.py").code == 2


def test_conformance_has_a_column(doctor, tmp_path: Path) -> None:
    def line(op: str, dtype: str, passed: int) -> str:
        passes = {"forward": {"pass": passed, "total": 2}}
        return json.dumps({"op": op, "dtype": dtype, "passes": passes})

    results = tmp_path / "results.jsonl"
    lines = [line("nn.functional.gelu", "float32", 2), line("nn.functional.gelu", "bfloat16", 1)]
    results.write_text("\n".join(['{"header": true}', *lines, line("linalg.det", "float32", 2)]))
    rows = operators(doctor, "--conformance", results)
    assert rows["gelu"]["conformance"] == {"float32": True, "bfloat16": False}
    assert rows["linalg_det"]["conformance"] == {"float32": True}
    assert rows["relu"]["conformance"] == {}
    assert "!bf16 f32" in doctor("ops", "gelu", "--conformance", results).out
    results.write_text("no json")
    assert "JSON lines" in doctor("ops", "--conformance", results).error


SCRIPT = """
import sys
import torch

x = torch.ones(3, 3).to("tpu")
y = (x + 1).relu()
for n in (2, 3):
    total = y.sum().item()
print("said", sys.argv[1:])
if "--fail" in sys.argv:
    raise ValueError("as asked")
"""


def run_model(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: operators are watched only where the device starts under watch."""
    (tmp_path / "script.py").write_text(SCRIPT)
    doctor = "from torch_tpu_unified.cli.doctor import main; main()"
    command = [sys.executable, "-c", doctor, "model", *arguments]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)


def test_a_script_is_watched(tmp_path: Path) -> None:
    ran = run_model(tmp_path, "--json", "script.py", "--epochs", "2")
    assert ran.returncode == 0, ran.stderr
    assert "said ['--epochs', '2']" in ran.stderr
    told = json.loads(ran.stdout)
    calls = {row["name"]: row["calls"] for row in told["operators"]}
    assert calls["aten.add.Tensor"] == 1 and calls["aten.sum.default"] == 2
    (wait,) = told["host_sync"]
    assert (wait["name"], wait["times"]) == ("item", 2)
    assert wait["at"]["code"] == "total = y.sum().item()"
    (copy,) = told["to_device"]
    assert (copy["times"], copy["bytes"]) == (1, 36) and copy["at"]["line"] == 5
    programs = {row["name"]: row["at"]["line"] for row in told["program"]}
    assert programs == {"aten.add.Tensor": 6, "aten.relu.default": 6, "aten.sum.default": 8}
    assert told["ok"] and told["fallback"] == told["recompiles"] == []


def test_a_script_that_fails_still_gets_its_report(tmp_path: Path) -> None:
    ran = run_model(tmp_path, "script.py", "--fail")
    assert ran.returncode == 1
    assert "ValueError: as asked" in ran.stderr and "error: script.py failed" in ran.stderr
    assert "aten.relu.default" in ran.stdout and "script.py:8" in ran.stdout


def test_env(doctor) -> None:
    told = json.loads(doctor("env", "--json").out)
    assert {"torch", "jax", "ai-edge-litert"} <= set(told["versions"])
    assert told["device"]["platform"] and "TTU_FALLBACK" in told["flags"]
    assert "TTU_FALLBACK" in doctor("env").out


def test_the_page_claims_nothing_that_is_not_so(doctor) -> None:
    listed: dict[str, set[str]] = {}
    way = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            way = line.removeprefix("## ")
        elif way and way != "foreign" and line.startswith("| `"):
            packet, overloads = (cell.strip() for cell in line.split("|")[1:3])
            for overload in overloads.replace("`", "").split():
                name = packet.strip("`") + ("" if overload == "default" else f".{overload}")
                listed.setdefault(way, set()).add(name)
    rows = operators(doctor)
    for name in rows.keys() & listed["native"]:
        assert rows[name]["way"] == "native", name
    for way in ("derived", "view", "composite", "decomposed"):
        for name in rows.keys() & listed[way]:
            assert rows[name]["way"] not in ("missing", "foreign"), name


def test_no_operator_is_missing(doctor) -> None:
    assert not operators(doctor, "--way", "missing")


@pytest.mark.slow
def test_the_page_is_current(doctor, tmp_path: Path) -> None:
    page = tmp_path / "operators.md"
    assert doctor("ops", "--markdown", page).code == 0
    same = page.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")
    assert same, "run: tpu-doctor ops --markdown docs/operators.md"
