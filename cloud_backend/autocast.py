"""`torch.autocast("tpu", ...)`: which operators run in the lower precision, as on CUDA.

Each listed operator gets a kernel at the autocast key that casts its floating tensors and calls the
operator again below that key; all others fall through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from cloud_backend.registration import hide_from_dynamo, libraries

# The lists are those of CUDA, in torch/include/ATen/autocast_mode.h.
_LOWER = """
_convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d
conv_transpose2d.input conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv
linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell
_thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
_scaled_dot_product_flash_attention scaled_dot_product_attention
"""
_FLOAT32 = """
acos asin cosh erfinv exp expm1 log log10 log1p log2 reciprocal rsqrt sinh tan
pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm
group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss
cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss
huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp
upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d
upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d
_upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa
"""
# With an optional dtype argument: float32 unless the caller says otherwise.
_FLOAT32_DTYPE = """
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm
linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList
"""
# Without one, but another overload has it: that one is called, with float32.
_FLOAT32_APPENDED = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
}
_WIDEST = """
addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
"""
_BANNED = "binary_cross_entropy"
_guard = torch._C._ExcludeDispatchKeyGuard
_keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)


def _overloads(names: str) -> Iterable[OpOverload]:
    for name in names.split():
        packet, _, overload = name.partition(".")
        found = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if found is not None:
            yield found


def _eligible(a: torch.Tensor) -> bool:
    return a.is_floating_point() and a.dtype != torch.float64 and a.device.type == "tpu"


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    def one(a: torch.Tensor) -> torch.Tensor:
        return a.to(dtype) if _eligible(a) and a.dtype != dtype else a

    return pytree.tree_map_only(torch.Tensor, one, tree)


def _lower(op: OpOverload) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _guard(_keys):
            args, kwargs = _cast((args, kwargs), torch.get_autocast_dtype("tpu"))
            return op(*args, **kwargs)

    return kernel


def _float32(op: OpOverload) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _guard(_keys):
            args, kwargs = _cast((args, kwargs), torch.float32)
            return op(*args, **kwargs)

    return kernel


def _float32_dtype(op: OpOverload) -> Callable[..., Any]:
    position = next((i for i, a in enumerate(op._schema.arguments) if a.name == "dtype"), None)
    keyword = position is not None and op._schema.arguments[position].kwarg_only

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _guard(_keys):
            given = kwargs.get("dtype")
            if given is None and position is not None and not keyword and len(args) > position:
                given = args[position]
            first = args[0]
            if given is None and first.is_floating_point() and first.dtype.itemsize == 2:
                if keyword or len(args) <= (position or 0):
                    kwargs["dtype"] = torch.float32
                else:
                    args = (*args[:position], torch.float32, *args[(position or 0) + 1 :])
            return op(*args, **kwargs)

    return kernel


def _float32_appended(op: OpOverload) -> Callable[..., Any]:
    (other,) = _overloads(_FLOAT32_APPENDED[op.name().partition("::")[2]])
    parameters = list(op._schema.arguments)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _guard(_keys):
            if not _eligible(args[0]):
                return op(*args, **kwargs)
            values = [
                args[i] if i < len(args) else kwargs.get(a.name, a.default_value)
                for i, a in enumerate(parameters)
            ]
            return other(*values, dtype=torch.float32)

    return kernel


def _widest(op: OpOverload) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _guard(_keys):
            tensors = [a for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
            wide = any(t.dtype == torch.float32 for t in tensors)
            dtype = torch.float32 if wide else torch.get_autocast_dtype("tpu")
            args, kwargs = _cast((args, kwargs), dtype)
            return op(*args, **kwargs)

    return kernel


def _banned(op: OpOverload) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"{op._schema.name.partition('::')[2]} is unsafe to autocast: its input may underflow. "
            "Use "
            "binary_cross_entropy_with_logits (BCEWithLogitsLoss), or disable autocast around it."
        )

    return kernel


def install() -> None:
    """Register the fallthrough; the listed operators follow with the device's first operator."""
    everything = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    everything.fallback(torch.library.fallthrough_kernel)
    libraries.append(everything)
    # PyTorch starts with float16 for devices it does not know; a TPU computes in bfloat16.
    torch.set_autocast_dtype("tpu", torch.bfloat16)


def install_operators() -> None:
    """Register the listed operators."""
    aten = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
    libraries.append(aten)
    for names, make in (
        (_LOWER, _lower),
        (_FLOAT32, _float32),
        (_FLOAT32_DTYPE, _float32_dtype),
        (" ".join(_FLOAT32_APPENDED), _float32_appended),
        (_WIDEST, _widest),
        (_BANNED, _banned),
    ):
        for op in _overloads(names):
            name = op._schema.name
            if op._schema.overload_name:
                name += "." + op._schema.overload_name
            kernel = make(op)
            hide_from_dynamo(kernel)
            aten.m.impl(name, "AutocastPrivateUse1", kernel, False)
