"""`parity`: agreement where there is, and the right node where a target is broken on purpose."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torch_tpu_unified as ttu
from torch_tpu_unified.core.errors import OptionError

TANH = torch.ops.aten.tanh.default


def break_op(monkeypatch: pytest.MonkeyPatch, table: Any, wrong: Callable[..., Any]) -> None:
    entry = dataclasses.replace(table.entries[TANH], function=wrong)
    monkeypatch.setitem(table.entries, TANH, entry)


def test_all_targets_agree(net: nn.Module, image: torch.Tensor) -> None:
    table = ttu.parity(net, (image,))
    assert table.ok, str(table)
    assert [r.target for r in table.results] == ["tpu eager", "tpu compiled", "litert"]
    assert all(r.agreement.relative < 1e-5 for r in table.results if r.agreement)
    assert net.training and table.as_json()["ok"]


def test_an_exported_program_agrees(net: nn.Module, image: torch.Tensor) -> None:
    table = ttu.parity(torch.export.export(net.eval(), (image,)))
    assert table.ok, str(table)


def test_the_first_node_that_differs_is_named_in_a_file(
    net: nn.Module, image: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from litert_export import ops

    break_op(monkeypatch, ops.load(), lambda g, x: g.emit("LOGISTIC", x))
    table = ttu.parity(net, (image,), targets=["litert"])
    assert not table.ok
    (result,) = table.results
    assert result.departure is not None and result.departure.call.startswith("tanh(")
    assert "conftest.py" in str(table) and "torch.tanh(y.mean((2, 3)))" in str(table)


def test_the_first_node_that_differs_is_named_when_compiled(
    net: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloud_backend import ops

    torch.tpu.init()  # or eager mode would keep the damaged lowering for good
    break_op(monkeypatch, ops.load(), lambda x: x * 0.5)
    # A shape of its own: programs of other tests are compiled already.
    table = ttu.parity(net, (torch.randn(3, 3, 7, 5),), targets=["tpu compiled"])
    (result,) = table.results
    assert result.departure is not None, str(table)
    assert result.departure.call.startswith("tanh(")
    assert result.departure.source is not None


def test_a_target_that_fails_is_a_row(net: nn.Module) -> None:
    class Unsorted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.eigvals(x).abs()

    table = ttu.parity(Unsorted(), (torch.eye(3),), targets=["litert"])
    assert not table.ok
    assert "FAILED" in str(table) and "eig" in str(table)
    assert table.as_json()["targets"]["litert"]["error"]


def test_unknown_targets_are_told(net: nn.Module, image: torch.Tensor) -> None:
    with pytest.raises(OptionError, match="one of tpu eager, tpu compiled, litert"):
        ttu.parity(net, (image,), targets=["gpu"])
