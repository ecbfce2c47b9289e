"""Runs Google's Edge TPU compiler on a finished file, where it is installed."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

from torch_tpu_unified.core.errors import ConversionError

COMMAND = "edgetpu_compiler"
SECONDS = 600
_FIGURES = re.compile(
    r"^(?:On-chip|Off-chip|Number of Edge TPU|Total number|Model compiled).*$", re.MULTILINE
)


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What the compiler did: the file it wrote, and its own figures; without it, neither."""

    file: str | None
    text: str


def run(model: Path) -> Compiled:
    """Compile a file into its folder; the compiler adds `_edgetpu` to the name.

    Raises:
        ConversionError: the compiler fails, or takes longer than `SECONDS`.
    """
    found = shutil.which(COMMAND)
    if found is None:
        return Compiled(
            None,
            f"{COMMAND} is not installed: the file runs on the CPU as it is; compile it for the "
            "Edge TPU on a machine that has it",
        )
    command = [found, "-s", "-o", str(model.parent), str(model)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired as err:
        raise ConversionError(f"{COMMAND} took more than {SECONDS} s") from err
    said = done.stdout + done.stderr
    if done.returncode:
        raise ConversionError(f"{COMMAND} failed: {said.strip()}")
    written = model.with_name(f"{model.stem}_edgetpu.tflite")
    return Compiled(str(written), "\n".join(_FIGURES.findall(said)) or said.strip())
