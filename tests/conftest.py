"""Shared by all tests: fixed seeds, one thread a process, quiet start of the device, `--full`.

Every test starts from the same seeds whatever ran before it, so that random order and several
processes change nothing. Tests marked `slow` run with `--full` only, those marked `distributed`
with `-m distributed` only.
"""

from __future__ import annotations

import importlib.util
import os
import random
from pathlib import Path

import pytest

os.environ.setdefault("TTU_QUIET", "1")
# Not the user's own folder of compiled programs; a later run of the tests starts warm.
os.environ.setdefault("TTU_CACHE", str(Path(__file__).parents[1] / ".pytest_cache" / "programs"))

import numpy as np
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also the slow tests, and every sample")


def pytest_configure(config: pytest.Config) -> None:
    # The workers share the cores already.
    torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("libtpu") is None:
        absent = pytest.mark.skip(reason="libtpu is not installed; make setup brings it")
        for item in items:
            if item.get_closest_marker("tpu_compiler"):
                item.add_marker(absent)
    left_out = set() if config.getoption("--full") else {"slow"}
    if "distributed" not in config.getoption("markexpr"):
        left_out.add("distributed")
    out = [i for i in items if left_out & {mark.name for mark in i.iter_markers()}]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Whether `--full` is given."""
    return bool(request.config.getoption("--full"))


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
