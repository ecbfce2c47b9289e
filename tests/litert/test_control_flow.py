"""torch.cond, while_loop, map and scan in LiteRT files: the same values on every path taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from ai_edge_litert.interpreter import Interpreter
from torch import nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan

import torch_tpu_unified as ttu
from litert_export import export_module
from litert_export.quantize import QuantConfig
from torch_tpu_unified.core.errors import LoweringError


class Cond(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.linear(x) * 2, lambda x: x - 1, (x,))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))
        self.b = nn.Conv2d(3, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.mean() > 0, lambda x: self.a(x), lambda x: self.b(x), (x,))


class SeveralResults(nn.Module):
    """Results that are constants, or made of constants alone (one too large to keep)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("big", torch.rand(1, 600, 300) > 0.5)

    def forward(self, x: torch.Tensor) -> Any:
        big = self.big

        def small(x: torch.Tensor) -> Any:
            return x * 3, torch.full((), 0.5), x.argmax(1), torch.ones(2, 600, 300).bool()

        def large(x: torch.Tensor) -> Any:
            return x.exp(), x.sum(), torch.zeros(x.shape[0], dtype=torch.int64), big.repeat(2, 1, 1)

        return torch.cond(x.sum() > 0, large, small, (x,))


class KnownCondition(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("flag", torch.tensor(False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(self.flag, lambda x: x.sin(), lambda x: x.cos(), (x,))


class Loop(nn.Module):
    """A branch in a loop that runs until values say stop, with something it only reads."""

    def forward(self, x: torch.Tensor) -> Any:
        scale = x.abs().mean() + 1

        def grow(i: torch.Tensor, y: torch.Tensor) -> Any:
            y = torch.cond(i > 2, lambda y: y * 1.5 + scale, lambda y: y + 2, (y,))
            return i + 1, y

        start = (torch.tensor(0), x)
        return torch.while_loop(lambda i, y: y.sum() < 40, grow, start)


class Counted(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        start = (torch.tensor(0), x)
        return torch.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 1.5), start)


class Map(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = map_rows(lambda row: self.linear(row).relu(), x)
        return found


class Scan(nn.Module):
    def __init__(self, reverse: bool = False) -> None:
        super().__init__()
        self.reverse = reverse
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        def step(state: torch.Tensor, row: torch.Tensor) -> Any:
            state = self.linear(state) * 0.5 + row
            return state, state.tanh()

        return scan(step, torch.zeros(4), x, dim=0, reverse=self.reverse)


def _outputs(model: bytes, x: torch.Tensor) -> list[Any]:
    runner = Interpreter(model_content=model).get_signature_runner()
    (name,) = runner.get_input_details()
    found = runner(**{name: x.numpy()})
    return [found[n] for n in sorted(found)]


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[str]]] = {
    "cond": (Cond, (3, 4), ["IF"]),
    "cond_convolutions": (Convolutions, (1, 3, 5, 5), ["IF"]),
    "cond_several_results": (SeveralResults, (3, 4), ["IF"]),
    "cond_known": (KnownCondition, (3, 4), []),
    "while_loop": (Loop, (3, 4), ["IF", "WHILE"]),
    "while_loop_counted": (Counted, (3, 4), ["WHILE"]),
    "map": (Map, (3, 4), []),
    "map_loop": (Map, (20, 4), ["WHILE"]),
    "scan": (Scan, (3, 4), []),
    "scan_loop": (Scan, (20, 4), ["WHILE"]),
    "scan_loop_reverse": (lambda: Scan(reverse=True), (20, 4), ["WHILE"]),
}


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    make, shape, codes = CASES[name]
    torch.manual_seed(0)
    module, x = make().eval(), torch.randn(shape)
    made = export_module(module, (x,))
    assert [c for c in ("IF", "WHILE") if c in made.report.ops] == codes
    for given in (x.abs(), -x.abs(), x * 0.1):
        with torch.no_grad():
            want = module(given)
        want = want if isinstance(want, tuple) else (want,)
        for got, expected in zip(_outputs(bytes(made.model), given), want, strict=True):
            assert got.dtype == expected.numpy().dtype and got.shape == tuple(expected.shape)
            np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5, atol=1e-5)


def test_any_number_of_rows() -> None:
    module = Map().eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(module, (torch.randn(12, 4),), dynamic_shapes={"x": {0: batch}})
    ttu.convert(program)  # compares at three sizes


@pytest.mark.parametrize("make", [Cond, Convolutions, Counted, Scan])
def test_integers(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module = make().eval()
    x = torch.randn((1, 3, 5, 5) if make is Convolutions else (12, 4))
    samples = [(x.abs(),), (-x.abs(),), (x * 0.5,)]
    config = QuantConfig("int8", input_type="float32", output_type="float32")
    calibration = {"serving_default": [(a.numpy(),) for (a,) in samples]}
    made = export_module(module, (x,), quantize=config, calibration=calibration)
    assert not {"IF", "WHILE"} & set(made.report.ops)
    for (given,) in samples:
        with torch.no_grad():
            want = module(given)
        got = _outputs(bytes(made.model), given)[-1]
        want = want[-1] if isinstance(want, tuple) else want
        error = np.abs(got - want.numpy()).max() / np.abs(want.numpy()).max()
        assert error < 0.06, error


def test_what_is_missing_in_a_branch_is_named() -> None:
    class Missing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(
                x.sum() > 0, lambda x: torch.linalg.svdvals(x), lambda x: x[0] * 1, (x,)
            )

    with pytest.raises(LoweringError, match=r"linalg_svd.*test_control_flow"):
        ttu.convert(Missing(), (torch.eye(3),))
