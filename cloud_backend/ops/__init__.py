"""The cloud op table: ATen overload -> pure JAX function.

A lowering takes jax arrays where the schema says Tensor, Python numbers (or 0-d weakly typed
arrays, which behave the same) where it says Scalar, torch dtypes where it says ScalarType. It
returns an array, or a tuple of arrays in the order of the schema's returns. It must be traceable
and free of side effects, and it must not use torch to compute.

Traits:
    random: the function gets a jax PRNG key as `key` (a schema argument `key` is then written
        `key_`).
    static: names of Scalar arguments whose value must be a Python number while tracing. Other
        Scalars are traced, so that a new value does not compile again.
    dynamic: names of float arguments (not Scalar) that change from call to call and are traced.
    host: the result's shape depends on values; called with concrete arrays, outside jit. Either a
        bool, or a function of (args, kwargs) of the call that says so.
    contiguous: name of a tensor argument; the function is told by `contiguous` whether that tensor
        is so in PyTorch, for the few operators whose results depend on it.
    meta: False where PyTorch's meta kernel is wrong; the lowering itself then tells the results'
        shapes and dtypes, and they are contiguous.
"""

from typing import Any

from torch_tpu_unified.core.optable import Entry, OpTable

_TRAITS = {
    "random": False,
    "static": (),
    "dynamic": (),
    "host": False,
    "contiguous": "",
    "meta": True,
}
TABLE = OpTable("tpu", traits=_TRAITS, supplied={"random": "key", "contiguous": "contiguous"})
lowers = TABLE.lowers
# Operators that users made of JAX functions (`jax_op`); their lowering is the function itself.
CUSTOM = OpTable("jax_op", traits=_TRAITS)


def find(op: Any) -> Entry | None:
    """The entry of an operator of PyTorch or of a user."""
    return TABLE.get(op) or CUSTOM.get(op)


def load() -> OpTable:
    """Import every family, which fills the table, and return it."""
    import importlib
    import pkgutil

    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        importlib.import_module(f"{__name__}.{module}")
    return TABLE
