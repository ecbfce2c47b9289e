"""DDP, FSDP2, tensor parallel, 2-D and pipelines end where training in one process ends."""

from __future__ import annotations

import pytest

from tests.distributed import ranks

PROGRAM = ["-m", "tests.distributed.strategies"]


def test_ddp_and_fsdp_of_mingpt_on_two_processes() -> None:
    ranks.run(2, [*PROGRAM, "--models", "mingpt", "ddp", "fsdp"], limit=240)


@pytest.mark.distributed
@pytest.mark.parametrize("options", [[], ["--compile"]], ids=["eager", "compiled"])
@pytest.mark.parametrize("size", [2, 4])
def test_all_strategies(size: int, options: list[str]) -> None:
    ranks.run(size, [*PROGRAM, *options], limit=1800)


@pytest.mark.distributed
@pytest.mark.xfail(reason="PyTorch's reducer needs pinned memory for this", strict=True)
def test_parameters_that_some_ranks_do_not_use() -> None:
    ranks.run(2, [*PROGRAM, "--models", "mingpt", "ddp_unused"], limit=120)
