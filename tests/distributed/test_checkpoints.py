"""A checkpoint of some ranks is loaded by more, by fewer, and by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed import ranks

PROGRAM = ["-m", "tests.distributed.checkpoints"]


@pytest.mark.distributed
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (2, 1)])
def test_training_goes_on_with_another_number_of_ranks(
    before: int, after: int, tmp_path: Path
) -> None:
    ranks.run(before, [*PROGRAM, "save", str(tmp_path / "saved")], limit=240)
    ranks.run(after, [*PROGRAM, "load", str(tmp_path / "saved")], limit=240)
