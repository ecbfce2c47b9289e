"""Which operators PyTorch differentiates, read from the formulas that it ships.

`torchgen` carries derivatives.yaml, from which PyTorch's autograd was generated. Only names and
formulas are read, by line.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

_NAME = re.compile(r"^- name: (?P<name>[\w.]+)\((?P<arguments>.*)\) ->")
_FORMULA = re.compile(r"^ +(?P<arguments>\w[\w, ]*): (?P<formula>.+)$")
_CALL = re.compile(r"\b(\w+)\(")
_NO_FORMULA = ("output_differentiability", "result", "dispatch", "default")


@functools.cache
def formulas() -> dict[str, tuple[str, ...]]:
    """Operator (`name.overload`) -> the formulas of its arguments."""
    path = _shipped()
    found: dict[str, tuple[str, ...]] = {}
    name = ""
    for line in path.read_text(encoding="utf-8").splitlines() if path else ():
        if match := _NAME.match(line):
            name = match["name"].removesuffix(".")
            found[name] = ()
        elif "AutogradNestedTensor" in line:
            name = ""  # formulas of another layout follow
        elif name and (match := _FORMULA.match(line)):
            if not match["arguments"].startswith(_NO_FORMULA):
                found[name] = (*found[name], match["formula"].strip())
            elif match["arguments"] == "output_differentiability" and "True" not in line:
                found[name] = ("non_differentiable",)
                name = ""
    return found


def _shipped() -> Path | None:
    import importlib.util

    spec = importlib.util.find_spec("torchgen")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else None
    path = folder / "packaged" / "autograd" / "derivatives.yaml" if folder else None
    return path if path is not None and path.is_file() else None


def called(formula: str) -> set[str]:
    """Names of the functions that a formula calls."""
    return set(_CALL.findall(formula))


def real(formula: str) -> bool:
    """False for `non_differentiable` and for what PyTorch has not implemented."""
    return not formula.startswith(("non_differentiable", "not_implemented", '"not_implemented'))
