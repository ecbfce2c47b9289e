"""Every kind of difference that the fuzzer found, as a program that agrees with the CPU now.

The lines run on the CPU and on `tpu`; after each, errors, metadata, aliasing and the bytes of all
storages are compared (`tests/fuzz/program.py`).
"""

import pytest

from tests.fuzz.compare import Difference
from tests.fuzz.program import Program, Step

X = "v1 = torch.tensor([1.0, -2.0, 3.0, 0.0, 5.0, -4.0]).to(dev, copy=True)"
M = "v1 = torch.tensor([[1.0, -2.0, 3.0], [0.0, 5.0, -4.0]]).to(dev, copy=True)"
I = "v1 = torch.tensor([3, 0, 5, 4], dtype=torch.int64).to(dev, copy=True)"  # noqa: E741
U = "v1 = torch.tensor([3, 0, 5, 4], dtype=torch.uint8).to(dev, copy=True)"
B = "v1 = torch.tensor([True, False, True]).to(dev, copy=True)"
C = "v1 = torch.tensor([1 + 2j, -1j, 3 + 0j]).to(dev, copy=True)"
E = "v1 = torch.zeros((0,), device=dev)"

# Where a storage lies, who shares it, what a write to it does.
MEMORY = {
    "resize_ grows the storage that others share": (
        X,
        "v2 = v1[1:]",
        "v1.resize_((8,)); v1[6:].fill_(7)",
        "v2.add_(1)",
    ),
    "an untyped storage grows": (
        X,
        "v1.untyped_storage().resize_(40)"
        "; v2 = torch.empty(0, device=dev).set_(v1.untyped_storage()); v2[6:].zero_()",
        "v1.resize_((10,))",
    ),
    "set_ beyond the storage": (
        X,
        "v1.set_(v1.untyped_storage(), 2, (6,), (1,))",
    ),
    "a write that partly overlaps what it reads": (X, "v1[1:].copy_(v1[:-1])"),
    "addition that partly overlaps": (X, "v1[1:].add_(v1[:-1])", "v1.add_(v1[0])"),
    "a transposed self": ("v1 = torch.ones(2, 2, device=dev)", "v1.add_(v1.t())"),
    "out= partly over an input": (X, "torch.add(v1[1:], 1, out=v1[:-1])"),
    "out= is an input of another shape": (
        E,
        "v2 = torch.ones((), device=dev)",
        "torch.maximum(v1, v2, out=v2)",
    ),
    "fill_ of an expanded tensor": (
        X,
        "v2 = v1.as_strided((2, 2), (0, 1), 0)",
        "v2.fill_(3)",
        "v2.zero_()",
        "v2.add_(1)",
    ),
    "a wider view of a storage that does not divide": (
        "v1 = torch.tensor([1, 2, 3], dtype=torch.bfloat16).to(dev, copy=True)",
        "v2 = torch.empty(0, dtype=torch.float32, device=dev)"
        ".set_(v1.untyped_storage(), 0, (1,), (1,))",
        "v2.fill_(2.5)",
    ),
    "bytes that are no bools": (
        B,
        "v2 = v1.view(torch.uint8).clone()",
        "v2.mul_(5)",
        "v3 = v1.view(torch.uint8)",
        "v3.add_(0)",
        "v3[1:].zero_()",
    ),
    "out= that lay over an input before its resize": (
        X,
        "v2 = v1.as_strided((2, 3), (3, 1), 0)",
        "torch.add(v2, v2, out=v1)",
    ),
    "a narrower view of the base's own shape": (
        "v1 = torch.tensor([1, 2, 3, 4], dtype=torch.int32).to(dev, copy=True)",
        "v2 = v1.view(torch.int16)[4:]",
        "v2.add_(1)",
        "v3 = v2 + 1",
    ),
    "out= that is resized takes the result's strides": (
        M,
        "v2 = v1.t()",
        "v3 = torch.empty(0, device=dev); torch.neg(v2, out=v3)",
    ),
}

# Strides of results, numbers that come back.
RESULTS = {
    "absolute values of complex numbers in a complex out=": (
        C,
        "v2 = torch.zeros(3, dtype=torch.complex64, device=dev)",
        "torch.abs(v1, out=v2)",
    ),
    "nonzero is laid out by dimension": (M, "v2 = v1.nonzero()", "v3 = v1.sum().nonzero()"),
    "complex numbers, twice": (C, "v1.add_(1j)", "v1.add_(1j)", "v1.add_(2j)"),
    "nan_to_num of complex numbers": (
        "v1 = torch.tensor([complex(float('nan'), 1), complex(2, float('inf'))]).to(dev)",
        "v2 = v1.nan_to_num()",
        "v1.nan_to_num_(nan=3.0)",
    ),
    "pointwise results of contiguous tensors are contiguous": (
        "v1 = torch.ones((1, 3), device=dev)",
        "v2 = v1.t()",
        "v3 = torch.relu(v2)",
        "v4 = torch.logical_or(v2, v2)",
    ),
    "conj_physical_": (C, "v1.conj_physical_()", "v2 = v1.conj_physical()"),
    "equal of two dtypes": (
        I,
        "v2 = v1.int()",
        "s1 = torch.equal(v1, v2)",
        "s2 = v1.equal(v2[1:])",
    ),
    "a copy to the host keeps dense strides": (M, "h1 = v1.t().to('cpu', copy=True)"),
    "sum and prod compute in the dtype of out=": (
        B,
        "v2 = torch.zeros((), dtype=torch.bool, device=dev)",
        "torch.prod(v1, 0, out=v2)",
        "torch.sum(v1, 0, out=v2)",
    ),
}

# What PyTorch refuses, and with which class of error.
REFUSALS = {
    "products of types that do not mix": (
        "v1 = torch.ones(2, 2, device=dev)",
        "v2 = v1.to(torch.float8_e5m2) @ v1.double()",
    ),
    "a number that a dtype cannot hold": (
        U,
        "v1.fill_(300)",
        "v1.fill_(-1)",
        "v1.masked_fill_(v1 == 0, 300)",
        "v1[1:] = 300",
        "v2 = torch.full((2,), 300, dtype=torch.uint8, device=dev)",
        "v1.index_fill_(0, torch.tensor([0]).to(dev), -300)",
        "v1.scatter_(0, torch.tensor([0]).to(dev), 300)",
        "v3 = v1.to(torch.float8_e4m3fn)",
        "v3[0] = 1j",
    ),
    "a complex number into reals": (X, "v1.fill_(1j)", "v1[1:1] = 1j", "v1.fill_(1e39)"),
    "in place with a result of a higher kind": (
        B,
        "v1.mul_(2)",
        "v1.add_(1)",
        "v2 = v1.to(torch.int32)",
        "v2.mul_(1.5)",
        "v2[:2] *= 0.5",
    ),
    "subtraction of bools": (B, "v1.sub_(v1)", "v2 = 2 - v1", "v2 = v1 - True"),
    "extremes of no elements": (
        E,
        "v2 = v1.max()",
        "v2 = v1.max(0)[0]",
        "v2 = v1.amax()",
        "v2 = v1.amax(0)",
        "v2 = v1.argmax()",
        "v2 = v1.argmin(0)",
        "v2 = v1.median(0)[0]",
        "v2 = v1.mode(0)[0]",
        "v2 = v1.aminmax(dim=0)[0]",
    ),
    "extremes of complex numbers": (
        C,
        "v2 = v1.max(0)[0]",
        "v2 = v1.argmin()",
        "v2 = v1.sort()[0]",
        "v2 = v1.sign()",
        "v2 = v1.clamp(0, 1)",
        "v2 = v1.relu()",
    ),
    "argmin of bools, relu of bools": (B, "v2 = v1.argmin()", "v1.relu_()"),
    "cat of numbers, and into another kind": (
        "v1 = torch.ones((), device=dev)",
        "v2 = torch.cat((v1, v1))",
        C,
        "v2 = torch.empty(0, device=dev); torch.cat((v1, v1), out=v2)",
    ),
    "index_put of other shapes and dtypes": (
        I,
        "v2 = torch.ones(0, dtype=torch.int64, device=dev)",
        "v1[torch.tensor([0, 1]).to(dev)] = v2",
        "v2[torch.tensor([], dtype=torch.int64).to(dev)] = v1",
        "v2[torch.tensor([], dtype=torch.bool).to(dev)] = v1",
        "v1[torch.tensor([0, 1]).to(dev)] = torch.ones(2, device=dev)",
    ),
    "indices that must be int64": (
        I,
        "v1.index_copy_(0, torch.tensor([0], dtype=torch.int32).to(dev), v1[1:2].clone())",
        "v1.index_fill_(0, torch.tensor([0], dtype=torch.int32).to(dev), 2)",
    ),
    "index_copy_ of a number": (
        "v1 = torch.ones((), device=dev)",
        "v1.index_copy_(0, torch.tensor([], dtype=torch.int64).to(dev), v1.clone())",
    ),
    "index_select of a number": (
        "v1 = torch.ones((), device=dev)",
        "v2 = v1.index_select(0, torch.tensor([0, 0]).to(dev))",
    ),
    "out= that must have the result's dtype": (
        X,
        "v2 = torch.zeros(2, dtype=torch.uint8, device=dev)",
        "torch.argmax(v1, 0, out=v2)",
        "torch.amax(v1, 0, out=v2)",
        "torch.neg(v1, out=v1.double())",
        "torch.clamp(v1, 0, 1, out=v1.double())",
        "torch.abs(v1, out=v1.double())",
        "torch.abs(v1, out=torch.zeros(6, dtype=torch.complex64, device=dev))",
    ),
    "mean of integers": (I, "v2 = v1.mean()", "v2 = v1.mean(3)"),
}

# Known differences. Those about values on the device would each need to wait for them.
LIMITATIONS = {
    "logical operators of types that do not promote": (
        C,
        "v1.logical_and_(torch.ones(3, dtype=torch.uint16, device=dev))",
    ),
    "index_select out of range": (X, "v2 = v1.index_select(0, torch.tensor([9]).to(dev))"),
    "a mask of more places than there are values": (
        X,
        "v1.masked_scatter_(torch.ones(6, dtype=torch.bool, device=dev), v1[:2].clone())",
    ),
    "the version of a gradient through an empty view": (
        "v1 = torch.ones((), device=dev, requires_grad=True)",
        "v1.as_strided((0,), (1,), 0).sum().backward()",
        "v2 = v1.grad",
    ),
    "index_put_ into a tensor that repeats elements": (
        "v1 = torch.zeros(1, device=dev).expand(3)",
        "v1[torch.tensor([0, 1]).to(dev)] = torch.ones(2, device=dev)",
    ),
}


@pytest.mark.xfail(strict=True, raises=Difference, reason="a known difference from the CPU")
@pytest.mark.parametrize("name", LIMITATIONS)
def test_limitation(name):
    program = Program()
    for line in LIMITATIONS[name]:
        program.run(Step(line))


@pytest.mark.parametrize("name", [*MEMORY, *RESULTS, *REFUSALS])
def test_program_agrees_with_the_cpu(name):
    program = Program()
    for line in {**MEMORY, **RESULTS, **REFUSALS}[name]:
        program.run(Step(line))
    raised = sum(line.startswith("try:") for line in program.lines)
    assert raised if name in REFUSALS else len(program.lines) > raised
