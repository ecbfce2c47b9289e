"""The costs of one planned step: memory by class, work, traffic, and bounds of its time."""

from __future__ import annotations

import dataclasses
from typing import Any

from cloud_backend.ahead_report import _size, _time
from cloud_backend.chips import SOURCE, Chip
from cloud_backend.pod.hlo import Traffic

FORMULAS = (
    "compute = FLOPs / peak; memory = HBM bytes / bandwidth; links = bytes received / (links / 2)",
    "full overlap = max(compute, memory, links), no overlap = their sum "
    "(Williams et al., 'Roofline', 2009)",
    "FLOPs: two per multiply-add of the traced program's products, with what remat repeats; "
    "bytes and collectives: the compiler's optimised program, loops multiplied",
    "MFU = model FLOPs / (time x peak x chips); model FLOPs a token = 6 (parameters - embeddings) "
    "+ 12 x layers x heads x head size x length, a third of it for inference "
    "(Chowdhery et al., 'PaLM', 2022, appendix B; as torchtitan counts)",
    "activations: what the forward loops keep; gradients: parameters in the dtype of products; "
    "temporaries: the compiler's temporary memory less these two",
)
IGNORED = (
    "latency and start of collectives and kernels, stragglers, input, checkpoints, and the host",
    "which links a mesh axis gets: each collective has all links of the chip, at their full rate, "
    "though the two devices of a tpu7x chip share a faster path of their own",
    "how far kernels reach the peak rate; padding of small matrices; memory of Pallas kernels "
    "counts operands and results once, though flash attention reads keys again for each block",
)
_CLASSES = ("parameters", "optimiser", "gradients", "activations", "temporaries")


@dataclasses.dataclass
class StepPlan:
    """One step of a model on one topology. Bytes, FLOPs and counts are those of one chip.

    Attributes:
        model, topology, strategy, kind: what was planned; `kind` is "training" or "inference".
        chip, chips, devices, axes: where; jax shows `devices` of `chips`, `axes` is their mesh.
        batch, length: sequences of a step on all chips, and their tokens.
        weights: how many parameters the model has.
        model_flops: that the model asks for, on all chips.
        flops: that the program does, with what remat repeats; `flops_without_remat`: without.
        memory: bytes by class; `needed`: the compiler's total.
        hbm_bytes: to and from HBM.
        traffic: collectives by kind and axes.
        compiler_flops: the compiler's count, in which the body of a loop counts once.
        unknown_loops: loops that count once because nothing tells how often they run.
        compile_seconds: what the compiler took.
        refusal: the compiler's words where the program does not fit.
    """

    model: str
    topology: str
    strategy: str
    kind: str
    chip: Chip
    chips: int
    devices: int
    axes: dict[str, int]
    batch: int
    length: int
    weights: int
    model_flops: float
    flops: float = 0.0
    flops_without_remat: float = 0.0
    memory: dict[str, int] = dataclasses.field(default_factory=dict)
    needed: int = 0
    hbm_bytes: float = 0.0
    traffic: list[Traffic] = dataclasses.field(default_factory=list)
    compiler_flops: float = 0.0
    unknown_loops: int = 0
    compile_seconds: float = 0.0
    refusal: str = ""

    @property
    def fits(self) -> bool:
        """Whether it fits in the memory of a chip."""
        return not self.refusal and self.needed <= self.chip.hbm

    def times(self) -> dict[str, float]:
        """Seconds that each limit alone would take."""
        return {
            "compute": self.flops / self.chip.flops,
            "memory": self.hbm_bytes / self.chip.bandwidth,
            "links": sum(t.moved for t in self.traffic) / (self.chip.links / 2),
        }

    @property
    def overlapped(self) -> float:
        """Seconds of a step when everything overlaps."""
        return max(self.times().values())

    @property
    def serial(self) -> float:
        """Seconds of a step when nothing overlaps."""
        return sum(self.times().values())

    @property
    def bound(self) -> str:
        """Which limit decides."""
        times = self.times()
        return max(times, key=times.__getitem__)

    def mfu(self, seconds: float) -> float:
        """Model FLOPs utilisation of a step that takes so long."""
        return self.model_flops / (seconds * self.chip.flops * self.chips) if seconds else 0.0

    def tokens(self, seconds: float) -> float:
        """Tokens a second of all chips."""
        return self.batch * self.length / seconds if seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain["chip"] = {**self.chip._asdict(), "page": SOURCE + self.chip.page}
        plain["traffic"] = [t._asdict() for t in self.traffic]
        plain |= {"fits": self.fits, "times": self.times(), "formulas": list(FORMULAS)}
        if not self.refusal:
            for name, seconds in (("overlapped", self.overlapped), ("serial", self.serial)):
                plain[name] = {
                    "seconds": seconds,
                    "mfu": self.mfu(seconds),
                    "tokens_per_second": self.tokens(seconds),
                }
        return plain | {"ignored": list(IGNORED)}

    def __str__(self) -> str:
        axes = " x ".join(f"{name} {n}" for name, n in self.axes.items())
        lines = [
            f"{self.model}, {self.kind}, {self.batch} sequences of {self.length} tokens",
            f"{self.topology}: {self.chips} chips ({self.devices} devices: {axes}), strategy "
            f"{self.strategy}; figures of one chip",
        ]
        if self.refusal:
            return "\n".join([*lines, f"memory       does not fit: {self.refusal}"])
        return "\n".join([*lines, *self._costs(), *self._bounds(), *self._notes()])

    def _costs(self) -> list[str]:
        told = "fits" if self.fits else "does not fit"
        share = self.needed / self.chip.hbm
        lines = [
            f"memory       {told}: {_size(self.needed)} of {_size(self.chip.hbm)} ({share:.1%})"
        ]
        lines += [f"  {name:<12} {_size(self.memory[name])}" for name in _CLASSES]
        lines += [
            f"work         {self.flops:.3e} FLOPs ({self.model_flops / self.chips:.3e} of the "
            f"model), {_size(self.hbm_bytes)} to and from HBM",
            "collectives  (results; received over links)",
        ]
        for t in self.traffic:
            axes = " and ".join(t.axes)
            lines.append(
                f"  {t.count:>5} {t.kind} along {axes}: {_size(t.nbytes)}; {_size(t.moved)}"
            )
        return lines if self.traffic else [*lines, "  none"]

    def _bounds(self) -> list[str]:
        times = ", ".join(f"{name} {_time(t)}" for name, t in self.times().items())
        rows = (("full overlap", self.overlapped), ("no overlap", self.serial))
        return [
            f"roofline     bound by {self.bound} ({times})",
            *[
                f"  {name:<12} {_time(s)} a step, MFU {self.mfu(s):.1%}, "
                f"{self.tokens(s):.3e} tokens/s"
                for name, s in rows
            ],
        ]

    def _notes(self) -> list[str]:
        c = self.chip
        lines = [
            f"chip         {c.flops / 1e12:.0f} TFLOP/s (bfloat16), HBM {c.bandwidth / 1e9:.0f} "
            f"GB/s, links {c.links / 1e9:.0f} GB/s both ways ({SOURCE}{c.page})"
        ]
        if self.unknown_loops:
            lines.append(f"  {self.unknown_loops} loops of unknown length count once")
        lines += ["formulas", *(f"  {text}" for text in FORMULAS)]
        return [*lines, "ignored", *(f"  {text}" for text in IGNORED)]
