"""Proof that the op tests can fail: break one lowering, and see a test notice.

As a pytest plugin (`-p tests.breaking --break cloud:aten.gelu.default`) it damages that one
lowering. As a program (`python -m tests.breaking`) it does so for a random sample of each half, one
pytest run each, and exits 1 if a damaged lowering passes unnoticed.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

SUITES = {"cloud": "tests/cloud/test_ops.py", "litert": "tests/litert/test_ops.py"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--break", dest="broken", metavar="HALF:OP", help="damage this lowering")


def pytest_configure(config: pytest.Config) -> None:
    if broken := config.getoption("broken"):
        half, _, name = broken.partition(":")
        damage(half, name)


def _table(half: str) -> Any:
    if half == "cloud":
        import torch_tpu_unified  # noqa: F401
        from cloud_backend import ops, runtime

        runtime.start()
        return ops.load()
    from litert_export import ops as litert_ops

    return litert_ops.load()


def damage(half: str, name: str) -> None:
    """Replace the lowering of one operator by one whose first result is off."""
    table = _table(half)
    op = next(o for o in table if str(o) == name)
    entry = table.entries[op]
    spoil = _spoil_array if half == "cloud" else _spoil_value

    def broken(*args: Any, **kwargs: Any) -> Any:
        return _first(entry.function(*args, **kwargs), lambda r: spoil(r, *args))

    table.entries[op] = dataclasses.replace(entry, function=broken)


# Their values mean nothing, so none is wrong.
UNDEFINED = {"aten.empty.memory_format", "aten.empty_strided.default"}


def _first(results: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(results, (tuple, list)):
        changed = [*results]
        for i, r in enumerate(changed):
            if r is not None:
                changed[i] = _first(r, change)
                break
        return type(results)(changed)
    return change(results)


def _spoil_array(result: Any, *args: Any) -> Any:
    import jax.numpy as jnp

    result = jnp.asarray(result)
    return ~result if result.dtype == bool else (result * 2 + 1).astype(result.dtype)


def _spoil_value(result: Any, g: Any, *args: Any) -> Any:
    import numpy as np

    if result.dtype == "bool":
        return g.emit("LOGICAL_NOT", result)
    one = g.const(np.ones((), result.dtype))
    return g.emit("ADD", result, one)


def _selections(half: str, name: str) -> Iterator[list[str]]:
    """Arguments of pytest runs that may notice, the quickest first."""
    suite = SUITES[half]
    if half == "cloud":
        tests = _reaching(name)
        if tests:
            yield [f"{suite}::{test}" for test in tests]
        yield ["tests/cloud/test_graph_operators.py"]
        yield ["tests/cloud"]
    else:
        yield [suite, "-k", name.split(".")[1].strip("_")]
        yield [suite]


@functools.cache
def _reach() -> dict[str, set[str]]:
    """Test -> the operators it runs, for the device's op tests of the default run."""
    from tests.cloud.test_ops import CASES, SAMPLES
    from tests.op_cases.coverage import Recorder, chosen, reach_entry

    found = {}
    for label, case in CASES.items():
        recorder, args = Recorder(), case.make()
        with recorder:
            case.fn(*args, **case.kwargs)
        found[f"test_case[{label}]"] = {str(op) for op in recorder.reached}
    for choice in chosen():
        kind, entry = choice
        test = (
            f"test_gradient[{entry}]" if kind == "gradient" else f"test_database[{entry}-float32]"
        )
        found[test] = {str(op) for op in reach_entry(choice, SAMPLES)}
    return found


def _reaching(name: str) -> list[str]:
    return [test for test, reached in _reach().items() if name in reached][:20]


def noticed(half: str, name: str) -> bool:
    """Whether the tests of the default run fail once the lowering is damaged."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.breaking", "-q", "-x"]
    command += ["--break", f"{half}:{name}", "-p", "no:randomly"]
    for selection in _selections(half, name):
        done = subprocess.run([*command, *selection], capture_output=True, text=True, timeout=1800)
        if done.returncode == 1:
            return True
        if done.returncode not in (0, 5):
            raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=5, help="lowerings to damage in each half")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    missed = []
    for half in SUITES:
        names = sorted({str(op) for op in _table(half)} - UNDEFINED)
        for name in random.Random(options.seed).sample(names, options.samples):
            seen = noticed(half, name)
            print(f"{half:7} {name:50} {'a test fails' if seen else 'NOT NOTICED'}", flush=True)
            if not seen:
                missed.append(name)
    print(f"{2 * options.samples - len(missed)} of {2 * options.samples} damaged lowerings noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
