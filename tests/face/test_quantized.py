"""`convert(quantize=...)` from the outside: samples in every form, reports, running the file."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_tpu_unified as ttu
from torch_tpu_unified import calibration, programs
from torch_tpu_unified.core.errors import (
    ConversionError,
    InputError,
    OptionError,
    VerificationError,
)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, image: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.conv(image).relu() * scale


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(1, 3, 6, 6), torch.rand(1)


def test_a_file_that_takes_and_gives_real_numbers() -> None:
    torch.manual_seed(0)
    net, samples = Two().eval(), [pair() for _ in range(8)]
    seen: list[tuple[str, int, int]] = []
    made = ttu.convert(
        net, samples[0], quantize="int8", calibration=samples, progress=lambda *a: seen.append(a)
    )
    assert [n for name, n, total in seen if name == "calibrate" and total == 8] == list(range(8))
    assert made.report.quantized["serving_default"].samples == 8
    assert "left in float32: nothing" in str(made.report) and "SQNR" in str(made.report)
    assert made.report.verified["serving_default"].cosine > 0.99
    with torch.no_grad():
        expected = net(*samples[1])
    found = ttu.load(bytes(made.model))(*samples[1])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0, atol=0.03)
    raw = [torch.zeros(s.shape, dtype=torch.int8) for s in samples[0]]
    assert ttu.load(bytes(made.model))(*raw).dtype == torch.int8
    told = str(ttu.inspect(made.model))
    assert "int8[1,3,6,6]" in told


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_samples_in_every_form_give_the_same_file(layout: str) -> None:
    torch.manual_seed(0)
    net, samples = Two().eval(), [pair() for _ in range(4)]
    forms: list[Any] = [
        samples,
        [list(s) for s in samples],
        [tuple(x.numpy() for x in s) for s in samples],
        (s for s in samples),
    ]
    files = [
        bytes(
            ttu.convert(net, samples[0], quantize="int8", calibration=form, io_layout=layout).model
        )
        for form in forms
    ]
    assert len(set(files)) == 1


def test_signatures_have_samples_by_name() -> None:
    net = nn.Linear(4, 3)
    both = {"one": (net, (torch.rand(1, 4),)), "two": (net, (torch.rand(2, 4),))}
    samples = {"one": [(torch.rand(1, 4),)] * 3, "two": [(torch.rand(2, 4),)] * 3}
    made = ttu.convert(signatures=both, quantize="int8", calibration=samples)
    assert set(made.report.quantized) == {"one", "two"}
    with pytest.raises(OptionError, match="no samples for two"):
        ttu.convert(signatures=both, quantize="int8", calibration={"one": samples["one"]})


def test_folders_and_files_of_samples(tmp_path: Path) -> None:
    program = programs.from_module(Two(), pair())
    for i in range(3):
        image, scale = pair()
        np.savez(tmp_path / f"{i}.npz", image=image.numpy(), scale=scale.numpy())
    found = calibration.load(str(tmp_path), program)
    assert len(found) == 3 and [x.shape for x in found[0]] == [(1, 3, 6, 6), (1,)]
    stack = tmp_path / "stack.npz"
    np.savez(stack, image=np.zeros((5, 3, 6, 6)), scale=np.ones((5, 1)))
    assert len(calibration.load(str(stack), program)) == 5
    np.savez(stack, image=np.zeros((5, 3, 6, 7)), scale=np.ones((5, 1)))
    with pytest.raises(InputError, match=r"holds \[5, 3, 6, 7\]"):
        calibration.load(str(stack), program)
    with pytest.raises(OptionError, match="give a folder"):
        calibration.load(str(tmp_path / "absent"), program)


def test_images_become_pixels_from_0_to_1(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    pixels = np.zeros((6, 6, 3), np.uint8)
    pixels[0, 0] = 255, 0, 51
    pillow.fromarray(pixels).save(tmp_path / "a.png")
    program = programs.from_module(nn.Conv2d(3, 2, 3), (torch.rand(1, 3, 6, 6),))
    ((image,),) = calibration.load(str(tmp_path), program)
    assert image.shape == (1, 3, 6, 6)
    assert image[0, :, 0, 0].tolist() == pytest.approx([1, 0, 0.2])


def test_wrong_requests() -> None:
    net, x = nn.Linear(4, 3), torch.rand(1, 4)
    with pytest.raises(OptionError, match="without quantize"):
        ttu.convert(net, (x,), calibration=[(x,)])
    with pytest.raises(OptionError, match="needs calibration"):
        ttu.convert(net, (x,), quantize="int8")
    with pytest.raises(OptionError, match="none of int8"):
        ttu.convert(net, (x,), quantize="int5")
    open_size = ({0: torch.export.Dim("n", max=8)},)
    with pytest.raises(ConversionError, match="static shapes"):
        ttu.convert(
            net, (x.repeat(2, 1),), quantize="int8", calibration=[(x.repeat(2, 1),)],
            dynamic_shapes=open_size,
        )  # fmt: skip


class Overflows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x * 400)


def test_a_file_that_is_no_longer_the_model_is_refused() -> None:
    samples = [(torch.rand(1, 8) + 0.5,) for _ in range(4)]
    convert: Any = functools.partial(
        ttu.convert, Overflows(), samples[0], quantize="int8", calibration=samples
    )
    with pytest.raises(VerificationError, match=r"(?s)not finite.*--no-verify"):
        convert()
    assert convert(verify=False).model


def test_it_is_judged_on_data_like_that_it_was_calibrated_with() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    near = [(torch.rand(1, 8) / 50,) for _ in range(8)]
    made = ttu.convert(model, (torch.randn(1, 8) * 100,), quantize="int8", calibration=near)
    assert made.report.verified["serving_default"].cosine > 0.99
    assert "on the first calibration sample" in str(made.report)
