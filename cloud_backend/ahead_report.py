"""What a compiled TPU program costs: memory, work, traffic, and a roofline estimate of its time."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, NamedTuple

from cloud_backend.chips import SOURCE, Chip
from torch_tpu_unified.core.errors import TtuError

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)\b")
FORMULA = (
    "time = max(FLOPs / peak, bytes / HBM bandwidth, collective bytes / link bandwidth); "
    "utilisation = FLOPs / (time x peak)"
)


class Collective(NamedTuple):
    """Collective operations of one kind and size."""

    kind: str
    count: int
    nbytes: int


class Loop(NamedTuple):
    """A loop of known length.

    Attributes:
        turns: each time that it is reached.
        again: turns in the whole program that the compiler's own count leaves out.
        flops, bytes_accessed: of one turn.
    """

    turns: int
    again: int
    flops: float
    bytes_accessed: float


class OutOfMemory(TtuError, MemoryError):
    """The TPU compiler says that a program does not fit; `report` holds what is known."""

    def __init__(self, text: str, report: TpuReport) -> None:
        super().__init__(text)
        self.report = report


@dataclasses.dataclass
class TpuReport:
    """One program on one topology; sizes in bytes and counts are those of one device.

    Attributes:
        topology, chip, devices, shard: what it was compiled for.
        weights: bytes of all weights before they are spread.
        largest: the largest tensors of the program, before they are spread.
        flops, bytes_accessed: the compiler's counts, and what loops do again.
        loops: those of known length, if one device runs the program.
        arguments, results, temporaries, aliased, code: bytes of memory.
        collectives: communication between devices.
        refusal: the compiler's words when it does not fit.
    """

    topology: str
    chip: Chip
    devices: int
    shard: str
    weights: int
    largest: list[tuple[str, int]]
    flops: float = 0.0
    bytes_accessed: float = 0.0
    arguments: int = 0
    results: int = 0
    temporaries: int = 0
    aliased: int = 0
    code: int = 0
    loops: list[Loop] = dataclasses.field(default_factory=list)
    collectives: list[Collective] = dataclasses.field(default_factory=list)
    refusal: str = ""

    @property
    def hbm(self) -> int:
        """Memory of one device."""
        return self.chip.hbm // self.chip.devices

    @property
    def needed(self) -> int:
        """Memory that the program takes on one device."""
        return self.arguments + self.results - self.aliased + self.temporaries + self.code

    @property
    def fits(self) -> bool:
        """Whether it fits in the memory of a device."""
        return not self.refusal and self.needed <= self.hbm

    @property
    def intensity(self) -> float:
        """FLOPs for each byte that goes to or from memory."""
        return self.flops / self.bytes_accessed if self.bytes_accessed else 0.0

    def times(self) -> dict[str, float]:
        """Seconds that each limit alone would take."""
        share = self.chip.devices
        moved = sum(c.count * c.nbytes for c in self.collectives)
        return {
            "compute": self.flops / (self.chip.flops / share),
            "memory": self.bytes_accessed / (self.chip.bandwidth / share),
            "links": moved / (self.chip.links / share),
        }

    @property
    def seconds(self) -> float:
        """The roofline estimate of one step."""
        return max(self.times().values())

    @property
    def bound(self) -> str:
        """Which limit decides."""
        times = self.times()
        return max(times, key=times.__getitem__)

    @property
    def utilisation(self) -> float:
        """The share of the peak rate that the estimate allows."""
        peak = self.chip.flops / self.chip.devices
        return self.flops / (self.seconds * peak) if self.seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain["chip"] = {**self.chip._asdict(), "page": SOURCE + self.chip.page}
        plain["loops"] = [loop._asdict() for loop in self.loops]
        plain["collectives"] = [c._asdict() for c in self.collectives]
        plain |= {
            "hbm": self.hbm,
            "needed": self.needed,
            "fits": self.fits,
            "intensity": self.intensity,
            "seconds": self.seconds,
            "bound": self.bound,
            "utilisation": self.utilisation,
            "formula": FORMULA,
        }
        return plain

    def __str__(self) -> str:
        return "\n".join([self._head(), *self._memory(), *self._work()])

    def _head(self) -> str:
        spread = {
            "none": "one device",
            "batch": f"{self.devices} devices, inputs spread",
            "weights": f"{self.devices} devices, inputs and weights spread",
        }
        return f"{self.topology} ({self.chip.kind}): {spread[self.shard]}; figures of one device"

    def _memory(self) -> list[str]:
        if self.refusal:
            return [
                f"memory       does not fit in {_size(self.hbm)}: {self.refusal}",
                f"weights      {_size(self.weights)} before they are spread",
                "largest tensors of the program, before they are spread",
                *[f"  {_size(nbytes):>10}  {name}" for name, nbytes in self.largest],
            ]
        rows = [
            ("arguments", self.arguments),
            ("results", self.results - self.aliased),
            ("temporaries", self.temporaries),
            ("code", self.code),
        ]
        parts = ", ".join(f"{name} {_size(n)}" for name, n in rows)
        share = self.needed / self.hbm
        told = "fits" if self.fits else "does not fit"
        return [
            f"memory       {told}: {_size(self.needed)} of {_size(self.hbm)} ({share:.1%}): {parts}"
        ]

    def _work(self) -> list[str]:
        if self.refusal:
            return []
        moved = [f"  {c.count} x {c.kind} of {_size(c.nbytes)}" for c in self.collectives] or [
            "  none"
        ]
        times = ", ".join(f"{name} {_time(t)}" for name, t in self.times().items())
        chip, share = self.chip, self.chip.devices
        return [
            f"work         {self.flops:.3e} FLOPs, {_size(self.bytes_accessed)} to and from "
            f"memory, {self.intensity:.1f} FLOPs a byte",
            "collectives",
            *moved,
            f"roofline     {_time(self.seconds)} a step, bound by {self.bound} ({times}); at most "
            f"{self.utilisation:.1%} of the peak rate",
            f"  {FORMULA}",
            f"  of one device: peak {chip.flops / share / 1e12:.0f} TFLOP/s (bfloat16), HBM "
            f"{chip.bandwidth / share / 1e9:.0f} GB/s, links {chip.links / share / 1e9:.0f} GB/s "
            f"({SOURCE}{chip.page})",
            self._counting(),
        ]

    def _counting(self) -> str:
        once = "the compiler counts the body of a loop once"
        if self.shard != "none":
            return f"  {once}"
        turns = ", ".join(str(loop.turns) for loop in self.loops)
        added = f"; added: the other turns of loops of {turns} turns" if turns else ""
        return f"  {once}{added}"


def _size(nbytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.2f} {unit}"
        nbytes /= 1024
    raise AssertionError(nbytes)


def _time(seconds: float) -> str:
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.2f} {unit}"
    return f"{seconds * 1e6:.2f} us"


def refused(report: TpuReport, text: str) -> OutOfMemory:
    """The error for a program that does not fit, from the compiler's words."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines[0] = lines[0].removeprefix("RESOURCE_EXHAUSTED: ")
    report.refusal = "; ".join(lines[:12])
    return OutOfMemory(f"the program does not fit\n{report}", report)
