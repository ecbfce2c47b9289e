"""Programs kept on disk: shared by processes, never trusted when damaged, bounded in size."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from cloud_backend import cache, precision, program_index
from cloud_backend.cache import ProgramCache, Statistics

PROGRAM = """
import json, torch
x = torch.arange(12.0, device="tpu").reshape(3, 4).requires_grad_()
f = torch.compile(lambda x: (x.softmax(-1) @ x.T).sum(), backend="tpu")
f(x).backward()
values = [*x.grad.flatten().tolist(), *(x.detach() * 3).cumsum(0).flatten().tolist()]
print(json.dumps({"values": values, **torch.tpu.cache_stats()}))
"""


def _start(folder: Path | str, program: str = PROGRAM, **more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "TTU_CACHE": str(folder), **more}
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _result(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return {**found, "errors": err}


def _run(folder: Path | str, **more: str) -> dict[str, Any]:
    return _result(_start(folder, **more))


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder that one process has filled, and what that process found."""
    folder = tmp_path_factory.mktemp("programs")
    return folder, _run(folder)


def test_a_second_process_compiles_nothing(warm: tuple[Path, dict[str, Any]]) -> None:
    folder, cold = warm
    assert cold["hits"] == 0 and cold["writes"] == cold["entries"] > 3
    second = _run(folder)
    assert second["misses"] == second["writes"] == 0 and second["hits"] == cold["writes"]
    assert second["values"] == cold["values"]
    assert folder.stat().st_mode & 0o077 == 0 or folder.parent.stat().st_mode & 0o077 == 0


def test_damaged_entries_are_made_anew(warm: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    source, cold = warm
    programs = len(list(source.glob("*.program")))
    entries = sorted([*source.glob("*.program"), *source.glob("*.call")])
    assert len(entries) > programs
    for i, entry in enumerate(entries):
        content = entry.read_bytes()
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        damaged = (flipped, content[:middle], b"", b"\x80\x04cos\nsystem\n")
        (tmp_path / entry.name).write_bytes(damaged[i % 4])
    again = _run(tmp_path)
    assert again["corrupt"] == len(entries) and again["writes"] == programs > 4
    assert again["hits"] == 0
    assert "is damaged" in again["errors"]
    assert again["values"] == cold["values"]
    assert _run(tmp_path)["hits"] == programs


def test_an_index_entry_without_its_program(
    warm: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    source, cold = warm
    for entry in source.glob("*.call"):
        (tmp_path / entry.name).write_bytes(entry.read_bytes())
    again = _run(tmp_path)
    assert again["values"] == cold["values"] and again["corrupt"] == 0
    assert again["writes"] == cold["writes"]


LOWERED = """
import json, jax, torch
lowered = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **told: lowered.append(told.get("fun_name", "")) if "to_mlir" in event
    else None)
x = torch.arange(12.0, device="tpu").reshape(3, 4)
y = x.sigmoid() + x[:, 1:2]
y.mul_(x).clamp_(0.25)
values = [y.sum().item(), *(t.sum().item() for t in y.topk(2)), *torch.var_mean(y)]
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout())
net.to("tpu")
constant = torch.tensor([1.0, 2.0, 3.0, 4.0], device="tpu")
step = torch.compile(lambda x: (net(x) * constant + torch.tensor([0.5]).to("tpu")).square().sum())
for size in (3, 5):  # the second is a graph of symbolic sizes
    loss = step(torch.arange(4.0 * size, device="tpu").reshape(size, 4))
    loss.backward()
    values += [loss, net[0].weight.grad.sum(), *net[1].running_var]
print(json.dumps({"values": [float(v) for v in values], "lowered": lowered}))
"""


def test_a_second_process_does_not_lower(tmp_path: Path) -> None:
    cold, second = (_result(_start(tmp_path, LOWERED)) for _ in range(2))
    assert cold["values"] == second["values"]
    names = ("sigmoid", "add", "mul_", "clamp_", "sum", "topk", "var_mean")
    assert all(any(f"aten_{n}" in told for told in cold["lowered"]) for n in names)
    assert "run" in " ".join(cold["lowered"])  # compiled graphs
    assert not [told for told in second["lowered"] if "aten_" in told or "run" in told]


def test_a_name_needs_parts_that_mean_the_same_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cache, "_active", ProgramCache(tmp_path))
    name = program_index.key("a", (2, 3), -0.0, torch.float32)
    assert name is not None and name == program_index.key("a", (2, 3), -0.0, torch.float32)
    others = [("a", (2, 3), 0.0, torch.float32), ("a", (2, 3), -0.0, torch.float64)]
    assert name not in [program_index.key(*parts) for parts in others]
    assert program_index.key("a", object()) is None
    with precision.precision("high"):
        assert program_index.key("a", (2, 3), -0.0, torch.float32) != name
    monkeypatch.setattr(cache, "_active", None)
    assert program_index.key("a") is None


FACTORS = """
import json, torch
a = torch.eye(3, device="tpu") * 4 + 1
values = [torch.linalg.cholesky(a).sum(), torch.linalg.solve(a, a[0]).sum(),
          torch.linalg.eigvalsh(a).sum(), torch.linalg.svdvals(a).sum(),
          torch.linalg.qr(a)[1].sum()]
print(json.dumps({"values": [v.item() for v in values]}))
"""


def test_linear_algebra_of_a_second_process(tmp_path: Path) -> None:
    # Its programs call routines of the host that jax looks up while it lowers.
    cold, second = (_result(_start(tmp_path, FACTORS)) for _ in range(2))
    assert cold["values"] == second["values"]


@pytest.mark.slow
def test_four_processes_at_once_and_one_killed(
    warm: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, cold = tmp_path / "shared", warm[1]
    victim = _start(folder)
    others = [_start(folder) for _ in range(4)]
    deadline = time.monotonic() + 120
    while not any(folder.glob("*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    # What a writer leaves that is killed before its rename.
    (folder / "half.part").write_bytes(b"TTUC1\n")
    for other in others:
        found = _result(other)
        assert found["values"] == cold["values"] and found["corrupt"] == 0
    assert _run(folder)["misses"] == 0


@pytest.mark.slow
def test_off(warm: tuple[Path, dict[str, Any]]) -> None:
    off = _run("off")
    assert off["folder"] is None and off["hits"] == off["misses"] == 0
    assert off["values"] == warm[1]["values"]


def test_a_folder_that_cannot_be_used(warm: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    unusable = _run(tmp_path / "file")
    assert unusable["folder"] is None and "are not kept on disk" in unusable["errors"]
    assert unusable["values"] == warm[1]["values"]


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    before = Statistics.evictions
    cache = ProgramCache(tmp_path, 5000)
    for i in range(4):
        cache.put(f"key{i}", bytes([i]) * 1000)
        os.utime(cache._file(f"key{i}"), (i, i))
    assert cache.get("key0") == bytes(1000)  # used just now
    cache.put("new", bytes(1500))
    kept = {k for k in ("key0", "key1", "key2", "key3", "new") if cache._file(k).exists()}
    assert kept == {"key0", "key3", "new"}
    assert Statistics.evictions - before == 2
    assert cache.used == sum(size for _, size, _ in cache.entries()) <= 5000
    cache.put("huge", bytes(6000))
    assert cache.get("huge") is None


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ProgramCache(tmp_path, 5000)

    def full(source: Any, target: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        cache.put("key", bytes(100))
    assert list(tmp_path.iterdir()) == []
