"""Training with PyTorch's strategies beside the same training in one process, as a rank's program.

`python -m tests.distributed.strategies NAME...` (with torchrun's variables) trains minGPT and a
small Llama for ten steps and prints how far losses and final parameters are from the run in one
process, on the same device. `--compile` compiles the model.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from tests.model_cases import Logits, example

STEPS, ROWS, LENGTH, VOCABULARY = 10, 8, 12, 32
LIMIT = 1e-5
STRATEGIES: dict[str, Callable[[str, bool], list[str]]] = {}


def strategy(function: Callable[[str, bool], list[str]]) -> Callable[[str, bool], list[str]]:
    STRATEGIES[function.__name__] = function
    return function


def make(name: str) -> nn.Module:
    """minGPT or a small Llama on tpu, the same on every rank."""
    torch.manual_seed(0)
    if name == "mingpt":
        return example("mingpt").GPT(VOCABULARY, 16, 16, 4, 4).to("tpu")
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=32,
        use_cache=False,
    )
    return Logits(transformers.LlamaForCausalLM(config)).to("tpu")


def layers(model: nn.Module) -> list[nn.Module]:
    return list(model.lm.model.layers if isinstance(model, Logits) else model.blocks)


def batch(step: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(100 + step)
    return torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=source).to("tpu")


def part_of(rows: torch.Tensor, mesh: Any = None) -> torch.Tensor:
    """This rank's rows: of the world, or along a mesh of one dimension."""
    size, rank = (
        (dist.get_world_size(), dist.get_rank())
        if mesh is None
        else (mesh.size(), mesh.get_local_rank())
    )
    return rows.chunk(size)[rank]


def loss_of(logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    # A larger eps: where a gradient is zero but for rounding, Adam would make steps of the noise.
    kinds = {type(p.data) for p in model.parameters()}
    # PyTorch's foreach form refuses lists of plain tensors and DTensors.
    foreach = None if len(kinds) == 1 else False
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3, foreach=foreach)


def train(
    model: nn.Module, run: Any = None, take: Any = lambda rows: rows, pieces: int = 1
) -> list[float]:
    """Ten steps; returns the losses of this rank's rows. `pieces` > 1 accumulates gradients."""
    optimizer, losses = optimizer_of(model), []
    run = model if run is None else run
    for step in range(STEPS):
        rows = take(batch(step))
        for i, piece in enumerate(rows.chunk(pieces)):
            waits = i + 1 < pieces and hasattr(run, "no_sync")
            with run.no_sync() if waits else contextlib.nullcontext():
                loss = loss_of(run(piece[:, :-1]), piece) / pieces
                loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
    return [float(x) for x in torch.stack(losses).view(STEPS, pieces).sum(1).cpu()]


def whole(t: torch.Tensor) -> torch.Tensor:
    return (t.full_tensor() if isinstance(t, DTensor) else t).detach().cpu().float()


def mean_over_ranks(losses: list[float]) -> list[float]:
    told = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(told)
    return (told / dist.get_world_size()).tolist()


_references: dict[str, tuple[list[float], dict[str, torch.Tensor]]] = {}


def reference(name: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and final parameters of the run in one process."""
    if name not in _references:
        model = make(name)
        losses = train(model)
        _references[name] = losses, {k: whole(p) for k, p in model.named_parameters()}
    return _references[name]


def compared(
    label: str, name: str, losses: list[float], model: nn.Module, limit: float = LIMIT
) -> list[str]:
    """One line; it starts with "WRONG" where the limit is passed."""
    expected, parameters = reference(name)
    off = max(abs(a - b) for a, b in zip(mean_over_ranks(losses), expected, strict=True))
    far = max(
        float((whole(p) - parameters[k.replace("_orig_mod.", "")]).abs().max())
        for k, p in model.named_parameters()
    )
    verdict = "ok   " if max(off, far) <= limit else "WRONG"
    return [f"{verdict} {label} {name}: losses within {off:.1e}, parameters within {far:.1e}"]


def compiled(model: nn.Module, wanted: bool) -> Any:
    return torch.compile(model) if wanted else model


@strategy
def ddp(name: str, compile: bool) -> list[str]:
    model = make(name)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=None if compile else 0.002)
    told = compared("ddp", name, train(model, compiled(wrapped, compile), part_of), model)
    model = make(name)
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    pieces = 2
    losses = train(model, wrapped, part_of, pieces)
    return told + compared("ddp, gradients accumulated", name, losses, model)


@strategy
def ddp_unused(name: str, compile: bool) -> list[str]:
    """Which parameters are unused differs between ranks."""
    model = nn.ModuleList([nn.Linear(2, 2) for _ in range(2)]).to("tpu")
    model.forward = lambda x: model[dist.get_rank() % 2](x)  # type: ignore[method-assign]
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    wrapped(torch.ones(1, 2, device="tpu")).sum().backward()
    right = all(bool((layer.weight.grad == 0.5).all()) for layer in model)
    return [f"{'ok   ' if right else 'WRONG'} ddp, unused parameters"]


@strategy
def fsdp(name: str, compile: bool) -> list[str]:
    model = make(name)
    for layer in layers(model):
        fully_shard(layer)
    fully_shard(model)
    told = compared("fsdp", name, train(model, compiled(model, compile), part_of), model)
    model = make(name)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in layers(model):
        fully_shard(layer, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mp_policy=policy)
    losses = train(model, model, part_of)
    return told + compared("fsdp, bfloat16", name, losses, model, limit=0.05)


def tensor_parallel(model: nn.Module, mesh: Any) -> None:
    """Attention and perceptron of Llama; the perceptron and the last norm of minGPT."""
    for layer in layers(model):
        if not isinstance(model, Logits):
            plan: dict[str, Any] = {"mlp.0": ColwiseParallel(), "mlp.2": RowwiseParallel()}
        else:
            names = ("q_proj", "k_proj", "v_proj")
            plan = {f"self_attn.{n}": ColwiseParallel() for n in names}
            plan |= {"self_attn.o_proj": RowwiseParallel(), "mlp.down_proj": RowwiseParallel()}
            plan |= {f"mlp.{n}": ColwiseParallel() for n in ("gate_proj", "up_proj")}
        parallelize_module(layer, mesh, plan)
    if not isinstance(model, Logits):
        around = {
            "blocks": PrepareModuleOutput(
                output_layouts=Replicate(), desired_output_layouts=Shard(1)
            ),
            "norm": SequenceParallel(),
            "head": PrepareModuleInput(
                input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=True
            ),
        }
        parallelize_module(model, mesh, around)


@strategy
def tp(name: str, compile: bool) -> list[str]:
    mesh = init_device_mesh("tpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = make(name)
    tensor_parallel(model, mesh)
    return compared("tensor parallel", name, train(model, compiled(model, compile)), model)


@strategy
def fsdp_tp(name: str, compile: bool) -> list[str]:
    shape = (dist.get_world_size() // 2, 2)
    mesh = init_device_mesh("tpu", shape, mesh_dim_names=("dp", "tp"))
    model = make(name)
    tensor_parallel(model, mesh["tp"])
    for layer in layers(model):
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    losses = train(model, compiled(model, compile), lambda rows: part_of(rows, mesh["dp"]))
    return compared("fsdp x tensor parallel", name, losses, model)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--models", default="mingpt,llama")
    given = parser.parse_args()
    from tests.distributed import draws, pipelines

    STRATEGIES.update(pipelines.STRATEGIES | draws.STRATEGIES)
    dist.init_process_group()
    told = []
    for name in given.names or [n for n in STRATEGIES if n != "ddp_unused"]:
        for model in given.models.split(","):
            told += STRATEGIES[name](model, given.compile)
            print(told[-1], flush=True)
    dist.barrier()
    dist.destroy_process_group()
    print(*told, sep="\n")
    sys.exit(any(line.startswith("WRONG") for line in told))


if __name__ == "__main__":
    main()
