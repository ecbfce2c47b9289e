"""This project as the user-report cases call it: names are translated, nothing is worked around.

Run from the folder of the cases, with this file found before the one beside them:
PYTHONSAFEPATH=1 PYTHONPATH=path/to/benchmarks:$PWD python run.py --suite convert --adapter ours
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from adapter_base import ConvertAdapter, Precheck
from adapter_device import NamedDevice

import torch_tpu_unified as ttu

DISTRIBUTION = "torch-tpu-unified"


class Ours(ConvertAdapter):
    """Conversion to LiteRT; `capabilities` lists what exists now."""

    name = "ours"
    distribution = DISTRIBUTION
    capabilities = frozenset(
        {
            "cli",
            "compare_capture",
            "device",
            "dynamic_range",
            "dynamic_shapes",
            "edgetpu",
            "fp16",
            "inspect",
            "int16x8",
            "int4",
            "int8",
            "int8_io",
            "names",
            "nhwc_io",
            "precheck",
            "quant_signatures",
            "runtime",
            "signatures",
            "verify",
            "weight_only",
        }
    )

    @staticmethod
    def _quantization(quantize: Any, options: dict[str, Any]) -> dict[str, Any]:
        """The cases' names of modes and of the target as ours."""
        options = dict(options)
        if "target" in options:
            options["to"] = options.pop("target")
        if not quantize:
            return options
        given = dict(quantize)
        mode, bits = given.pop("mode"), given.pop("bits", 8)
        names = {
            "dynamic": "int8-dynamic", "weight_only": f"int{bits}-weight", "fp16": "float16",
        }  # fmt: skip
        options["calibration"] = given.pop("calibration", None)
        options["quantize"] = {"mode": names.get(mode, mode), **given}
        return options

    def convert(
        self,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
        dynamic_shapes: Any = None,
        quantize: Any = None,
        out_path: str = "",
        **options: Any,
    ) -> str:
        self.need_for(dynamic_shapes, quantize, options)
        options = self._quantization(quantize, options)
        ttu.convert(module, args, kwargs, dynamic_shapes=dynamic_shapes, **options).save(out_path)
        return out_path

    def convert_signatures(
        self,
        signatures: Mapping[str, Any],
        quantize: Any = None,
        out_path: str = "",
        **options: Any,
    ) -> str:
        options = self._quantization(quantize, options)
        ttu.convert(signatures=signatures, **options).save(out_path)
        return out_path

    def precheck(
        self,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        quantize: Any = None,
        require_mapped: float | None = None,
        **options: Any,
    ) -> Precheck:
        options = self._quantization(quantize, options)
        found = ttu.precheck(module, args, require_mapped=require_mapped, **options)
        return Precheck(
            text=str(found),
            mapped=found.mapped,
            unmapped=found.unmapped,
            largest_activation=found.largest_activation,
            parameter_bytes=found.parameter_bytes,
            peak_activation=found.peak_activation,
            cached_bytes=found.cached_bytes,
        )

    def inspect(self, path: str) -> str:
        return str(ttu.inspect(path))

    def compare_capture(
        self, path: str, args: tuple[Any, ...], captured: Sequence[Any]
    ) -> list[float]:
        return [row.max_units for row in ttu.compare(path, captured, args).rows]

    def verify(self, module: torch.nn.Module, args: tuple[Any, ...], path: str) -> str:
        return str(ttu.verify(module, path, args))

    def cli(
        self, *argv: str, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        command = shutil.which("tpu-convert") or str(Path(sys.executable).parent / "tpu-convert")
        done = subprocess.run(
            [command, *argv],
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        return done.returncode, done.stdout

    def cli_convert(
        self,
        source: str,
        out: str,
        to: str = "litert",
        input_shape: Sequence[int] | None = None,
        calibration_folder: str | None = None,
        extra: Sequence[str] = (),
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> tuple[int, str]:
        argv = [source, "--to", to, "--output", out]
        if input_shape:
            argv += ["--input", "x".join(map(str, input_shape)), "--trust-pickle"]
        if calibration_folder:
            argv += ["--quantize", "int8", "--calib", calibration_folder]
        return self.cli(*argv, *extra, cwd=cwd, env=env)

    def runtime(self, path: str, delegate: str | None = None) -> Callable[..., list[Any]]:
        model = ttu.load(path, delegate=delegate)

        def run(*arrays: Any) -> list[Any]:
            found = model(*arrays)
            return [y.numpy() for y in (found if isinstance(found, tuple) else (found,))]

        return run

    def to_device(self, module: torch.nn.Module) -> torch.nn.Module:
        return module.to("tpu")


class OurDevice(NamedDevice):
    """The device `tpu`, and what `torch.tpu` offers for tests."""

    def __init__(self) -> None:
        super().__init__("tpu", "torch_tpu_unified")
        self.name, self.distribution = "ours", DISTRIBUTION

    def _call(self, name: str) -> Any:
        function = getattr(torch.tpu, name, None)
        return function() if function else None

    def public_compile_count(self) -> int | None:
        return self._call("compile_count")

    def error_on_recompile(self) -> Any:
        return self._call("error_on_recompile")

    def fallback_count(self) -> int | None:
        return self._call("fallback_count")

    def strict_fallback(self) -> Any:
        return self._call("strict_fallback")

    def peak_memory(self, reset: bool = False) -> int | None:
        peak = self._call("max_memory_allocated")
        if reset:
            self._call("reset_peak_memory_stats")
        return peak


def convert_adapter(rest: str) -> Ours:
    """The adapter of the conversion cases."""
    return Ours()


def device_adapter(rest: str) -> OurDevice:
    """The adapter of the device cases."""
    return OurDevice()
