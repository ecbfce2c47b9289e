"""`torch.autocast("tpu")`: CUDA's operator lists, and what each list does to dtypes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from cloud_backend import autocast

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
OURS = {
    "LOWER_PRECISION_FP": autocast._LOWER.split(),
    "FP32": autocast._FLOAT32.split(),
    "FP32_SET_OPT_DTYPE": autocast._FLOAT32_DTYPE.split(),
    "PROMOTE": autocast._WIDEST.split(),
}
HALVES = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("name", OURS)
def test_the_lists_are_those_of_cuda(name: str) -> None:
    text = HEADER.read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = re.findall(rf"^#define AT_FORALL_{name}\(_\)(.*)$", text, re.M)
    theirs = {re.sub(r",\s*", ".", entry) for entry in re.findall(r"_\(([^)]*)\)", line)}
    assert set(OURS[name]) == theirs


def test_the_list_that_changes_overloads_is_that_of_cuda() -> None:
    text = HEADER.read_text(encoding="utf-8")
    (body,) = re.findall(
        r"#define AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE\(_\)(.*?)\n#define", text, re.S
    )
    assert set(re.findall(r'"([\w.]+)"', body)) == set(autocast._FLOAT32_APPENDED)


def test_every_listed_operator_exists() -> None:
    for names in (*OURS.values(), list(autocast._FLOAT32_APPENDED)):
        for name in names:
            assert list(autocast._overloads(name)), name


def x(dtype: torch.dtype, *size: int) -> torch.Tensor:
    return (torch.rand(*size) + 0.5).to("tpu", dtype)


LOWER = {
    "mm": lambda d: x(d, 3, 4) @ x(d, 4, 2),
    "linear": lambda d: F.linear(x(d, 3, 4), x(d, 2, 4), x(d, 2)),
    "conv2d": lambda d: F.conv2d(x(d, 1, 2, 5, 5), x(d, 3, 2, 3, 3)),
    "conv2d_same": lambda d: F.conv2d(x(d, 1, 2, 5, 5), x(d, 3, 2, 3, 3), padding="same"),
    "einsum": lambda d: torch.einsum("ij,jk->ik", x(d, 3, 4), x(d, 4, 2)),
    "prelu": lambda d: F.prelu(x(d, 3, 4), x(d, 1)),
    "attention": lambda d: F.scaled_dot_product_attention(*(x(d, 1, 2, 4, 8) for _ in "qkv")),
    "gru_cell": lambda d: torch.gru_cell(x(d, 2, 3), x(d, 2, 4), x(d, 12, 3), x(d, 12, 4)),
}
FLOAT32 = {
    "exp": lambda d: x(d, 3).exp(),
    "pow": lambda d: x(d, 3) ** 2,
    "rpow": lambda d: 2 ** x(d, 3),
    "layer_norm": lambda d: F.layer_norm(x(d, 3, 4), (4,)),
    "rms_norm": lambda d: F.rms_norm(x(d, 3, 4), (4,)),
    "group_norm": lambda d: F.group_norm(x(d, 2, 4, 3), 2),
    "mse_loss": lambda d: F.mse_loss(x(d, 3), x(d, 3)),
    "cross_entropy": lambda d: F.cross_entropy(x(d, 3, 4), torch.tensor([0, 1, 2], device="tpu")),
    "interpolate": lambda d: F.interpolate(x(d, 1, 1, 4, 4), scale_factor=2, mode="bilinear"),
    "softmax": lambda d: x(d, 3, 4).softmax(-1),
    "softmax_dtype_none": lambda d: torch.softmax(x(d, 3, 4), -1, None),
    "sum": lambda d: x(d, 3, 4).sum(),
    "sum_dim": lambda d: x(d, 3, 4).sum(1),
    "cumsum": lambda d: x(d, 3, 4).cumsum(0),
    "prod": lambda d: x(d, 3, 4).prod(),
    "vector_norm": lambda d: torch.linalg.vector_norm(x(d, 3, 4)),
    "norm": lambda d: torch.ops.aten.norm.Scalar(x(d, 3, 4)),
    "norm_dim": lambda d: torch.ops.aten.norm.ScalarOpt_dim(x(d, 3, 4), 2, [1], True),
}
SAME = {
    "relu": lambda d: x(d, 3).relu(),
    "add": lambda d: x(d, 3) + 1,
    "mean": lambda d: x(d, 3).mean(),
    "sum_to_half": lambda d: x(d, 3).sum(dtype=d),
}


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("name", [*LOWER, *FLOAT32, *SAME])
def test_dtypes(name: str, half: torch.dtype) -> None:
    with torch.autocast("tpu", half):
        for given in (half, torch.float32):
            if name in LOWER:
                expected, call = half, LOWER[name]
            elif name in FLOAT32:
                expected, call = torch.float32, FLOAT32[name]
            else:
                expected, call = given, SAME[name]
            assert call(given).dtype == expected, given
    outside = {**LOWER, **FLOAT32, **SAME}[name](half)
    assert outside.dtype == half


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_mixed_inputs_take_the_widest(half: torch.dtype) -> None:
    with torch.autocast("tpu", half):
        a, b = x(half, 3), x(torch.float32, 3)
        assert torch.addcmul(a, b, b).dtype == torch.float32
        assert torch.addcmul(a, a, a).dtype == half
        assert torch.dot(a, b).dtype == torch.float32
        index = (torch.tensor([0, 2], device="tpu"),)
        assert a.index_put(index, b[:2]).dtype == torch.float32
        assert torch.atan2(b, a).dtype == torch.float32


def test_float64_and_integers_are_left_alone() -> None:
    with torch.autocast("tpu", torch.bfloat16):
        assert (x(torch.float64, 2, 2) @ x(torch.float64, 2, 2)).dtype == torch.float64
        assert x(torch.float64, 3).exp().dtype == torch.float64
        assert torch.ones(3, dtype=torch.int64, device="tpu").sum().dtype == torch.int64


def test_nesting_disabling_and_the_default_dtype() -> None:
    a = x(torch.float32, 2, 2)
    assert torch.get_autocast_dtype("tpu") == torch.bfloat16
    with torch.autocast("tpu"):
        assert (a @ a).dtype == torch.bfloat16
        with torch.autocast("tpu", enabled=False):
            assert (a @ a).dtype == torch.float32
        with torch.tpu.amp.autocast(dtype=torch.float16):
            assert (a @ a).dtype == torch.float16
    assert (a @ a).dtype == torch.float32


def test_an_unsafe_loss_is_refused() -> None:
    with torch.autocast("tpu"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(x(torch.float32, 3) / 2, torch.ones(3, device="tpu"))


def test_gradients_keep_the_dtype_of_the_parameters() -> None:
    weight = x(torch.float32, 4, 4).requires_grad_()
    given = x(torch.float32, 2, 4)
    with torch.autocast("tpu", torch.bfloat16):
        loss = (given @ weight).softmax(-1).square().sum()
    loss.backward()
    assert loss.dtype == torch.float32 and weight.grad.dtype == torch.float32
    reference = weight.detach().cpu().requires_grad_()
    (given.cpu() @ reference).softmax(-1).square().sum().backward()
    torch.testing.assert_close(weight.grad.cpu(), reference.grad, atol=2e-2, rtol=5e-2)
