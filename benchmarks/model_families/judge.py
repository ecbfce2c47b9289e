"""One model, judged: forward and a training step, compiled for tpu and by `aot_eager` on the CPU.

The reference is the same module in eager mode on the CPU. Where its float32 results are themselves
uncertain (a random model amplifies rounding), the reference in float64 says by how much.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

FORWARD, GRADIENT = 1e-4, 1e-3
ATTEMPTS = 3
SLACK = 10.0  # times CPU's own distance from float64
KINDS = ("tpu forward", "tpu training", "aot_eager forward", "aot_eager training")


@dataclass
class Sample:
    """A module on the CPU, float32, without dropout, and keyword arguments of its forward."""

    model: nn.Module
    inputs: dict[str, Any]
    name: str = ""


class NotJudged(Exception):
    """The sample has no reference: it does not build or run, or is random."""


def tensors(value: Any) -> list[torch.Tensor]:
    """The floating tensors of a result, in order; caches and other objects are left out."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return list(itertools.chain.from_iterable(map(tensors, value)))
    return []


def without_dropout(model: nn.Module) -> nn.Module:
    """The module with every rate of dropout at zero, in place."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            drops = any(part in name for part in ("drop", "mask_time_prob", "mask_feature_prob"))
            if drops and type(value) is float:
                setattr(module, name, 0.0)
        if type(module).__name__ in ("Dropout", "Dropout2d", "DropPath", "DropBlock2d"):
            for name in ("p", "drop_prob"):
                if hasattr(module, name):
                    setattr(module, name, 0.0)
    return model


def moved(tree: Any, to: Any) -> Any:
    """A structure of inputs with its tensors on a device, or its floating ones in a dtype."""
    if isinstance(tree, torch.Tensor):
        floats = isinstance(to, torch.dtype) and not tree.is_floating_point()
        return tree if floats else tree.to(to)
    if isinstance(tree, dict):
        return {k: moved(v, to) for k, v in tree.items()}
    return type(tree)(moved(v, to) for v in tree) if isinstance(tree, (list, tuple)) else tree


def forward(model: nn.Module, inputs: Any) -> list[torch.Tensor]:
    """The results in evaluation mode."""
    model.eval()
    with torch.no_grad():
        return [t.detach().cpu() for t in tensors(model(**inputs))]


def training(model: nn.Module, inputs: Any) -> list[torch.Tensor]:
    """The loss of a step in training mode, and the gradient of every parameter that has one."""
    model.train()
    model.zero_grad()
    results = tensors(model(**inputs))
    # Means of squares alone would be blind to a sign, and have no gradient after a norm.
    loss = sum((r.float().sin() * r.float()).mean() for r in results if r.requires_grad)
    if not isinstance(loss, torch.Tensor):
        raise NotJudged("no result depends on a parameter")
    loss.backward()
    grads = [p.grad for p in model.parameters()]
    return [loss.detach().cpu(), *(g.detach().cpu() for g in grads if g is not None)]


def distance(found: list[torch.Tensor], expected: list[torch.Tensor]) -> list[float]:
    """For each tensor the largest error over the largest value; values beyond the finite match."""
    if [tuple(t.shape) for t in found] != [tuple(t.shape) for t in expected]:
        raise AssertionError(
            f"{len(found)} results of shapes {[tuple(t.shape) for t in found][:6]}, not "
            f"{len(expected)} of {[tuple(t.shape) for t in expected][:6]}"
        )
    overall = max((_largest(e) for e in expected), default=0.0)
    errors = []
    for f, e in zip(found, expected, strict=True):
        f, e = f.double(), e.double()
        if not torch.equal(torch.isfinite(f), torch.isfinite(e)):
            raise AssertionError("values are not finite in other places")
        scale = max(_largest(e), 1e-3 * overall, 1e-30)
        errors.append(_largest(f - e) / scale)
    return errors


def _largest(t: torch.Tensor) -> float:
    t = t.double()[torch.isfinite(t)]
    return t.abs().max().item() if t.numel() else 0.0


def compiled_on(device: str, backend: str, sample: Sample) -> tuple[nn.Module, Any]:
    """A copy of the sample on a device, compiled as one graph."""
    torch._dynamo.reset()
    model = copy.deepcopy(sample.model).to(device)
    inputs = moved(sample.inputs, device)
    model.compile(backend=backend, fullgraph=True)
    return model, inputs


class Reference:
    """CPU eager's results, and how far they may be missed."""

    def __init__(self, sample: Sample, run: Callable[..., Any], limit: float) -> None:
        self.sample, self.run, self.limit = sample, run, limit
        self.expected = run(copy.deepcopy(sample.model), sample.inputs)
        if not self.expected:
            raise NotJudged("no floating result")
        again = run(copy.deepcopy(sample.model), sample.inputs)
        if max(distance(again, self.expected)) > limit:
            raise NotJudged("random: two runs on the CPU differ")

    def check(self, found: list[torch.Tensor]) -> float:
        """The largest error; AssertionError where a result is wrong."""
        errors = distance(found, self.expected)
        worst = max(errors)
        if worst <= self.limit:
            return worst
        try:
            exact = self.run(
                copy.deepcopy(self.sample.model).double(), moved(self.sample.inputs, torch.float64)
            )
            ours, theirs = distance(found, exact), distance(self.expected, exact)
        except Exception as e:
            raise AssertionError(
                f"error {worst:.1e}; no float64 reference: {type(e).__name__}"
            ) from None
        for mine, theirs_ in zip(ours, theirs, strict=True):
            if mine > max(self.limit, SLACK * theirs_):
                raise AssertionError(f"error {mine:.1e} of float64, CPU's own {theirs_:.1e}")
        return worst


def other_inputs(sample: Sample, seed: int) -> Sample:
    """The same model with other values of its floating inputs."""
    torch.manual_seed(seed)

    def drawn(t: Any) -> Any:
        if isinstance(t, dict):
            return {k: drawn(v) for k, v in t.items()}
        floats = isinstance(t, torch.Tensor) and t.is_floating_point()
        return torch.randn_like(t) * t.std() if floats else t

    model = copy.deepcopy(sample.model)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 + 0.05 * torch.rand_like(p))
    return Sample(model, drawn(sample.inputs), sample.name)


def tried(
    sample: Sample, device: str, backend: str, run: Any, limit: float, first: Reference
) -> tuple[float, int]:
    """The largest error of a sample's compiled form, and how often the sample was drawn.

    A value within rounding of a kink (a ReLU at zero, two maxima that are equal) may fall on its
    other side, and gradients then differ. Such a sample is drawn anew; a fault would show again.
    """
    reference = first
    for attempt in itertools.count(1):
        model, inputs = compiled_on(device, backend, reference.sample)
        try:
            return reference.check(run(model, inputs)), attempt
        except AssertionError:
            if attempt == ATTEMPTS:
                raise
            reference = Reference(other_inputs(sample, attempt), run, limit)
    raise AssertionError


def judge(sample: Sample, kinds: tuple[str, ...] = KINDS) -> dict[str, Any]:
    """What became of a sample: for each kind `ok` or the error, the largest errors, the seconds.

    `leave` says of an `ok` that is beyond the plain tolerance why it counts.

    Raises:
        NotJudged: CPU eager gives no reference.
    """
    found: dict[str, Any] = {"model": sample.name, "errors": {}, "seconds": {}, "leave": {}}
    without_dropout(sample.model)
    for word, run, limit in (("forward", forward, FORWARD), ("training", training, GRADIENT)):
        try:
            reference = Reference(sample, run, limit)
        except NotJudged:
            raise
        except Exception as e:
            raise NotJudged(f"{word} on the CPU: {summary(e)}") from e
        for device, backend, kind in (
            ("cpu", "aot_eager", f"aot_eager {word}"),
            ("tpu", "tpu", f"tpu {word}"),
        ):
            if kind not in kinds:
                continue
            start = time.perf_counter()
            try:
                worst, draws = tried(sample, device, backend, run, limit, reference)
                found["errors"][kind] = worst
                leave = [f"draw {draws} of weights and inputs agrees"] * (draws > 1)
                leave += [f"within {SLACK:.0f} times CPU's distance from float64"] * (worst > limit)
                if leave:
                    found["leave"][kind] = ", ".join(leave)
                found[kind] = "ok"
            except Exception as e:
                found[kind] = summary(e)
            found["seconds"][kind] = round(time.perf_counter() - start, 2)
    return found


def summary(e: BaseException) -> str:
    """An error in one line of at most 400 characters."""
    lines = [line.strip() for line in str(e).splitlines() if line.strip()]
    return f"{type(e).__name__}: {' | '.join(lines[:6])}"[:400]
