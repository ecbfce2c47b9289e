"""`plan`: what a step of a model would cost on a TPU slice that need not be here.

The model's weights are on `meta` and are never allocated; its layers run as one loop
(`scan_layers`), so that a program for thousands of chips compiles in minutes on a laptop.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from torch_tpu_unified import factories, programs
from torch_tpu_unified.core.errors import ConversionError, InputError, OptionError, TtuError

Progress = Callable[[str, int, int], None]
_QWEN = {"vocab_size": 151936, "head_dim": 128, "num_key_value_heads": 8}
# Published config.json of each model: class of transformers, and its sizes.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-0.6b": (
        "Qwen3",
        {
            **_QWEN,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3-8b": (
        "Qwen3",
        {
            **_QWEN,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
        },
    ),
    "qwen3-32b": (
        "Qwen3",
        {
            **_QWEN,
            "hidden_size": 5120,
            "intermediate_size": 25600,
            "num_hidden_layers": 64,
            "num_attention_heads": 64,
        },
    ),
    "llama3-8b": (
        "Llama",
        {
            "vocab_size": 128256,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
        },
    ),
    "llama3-70b": (
        "Llama",
        {
            "vocab_size": 128256,
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
        },
    ),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Planned:
    """A model that is being planned.

    Attributes:
        name: what the user called it.
        make: number of sequences -> the module on `meta` and its inputs; the module returns the
            loss (training), or any tensor (inference).
        length: tokens of a sequence.
        weights, flops_per_token: how many parameters, and the model FLOPs of a training step.
    """

    name: str
    make: Callable[[int], tuple[nn.Module, tuple[torch.Tensor, ...]]]
    length: int
    weights: int
    flops_per_token: float

    @functools.lru_cache(maxsize=1)  # noqa: B019 - lives as long as the plan
    def program(self, batch: int) -> Any:
        """The exported program for so many sequences."""
        from cloud_backend.pod.attention import sharded_attention
        from cloud_backend.stablehlo import PureProgram

        def attend(q, k, v, mask=None, dropout=0.0, causal=False, scale=None, enable_gqa=False):  # type: ignore[no-untyped-def]
            if mask is not None or dropout:
                fused = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default
                return fused(q, k, v, mask, dropout, causal, scale=scale)[0]
            return sharded_attention(q, k, v, causal, scale)

        module, inputs = self.make(batch)
        # One tensor given twice would become one input.
        inputs = tuple(t.clone() for t in inputs)
        try:
            with programs.quiet():
                exported = torch.export.export(module, inputs, strict=True)
                instead = {torch.ops.aten.scaled_dot_product_attention.default: attend}
                return PureProgram(exported, instead)
        except TtuError:
            raise
        except Exception as error:  # torch.export raises many kinds
            raise ConversionError(
                f"torch.export cannot trace {self.name}: {programs.brief(error)}"
            ) from error


def plan(
    model: str | Callable[[int], Any],
    topology: str,
    *,
    strategy: str = "fsdp",
    batch: int = 2,
    length: int = 4096,
    train: bool = True,
    remat: bool = True,
) -> Any:
    """What one step costs: compiles it for the topology and counts.

    Args:
        model: a name such as "qwen3-8b", `package.module:factory`, `FILE.py:factory`, or the
            factory itself. A factory takes the number of sequences and returns the module and its
            inputs [sequences, tokens]; the module returns the loss. Both may be on `meta`.
        topology: such as "tpu7x:4x4x4".
        strategy: "fsdp", "data", "fsdp=64", "fsdp,tensor=4" (see `tpu-plan --help`).
        batch: sequences on each chip.
        length: tokens of a sequence, for models known by name.
        train: forward, backward and AdamW; False: the forward alone.
        remat: compute each layer again in the backward, instead of keeping its values.

    Returns:
        a `StepPlan`: prints as a report, `as_json()` gives plain values.

    Raises:
        OptionError: an unknown model, topology or strategy, or libtpu is not installed.
        InputError: the batch or weights do not divide, or the factory gives something else.
        LoweringError, ConversionError: the model cannot be compiled.
    """
    return _compiled(planned(model, length), topology, strategy, batch, train, remat)


def _compiled(
    model: Planned, topology: str, strategy: str, batch: int, train: bool, remat: bool = True
) -> Any:
    from cloud_backend.pod import compiling

    known = {
        "model": model.name,
        "length": model.length,
        "weights": model.weights,
        "flops_per_token": model.flops_per_token,
    }
    found = compiling.empty_plan(topology, strategy, batch=batch, train=train, **known)
    return compiling.compiled(model.program(found.batch), found, remat=remat)


def table(
    model: str | Callable[[int], Any],
    topologies: Sequence[str],
    *,
    strategies: Sequence[str] = ("fsdp",),
    batches: Sequence[int] = (2,),
    length: int = 4096,
    train: bool = True,
    search: bool = False,
    progress: Progress | None = None,
) -> list[Any]:
    """Plans for every topology, strategy and batch per chip, in this order.

    Args:
        search: per topology only what may still be the fastest is compiled: the likeliest first,
            and none whose weights alone do not fit or whose least traffic and products take longer
            a token than the best so far; returned are the compiled ones, the fastest first.
        progress: called with what comes, its number and how many there are at most.

    Raises:
        as `plan`; a combination that does not divide is left out of a search.
    """
    tell = progress or (lambda name, number, total: None)
    known = planned(model, length)
    choices = [(s, b) for s in strategies for b in batches]
    total, number = len(topologies) * len(choices), 0
    found: list[Any] = []
    for topology in topologies:
        here: list[Any] = []
        ranked = (
            _ranked(known, topology, choices, train) if search else [(0.0, *c) for c in choices]
        )
        for least, strategy, batch in ranked:
            number += 1
            best = min((p.overlapped / p.batch for p in here if p.fits), default=float("inf"))
            if least > best:
                continue
            tell(f"{topology} {strategy}, {batch} sequences a chip", number, total)
            here.append(_compiled(known, topology, strategy, batch, train))
        if search:
            here.sort(key=lambda p: (not p.fits, p.overlapped / p.batch if p.fits else 0.0))
        number = (topologies.index(topology) + 1) * len(choices)
        found += here
    return found


def _ranked(
    model: Planned, topology: str, choices: Sequence[tuple[str, int]], train: bool
) -> Iterator[tuple[float, str, int]]:
    """Choices that may fit, with a lower bound of their seconds a sequence, the least first.

    The bound: the larger of model FLOPs at peak and, over the links, the weights (2 bytes) gathered
    for forward and backward and their gradients scattered (3 times, once for inference), divided by
    the sequences of a chip. Weights, and moments in training, must fit (12 or 2 bytes each).
    """
    from cloud_backend.pod import compiling

    kept = []
    for strategy, batch in choices:
        known = {"model": model.name, "length": model.length, "weights": model.weights}
        try:
            p = compiling.empty_plan(
                topology,
                strategy,
                batch=batch,
                train=train,
                **known,
                flops_per_token=model.flops_per_token,
            )
        except OptionError:
            continue
        share = p.axes.get("fsdp", 1) * p.axes.get("tensor", 1)
        each = p.devices // p.chips
        if model.weights * (12 if train else 2) / share * each > p.chip.hbm:
            continue
        compute = p.model_flops / p.chips / p.chip.flops
        gathered = 2 * model.weights / p.axes.get("tensor", 1) * each * (3 if train else 1)
        links = gathered / (p.chip.links / 2) if p.axes.get("fsdp", 1) > 1 else 0.0
        kept.append((max(compute, links) / p.batch, strategy, batch))
    return iter(sorted(kept))


def planned(model: str | Callable[[int], Any], length: int = 4096) -> Planned:
    """A model by name or factory, measured on `meta`.

    Raises:
        OptionError: the name is unknown.
        InputError: the factory does not give a module and its inputs.
    """
    if isinstance(model, str) and model in MODELS:
        return _known(model, length)
    if isinstance(model, str):
        parts = factories.split(model)
        if parts is None:
            raise OptionError(
                f"the model {model!r} is unknown; {', '.join(MODELS)}, or MODULE:FACTORY"
            )
        name, factory = model, factories.find(*parts)
    else:
        name, factory = getattr(model, "__name__", "model"), model
    if not callable(factory) or len(inspect.signature(factory).parameters) != 1:
        raise InputError(
            f"{name} must be a function of the number of sequences that returns (module, inputs)"
        )

    def make(batch: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        given = factory(batch)
        if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], nn.Module)):
            raise InputError(f"{name}({batch}) must return (module, inputs)")
        inputs = tuple(given[1])
        return given[0].to("meta"), tuple(t.to("meta") for t in inputs)

    module, inputs = make(2)
    weights = sum(p.numel() for p in module.parameters())
    tokens = inputs[0].shape[1] if inputs[0].dim() > 1 else 1
    return Planned(name, make, tokens, weights, 6.0 * weights)


class _NextToken(nn.Module):
    """Cross entropy of the next token, [sequences, tokens] -> a scalar."""

    def __init__(self, lm: nn.Module) -> None:
        super().__init__()
        self.lm = lm

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = self.lm.model(input_ids=ids, use_cache=False).last_hidden_state  # type: ignore[operator, union-attr]
        logits = self.lm.lm_head(hidden).flatten(0, 1)  # type: ignore[operator]
        return nn.functional.cross_entropy(logits.float(), labels.flatten())


def _known(name: str, length: int) -> Planned:
    kind, sizes = MODELS[name]
    with torch.device("meta"):
        lm = _language_model(kind, sizes)
    weights = sum(p.numel() for p in lm.parameters())
    config = lm.config
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention = 12 * config.num_hidden_layers * config.num_attention_heads * head * length
    embedded = config.vocab_size * config.hidden_size
    per_token = 6.0 * (weights - (0 if config.tie_word_embeddings else embedded)) + attention

    def make(batch: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        from torch_tpu_unified import scan_layers

        with torch.device("meta"):
            module = _NextToken(scan_layers(_language_model(kind, sizes)))
            ids = torch.zeros(batch, length, dtype=torch.int64)
        return module, (ids, ids)

    return Planned(name, make, length, weights, per_token)


def _language_model(kind: str, sizes: dict[str, Any]) -> Any:
    import transformers

    _register_attention()
    config = getattr(transformers, f"{kind}Config")(
        **sizes, use_cache=False, attn_implementation="tpu_plan"
    )
    return getattr(transformers, f"{kind}ForCausalLM")(config).to(torch.bfloat16)


@functools.cache
def _register_attention() -> None:
    """Attention that a plan can spread over chips, under a name that transformers looks up."""
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    from cloud_backend.pod.attention import sharded_attention

    def attend(module, query, key, value, mask, scaling=None, dropout=0.0, **_):  # type: ignore[no-untyped-def]
        out = sharded_attention(query, key, value, True, scaling)
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register("tpu_plan", attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register("tpu_plan", lambda *_, **__: None)
