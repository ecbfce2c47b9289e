"""When a rank is killed or fails, the others end within 30 seconds, not well, and name it."""

from __future__ import annotations

import pytest

from tests.distributed import ranks


@pytest.mark.distributed
@pytest.mark.parametrize(("victim", "how"), [(1, "kill"), (0, "kill"), (2, "raise"), (0, "raise")])
def test_the_others_end_and_name_it(victim: int, how: str) -> None:
    done = ranks.start(3, ["-m", "tests.distributed.lost", str(victim), how], limit=120)
    assert all("all ranks met: 3000.0" in one.output for one in done)
    for rank, one in enumerate(done):
        if rank == victim:
            continue
        assert one.code not in (0, None), one.output
        # Where rank 0 is killed, jax's coordination service goes with it; jax says "task 0".
        names = [f"rank {victim} is lost", f"rank {victim} failed"]
        names += ["task 0"] * (victim == 0)
        assert any(name in one.output for name in names), one.output
        assert one.seconds - done[victim].seconds < 30
