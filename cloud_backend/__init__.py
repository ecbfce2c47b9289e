"""The PyTorch device `tpu` on JAX/XLA: eager, compiled, distributed."""

import torch  # noqa: F401  # first: it starts this package itself, by its autoload entry point
