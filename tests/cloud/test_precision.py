"""`torch.set_float32_matmul_precision` and `torch.tpu.precision` reach every product's program."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import torch

from cloud_backend import runtime
from cloud_backend.ops import TABLE, load
from torch_tpu_unified.core.aten import aten

XLA = {"medium": "DEFAULT", "high": "HIGH", "highest": "HIGHEST"}


@pytest.fixture(autouse=True)
def _as_before():
    runtime.start()
    load()
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def ones(*size: int) -> jax.Array:
    return jnp.ones(size, jnp.float32)


def convolution():
    entry = TABLE.get(aten.convolution.default)
    rest = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "transposed": False}
    rest |= {"output_padding": [0, 0], "groups": 1, "bias": None}
    return lambda x, w: entry.function(**entry.bind((x, w), rest))


PRODUCTS = {
    "mm": (lambda: TABLE.get(aten.mm.default).function, (ones(2, 3), ones(3, 2))),
    "bmm": (lambda: TABLE.get(aten.bmm.default).function, (ones(1, 2, 3), ones(1, 3, 2))),
    "addmm": (
        lambda: TABLE.get(aten.addmm.default).function,
        (ones(2, 2), ones(2, 3), ones(3, 2)),
    ),
    "convolution": (convolution, (ones(1, 2, 4, 4), ones(3, 2, 3, 3))),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_programs_carry_the_precision(name: str) -> None:
    make, args = PRODUCTS[name]
    function = jax.jit(make())
    for theirs, xla in XLA.items():
        torch.set_float32_matmul_precision(theirs)
        text = function.lower(*args).as_text()
        assert f"[{xla}, {xla}]" in text or f"#stablehlo<precision {xla}>" in text, text
    torch.set_float32_matmul_precision("medium")
    with torch.tpu.precision(torch.tpu.Precision.HIGHEST):
        assert "HIGHEST" in function.lower(*args).as_text()
    assert "HIGHEST" not in function.lower(*args).as_text()


def test_eager_and_compiled_programs_follow_a_change() -> None:
    a, b = torch.randn(3, 5), torch.randn(5, 7)
    f = torch.compile(lambda x, y: x @ y)
    for theirs in (*XLA, "highest"):
        torch.set_float32_matmul_precision(theirs)
        for call in (torch.matmul, f):
            torch.testing.assert_close(call(a.to("tpu"), b.to("tpu")).cpu(), a @ b)
        assert jax.config.jax_default_matmul_precision == XLA[theirs].lower()


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="sharp"), torch.tpu.precision("sharp"):
        raise AssertionError("not reached")
