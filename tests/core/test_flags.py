"""Flags: parsing, errors that name the allowed values, the context manager."""

from __future__ import annotations

import pytest

from torch_tpu_unified.core import flags
from torch_tpu_unified.core.errors import InputError


@pytest.fixture(autouse=True)
def _restored() -> object:
    before = {name: flag.value for name, flag in flags.REGISTRY.items()}
    yield
    for name, value in before.items():
        flags.REGISTRY[name].value = value


def test_values_come_from_the_environment() -> None:
    flags.read_environment({"TTU_DEBUG": " 1 ", "TTU_FALLBACK": "warn", "TTU_QUIET": "1"})
    assert (flags.DEBUG.value, flags.FALLBACK.value, flags.QUIET.value) == (1, "warn", True)
    flags.read_environment({"TTU_DEBUG": ""})
    assert (flags.DEBUG.value, flags.FALLBACK.value, flags.DUMP.value) == (0, "error", "")


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("TTU_DEBUG", "5", "0, 1"),
        ("TTU_DEBUG", "loud", "0, 1"),
        ("TTU_FALLBACK", "cpu", "error, warn"),
        ("TTU_QUIET", "yes", "0, 1"),
    ],
)
def test_a_wrong_value_is_told_the_right_ones(name: str, value: str, allowed: str) -> None:
    with pytest.raises(InputError, match=f"{name}='{value}'.*{allowed}"):
        flags.read_environment({name: value})


def test_a_flag_is_set_for_a_block() -> None:
    before = flags.DEBUG.value
    with pytest.raises(KeyError), flags.DEBUG(1):
        assert flags.DEBUG.value == 1
        raise KeyError
    assert flags.DEBUG.value == before


def test_names_are_unique_and_prefixed() -> None:
    with pytest.raises(ValueError, match="TTU_"):
        flags.Flag("DEBUG", str, "", "", "")
    with pytest.raises(ValueError, match="unique"):
        flags.Flag("TTU_DEBUG", str, "", "", "")
