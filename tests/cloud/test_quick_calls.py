"""Calls that look alike but are not: eager calls find their compiled program by a short key."""

from __future__ import annotations

import math

import pytest
import torch

import torch_tpu_unified  # noqa: F401
from cloud_backend.kernels import table_kernel
from cloud_backend.plan import Kernel


def test_storages_of_another_dtype_and_shape_have_programs_of_their_own():
    floats = torch.arange(1.0, 17.0)
    integers = torch.arange(16, dtype=torch.int32)
    for base in (floats.view(torch.int32), integers, floats.reshape(4, 4).view(torch.int32)):
        flat = base.reshape(16)
        assert torch.equal((flat.to("tpu") + 1).cpu(), flat + 1)
    for base in (floats, floats.reshape(2, 8), floats.reshape(4, 4)):
        device = base.to("tpu")
        seen = device.view(torch.int32).view(16)
        assert torch.equal((seen + 1).cpu(), base.view(torch.int32).view(16) + 1)
        assert torch.equal((device.view(8, 2) * 3).cpu(), base.view(8, 2) * 3)
        assert torch.equal((device.view(16)[3:7] * 3).cpu(), base.view(16)[3:7] * 3)


def test_tensors_of_a_list_are_told_apart():
    floats = torch.arange(16.0)
    for shape in ((16,), (4, 4), (2, 8)):
        device = floats.reshape(shape).to("tpu")
        assert torch.equal(
            torch.cat([device.view(8, 2)] * 2).cpu(), torch.cat([floats.view(8, 2)] * 2)
        )
        bits = torch.stack([device.view(torch.int32).view(16)])
        assert torch.equal(bits.cpu(), floats.view(torch.int32)[None])


def test_zeros_keep_their_sign_and_numbers_their_type():
    x = torch.ones(2, device="tpu")
    for _ in range(2):
        assert math.copysign(1.0, (x * 0.0)[0].item()) == 1.0
        assert math.copysign(1.0, (x * -0.0)[0].item()) == -1.0
    n = torch.arange(3, device="tpu")
    for _ in range(2):
        assert (n + 1).dtype == torch.int64
        assert (n + 1.0).dtype == torch.float32
        assert (n + True).dtype == torch.int64
        assert torch.isnan(x * math.nan).all()
    with pytest.raises((RuntimeError, OverflowError)):
        n + 2**70


def test_numbers_that_vary_make_no_programs():
    x = torch.ones(3, device="tpu")
    y = torch.ones(3, device="tpu")
    x * 1.5
    y.mul_(1.5)
    before = torch.tpu.compile_count()
    for i in range(5):
        assert (x * (2.5 + i))[0].item() == 2.5 + i
        y.mul_(0.5 + i)
    assert torch.tpu.compile_count() - before <= 1  # reading an element


def test_in_place_returns_the_tensor_and_counts_a_version():
    x = torch.zeros(4, device="tpu")
    view = x[1:3]
    for i in range(1, 4):
        before = x._version
        assert x.add_(1) is x
        assert x._version == before + 1
        assert view.cpu().tolist() == [i, i]
    for i in range(1, 4):
        assert view.mul_(2) is view
        assert x.cpu().tolist() == [3, 3 * 2**i, 3 * 2**i, 3]
    with pytest.raises(RuntimeError, match="more than one element"):
        torch.zeros(1, device="tpu").expand(3).add_(1)


def test_conjugate_and_negative_operands_of_products():
    a = torch.randn(3, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    d = a.to("tpu")
    for _ in range(2):
        torch.testing.assert_close((d @ d).cpu(), a @ a)
        torch.testing.assert_close((d.conj() @ d).cpu(), a.conj() @ a)
        torch.testing.assert_close((d.conj().imag @ d.real).cpu(), a.conj().imag @ a.real)


def test_precision_of_products_has_programs_of_its_own():
    a = torch.randn(4, 4, device="tpu")
    mm = table_kernel(torch.ops.aten.mm.default)
    before = torch.get_float32_matmul_precision()
    try:
        for name in ("highest", "medium", "highest"):
            torch.set_float32_matmul_precision(name)
            mm(a, a)
            mm(a, a)
    finally:
        torch.set_float32_matmul_precision(before)
    (plan,) = [p for p in mm.plans.values() if p.fresh[0].size == (4, 4)]
    assert {look[0] for look in plan.programs} == {"highest", "default"}
    assert len(plan.programs) == 2


def test_memory_follows_results():
    x = torch.ones(1024, device="tpu")
    before = torch.tpu.memory_allocated()
    y = x + x
    assert torch.tpu.memory_allocated() - before == 4096
    del y
    assert torch.tpu.memory_allocated() == before


def test_complex_numbers_may_follow_one_another():
    x = torch.ones(2, dtype=torch.float64, device="tpu")
    for z in (1 + 2j, 1 + 2j, 2 + 0j):
        assert torch.equal((x + z).cpu(), torch.ones(2, dtype=torch.float64) + z)
        assert torch.equal((z * x).cpu(), torch.ones(2, dtype=torch.float64) * z)


def test_promotion_follows_the_default_dtype():
    n = torch.arange(4, device="tpu")
    default = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            torch.set_default_dtype(dtype)
            assert (n / 2).dtype == (n * 0.5).dtype == n.sqrt().dtype == dtype
            assert (n + 1j).dtype == torch.promote_types(dtype, torch.complex64)
    finally:
        torch.set_default_dtype(default)


def test_zero_dimensional_complex_keeps_the_rank_of_the_float():
    z = torch.tensor(1 + 2j, dtype=torch.complex128)
    for dtype in (torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.complex64):
        x = torch.ones(3, dtype=dtype)
        expected = x * z
        ours = x.to("tpu") * z.to("tpu")
        assert ours.dtype == expected.dtype
        assert torch.equal(ours.cpu(), expected)


def test_options_are_told_apart_and_numbers_among_them_make_no_programs():
    x, y = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)
    a, b = x.to("tpu"), y.to("tpu")
    for _ in range(2):  # the second time, the quick way
        for options in ({}, {"alpha": 2}, {"alpha": 2.5}, {"alpha": 0}, {"alpha": -0.0}):
            expected = torch.add(x, y, **options)
            torch.testing.assert_close(torch.add(a, b, **options).cpu(), expected)
        for format in (torch.contiguous_format, torch.preserve_format):
            found = a.mT.clone(memory_format=format)
            assert found.stride() == x.mT.clone(memory_format=format).stride()
            torch.testing.assert_close(found.cpu(), x.mT)
        for dtype in (None, torch.float64, torch.int32):
            found = a.sum(dtype=dtype)
            assert found.dtype == x.sum(dtype=dtype).dtype
            torch.testing.assert_close(found.cpu(), x.sum(dtype=dtype))
    programs = torch.tpu.compile_count()
    for i in range(5):
        torch.testing.assert_close(torch.add(a, b, alpha=3.25 + i).cpu(), x + (3.25 + i) * y)
    a.add_(b, alpha=-0.5)
    assert torch.tpu.compile_count() <= programs + 1


def test_results_that_are_not_contiguous_take_the_quick_way(monkeypatch):
    x = torch.arange(24.0).reshape(2, 3, 4)
    ours = x.to("tpu").transpose(1, 2)
    expected = torch.neg(x.transpose(1, 2))
    torch.neg(ours).add_(1)
    monkeypatch.setattr(Kernel, "_general", None)  # whatever goes there fails
    for _ in range(2):
        found = torch.neg(ours)
        assert found.stride() == expected.stride()
        found.add_(1)
    monkeypatch.undo()
    torch.testing.assert_close(found.cpu(), expected + 1)
    torch.testing.assert_close(torch.neg(ours).cpu(), expected)
