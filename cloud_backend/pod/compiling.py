"""Compiles a step for a topology through libtpu and reads its costs off the result."""

from __future__ import annotations

import math
import time
from typing import Any

import jax
import numpy as np

from cloud_backend import ahead
from cloud_backend.chips import chip_of
from cloud_backend.pod import hlo, work
from cloud_backend.pod.report import StepPlan
from cloud_backend.pod.step import BATCH_AXES, TENSOR, Layout, Step
from cloud_backend.stablehlo import PureProgram
from torch_tpu_unified.core.errors import ConversionError, InputError, OptionError

# Weights spread over more devices than these become thin slices; the rest holds copies (HSDP).
WIDEST_FSDP = 256


def mesh_axes(strategy: str, devices: int) -> dict[str, int]:
    """The axes of a strategy: `data`, `fsdp`, `fsdp=64`, `fsdp,tensor=4`.

    Args:
        strategy: parts separated by commas. `fsdp` without a size takes up to 256 devices and
            what is left goes to `data`; `tensor` needs a size.

    Raises:
        OptionError: an unknown part, or sizes that do not divide the devices.
    """
    given: dict[str, int | None] = {}
    for part in strategy.replace("tp", TENSOR).split(","):
        name, _, size = part.strip().partition("=")
        if name not in (*BATCH_AXES, TENSOR) or (size and not size.isdigit()):
            raise OptionError(
                f"the strategy {strategy!r} is unknown; parts are data, fsdp, fsdp=N and tensor=N"
            )
        given[name] = int(size) if size else None
    tensor = given.get(TENSOR, 1)
    if tensor is None:
        raise OptionError("tensor needs a size, as in 'fsdp,tensor=4'")
    left = devices // tensor
    fsdp = 1
    if "fsdp" in given:
        fsdp = given["fsdp"] or math.gcd(left, WIDEST_FSDP)
    if devices % (tensor * fsdp):
        raise OptionError(f"{strategy} does not divide {devices} devices")
    axes = {"data": left // fsdp, "fsdp": fsdp, TENSOR: tensor}
    return {name: n for name, n in axes.items() if n > 1} or {"data": 1}


def compiled(program: PureProgram, plan: StepPlan, *, remat: bool = True) -> StepPlan:
    """Fill a plan: trace the step over its mesh, compile it, and count.

    Args:
        program: the exported model for `plan.batch` sequences.
        plan: with everything that is known before compiling.

    Raises:
        InputError: the batch or weights do not divide over the mesh.
        ConversionError: the compiler refuses the program for another reason than its memory.
    """
    found = ahead.devices(plan.topology)
    mesh = jax.sharding.Mesh(np.array(found).reshape(tuple(plan.axes.values())), tuple(plan.axes))
    layout = Layout(program, mesh)
    parts = math.prod(mesh.shape[a] for a in layout.batch)
    if plan.batch % parts:
        raise InputError(f"{plan.batch} sequences do not divide into {parts} parts ({plan.axes})")
    step = Step(program, layout, train=plan.kind == "training", remat=remat)
    start = time.monotonic()
    with jax.enable_x64(False):  # sizes of indices as the chip has them; no value needs more
        arguments = step.arguments()
        traced = jax.jit(step, donate_argnums=step.donated(), keep_unused=True).trace(*arguments)
        plan.flops = work.flops(traced.jaxpr) / plan.chips
        once = Step(program, layout, train=step.train, remat=False)
        plan.flops_without_remat = work.flops(jax.make_jaxpr(once)(*arguments)) / plan.chips
        kept = work.kept_bytes(traced.jaxpr) // parts if step.train else 0
        try:
            with ahead._not_kept():
                executable = traced.lower(lowering_platforms=("tpu",)).compile()
        except Exception as err:  # the compiler's errors have one type and many meanings
            if not ahead._HBM.search(str(err)):
                raise ConversionError(f"the TPU compiler refuses: {ahead._first(err)}") from err
            plan.refusal = ahead._first(err)
            return plan
    plan.compile_seconds = time.monotonic() - start
    _read(plan, executable, arguments, kept)
    return plan


def _read(plan: StepPlan, executable: Any, arguments: Any, kept: int) -> None:
    each = plan.devices // plan.chips
    memory = executable.memory_analysis()
    trained = _bytes_each(arguments[0])
    moments = _bytes_each(arguments[1]) if plan.kind == "training" else 0
    halved = sum(_bytes_each(x) // x.dtype.itemsize * 2 for x in jax.tree.leaves(arguments[0]))
    gradients = halved if plan.kind == "training" else 0
    temporary = memory.temp_size_in_bytes
    plan.memory = {
        "parameters": trained * each,
        "optimiser": moments * each,
        "gradients": min(gradients, temporary) * each,
        "activations": min(kept, max(0, temporary - gradients)) * each,
        "temporaries": max(0, temporary - gradients - kept) * each,
    }
    plan.needed = each * (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + temporary
        + memory.generated_code_size_in_bytes
    )
    module = hlo.Module(executable.as_text())
    plan.hbm_bytes = module.hbm_bytes() * each
    plan.traffic = [
        t._replace(nbytes=t.nbytes * each, moved=t.moved * each) for t in module.traffic(plan.axes)
    ]
    plan.unknown_loops = module.unknown
    plan.compiler_flops = float((executable.cost_analysis() or {}).get("flops", 0.0)) * each


def _bytes_each(tree: Any) -> int:
    """Bytes of arguments on one device."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


def empty_plan(topology: str, strategy: str, *, batch: int, train: bool, **known: Any) -> StepPlan:
    """What is known of a step before it is compiled.

    Args:
        batch: sequences on each chip.
        known: `model`, `length`, `weights`, and `flops_per_token` of a training step.
    """
    found, chip = ahead.devices(topology), chip_of(topology)
    chips = len(found) // chip.devices
    share = 1.0 if train else 1 / 3
    tokens = batch * chips * known["length"]
    return StepPlan(
        model=known["model"],
        topology=topology,
        strategy=strategy,
        kind="training" if train else "inference",
        chip=chip,
        chips=chips,
        devices=len(found),
        axes=mesh_axes(strategy, len(found)),
        batch=batch * chips,
        length=known["length"],
        weights=known["weights"],
        model_flops=known["flops_per_token"] * tokens * share,
    )
