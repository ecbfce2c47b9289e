"""Every collective of c10d on tpu tensors equals gloo's on CPU tensors."""

from __future__ import annotations

import re

import pytest

from tests.distributed import ranks

PROGRAM = ["-m", "tests.distributed.conformance"]


def counts(outputs: list[str]) -> list[tuple[int, ...]]:
    pattern = r"(\d+) cases, (\d+) refused by gloo, (\d+) differ"
    return [tuple(map(int, m.groups())) for o in outputs if (m := re.search(pattern, o))]


def test_a_selection_on_two_processes() -> None:
    for total, refused, differ in counts(ranks.run(2, [*PROGRAM, "--few"], limit=240)):
        assert total > 25 and refused < 10 and not differ


@pytest.mark.distributed
@pytest.mark.parametrize("size", [2, 4])
def test_all_collectives_dtypes_and_groups(size: int) -> None:
    found = counts(ranks.run(size, PROGRAM, limit=1500))
    assert len(found) == size
    for total, _, differ in found:
        assert total > 900 and not differ
