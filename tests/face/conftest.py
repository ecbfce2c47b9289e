"""For the tests of the public API: a small model with what most models have."""

from __future__ import annotations

import pytest
import torch
from torch import nn


class Net(nn.Module):
    """Convolution, batch norm, a constant, a buffer, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)
        self.register_buffer("shift", torch.arange(5.0))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.conv(image)))
        y = y + torch.arange(8, device=image.device)[None, :, None, None]
        return self.head(torch.tanh(y.mean((2, 3)))) + self.shift


@pytest.fixture
def net() -> Net:
    """In training mode, with running statistics that matter."""
    net = Net()
    net.norm.running_mean.uniform_(-1, 1)
    net.norm.running_var.uniform_(0.5, 2)
    return net


@pytest.fixture
def image() -> torch.Tensor:
    return torch.randn(2, 3, 8, 8)
