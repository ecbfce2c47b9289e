"""PyTorch's device-generic tests, run for the device `tpu`: passed, failed and skipped per file.

    git clone --depth 1 https://github.com/Ascend/pytorch            # any folder of such tests
    python benchmarks/device_tests.py pytorch/test                   # the eight files of FILES
    python benchmarks/device_tests.py pytorch/test --files torch,reductions --every 10
    python benchmarks/device_tests.py pytorch/test --files view_ops --match '*conj*' --errors

The folder holds PyTorch's own `test_*.py`, as PyTorch or a backend outside of its tree keeps them.
The files are copied to a temporary folder, with that backend's name replaced by ours, and run there
one by one, each in a process of its own that is started again after a crash or a test that hangs.
`device_tests.txt` beside this script lists the tests that are left out, each with its reason.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import importlib.util
import json
import os
import random
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

FILES = (
    "view_ops,indexing,type_promotion,shape_ops,sort_and_select,tensor_creation_ops,"
    "unary_ufuncs,binary_ufuncs"
)
LEFT_OUT = Path(__file__).with_name("device_tests.txt")
MEMORY = 5 << 30  # a process that holds more is replaced: it keeps every program it compiled
OUTCOMES = ("passed", "failed", "error", "crashed", "timeout", "skipped", "left out")
# What a copy says instead. The names stand alone or in parts of identifiers, never inside a word.
REPLACED = (
    (r"^(\s*)import torch_npu\.testing.*$", r"\1import torch_tpu_unified"),
    (r"\btorch_npu\.testing\.(?:testcase|common_utils)\b", "torch.testing._internal.common_utils"),
    (r"\btorch_npu\.testing\.(?!_internal)", "torch.testing._internal."),
    (r"\btorch_npu\.testing\b", "torch.testing"),
    (r"\btorch_npu\b", "torch_tpu_unified"),
    (r"(?<![a-zA-Z])npu(?![a-zA-Z])", "tpu"),
    (r"(?<![a-zA-Z])NPU(?![a-zA-Z])", "TPU"),
)


def converted(text: str) -> str:
    """The text of a test file with another backend's name and helper modules replaced by ours."""
    for pattern, replacement in REPLACED:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


def left_out(path: Path) -> list[tuple[str, str]]:
    """(pattern of `file.Class.test`, reason) for each line `pattern: reason` of the list.

    Raises:
        ValueError: a line has no reason.
    """
    found = []
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            pattern, _, reason = line.partition(": ")
            if not reason.strip():
                raise ValueError(f"{path}: '{line}' gives no reason")
            found.append((pattern.strip(), reason.strip()))
    return found


# ---- in the process that runs tests


class _Result(unittest.TestResult):
    """Tells the parent, line by line, what starts and how it ended."""

    def __init__(self, report: Any) -> None:
        super().__init__()
        self.report, self.began = report, 0.0

    def _say(self, test: Any, outcome: str, error: Any = None, note: str = "") -> None:
        if error is not None:
            note = self._exc_info_to_string(error, test)
        line = {"test": name_of(test), "outcome": outcome, "note": note}
        if outcome != "started":
            line["seconds"] = time.monotonic() - self.began
        print(json.dumps(line), file=self.report, flush=True)

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        self.began = time.monotonic()
        self._say(test, "started")

    def addSuccess(self, test: Any) -> None:
        self._say(test, "passed")

    def addFailure(self, test: Any, err: Any) -> None:
        self._say(test, "failed", err)

    def addError(self, test: Any, err: Any) -> None:
        self._say(test, "error", err)

    def addSkip(self, test: Any, reason: str) -> None:
        self._say(test, "skipped", note=reason)

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self._say(test, "passed", note="expected to fail")

    def addUnexpectedSuccess(self, test: Any) -> None:
        # The mark is about another device; that the test passes here is no failure of ours.
        self._say(test, "passed", note="expected to fail on another device")

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self._say(test, "failed", err)


def name_of(test: Any) -> str:
    return f"{type(test).__name__}.{test._testMethodName}"


def _use_host() -> None:
    """Make random inputs and compare values on the host, which needs no programs for that.

    What a test asks of shapes, strides, dtypes and devices is still asked of the device's tensors.
    """
    import torch
    from torch.testing import _comparison, _creation

    make, compare = _creation.make_tensor, _comparison.TensorLikePair._compare_values

    def make_tensor(*shape: Any, device: Any, requires_grad: bool = False, **how: Any) -> Any:
        host = make(*shape, device="cpu", **how)
        if host._base is not None:  # every second element of the last dimension, see noncontiguous
            moved = host._base.to(device)[..., 1::2]
        else:
            moved = host.to(device)
        return moved.requires_grad_(requires_grad) if requires_grad else moved

    def compare_values(self: Any, actual: Any, expected: Any) -> None:
        if actual.layout == expected.layout == torch.strided:
            actual, expected = actual.detach().cpu(), expected.detach().cpu()
        compare(self, actual, expected)

    torch.testing.make_tensor = _creation.make_tensor = make_tensor
    _comparison.TensorLikePair._compare_values = compare_values  # type: ignore[method-assign]


def _tests(path: Path) -> dict[str, Any]:
    """The tests of one file for our device, by name."""
    import torch

    _use_host()
    from torch.testing._internal import common_device_type

    assert torch._C._get_privateuse1_backend_name() == "tpu"
    common_device_type.PrivateUse1TestBase.device_type = "tpu"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    found: dict[str, Any] = {}
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, common_device_type.PrivateUse1TestBase):
            for test in unittest.defaultTestLoader.loadTestsFromTestCase(value):
                found[name_of(test)] = test
    return found


def child(path: Path, report: Any) -> None:
    """Print the tests' names, then run those that come by name on standard input."""
    tests = _tests(path)
    print(json.dumps({"names": sorted(tests)}), file=report, flush=True)
    wanted = [line.strip() for line in sys.stdin]
    result = _Result(report)
    # One suite, so that class fixtures run once for each class.
    for name in wanted:
        suite = unittest.TestSuite([tests[name]])
        suite.run(result)
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if held > MEMORY:
            print(json.dumps({"full": held}), file=report, flush=True)
            return
    print(json.dumps({"full": 0}), file=report, flush=True)


# ---- in the process that starts those


class _Process:
    """A process that runs tests of one file and reports over a pipe."""

    def __init__(self, path: Path) -> None:
        read, write = os.pipe()
        self.lines = b""
        self.pipe = read
        environment = {
            **os.environ,
            "PYTORCH_TESTING_DEVICE_ONLY_FOR": "privateuse1",
            "PYTORCH_TEST_WITH_SLOW": "0",
            "TTU_QUIET": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, "--child", str(write), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(write,),
            env=environment,
            cwd=path.parent,
        )
        os.close(write)
        assert self.process.stderr is not None
        os.set_blocking(self.process.stderr.fileno(), False)
        self.errors = b""

    def line(self, limit: float) -> dict[str, Any] | None:
        """The next report; None at the end of the process.

        Raises:
            TimeoutError: none came within the limit.
        """
        end = time.monotonic() + limit
        while b"\n" not in self.lines:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            ready = select.select([self.pipe, self.process.stderr], [], [], min(left, 1.0))[0]
            if self.process.stderr in ready:
                more = self.process.stderr.read()  # type: ignore[union-attr]
                self.errors = (self.errors + (more or b""))[-20000:]
            if self.pipe in ready:
                chunk = os.read(self.pipe, 1 << 16)
                if not chunk:
                    return None
                self.lines += chunk
        first, _, self.lines = self.lines.partition(b"\n")
        return dict(json.loads(first))

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.pipe)


def run_file(path: Path, options: Any, excluded: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """The results of one file's tests.

    Raises:
        RuntimeError: the file cannot be loaded.
    """
    done: dict[str, dict[str, Any]] = {}
    wanted: list[str] | None = None
    while wanted is None or wanted:
        process = _Process(path)
        try:
            first = process.line(300)
            if first is None:
                raise RuntimeError(f"{path.name} cannot be loaded:\n{process.errors.decode()}")
            if wanted is None:
                wanted = _chosen(path.stem, first["names"], options, excluded, done)
            assert process.process.stdin is not None
            process.process.stdin.write("\n".join(wanted).encode())
            process.process.stdin.close()
            _collect(process, done, options)
        finally:
            process.stop()
        wanted = [name for name in wanted if name not in done]
    return list(done.values())


def _chosen(
    file: str, names: list[str], options: Any, excluded: list[tuple[str, str]], done: dict[str, Any]
) -> list[str]:
    """The tests that shall run; those that the list leaves out are noted as done."""
    names = [n for n in names if fnmatch.fnmatch(n, options.match)]
    if options.every > 1:
        chosen = random.Random(options.seed).sample(names, -(-len(names) // options.every))
        names = sorted(chosen)
    for name in names:
        for pattern, reason in excluded:
            if fnmatch.fnmatch(f"{file}.{name}", pattern):
                done[name] = {"test": name, "outcome": "left out", "note": reason, "seconds": 0.0}
                break
    return [n for n in names if n not in done]


def _collect(process: _Process, done: dict[str, dict[str, Any]], options: Any) -> None:
    """Read one process's reports until it ends; what it was running then has crashed."""
    running = None
    while True:
        try:
            line = process.line(options.timeout)
        except TimeoutError:
            if running is not None:
                done[running] = _ended(running, "timeout", f"longer than {options.timeout} s")
            return
        if line is None:
            code = process.process.wait()
            if running is None:
                raise RuntimeError(f"ended with {code} between tests: {process.errors.decode()}")
            why = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            done[running] = _ended(running, "crashed", why + "\n" + process.errors.decode())
            return
        if "full" in line:
            return
        if line["outcome"] == "started":
            running = line["test"]
            continue
        before = done.get(line["test"])
        if before is None or before["outcome"] == "passed":
            done[line["test"]] = line
            if options.errors and line["outcome"] in ("failed", "error"):
                print(f"---- {line['test']}\n{line['note']}", file=sys.stderr, flush=True)


def _ended(test: str, outcome: str, note: str) -> dict[str, Any]:
    return {"test": test, "outcome": outcome, "note": note, "seconds": 0.0}


def row(name: str, results: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """One line of the table: how many tests had each outcome, and the share that passed."""
    counts = collections.Counter(r["outcome"] for r in results)
    ran = sum(n for outcome, n in counts.items() if outcome not in ("skipped", "left out"))
    rate = 100.0 * counts["passed"] / ran if ran else 100.0
    return {"file": name, **{o: counts[o] for o in OUTCOMES}, "rate": rate, "seconds": seconds}


def _format(r: dict[str, Any]) -> str:
    counts = "".join(f"{r[o]:>9}" for o in OUTCOMES)
    return f"{r['file']:<28}{counts}{r['rate']:>8.2f}%{r['seconds']:>8.0f}s"


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("folder", type=Path, help="a folder of PyTorch's test files")
    p.add_argument("--files", default=FILES, help="names without test_ and .py, comma separated")
    p.add_argument("--match", default="*", help="only tests `Class.test` that match")
    p.add_argument("--every", type=int, default=1, help="a seeded sample of one test in N")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--timeout", type=float, default=120, help="seconds a test may take")
    p.add_argument("--leave-out", type=Path, default=LEFT_OUT, help="list of `pattern: reason`")
    p.add_argument("--least", type=float, default=0, help="exit 1 where a file's rate is lower")
    p.add_argument("--json", type=Path, help="write every test's outcome here")
    p.add_argument("--errors", action="store_true", help="print each failure as it comes")
    options = p.parse_args()
    excluded = left_out(options.leave_out)
    rows, everything = [], {}
    print(f"{'file':<28}" + "".join(f"{o:>9}" for o in OUTCOMES) + f"{'rate':>9}{'time':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.files.split(","):
            source = options.folder / f"test_{name}.py"
            copy = Path(folder) / f"test_{Path(name).name}.py"
            copy.write_text(converted(source.read_text()))
            began = time.monotonic()
            results = run_file(copy, options, excluded)
            rows.append(row(name, results, time.monotonic() - began))
            everything[name] = results
            print(_format(rows[-1]), flush=True)
            if options.json:
                options.json.write_text(json.dumps({"rows": rows, "tests": everything}, indent=1))
    return int(any(r["rate"] < options.least for r in rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        descriptor, file = int(sys.argv[2]), Path(sys.argv[3])
        sys.argv[1:] = []  # PyTorch's test modules read the command line
        with os.fdopen(descriptor, "w") as pipe:
            child(file, pipe)
    else:
        sys.exit(main())
