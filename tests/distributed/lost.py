"""A rank's program in which one rank is killed, or fails, amid all_reduces of the others."""

from __future__ import annotations

import os
import signal
import sys

import torch
import torch.distributed as dist


def main(victim: int, how: str) -> None:
    dist.init_process_group()
    x = torch.ones(1000, device="tpu")
    dist.all_reduce(x)
    print("all ranks met:", x.sum().item(), flush=True)
    if dist.get_rank() == victim:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("this rank fails")
    while True:
        dist.all_reduce(x)
        x.sum().item()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
