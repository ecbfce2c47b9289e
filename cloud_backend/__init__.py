"""The PyTorch device `tpu` on JAX/XLA: eager, compiled, distributed."""
