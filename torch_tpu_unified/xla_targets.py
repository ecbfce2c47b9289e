"""`convert(to="stablehlo")`, `convert(to="tpu")` and `tpu-cache`: programs for XLA.

The program is checked beside PyTorch on the example inputs through XLA on this machine; a program
whose weights are on `meta` has no values to check.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from torch_tpu_unified import agreement, files, programs
from torch_tpu_unified.agreement import Agreement
from torch_tpu_unified.core.errors import ConversionError, OptionError
from torch_tpu_unified.programs import Program
from torch_tpu_unified.tables import readable_bytes

# Of the largest result: what float32 rounding leaves of a gradient that is zero.
_ROUNDING = 1e-6
Progress = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True)
class XlaProgram:
    """A finished program.

    Attributes:
        model: the file's content: StableHLO text or bytecode, or an executable with its report.
        kind: `stablehlo text`, `stablehlo bytecode 1.2.3` or `tpu executable`.
        verified: the comparison with PyTorch; None when it was not asked for or has no values.
        report: a `TpuReport` of an executable, else None.
    """

    model: bytes
    kind: str
    verified: Agreement | None
    report: Any = None

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file by an atomic rename; returns its real path.

        Raises:
            InputError: the folder is missing or not writable.
            WriteError: the disk is full; an older file survives.
        """
        return files.write(path, self.model)

    def __str__(self) -> str:
        lines = [f"{self.kind}, {readable_bytes(len(self.model))}"]
        if self.report is not None:
            lines.append(str(self.report))
        if self.verified is None:
            lines.append("not verified")
        else:
            lines += ["XLA on this machine beside PyTorch on the example inputs"]
            lines += [str(self.verified)]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        return {
            "kind": self.kind,
            "size": len(self.model),
            "verified": self.verified.as_json() if self.verified else None,
            "report": self.report.as_json() if self.report is not None else None,
        }


def convert(
    to: str,
    given: Any,
    args: Sequence[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    *,
    train: bool = False,
    text: bool = True,
    stablehlo_version: str | None = None,
    topology: str | None = None,
    shard: str = "none",
    verify: bool = True,
    progress: Progress | None = None,
) -> XlaProgram:
    """Lower a program to StableHLO, or compile it for a TPU that need not be here.

    Args:
        to: `stablehlo` or `tpu`.
        given, args, kwargs: as for `torch_tpu_unified.convert`; weights may be on `meta`.
        train: the program returns a loss; add the gradients of its parameters as results.
        text: StableHLO as text; False: as portable bytecode.
        stablehlo_version: of the bytecode, the oldest that shall read it.
        topology: of `tpu`, such as `v6e:2x4`.
        shard: `none`, `batch` or `weights`: how a topology's devices share the work.
        verify: compare XLA's results here with PyTorch's.

    Raises:
        OptionError: an option is missing or wrong, or libtpu is not installed.
        ConversionError: the program cannot be exported or compiled.
        LoweringError: operators have no lowering.
        OutOfMemory: the program does not fit the device; the error holds the report.
        VerificationError: XLA's results are not PyTorch's.
    """
    from cloud_backend import ahead, stablehlo

    tell = progress or (lambda name, number, total: None)
    if to == "tpu" and topology is None:
        raise OptionError("the target tpu needs a topology, such as topology='v6e:2x4'")
    if to == "stablehlo" and (topology is not None or shard != "none"):
        raise OptionError("topology and shard belong to the target tpu")
    if text and stablehlo_version is not None:
        raise OptionError("stablehlo_version belongs to the bytecode: text=False, or -o X.mlirbc")
    tell("export", 0, 0)
    exported, program = _exported(given, args, kwargs, train)
    if train:
        exported = stablehlo.training_step(exported)
    with programs.quiet():
        pure = stablehlo.PureProgram(exported)
    verified = None
    if verify and not _on_meta(exported):
        tell("verify", 0, 0)
        verified = _compare(pure, exported, program, train)
    tell("lower" if to == "stablehlo" else "compile", 0, 0)
    if to == "tpu":
        assert topology is not None
        made = ahead.compile_for(pure, topology, shard=shard)
        return XlaProgram(made.packed(), "tpu executable", verified, made.report)
    if text:
        return XlaProgram(stablehlo.text(pure).encode(), "stablehlo text", verified)
    content = stablehlo.portable(pure, target=stablehlo_version)
    version = stablehlo_version or stablehlo.version()
    return XlaProgram(content, f"stablehlo bytecode {version}", verified)


def _exported(
    given: Any, args: Any, kwargs: Any, train: bool
) -> tuple[ExportedProgram, Program | None]:
    """The exported program, and what it is compared with in eval mode."""
    if isinstance(given, torch.nn.Module) and (train or _meta_module(given)):
        if args is None and not kwargs:
            raise OptionError("give example inputs")
        if _meta_module(given):
            args, kwargs = pytree.tree_map_only(
                torch.Tensor, lambda t: t.to("meta"), (tuple(args or ()), kwargs or {})
            )
        try:
            with programs.quiet():
                return torch.export.export(given, tuple(args or ()), kwargs or {}), None
        except Exception as error:  # torch.export raises many kinds
            raise ConversionError(
                f"torch.export cannot trace {type(given).__name__}: {programs.brief(error)}"
            ) from error
    if isinstance(given, ExportedProgram) and (train or _on_meta(given)):
        return given, None
    if isinstance(given, Program):
        program = given
    elif isinstance(given, ExportedProgram):
        program = programs.from_exported(given, args, kwargs)
    elif isinstance(given, torch.nn.Module):
        program = programs.from_module(given, args, kwargs)
    else:
        raise OptionError(
            f"a {type(given).__name__} cannot be converted; give an nn.Module with example inputs, "
            "or an ExportedProgram"
        )
    return program.exported, None if train else program


def _meta_module(module: torch.nn.Module) -> bool:
    held = [*module.parameters(), *module.buffers()]
    return any(t.device.type == "meta" for t in held)


def _on_meta(exported: ExportedProgram) -> bool:
    return any(t.device.type == "meta" for t in exported.state_dict.values())


def _compare(
    pure: Any, exported: ExportedProgram, program: Program | None, train: bool
) -> Agreement:
    if program is not None:
        wide = (lambda: program.reference(torch.float64)) if program.module is not None else None
        found = pure.run(program.flat_inputs())
        names = [pure.outputs[i] for i in pure.user_outputs]
        reference = program.reference()
    else:
        if exported.example_inputs is None:
            raise OptionError("the program holds no example inputs; give them, or verify=False")
        inputs = [
            t for t in pytree.tree_leaves(exported.example_inputs) if isinstance(t, torch.Tensor)
        ]
        found, names = pure.run(inputs, everything=True), pure.outputs
        reference = pure.in_torch(inputs)
        wide = None
    table = agreement.judge(
        [agreement.to_numpy(t) for t in found], [_plain(t) for t in reference], names, wide=wide
    )
    if program is None:
        table = _beside_the_largest(table, reference)
    agreement.refuse(table, "the training step" if train else "the XLA program")
    return table


def _beside_the_largest(table: Agreement, reference: Sequence[Any]) -> Agreement:
    """A gradient may be zero but for rounding, as that of a bias in front of a batch norm."""
    floats = [t for t in reference if isinstance(t, torch.Tensor) and t.is_floating_point()]
    largest = max((float(t.abs().max()) for t in floats if t.numel()), default=0.0)
    rows = [
        dataclasses.replace(row, ok=True, note="zero beside the largest result")
        if not row.ok and row.max_abs <= _ROUNDING * largest
        else row
        for row in table.rows
    ]
    return dataclasses.replace(table, rows=tuple(rows))


def _plain(t: Any) -> Any:
    return t.detach() if isinstance(t, torch.Tensor) else t


def warm_cache(program: Program) -> dict[str, int]:
    """Compile a program for the device of this machine, so that other processes find it on disk.

    Runs `torch.compile` of the program on tpu once, as a user's process will.

    Returns:
        `made`: programs written; `found`: those that were there.

    Raises:
        OptionError: the cache is off.
    """
    from cloud_backend import cache

    torch.empty(1, device="tpu").item()
    before = cache.stats()
    if before["folder"] is None:
        raise OptionError("the cache of programs is off (TTU_CACHE=off); nothing can be warmed")
    with programs.quiet(), torch.no_grad():
        module = program.exported.module().to("tpu")
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda t: t.to("tpu"), (program.args, program.kwargs)
        )
        pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, torch.compile(module)(*args, **kwargs))
    after = cache.stats()
    return {
        "made": after["writes"] - before["writes"],
        "found": after["hits"] - before["hits"],
    }
