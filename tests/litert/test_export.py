"""The exporter around its ops: names, signatures, refusals, errors, file format, reading back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from litert_export import export, export_module, export_program, reader, schema, verify, writer
from litert_export.graph import Graph
from torch_tpu_unified.core import flags
from torch_tpu_unified.core.errors import (
    ConversionError,
    InputError,
    LoweringError,
    VerificationError,
)


class Function(nn.Module):
    def __init__(self, fn: Any) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: torch.Tensor) -> Any:
        return self.fn(x)


class Keyed(nn.Module):
    def forward(self, tokens: Any, mask: torch.Tensor, *, scale: torch.Tensor) -> Any:
        return {"sum": tokens["a"] + tokens["b"], "pair": (mask * scale, mask)}


@pytest.fixture(scope="module")
def small() -> Any:
    module = nn.Sequential(nn.Linear(3, 40), nn.ReLU(), nn.Linear(40, 2)).eval()
    return module, torch.export.export(module, (torch.ones(1, 3),))


def test_names() -> None:
    x = torch.ones(2)
    args = ({"a": x, "b": 2 * x}, 3 * x)
    exported = export_module(Keyed(), args, {"scale": 4 * x})
    inputs, outputs = exported.report.signatures["serving_default"]
    assert inputs == ["tokens_a", "tokens_b", "mask", "scale"]
    assert outputs == ["sum", "pair_0", "pair_1"]
    assert reader.signatures(exported.model)["serving_default"] == (inputs, outputs)
    ours = verify.run(exported.model, [x.numpy() * k for k in (1, 2, 3, 4)])
    assert [a.tolist() for a in ours] == [[3, 3], [12, 12], [3, 3]]
    named = verify.run(exported.model, {n: x.numpy() for n in inputs})
    assert named[0].tolist() == [2, 2]


def test_given_names_and_progress(small: Any) -> None:
    seen: list[tuple[str, int, int]] = []
    exported = export_program(
        small[1],
        signature="main",
        input_names=["pixels"],
        output_names=["scores"],
        progress=lambda *a: seen.append(a),
    )
    assert exported.report.signatures == {"main": (["pixels"], ["scores"])}
    assert [n for _, n, _ in seen] == list(range(seen[0][2])) and seen[-1][0] == "write"
    with pytest.raises(ConversionError, match="2 names"):
        export_program(small[1], input_names=["a", "b"])
    with pytest.raises(InputError, match="io_layout"):
        export_program(small[1], io_layout="hwc")


def test_signatures_share_weights(small: Any) -> None:
    module, program = small
    other = torch.export.export(module, (torch.ones(5, 3),))
    one, two = export({"a": program}), export({"a": program, "b": other})
    weights = 4 * sum(p.numel() for p in module.parameters())
    assert len(two.model) - len(one.model) < weights
    x = torch.randn(5, 3)
    ours = verify.run(two.model, [x.numpy()], "b")
    assert verify.compare(ours, [module(x).detach().numpy()])[0].relative < 1e-6
    assert set(reader.read(two.model)) == {"a", "b"}


def test_weights_behind_the_flatbuffer(small: Any, tmp_path: Path) -> None:
    module, program = small
    graphs = export({"f": program}).graphs
    path = tmp_path / "far.tflite"
    path.write_bytes(writer.write(graphs, limit=0))
    x = torch.randn(1, 3)
    expected = [module(x).detach().numpy()]
    assert verify.compare(verify.run(path, [x.numpy()]), expected)[0].relative < 1e-6
    assert reader.read(path)["f"].text() == reader.read(writer.write(graphs))["f"].text()


def test_buffers_are_aligned_and_codes_are_old_enough(small: Any) -> None:
    model = export({"f": small[1]}).model
    root = schema.generated().Model.GetRootAs(model, 0)
    found = 0
    for i in range(root.BuffersLength()):
        buffer = root.Buffers(i)
        if buffer.DataLength():
            start = buffer._tab.Vector(buffer._tab.Offset(4))
            assert start % 16 == 0
            found += 1
    assert found >= 4
    code = root.OperatorCodes(0)
    assert code.DeprecatedBuiltinCode() == code.BuiltinCode()
    assert code.Version() == 5  # FULLY_CONNECTED with keep_num_dims, no newer


def test_every_missing_operator_at_once() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.lgamma(x) + torch.digamma(x) + torch.lgamma(x)

    with pytest.raises(LoweringError) as info:
        export_module(Function(fn), (torch.ones(3),))
    text = str(info.value)
    assert "aten.lgamma.default" in text and "x2" in text and "aten.digamma.default" in text
    assert "test_export.py" in text


def test_own_lowering() -> None:
    def lgamma(g: Graph, x: Any) -> Any:
        return g.emit("NEG", x)

    exported = export_module(
        Function(torch.lgamma), (torch.ones(3),), lowerings={torch.ops.aten.lgamma.default: lgamma}
    )
    assert exported.report.ops == {"NEG": 1}


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (torch.rand_like, "aten.rand"),
        (lambda x: nn.functional.max_pool2d(x, 2, return_indices=True)[1], "result 1"),
    ],
)
def test_refused_calls(fn: Any, message: str) -> None:
    with pytest.raises(LoweringError, match=message):
        export_module(Function(fn), (torch.rand(1, 1, 4, 4),))


def test_training_mode_is_refused() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)).train()
    with pytest.raises(ConversionError, match=r"model\.eval\(\)"):
        export_module(module, (torch.ones(2, 1, 3, 3),))


def test_mutation_is_refused() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.add_(1)
            return x + self.seen

    with pytest.raises(ConversionError, match="seen"):
        export_module(Counter(), (torch.ones(1),))
    with pytest.raises(ConversionError, match="input 'x'"):
        export_module(Function(lambda x: x.add_(1)), (torch.ones(1),))


def test_constants_are_computed_once() -> None:
    exported = export_module(
        Function(lambda x: x + torch.arange(4).float().sqrt().flip(0)), (torch.ones(4),)
    )
    assert exported.report.ops == {"ADD": 1}


def test_an_input_may_be_an_output() -> None:
    exported = export_module(Function(lambda x: (x, x + 0.5, torch.ones(2))), (torch.ones(2),))
    ours = verify.run(exported.model, [np.ones(2, np.float32)])
    assert [a.tolist() for a in ours] == [[1, 1], [1.5, 1.5], [1, 1]]


def test_dump(small: Any, tmp_path: Path) -> None:
    with flags.DUMP(str(tmp_path)):
        export({"f": small[1]})
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names[0] == "f-00-decompose.txt" and names[-1].endswith("finish.txt")
    assert "FULLY_CONNECTED" in (tmp_path / names[-1]).read_text()


@pytest.mark.parametrize(
    "content", [b"", b"not a model", b"\x00" * 64, b"\x18\0\0\0TFL3" + b"\xff" * 40]
)
def test_bad_files(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.tflite"
    path.write_bytes(content)
    with pytest.raises(InputError):
        reader.read(path)
    with pytest.raises(InputError, match="no such file"):
        reader.read(tmp_path / "none.tflite")


def test_compare() -> None:
    a, b = np.array([1.0, np.nan], np.float32), np.array([1.5, np.nan], np.float32)
    (error,) = verify.compare([a], [b])
    assert error.max_abs == 0.5 and error.relative == pytest.approx(1 / 3)
    assert verify.compare([a], [a])[0].ok(0)
    (error,) = verify.compare([np.array([1, 2])], [np.array([1, 3])])
    assert error.exact and not error.ok(1.0)
    with pytest.raises(VerificationError, match="output_0"):
        verify.compare([a], [np.ones(3, np.float32)])


def test_unknown_names_raise() -> None:
    g = Graph()
    x = g.input("x", (2,), "float32")
    with pytest.raises(KeyError, match="no option"):
        g.emit("GELU", x, aproximate=True)
    with pytest.raises(KeyError, match="no operator"):
        g.emit("GELUU", x)
