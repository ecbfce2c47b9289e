"""The LiteRT op table: ATen overload -> function that appends operators to a graph.

A lowering takes the graph `g` first. Tensor arguments are `Value`s (parameters, buffers and folded
constants carry `data`), lists of tensors are lists of Values, numbers and torch dtypes are
themselves. It returns a Value, or a tuple of Values in the order of the schema's returns, None for
a result that it does not offer (an error only where the program uses that result). `g.result` holds
(shape, dtype) of each expected result; the emitter checks what comes back against it.
"""

from torch_tpu_unified.core.optable import OpTable

TABLE = OpTable("litert", leading=("g",), traits={"fold": True})
lowers = TABLE.lowers


def load() -> OpTable:
    """Import every family, which fills the table, and return it.

    Operators of other libraries join once the library that defines them is imported.
    """
    import importlib
    import pkgutil

    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        importlib.import_module(f"{__name__}.{module}")
    importlib.import_module(f"{__name__}.grouped").register_foreign()
    return TABLE
