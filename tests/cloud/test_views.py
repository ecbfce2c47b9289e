"""Views and in-place writes: same values, strides and aliasing as the CPU, in any combination."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_backend import views

CHAINS = {
    "t": lambda a: a.t(),
    "slice": lambda a: a[1:, ::2],
    "select": lambda a: a[2],
    "step": lambda a: a[::3, 1::2],
    "permute": lambda a: a.view(2, 2, 6).permute(2, 0, 1),
    "diagonal": lambda a: a.diagonal(),
    "unsqueeze": lambda a: a.unsqueeze(1).squeeze(1).t()[1:3],
    "unfold": lambda a: a.unfold(1, 3, 2),
    "as_strided": lambda a: torch.as_strided(a, (3, 2), (5, 1), 2),
    "overlap": lambda a: torch.as_strided(a, (3, 3), (1, 1), 1),
    "split": lambda a: a.split(3, dim=1)[1],
    "chunk": lambda a: a.chunk(2)[1].t(),
    "expand": lambda a: a[:1].expand(3, 6),
    "narrow": lambda a: a.narrow(0, 1, 2).flatten(),
    "real": lambda a: torch.view_as_complex(a.view(4, 3, 2))[1:],
    "int view": lambda a: a.view(torch.int32)[1:, 2],
    "half view": lambda a: a.view(torch.int16)[:, 1::2],
}


@pytest.fixture
def a() -> torch.Tensor:
    return torch.arange(24.0).reshape(4, 6) - 7


@pytest.mark.parametrize("name", CHAINS)
def test_reading(name, a):
    ours, theirs = CHAINS[name](a.to("tpu")), CHAINS[name](a)
    assert ours.stride() == theirs.stride()
    assert ours.storage_offset() == theirs.storage_offset()
    torch.testing.assert_close(ours.cpu(), theirs)
    torch.testing.assert_close((ours + 1).cpu(), theirs + 1)


@pytest.mark.parametrize("name", [n for n in CHAINS if n not in ("overlap", "expand", "unfold")])
def test_writing_shows_in_the_base(name, a):
    ours, theirs = a.to("tpu"), a.clone()
    for base in (ours, theirs):
        view = CHAINS[name](base)
        view.mul_(2).add_(1)
        view.copy_(view.clone() + 1)
        view.zero_() if name == "select" else view.fill_(3)
    torch.testing.assert_close(ours.cpu(), theirs)


def test_views_share_and_count_versions(a):
    t = a.to("tpu")
    row = t[1]
    before = t._version
    row.add_(1)
    assert t._version == before + 1
    assert row._base is t
    t.data.add_(1)
    torch.testing.assert_close(row.cpu(), a[1] + 2)
    detached = t.detach()
    detached.zero_()
    assert row.abs().sum().item() == 0


def test_gradient_flows_through_views_and_writes(a):
    def program(x):
        y = x * 2
        y[1:3] = y[0:2].clone() * 3
        y.t()[2].mul_(4)
        return (y[:, ::2] ** 2).sum()

    ours, theirs = a.to("tpu").requires_grad_(), a.clone().requires_grad_()
    program(ours).backward()
    program(theirs).backward()
    torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


def test_a_leaf_that_needs_grad_is_not_written(a):
    t = a.to("tpu").requires_grad_()
    with pytest.raises(RuntimeError, match="leaf"):
        t.add_(1)
    with torch.no_grad():
        t.add_(1)


def test_swapping_data_and_storages(a):
    t = a.to("tpu")
    view = t.view(-1)
    t.data = t.data + 1
    torch.testing.assert_close(view.cpu(), a.view(-1))
    other = torch.empty(0, device="tpu").set_(t.untyped_storage(), 2, (3,), (1,))
    other.fill_(9)
    assert t.flatten()[2:5].tolist() == [9, 9, 9]
    grown = torch.ones(3, device="tpu")
    grown.resize_(5)
    assert grown.shape == (5,) and grown[:3].tolist() == [1, 1, 1]
    grown.resize_(2, 2)
    assert grown[0].tolist() == [1, 1]


@pytest.mark.parametrize("call", [torch.add, torch.sub, torch.matmul])
def test_out(call, a):
    x, t = a[:, :4], a.to("tpu")[:, :4]
    for out in (torch.empty(0), torch.empty(4, 4), torch.empty(8, 4)[::2], torch.empty(4, 4).t()):
        there = out.to("tpu") if out.is_contiguous() else torch.empty(8, 8, device="tpu")[::2, ::2]
        result = call(t, t, out=there)
        assert result is there
        torch.testing.assert_close(there.cpu(), call(x, x))
    with pytest.raises(RuntimeError, match="can't be cast"):
        call(t, t, out=torch.empty(4, 4, dtype=torch.int64, device="tpu"))


def test_channels_last():
    x = torch.randn(2, 3, 4, 5)
    t = x.to("tpu")
    for make in (
        lambda v: v.to(memory_format=torch.channels_last),
        lambda v: v.contiguous(memory_format=torch.channels_last),
        lambda v: torch.relu(v.to(memory_format=torch.channels_last)),
        lambda v: v.to(memory_format=torch.channels_last)[:, 1:],
        lambda v: torch.empty_like(v.to(memory_format=torch.channels_last)).copy_(v),
    ):
        assert make(t).stride() == make(x).stride()
        torch.testing.assert_close(make(t).cpu(), make(x))


def test_conjugate_and_negative_views():
    z = torch.randn(3, 4, dtype=torch.complex64)
    t = z.to("tpu")
    torch.testing.assert_close(t.conj().cpu(), z.conj().resolve_conj())
    torch.testing.assert_close((t.conj() * t).cpu(), z.conj() * z)
    torch.testing.assert_close(t.conj().imag.cpu(), z.conj().imag.resolve_neg())
    torch.testing.assert_close(t.real.cpu(), z.real)
    t.real.zero_()
    torch.testing.assert_close(t.cpu(), torch.complex(torch.zeros(3, 4), z.imag))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 7)), min_size=0, max_size=3),
    st.integers(0, 10),
    st.integers(0, 40),
)
def test_any_strided_view_reads_and_writes(dims, offset, spare):
    """Against NumPy's strided view of the same storage, for every kind of spec."""
    size = tuple(n for n, _ in dims)
    stride = tuple(s for _, s in dims)
    length = offset + views.extent(size, stride) + spare
    content = np.arange(length, dtype=np.int32)
    expected = np.lib.stride_tricks.as_strided(
        content[offset:], size, tuple(4 * s for s in stride), writeable=False
    )
    t = torch.from_numpy(content.copy()).to("tpu")
    view = torch.as_strided(t, size, stride, offset)
    np.testing.assert_array_equal(view.cpu().numpy(), expected)
    overlapping = len(np.unique(expected)) < expected.size
    if not overlapping and expected.size:
        view.add_(100)
        content[expected.ravel()] += 100
        np.testing.assert_array_equal(t.cpu().numpy(), content)


def _views_shaped_like_the_base(device: str) -> list[object]:
    """Contiguous views of half an element: another itemsize, but the base's own shape."""
    base = torch.arange(4, device=device) + (1 << 33)
    halves, z = base.view(torch.int32), torch.tensor(3 + 4j, device=device)
    found = [(halves[k : k + 4] + 1).tolist() for k in (0, 2, 4, 0, 4)]
    found += [torch.neg(halves[k : k + 4]).tolist() for k in (4, 0, 2)]
    halves[2:6].add_(5)
    found += [base.tolist(), (z.real + 1).item(), (z.imag + 1).item(), torch.sqrt(z.imag).item()]
    z.imag.mul_(2)
    return [*found, z.item()]


@pytest.mark.parametrize("mode", ["strict", "fused"])
def test_a_view_of_other_bytes_with_the_shape_of_its_base(mode):
    with torch.tpu.eager_mode(mode):
        assert _views_shaped_like_the_base("tpu") == _views_shaped_like_the_base("cpu")
    x = torch.tensor(2.0, device="tpu", requires_grad=True)
    x.cdouble().backward(torch.tensor(1 - 2j, dtype=torch.complex128, device="tpu"))
    assert x.grad.item() == 1
