"""Operators that belong to another device or layout, grouped by name.

A CUDA kernel's wrapper, a oneDNN layout or a quantised storage has no meaning on this device; such
operators stay unresolved on purpose. Everything else of ATen must resolve, which a test checks.
"""

from __future__ import annotations

import re

# (group, what it is, pattern of the operator's name without overload); the first match decides.
GROUPS: tuple[tuple[str, str, str], ...] = (
    ("cuDNN", "wrappers of NVIDIA's library", r"cudnn|_cufft"),
    ("MIOpen", "wrappers of AMD's library", r"miopen"),
    ("MPS", "kernels of Apple's GPU backend", r"(^|_)mps(_|$)|_lstm_mps|math_for_mps"),
    ("oneDNN", "kernels and layout of the CPU library", r"mkldnn|onednn"),
    ("NNPACK and Vulkan", "kernels of mobile libraries", r"nnpack|vulkan"),
    (
        "FBGEMM",
        "packed weights of a CPU library",
        r"fbgemm|_wrapped_(quantized_)?linear|weight_to_fp16|fp16_weight",
    ),
    (
        "CUTLASS and cuSPARSELt",
        "kernels over weight formats of NVIDIA's libraries",
        r"_cslt_|semi_structured|mixed_dtypes_linear",
    ),
    ("Triton", "attention kernels written in Triton", r"_triton_"),
    (
        "CUDA attention",
        "kernels of CUDA with its own random state; scaled_dot_product_attention runs on tpu",
        r"(flash|efficient|cudnn)_attention(?!_for_cpu)|mem_eff_dropout",
    ),
    (
        "packed integer weights",
        "weights in the private format of one CPU or CUDA kernel",
        r"int4pack|dyn_quant|int8pack",
    ),
    (
        "quantised storage",
        "tensors of dtype quint8, qint8 and qint32",
        r"^_?quantized_|^quantize_|^(q_|int_repr|qscheme|dequantize)|affine_quantized|empty_quantized"
        r"|_quantized_tensor|choose_qparams",
    ),
    (
        "sparse layouts",
        "tensors of layout sparse_coo, sparse_csr and their kin",
        r"sparse|coalesce|^_?(crow|col|ccol|row)?_?indices(_copy)?$|^_?values(_copy)?$|^_(nnz|dim[IV])$"
        r"|^h?s?spmm$|^smm$|_spdiags|_spsolve|_to_dense|^dense_dim$|^to_dense|native_norm"
        r"|coo_to_csr|csr_to_coo",
    ),
    ("CUDA random keys", "random numbers of CUDA's generator from explicit keys", r"_philox_"),
    (
        "Sobol sequences",
        "they fill tensors of the host; draw there, as torch.quasirandom does, and move",
        r"^_sobol_engine",
    ),
    ("host files", "a file mapped into the memory of the host", r"^from_file$"),
    ("nested layout", "tensors of layout jagged and nested", r"nested|to_padded_tensor"),
    ("PyTorch's own tests", "operators that only PyTorch's tests call", r"^_test_|^_foobar$"),
)
_COMPILED = tuple((group, re.compile(pattern)) for group, _, pattern in GROUPS)
# Composites of PyTorch whose code reads a tensor's memory itself; on this device it must not.
READ_MEMORY = (
    "choose_qparams_optimized",
    "fbgemm_linear_fp16_weight",
    "fbgemm_linear_fp16_weight_fp32_activation",
    "fbgemm_linear_int8_weight",
    "fbgemm_linear_int8_weight_fp32_activation",
    "fbgemm_linear_quantize_weight",
    "fbgemm_pack_gemm_matrix_fp16",
    "fbgemm_pack_quantized_matrix",
    "_saturate_weight_to_fp16",
    "_sobol_engine_draw",
    "_sobol_engine_ff_",
    "_sobol_engine_initialize_state_",
    "_sobol_engine_scramble_",
)


def group_of(name: str) -> str:
    """The group of an operator by its name without namespace and overload; "" when it has none."""
    return next((group for group, pattern in _COMPILED if pattern.search(name)), "")
