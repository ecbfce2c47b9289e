"""Whole models become LiteRT files that agree with PyTorch, and all four targets agree on two."""

from __future__ import annotations

import pytest
import torch

import torch_tpu_unified as ttu
from tests.model_cases import BY_NAME, CASES, ModelCase


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_conversion_agrees(case: ModelCase) -> None:
    model, args = case.model().eval(), case.example()
    converted = ttu.convert(model, args, verify=False)
    with torch.no_grad():
        expected = model(*args)
    found = ttu.load(converted.model)(*args)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    error = (found - expected).abs().max() / expected.abs().max()
    assert error < 1e-4


@pytest.mark.parametrize("name", ["resnet50", "unet"])
def test_convolutions_need_no_transposes_inside(name: str) -> None:
    case = BY_NAME[name]
    operators = ttu.convert(case.model(), case.example(), verify=False).report.operators
    assert operators.get("TRANSPOSE", 0) <= 1
    assert "BATCH_NORM" not in operators and operators.get("MUL", 0) == 0


@pytest.mark.parametrize("name", ["unet", "mingpt"])
def test_all_targets_agree(name: str) -> None:
    case = BY_NAME[name]
    table = ttu.parity(case.model().eval(), case.example())
    assert table.ok, str(table)
    for target in ("tpu eager", "tpu compiled", "litert"):
        assert target in str(table)
