"""The passes: golden texts of whole graphs, transposes counted, and each pass on its own.

`python -m tests.litert.test_passes` writes the golden texts anew; read their diff before
committing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from litert_export import Exported, export_module, verify
from litert_export.graph import Graph, GraphError, Value
from litert_export.passes import cleanup, fuse, layout, perms
from tests.litert.models import MODELS, build

GOLDEN = Path(__file__).parent / "golden"


def _export(name: str) -> Exported:
    module, x = build(name)
    return export_module(module, (x,), signature="f", **MODELS[name][2])


@pytest.mark.parametrize("name", MODELS)
def test_golden(name: str) -> None:
    exported = _export(name)
    text = exported.graphs["f"].text(data=False)
    assert text == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
    assert exported.report.ops.get("TRANSPOSE", 0) <= MODELS[name][3]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("xnnpack", [True, False])
def test_models_agree(name: str, xnnpack: bool) -> None:
    module, x = build(name)
    with torch.no_grad():
        y = module(x)
    if MODELS[name][2].get("io_layout") == "nhwc":
        x = x.permute(0, 2, 3, 1)
        y = y.permute(0, 2, 3, 1) if y.ndim == 4 else y
    ours = verify.run(_export(name).model, [x.numpy()], xnnpack=xnnpack)
    (error,) = verify.compare(ours, [y.numpy()])
    assert error.relative < 1e-5


def test_batch_norms_and_activations_are_gone() -> None:
    ops = _export("residual").report.ops
    assert "MUL" not in ops and "RELU" not in ops
    assert ops["ADD"] == 1  # the residual connection


# permutations


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_reshape_through(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    p = tuple(data.draw(st.permutations(range(len(shape)))))
    x = np.arange(np.prod(shape)).reshape(shape)
    merged = list(x.transpose(p).shape)
    for _ in range(data.draw(st.integers(0, 3))):
        i = data.draw(st.integers(0, len(merged)))
        if i + 1 < len(merged) and data.draw(st.booleans()):
            merged[i : i + 2] = [merged[i] * merged[i + 1]]
        elif i < len(merged) and merged[i] % 2 == 0:
            merged[i : i + 1] = [2, merged[i] // 2]
        else:
            merged.insert(i, 1)
    found = perms.reshape_through(shape, p, merged)
    if found is not None:
        new, q = found
        assert np.array_equal(x.reshape(new).transpose(q), x.transpose(p).reshape(merged))


def test_permutation_arithmetic() -> None:
    x = np.zeros((2, 3, 4, 5))
    p, q = (2, 0, 3, 1), (1, 3, 0, 2)
    assert x.transpose(p).transpose(q).shape == x.transpose(perms.compose(p, q)).shape
    assert perms.compose(p, perms.inverse(p)) == perms.identity(4)
    assert perms.without((0, 3, 1, 2), [1]) == (0, 1, 2)
    assert not perms.moves_data((1, 7, 1, 1), (0, 2, 3, 1))


# passes on hand-made graphs


def _graph(*shapes: tuple[int, ...]) -> tuple[Graph, list[Value]]:
    g = Graph("f")
    return g, [g.input(f"x{i}", s, "float32") for i, s in enumerate(shapes)]


def _finish(g: Graph, *values: Value) -> Graph:
    g.outputs, g.output_names = list(values), [f"y{i}" for i in range(len(values))]
    g.verify()
    return g


def _codes(g: Graph) -> list[str]:
    g.verify()
    return [op.code for op in g.ops]


def test_cleanup_removes_dead_and_identical() -> None:
    g, (x,) = _graph((2, 3))
    g.emit("EXP", x)
    a, b = g.emit("SQRT", x), g.emit("SQRT", x)
    assert _codes(cleanup.run(_finish(g, g.emit("MUL", a, b)))) == ["SQRT", "MUL"]


def test_cleanup_merges_reshapes() -> None:
    g, (x,) = _graph((2, 6))
    y = g.reshape(g.reshape(x, (3, 4)), (12,))
    assert _codes(cleanup.run(_finish(g, g.emit("EXP", y)))) == ["RESHAPE", "EXP"]
    g, (x,) = _graph((2, 6))
    y = g.reshape(g.reshape(x, (3, 4)), (2, 6))
    assert _codes(cleanup.run(_finish(g, g.emit("EXP", y)))) == ["EXP"]


def test_cleanup_keeps_an_output_of_its_own() -> None:
    g, (x,) = _graph((2, 6))
    y = g.emit("PAD", x, g.const(np.zeros((2, 2), np.int32)), shape=(2, 6))
    assert cleanup.run(_finish(g, y)).outputs[0] is not x


def test_layout_cancels_and_remaps() -> None:
    g, (x,) = _graph((1, 2, 3, 4))
    y = g.emit("CONCATENATION", *[g.transpose(x, (0, 2, 3, 1))] * 2, shape=(1, 3, 4, 4), axis=3)
    z = g.transpose(g.emit("EXP", y), (0, 3, 1, 2))
    g = cleanup.run(layout.run(_finish(g, z)))
    assert _codes(g) == ["CONCATENATION", "EXP"]
    assert g.ops[0].options["axis"] == 1


def test_layout_expands_lower_ranks_first() -> None:
    # A [W] operand broadcasts over the last axis before the permutation, not after it.
    g, (x, w) = _graph((1, 2, 3, 4), (4,))
    y = g.emit("ADD", g.transpose(x, (0, 1, 3, 2)), g.const(np.arange(3, dtype=np.float32)))
    y = g.emit("MUL", g.transpose(y, (0, 1, 3, 2)), w)
    g = cleanup.run(layout.run(_finish(g, y)))
    assert _codes(g) == ["ADD", "MUL"]
    constant = g.ops[0].inputs[1]
    assert constant is not None and constant.shape == (1, 1, 3, 1)


def test_fuse_needs_a_single_reader() -> None:
    g, (x,) = _graph((1, 4))
    w, b = g.const(np.ones((3, 4), np.float32)), g.const(np.zeros(3, np.float32))
    y = g.emit("FULLY_CONNECTED", x, w, b, shape=(1, 3))
    g = fuse.run(_finish(g, g.emit("RELU", y), g.emit("EXP", y)))
    assert _codes(g) == ["FULLY_CONNECTED", "RELU", "EXP"]


def test_fuse_folds_scale_shift_and_activation() -> None:
    g, (x,) = _graph((1, 4))
    w, b = g.const(np.ones((3, 4), np.float32)), g.const(np.ones(3, np.float32))
    y = g.emit("FULLY_CONNECTED", x, w, b, shape=(1, 3))
    y = g.emit("MUL", y, g.const(np.array([1, 2, 3], np.float32)))
    y = g.emit("SUB", g.const(np.float32(1)), y)
    g = fuse.run(_finish(g, g.emit("RELU6", y)))
    assert _codes(g) == ["FULLY_CONNECTED"]
    weight, bias = g.ops[0].inputs[1:]
    assert weight is not None and weight.data is not None
    assert bias is not None and bias.data is not None
    assert weight.data[:, 0].tolist() == [-1, -2, -3] and bias.data.tolist() == [0, -1, -2]
    assert g.ops[0].options["fused_activation_function"] == "RELU6"


def test_verify_finds_a_broken_graph() -> None:
    g, (x,) = _graph((2,))
    y = g.emit("EXP", x)
    _finish(g, y)
    g.ops.clear()
    with pytest.raises(GraphError, match="never made"):
        g.verify()


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for model in MODELS:
        text = _export(model).graphs["f"].text(data=False)
        (GOLDEN / f"{model}.txt").write_text(text, encoding="utf-8")
