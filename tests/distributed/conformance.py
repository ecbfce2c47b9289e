"""Every collective beside gloo, as one rank's program: `python -m tests.distributed.conformance`.

Needs the variables that torchrun sets. Prints the number of cases, and each that differs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from tests.distributed import functional
from tests.distributed.cases import CASES, ONCE, Case, Setting

FEW = (torch.float32, torch.bfloat16, torch.int64)
ALL = (
    *FEW,
    torch.float64,
    torch.float16,
    torch.int32,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
)


def compare(name: str, case: Case, dtype: torch.dtype, group: Any) -> str | None:
    """ "same", "refused" by both; else what differs."""
    try:
        expected = case(Setting("cpu", dtype, group))
    except (RuntimeError, ValueError, TypeError) as e:
        if f"{e}".count("lost") or "Connection" in f"{e}":
            raise
        return "refused"
    found = case(Setting("tpu", dtype, group))
    for i, (e, f) in enumerate(zip(expected, found, strict=True)):
        here = f.cpu()
        exact = not dtype.is_floating_point and not dtype.is_complex
        limits = {"rtol": 0, "atol": 0} if exact else {}
        try:
            torch.testing.assert_close(here, e, equal_nan=True, **limits)
        except AssertionError as error:
            text = " ".join(str(error).split())[:300]
            return f"{name} {dtype} group {group and group.group_name}: output {i}: {text}"
    return "same"


def settings(few: bool, groups: dict[str, Any]) -> list[tuple[str, Case, torch.dtype, Any]]:
    """All (name, case, dtype, group) to compare; a short selection with `few`."""
    found: list[tuple[str, Case, torch.dtype, Any]] = []
    for group in groups.values():
        once = [(n, c, torch.float32, group) for n, c in ONCE.items()]
        wide = [(n, c, d, group) for n, c in CASES.items() for d in (FEW if few else ALL)]
        if few:  # each case once, the dtypes in turn
            wide = wide[:: len(FEW)] if group is not None else wide[:3] + wide[4 :: len(FEW) + 1]
        found += once + wide if group is None or not few else wide[::3]
    return found


def make_groups() -> dict[str, Any]:
    """The world, groups of neighbours, and a split; those that hold this rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    half, _ = dist.new_subgroups(group_size=max(size // 2, 1))
    backwards = dist.new_group(list(range(size))[::-1])
    split = dist.split_group(split_ranks=[list(range(0, size, 2)), list(range(1, size, 2))])
    single = [dist.new_group([r]) for r in range(size)][rank]
    return {"world": None, "half": half, "same": backwards, "split": split, "single": single}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--few", action="store_true")
    few = parser.parse_args().few
    dist.init_process_group(device_id=torch.device("tpu", 0))
    groups = make_groups()
    if few:
        groups = {k: groups[k] for k in ("world", "half")}
    begun, told, refused = time.monotonic(), [], []
    cases = settings(few, groups)
    for name, case, dtype, group in cases:
        if os.environ.get("CASES_SHOWN"):
            print(name, dtype, group and group.group_name, flush=True)
        verdict = compare(name, case, dtype, group)
        refused += [f"{name} {dtype}"] * (verdict == "refused")
        if verdict not in ("same", "refused"):
            told.append(verdict)
    told += functional.differences()
    objects: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(objects, {"rank": dist.get_rank()})
    assert [o["rank"] for o in objects] == list(range(dist.get_world_size()))
    dist.barrier()
    dist.destroy_process_group()
    seconds = time.monotonic() - begun
    print(
        f"{len(cases)} cases, {len(refused)} refused by gloo, {len(told)} differ, {seconds:.0f} s"
    )
    print(*told, sep="\n")
    print("refused by gloo:", *sorted(set(refused)), sep="\n  ")
    sys.exit(bool(told))


if __name__ == "__main__":
    main()
