"""`torch.func`, double backward and the public names of `torch.tpu`."""

import pytest
import torch

NAMES = """
EagerMode Event Precision Stream allow_excess_precision current_device current_stream
default_generators default_stream device device_count device_of eager_mode get_amp_supported_dtype
get_device_name get_device_properties get_rng_state initial_seed is_available is_initialized
manual_seed manual_seed_all precision set_device set_eager_mode set_rng_state set_stream stream
synchronize topology_aware_mesh compiler.custom_compiler_options distributed.set_tpu_launch_env
distributed.spmd_safe distributed.topology_aware_mesh distributed.window_num_stripes
distributed.window_stripe_chunk_mb ops.align_jagged_to_multiple ops.all_gather_dim ops.max_pool1d
ops.max_pool1d_backward ops.max_pool2d ops.max_pool2d_backward ops.max_pool3d
ops.max_pool3d_backward ops.optimization_barrier ops.ragged_all_to_all ops.ragged_dot
ops.ragged_dot_weight_grad ops.recv ops.reduce_scatter_dim ops.send ops.sparse_dense_matmul
ops.sparse_dense_matmul_activation_unstack ops.sparse_dense_matmul_grad_with_adagrad
ops.sparse_dense_matmul_grad_with_adam ops.sparse_dense_matmul_grad_with_sgd
ops.sparse_dense_matmul_gradient_stack ops.sparse_gather ops.sparse_gather_backward
ops.sparse_iota ops.sparse_map_row ops.splash_sdpa ops.strip_jagged_padding optimizers.AdamW
optimizers.Muon optimizers.Optimizer optimizers.Sgd optimizers.SingleTraceTrainer
pallas.get_pallas_mesh pallas.jax_op profiler.TpuProfilerConfig
""".split()


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_of_the_peer_exists(name):
    found = torch.tpu
    for part in name.split("."):
        found = getattr(found, part)
    assert found is not None


def _loss(x):
    return (x.sin() * x.exp()).sum()


PROGRAMS = {
    "vmap": lambda x: torch.func.vmap(torch.dot)(x, x),
    "vmap of a linear layer": lambda x: torch.func.vmap(lambda row: x @ row)(x),
    "grad": lambda x: torch.func.grad(_loss)(x),
    "vmap of grad": lambda x: torch.func.vmap(torch.func.grad(_loss))(x),
    "jvp": lambda x: torch.func.jvp(_loss, (x,), (torch.ones_like(x),))[1],
    "vjp": lambda x: torch.func.vjp(torch.tanh, x)[1](torch.ones_like(x))[0],
    "jacrev": lambda x: torch.func.jacrev(torch.tanh)(x[0]),
    "hessian": lambda x: torch.func.hessian(_loss)(x[0]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_transforms_agree(name):
    x = torch.randn(3, 3)
    torch.testing.assert_close(PROGRAMS[name](x.to("tpu")).cpu(), PROGRAMS[name](x))


def test_double_backward():
    def program(x):
        (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        gradient.square().sum().backward()
        return x.grad

    x = torch.randn(4)
    ours = program(x.to("tpu").requires_grad_())
    torch.testing.assert_close(ours.cpu(), program(x.clone().requires_grad_()))
