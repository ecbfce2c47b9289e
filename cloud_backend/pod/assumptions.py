"""A planned step beside a utilisation that somebody measured: which assumptions decide the rest."""

from __future__ import annotations

from cloud_backend.ahead_report import _time
from cloud_backend.pod.report import StepPlan


def beside(plan: StepPlan, measured: float) -> list[str]:
    """Lines that say what each assumption of a plan is worth, beside a measured MFU.

    Args:
        plan: of a program that fits.
        measured: model FLOPs utilisation, 0 to 1.

    Each changes one assumption alone and keeps the others; the largest change comes first.
    """
    times = plan.times()
    compute, memory, links = times["compute"], times["memory"], times["links"]
    best = plan.overlapped
    once = plan.flops_without_remat / plan.flops if plan.flops else 1.0
    counted = plan.flops_without_remat * plan.chips / plan.model_flops if plan.model_flops else 1.0
    changes = [
        ("nothing overlaps", plan.serial),
        ("only collectives do not overlap", max(compute, memory) + links),
        ("products reach 70 % of the peak rate", max(compute / 0.7, memory, links)),
        ("collectives get one third of the links (one ring)", max(compute, memory, 3 * links)),
        ("nothing is computed again (no remat; memory aside)", max(compute * once, memory, links)),
        ("HBM traffic is half (more is fused)", max(compute, memory / 2, links)),
    ]
    changes.sort(key=lambda c: -abs(plan.mfu(c[1]) - plan.mfu(best)))
    step = plan.model_flops / (measured * plan.chip.flops * plan.chips)
    lines = [
        f"beside {measured:.0%} MFU measured, which is {_time(step)} a step: {plan.mfu(best):.1%} "
        f"here with full overlap, bound by {plan.bound}; {plan.mfu(plan.serial):.1%} with none",
        *(f"  {plan.mfu(t):6.1%}  if {name}" for name, t in changes),
        f"  the formula of MFU counts causal attention in full: the step's own products, computed "
        f"once, are {counted:.1%} of its model FLOPs",
    ]
    if compute < step:
        lines.append(
            f"  at {measured:.0%} the products run at {compute / step:.1%} of the peak rate if all "
            "else is hidden"
        )
    else:
        lines.append(
            f"  {measured:.0%} cannot be reached with this remat: its products alone take longer"
        )
    lines.append(
        "  scaling here ignores latency and contention: bytes a chip stay the same once the axis "
        "fsdp has its size, so efficiency falls only as collectives over data come on top"
    )
    return lines
