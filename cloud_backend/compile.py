"""The `torch.compile` backend: AOTAutograd's forward and backward graphs, each one XLA program.

A graph is interpreted over the same op table as eager mode, under `jax.jit` tracing. Symbolic sizes
arrive as Python ints; each new combination of them is traced anew.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from cloud_backend import dispatch, recurrent_layers
from cloud_backend.compiled_graph import CompiledGraph
from cloud_backend.graph_placement import Pair
from cloud_backend.interpret import all_nodes, known_operators
from torch_tpu_unified.core.errors import InputError, LoweringError
from torch_tpu_unified.core.report import as_text, missing_operators

MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def tpu_backend(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a Dynamo graph for the tpu device; `torch.compile(backend="tpu")` calls it.

    Args:
        gm: the graph that Dynamo captured.
        example_inputs: its inputs, fake or real.
        mode: one of PyTorch's modes; XLA optimises the same way in all of them.
        options: none exist yet.

    Raises:
        InputError: an unknown mode or option.
        LoweringError: operators without lowering, all of them at once.
    """
    if mode not in MODES:
        raise InputError(f"mode={mode!r} is not one of {', '.join(map(str, MODES))}")
    if options:
        raise InputError(
            f"the tpu backend has no option {next(iter(options))!r}; leave options out"
        )
    dispatch.boot()
    recurrent_layers.install()
    from torch._dynamo.backends.common import aot_autograd

    compile_graph = functools.partial(_compile_graph, _recompile_reason(), Pair())
    return aot_autograd(
        fw_compiler=compile_graph,
        bw_compiler=functools.partial(compile_graph, backward=True),
        inference_compiler=compile_graph,
        decompositions=decompositions(),
        partition_fn=_partition,
        keep_inference_input_mutations=True,
    )(gm, example_inputs)


def _partition(joint: GraphModule, *args: Any, **kwargs: Any) -> tuple[GraphModule, GraphModule]:
    """PyTorch's choice of what to keep for backward and what to compute again there."""
    from functorch.compile import min_cut_rematerialization_partition
    from torch._functorch import config

    # It first merges calls that are alike, with functions of inductor's, whose import takes longer
    # than all else here; most graphs have no such calls.
    with config.patch(cse=config.cse and _has_calls_alike(joint)):
        found: tuple[GraphModule, GraphModule]
        found = min_cut_rematerialization_partition(joint, *args, **kwargs)
    return found


def _has_calls_alike(gm: GraphModule) -> bool:
    calls = [repr((n.target, n.args, n.kwargs)) for n in gm.graph.nodes if n.op == "call_function"]
    return len(set(calls)) < len(calls)


@functools.cache
def decompositions(composites: bool = False) -> dict[Any, Callable[..., Any]]:
    """PyTorch's core ATen decompositions, less what the table lowers whole.

    Args:
        composites: with those of composite operators, which exported programs hold; to find them
            takes half a second.
    """
    from torch import _decomp

    from cloud_backend.ops import TABLE

    core = _decomp._core_aten_decompositions_post_autograd
    found = dict(_decomp.core_aten_decompositions() if composites else core())
    found.update(_decomp.get_decompositions([op for op in _EXTRA if op not in found]))
    return {op: f for op, f in found.items() if op not in TABLE}


_EXTRA = [
    torch.ops.aten.embedding_dense_backward,
    torch.ops.aten.native_layer_norm_backward,
    torch.ops.aten.native_group_norm_backward,
    torch.ops.aten.native_dropout_backward,
    torch.ops.aten.elu_backward,
    torch.ops.aten.leaky_relu_backward,
    torch.ops.aten.softplus_backward,
    torch.ops.aten.new_empty_strided,
]


def _recompile_reason() -> str:
    """Why PyTorch compiles this function again; "" when it does so for the first time."""
    from torch._dynamo.utils import get_metrics_context

    compile_id = torch._guards.CompileContext.current_compile_id()
    if compile_id is None or not compile_id.frame_compile_id:
        return ""
    told = getattr(get_metrics_context(), "_metrics", {}).get("recompile_reason")
    return str(told or "a guard of PyTorch failed; TORCH_LOGS=recompiles tells which").strip()


def _compile_graph(
    reason: str, pair: Pair, gm: GraphModule, example_inputs: Sequence[Any], backward: bool = False
) -> Callable[..., Any]:
    """A boxed function (takes a list of inputs, returns a list of outputs) for an ATen graph."""
    _refuse_missing(gm)
    return CompiledGraph(gm, reason, pair, backward=backward)


def _refuse_missing(gm: GraphModule) -> None:
    missing = missing_operators(all_nodes(gm), known_operators())
    if missing:
        raise LoweringError(f"tpu: cannot compile this graph\n{as_text(missing)}")
