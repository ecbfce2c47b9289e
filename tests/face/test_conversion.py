"""`convert`, `verify`, `compare`, `inspect`, `load`: what they give, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import torch_tpu_unified as ttu
from torch_tpu_unified.core.errors import (
    ConversionError,
    InputError,
    NotYetAvailable,
    OptionError,
    VerificationError,
)


def test_a_module_is_converted_and_left_as_it_was(net: nn.Module, image: torch.Tensor) -> None:
    net.head.eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    converted = ttu.convert(net, (image,))
    assert net.training and not net.head.training
    for name, value in net.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    assert converted.report.ok
    assert converted.report.signatures == {"serving_default": (["image"], ["output"])}
    found = ttu.load(bytes(converted.model))(image)
    torch.testing.assert_close(found, net.eval()(image).detach(), rtol=1e-4, atol=1e-5)


def test_saved_files_load_and_verify(net: nn.Module, image: torch.Tensor, tmp_path: Path) -> None:
    path = ttu.convert(net, (image,)).save(tmp_path / "net.tflite")
    assert path == tmp_path / "net.tflite"
    assert ttu.verify(net, path, (image,)).ok
    other = torch.randn_like(image)
    assert ttu.verify(net, path, (other,)).ok
    with torch.no_grad():
        net.head.bias += 1
    table = ttu.verify(net, path, (image,))
    assert not table.ok and "DIFFERS" in str(table)
    assert table.max_abs == pytest.approx(1, abs=1e-3)


def test_an_exported_program_brings_its_inputs(net: nn.Module, image: torch.Tensor) -> None:
    program = torch.export.export(net.eval(), (image,))
    converted = ttu.convert(program)
    assert converted.report.verified["serving_default"].ok


def test_a_module_on_tpu_is_converted(net: nn.Module, image: torch.Tensor) -> None:
    moved = net.to("tpu")
    converted = ttu.convert(moved, (image.to("tpu"),))
    assert converted.report.ok and next(moved.parameters()).device.type == "tpu"
    lite = ttu.load(bytes(converted.model))
    expected = moved.eval()(image.to("tpu")).detach().cpu()
    torch.testing.assert_close(lite(image.to("tpu")), expected, rtol=1e-4, atol=1e-5)


def test_a_program_exported_on_tpu_is_moved(net: nn.Module, image: torch.Tensor) -> None:
    moved = net.to("tpu").eval()
    program = torch.export.export(moved, (image.to("tpu"),))
    assert ttu.convert(program).report.ok


class TwoInputs(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, *, scale: torch.Tensor) -> dict:
        return {"sum": a + b * scale, "difference": a - b}


def test_keyword_inputs_and_dict_outputs() -> None:
    a, b, scale = torch.randn(2, 3), torch.randn(2, 3), torch.tensor([2.0])
    converted = ttu.convert(TwoInputs(), (a, b), {"scale": scale})
    lite = ttu.load(bytes(converted.model))
    assert lite.signatures == {"serving_default": (["a", "b", "scale"], ["sum", "difference"])}
    for found in (
        lite(a, b, scale),
        lite(a, b, scale=scale),
        lite({"scale": scale, "b": b, "a": a}),
        lite(a.numpy(), b.numpy(), scale=scale.numpy()),
    ):
        torch.testing.assert_close(found, (a + b * scale, a - b))


def test_signatures_share_one_file() -> None:
    layer = nn.Linear(64, 64)
    args = {"one": (torch.randn(1, 64),), "many": (torch.randn(5, 64),)}
    single = ttu.convert(layer, args["one"])
    converted = ttu.convert(signatures={name: (layer, a) for name, a in args.items()})
    assert len(converted.model) < 1.3 * len(single.model)
    lite = ttu.load(bytes(converted.model))
    for name, inputs in args.items():
        found = lite(*inputs, signature=name)
        torch.testing.assert_close(found, layer(*inputs).detach(), rtol=1e-4, atol=1e-5)
    with pytest.raises(OptionError, match=r"name a signature.*one.*many"):
        lite(*args["one"])
    with pytest.raises(OptionError, match="no signature 'two'"):
        lite(*args["one"], signature="two")


def test_nhwc_at_the_border(image: torch.Tensor) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    lite = ttu.load(bytes(ttu.convert(model, (image,), io_layout="nhwc").model))
    found = lite(image.permute(0, 2, 3, 1).contiguous())
    torch.testing.assert_close(found.permute(0, 3, 1, 2), model(image).detach(), atol=1e-5, rtol=0)


def test_files_are_described(net: nn.Module, image: torch.Tensor) -> None:
    model = bytes(ttu.convert(net, (image,)).model)
    description = ttu.inspect(model)
    assert description.size == len(model)
    (signature,) = description.signatures
    assert [str(end) for end in signature.inputs] == ["image: float32[2,3,8,8]"]
    assert signature.operators["CONV_2D"] == 1
    text = str(description)
    assert "CONV_2D" in text and "image: float32[2,3,8,8]" in text and "float32" in text


def test_captured_outputs_are_compared(net: nn.Module, image: torch.Tensor, tmp_path: Path) -> None:
    path = ttu.convert(net, (image,)).save(tmp_path / "net.tflite")
    captured = [net.eval()(image).detach().numpy()]
    assert ttu.compare(path, captured, (image,)).ok
    captured[0][0, 0] += 3
    (row,) = ttu.compare(path, captured, (image,)).rows
    assert row.max_units == pytest.approx(3, abs=1e-3)
    assert ttu.compare(net, path, (image,)).ok and ttu.compare(path, path, (image,)).ok


def test_rounding_that_float32_cannot_avoid_is_no_fault(image: torch.Tensor) -> None:
    class Cancels(nn.Module):
        """Takes the difference of large numbers: float32 loses digits in any order of summing."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            big = x * 1e4
            return big.sum((1, 2, 3)) - big.mean((2, 3)).sum(1) * 64 + x[:, 0, 0, 0] * 100

    table = ttu.convert(Cancels(), (image,)).report.verified["serving_default"]
    assert table.ok


def test_what_is_not_there_yet_says_so(net: nn.Module, image: torch.Tensor) -> None:
    for options in (
        {"max_rank": 4},
        {"int64": "int32"},
    ):
        with pytest.raises(NotYetAvailable, match="not available yet"):
            ttu.convert(net, (image,), **options)
    with pytest.raises(NotYetAvailable):
        ttu.load("net.tflite", delegate="edgetpu")
    with pytest.raises(NotYetAvailable):
        ttu.compare(net, "net.tflite", (image,), layers=True)


def test_wrong_requests_are_told(net: nn.Module, image: torch.Tensor) -> None:
    with pytest.raises(TypeError, match="verfy"):
        ttu.convert(net, (image,), verfy=False)
    with pytest.raises(OptionError, match="example inputs are missing"):
        ttu.convert(net)
    with pytest.raises(OptionError, match=r"\(x,\)"):
        ttu.convert(net, image)
    with pytest.raises(OptionError, match="nwhc"):
        ttu.convert(net, (image,), io_layout="nwhc")
    with pytest.raises(OptionError, match="OrderedDict cannot be converted"):
        ttu.convert(net.state_dict(), (image,))
    with pytest.raises(OptionError, match="either"):
        ttu.convert(net, (image,), signatures={"a": (net, (image,))})
    with pytest.raises(OptionError, match="signature 'a'"):
        ttu.convert(signatures={"a": net})
    with pytest.raises(InputError, match="in PyTorch itself"):
        ttu.convert(net, (image[0, 0],))
    with pytest.raises((InputError, ConversionError), match="input_names"):
        ttu.convert(net, (image,), input_names=["a", "b"])
    with pytest.raises(AttributeError, match="convrt"):
        ttu.convrt  # noqa: B018


def test_wrong_inputs_of_a_file_are_told(net: nn.Module, image: torch.Tensor) -> None:
    lite = ttu.load(bytes(ttu.convert(net, (image,)).model))
    with pytest.raises(InputError, match=r"\[1, 3, 8, 8\], not \[2, 3, 8, 8\]"):
        lite(image[:1])
    with pytest.raises(InputError, match="float64, not float32"):
        lite(image.double())
    with pytest.raises(OptionError, match="'picture' is unknown"):
        lite(picture=image)
    with pytest.raises(OptionError, match="2 inputs given"):
        lite(image, image)
    with pytest.raises(OptionError, match="lacks the input image"):
        lite()


@pytest.mark.parametrize("content", [b"", b"no model at all", b"\x1c\0\0\0TFL3" + b"\xff" * 64])
def test_damaged_files_are_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(content)
    for call in (ttu.load, ttu.inspect):
        with pytest.raises(InputError):
            call(path)
        with pytest.raises(InputError, match="no such file"):
            call(tmp_path / "absent.tflite")


def test_truncated_files_never_crash(net: nn.Module, image: torch.Tensor, tmp_path: Path) -> None:
    model = bytes(ttu.convert(net, (image,)).model)
    for keep in (9, 40, len(model) // 2, len(model) - 8):
        path = tmp_path / "net.tflite"
        path.write_bytes(model[:keep])
        for call in (ttu.load, ttu.inspect):
            try:
                call(path)
            except InputError:
                continue


def test_a_wrong_file_is_not_handed_out(
    net: nn.Module, image: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from litert_export import verify

    right = verify.run
    monkeypatch.setattr(verify, "run", lambda *a, **k: [np.nan * x for x in right(*a, **k)])
    with pytest.raises(VerificationError, match="parity"):
        ttu.convert(net, (image,))
    assert ttu.convert(net, (image,), verify=False).report.verified == {}
