"""Complex arithmetic and Fourier transforms inside a program, with real ends."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from litert_export import export_module, verify
from torch_tpu_unified.core.errors import ConversionError

F = torch.fft
real = torch.view_as_real


def pair(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))


class Function(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("turns", torch.polar(torch.ones(16), torch.arange(16.0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rfft": lambda x: real(F.rfft(x)),
    "rfft odd": lambda x: real(F.rfft(x, n=15, norm="ortho")),
    "irfft": lambda x: F.irfft(F.rfft(x), n=32),
    "irfft odd": lambda x: F.irfft(F.rfft(x), n=31),
    "fft and ifft": lambda x: F.ifft(F.fft(x) * 2).real,
    "fft2": lambda x: real(F.fft2(x, norm="forward")),
    "rfft2 and back": lambda x: F.irfft2(F.rfft2(x), s=(2, 32)),
    "power": lambda x: F.rfft(x).abs().square(),
    "shift": lambda x: F.fftshift(F.fft(x)).real,
    "angle": lambda x: pair(x).angle(),
    "product": lambda x: real(pair(x) * pair(x.flip(-1))),
    "quotient": lambda x: real(pair(x) / (pair(x.flip(-1)) + 5)),
    "conjugate": lambda x: real(pair(x).conj() + 1),
    "minus imaginary": lambda x: real(pair(x) - 2j),
    "real factors": lambda x: real(pair(x) * x[:, :16] / 3),
    "complex": lambda x: real(torch.complex(x, x.flip(-1)) * 2),
    "polar": lambda x: torch.polar(x.abs(), x).imag,
    "moved": lambda x: real(torch.cat([pair(x).T, pair(x).T[1:3]])[..., None].sum(0)),
    "constant": lambda x: real(pair(x) * torch.polar(torch.ones(16), torch.arange(16.0))),
    "matrix product": lambda x: real(pair(x) @ pair(x).T),
    "spectrogram": lambda x: torch.stft(
        x, 16, window=torch.hann_window(16), return_complex=True
    ).abs(),
}


@pytest.mark.parametrize("name", CASES)
def test_agrees(name: str) -> None:
    torch.manual_seed(0)
    module, x = Function(CASES[name]), torch.randn(2, 32)
    model = export_module(module, (x,)).model
    right = module(x).numpy()
    for delegate in (True, False):
        (found,) = verify.run(model, [x.numpy()], xnnpack=delegate)
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=2e-5)


def test_complex_ends_are_refused() -> None:
    with pytest.raises(ConversionError, match=r"output output is complex.*view_as_real"):
        export_module(Function(torch.fft.rfft), (torch.ones(4),))
    with pytest.raises(ConversionError, match="input x is complex"):
        export_module(Function(torch.view_as_real), (torch.ones(4, dtype=torch.complex64),))
