"""A program under test: Python lines that run on the CPU and on `tpu`, compared after each.

The lines are the program: what runs is what is printed when the sides differ.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tests.fuzz import compare
from tests.op_cases import closeness

Tensor = torch.Tensor


class Step(NamedTuple):
    """One line, and how its results are judged.

    source: uses `torch`, `dev` and the names of earlier lines.
    how: 'exact' (bits), 'nan' (numbers equal, any NaN), 'close' (dtype's tolerance), for the new
        names and for those in `written`; everything else is exact always.
    written: names of tensors the line computes into.
    summed: names of tensors whose sizes bound the rounding of a sum.
    """

    source: str
    how: str = "exact"
    written: tuple[str, ...] = ()
    summed: tuple[str, ...] = ()


class Dropped(Exception):
    """The CPU has no kernel for this dtype, so there is nothing to compare with.

    `spoilt`: it may have changed something before it found out.
    """

    def __init__(self, spoilt: bool) -> None:
        super().__init__()
        self.spoilt = spoilt


class Program:
    """The two namespaces, and the lines that made them.

    Args:
        note: called with each line before it runs, so that a crash can be traced.
    """

    def __init__(self, note: Callable[[str], None] = lambda line: None) -> None:
        self.cpu: dict[str, Any] = {"torch": torch, "dev": "cpu"}
        self.tpu: dict[str, Any] = {"torch": torch, "dev": "tpu"}
        self.lines: list[str] = []
        self.kinds: list[str] = []
        self.note = note
        self.count = 0

    # ---- what the drawing of steps asks

    def fresh(self, prefix: str = "v") -> str:
        """A name nobody uses; `h...` are tensors of the host, `v...` of the device."""
        self.count += 1
        return f"{prefix}{self.count}"

    def names(self, prefix: str = "v") -> list[str]:
        """The live tensors."""
        return [n for n, t in self.cpu.items() if n.startswith(prefix) and isinstance(t, Tensor)]

    # ---- running

    def run(self, step: Step, kind: str = "") -> None:
        """Run a step on both sides.

        Raises:
            compare.Difference: the sides disagree.
            Dropped: the CPU cannot do it; nothing was run on the device.
        """
        if step.how != "exact" and self._has_subnormals(step.source):
            raise Dropped(False)
        code = compile(step.source, "<program>", "exec")
        reference = self._reference(step, code)
        floor = self._floor(step)
        before = set(self.cpu)
        theirs = _error(code, self.cpu)
        if theirs is not None and "not implemented for" in str(theirs):
            raise Dropped("out=" in step.source)
        self.lines.append(step.source if theirs is None else guarded(step.source))
        self.kinds.append(kind)
        self.note(self.lines[-1])
        ours = _error(code, self.tpu)
        if not isinstance(ours, type(theirs)):
            raise compare.Difference(f"raises {_named(ours)} instead of {_named(theirs)}")
        cpu, tpu = compare.tensors(self.cpu), compare.tensors(self.tpu)
        compare.check_facts(cpu, tpu)
        judged: dict[str, Any] = {}
        if step.how != "exact":
            new = [n for n in self.cpu if n not in before and n in cpu]
            for name in (*new, *step.written):
                if name in cpu:
                    judged[name] = (step.how, reference.get(name), floor)
        compare.check_values(cpu, tpu, judged)
        for name, value in self.cpu.items():
            if name not in before and name[0] in "sh" and not isinstance(value, Tensor):
                if repr(value) != repr(self.tpu[name]):
                    raise compare.Difference(f"{name} is {self.tpu[name]!r} instead of {value!r}")

    def _has_subnormals(self, source: str) -> bool:
        """XLA's arithmetic takes subnormal numbers for zero; only views of integers make them."""
        for name in set(re.findall(r"\bv\d+", source)):
            t = self.cpu.get(name)
            if isinstance(t, Tensor) and t.dtype in closeness.EPSILON and t.numel():
                t = t.detach()
                sizes = torch.view_as_real(t.resolve_conj()) if t.is_complex() else t
                sizes = sizes.abs()
                if ((sizes > 0) & (sizes < torch.finfo(t.dtype).tiny)).any():
                    return True
        return False

    def _reference(self, step: Step, code: Any) -> dict[str, Any]:
        """The new names in float64, for lines that make them and write nothing."""
        if step.how != "close" or step.written:
            return {}
        wide = {
            n: closeness.widened(v.detach().clone()) if isinstance(v, Tensor) else v
            for n, v in self.cpu.items()
        }
        return {} if _error(code, wide) is not None else wide

    def _floor(self, step: Step) -> float:
        """The rounding error that sums over these tensors may have when they cancel."""
        floor = torch.finfo(torch.float32).tiny
        for name in step.summed:
            t = self.cpu[name].detach()
            epsilon = closeness.EPSILON.get(t.dtype)
            if epsilon is not None and t.numel():
                size = torch.nan_to_num(t.abs().double(), 0.0, 0.0, 0.0).sum().item()
                floor = max(floor, epsilon * size)
        return floor

    def script(self, message: str = "") -> str:
        """The program as a script that runs by itself and prints both sides."""
        return script(self.lines, message)


def guarded(line: str) -> str:
    """A line that raises, so that a script goes on after it."""
    return f"try:\n    {line}\nexcept Exception as e:\n    print(dev, type(e).__name__, e)"


def script(lines: list[str], message: str = "") -> str:
    """A runnable script of these lines that shows what each side ends with."""
    body = "\n".join("    " + line for part in lines for line in part.splitlines())
    said = "".join(f"# {line}\n" for line in message.splitlines())
    return f"""{said}import torch


def program(dev):
{body}
    return locals()


for dev in ("cpu", "tpu"):
    try:
        for name, value in program(dev).items():
            if isinstance(value, torch.Tensor):
                about = value.shape, value.stride(), value.storage_offset(), value._version
                print(dev, name, *about, value.cpu().flatten().tolist())
    except Exception as e:
        print(dev, type(e).__name__, str(e).splitlines()[:1])
"""


def _error(code: Any, namespace: dict[str, Any]) -> Exception | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(code, namespace)
    except Exception as e:
        return e.with_traceback(None)
    return None


def _named(e: Exception | None) -> str:
    if e is None:
        return "nothing"
    return f"{type(e).__name__} ({' '.join(str(e).split())[:200]})"
