"""What the face offers of the device itself; `torch.tpu` has the same names."""

from __future__ import annotations

from cloud_backend.ahead import load_executable as load_executable
from cloud_backend.custom import jax_op as jax_op
from cloud_backend.mesh import Mesh as Mesh
from cloud_backend.scan_layers import scan_layers as scan_layers
from cloud_backend.shard import shard as shard
