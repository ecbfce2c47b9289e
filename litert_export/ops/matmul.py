"""Matrix products: FULLY_CONNECTED where the right operand is a constant, else BATCH_MATMUL.

Integer products have no operator; they are a broadcast MUL and a SUM, which is exact. Operands
beyond the kernels' ranks are folded into one batch dimension.
"""

from __future__ import annotations

import numpy as np

from litert_export.graph import Graph, Value
from litert_export.ops._dims import NARROW, binary, computes, count, filled, scalar
from litert_export.ops.reduce import reduced
from torch_tpu_unified.core.aten import aten
from torch_tpu_unified.core.errors import Unsupported

_BATCH_RANK = 5  # the highest rank of BATCH_MATMUL


def fully_connected(g: Graph, x: Value, weight: Value, bias: Value | None) -> Value:
    """`x @ weight.T + bias` for a constant weight [out, in]; any rank of x from 2 on."""
    return g.emit(
        "FULLY_CONNECTED",
        x,
        weight,
        bias,
        shape=(*x.shape[:-1], weight.shape[0]),
        keep_num_dims=True,
        fused_activation_function="NONE",
        weights_format="DEFAULT",
    )


def matmul(g: Graph, a: Value, b: Value, *, adj_b: bool = False) -> Value:
    """`a @ b` of operands of rank >= 2, batches broadcast; `adj_b` transposes b's last two."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows, inner = a.shape[-2:]
    columns = b.shape[-2] if adj_b else b.shape[-1]
    shape = (*batch, rows, columns)
    if not count(shape) or not inner:
        return filled(g, shape, 0, a.dtype)
    if a.dtype in ("int32", "int64", *NARROW):
        return _integer_matmul(g, a, b, adj_b)
    if b.rank == 2 and b.data is not None and a.data is None:
        return fully_connected(g, a, b if adj_b else g.transpose(b, (1, 0)), None)
    if len(shape) > _BATCH_RANK:
        a = g.reshape(g.broadcast_to(a, (*batch, rows, inner)), (-1, rows, inner))
        b = g.reshape(g.broadcast_to(b, (*batch, *b.shape[-2:])), (-1, *b.shape[-2:]))
        return g.reshape(matmul(g, a, b, adj_b=adj_b), shape)
    return g.emit(
        "BATCH_MATMUL", a, b, shape=shape, adj_x=False, adj_y=adj_b,
        asymmetric_quantize_inputs=False,
    )  # fmt: skip


def _integer_matmul(g: Graph, a: Value, b: Value, adj_b: bool) -> Value:
    """Rows of a against columns of b, multiplied and summed; wraps as PyTorch's integers do."""
    dtype = a.dtype
    if dtype in NARROW:
        a, b = g.cast(a, "int32"), g.cast(b, "int32")
    if not adj_b:
        b = g.transpose(b, [*range(b.rank - 2), b.rank - 1, b.rank - 2])
    a = g.reshape(a, (*a.shape[:-1], 1, a.shape[-1]))
    b = g.reshape(b, (*b.shape[:-2], 1, *b.shape[-2:]))
    product = binary(g, "MUL", a, b)
    return g.cast(reduced(g, "SUM", product, [product.rank - 1], False), dtype)


def scaled(g: Graph, x: Value, factor: float | int) -> Value:
    """`x * factor`, `x` itself when the factor is one."""
    return x if factor == 1 else binary(g, "MUL", x, scalar(g, factor, x.dtype))


@computes(aten.linear.default)
def linear(g: Graph, input: Value, weight: Value, bias: Value | None) -> Value:
    shape = g.result[0].shape
    x = g.reshape(input, (1, *input.shape)) if input.rank == 1 else input
    constant = weight.data is not None and (bias is None or bias.data is not None)
    if constant and x.data is None and x.dtype == "float32" and x.size:
        return g.reshape(fully_connected(g, x, weight, bias), shape)
    y = matmul(g, x, weight, adj_b=True)
    if bias is not None:
        y = binary(g, "ADD", y, bias)
    return g.reshape(y, shape)


@computes(aten.matmul.default)
def matmul_(g: Graph, x: Value, other: Value) -> Value:
    a = g.reshape(x, (1, *x.shape)) if x.rank == 1 else x
    b = g.reshape(other, (*other.shape, 1)) if other.rank == 1 else other
    return g.reshape(matmul(g, a, b), g.result[0].shape)


@computes(aten.mm.default, aten.bmm.default)
def mm(g: Graph, x: Value, mat2: Value) -> Value:
    return matmul(g, x, mat2)


@computes(aten.mv.default)
def mv(g: Graph, x: Value, vec: Value) -> Value:
    return g.reshape(matmul(g, x, g.reshape(vec, (vec.size, 1))), (x.shape[0],))


@computes(aten.dot.default)
def dot(g: Graph, x: Value, tensor: Value) -> Value:
    return _inner(g, x, tensor)


@computes(aten.vdot.default)
def vdot(g: Graph, x: Value, other: Value) -> Value:
    return _inner(g, x, other)


def _inner(g: Graph, a: Value, b: Value) -> Value:
    if "complex" in a.dtype:
        raise Unsupported("complex products")
    return reduced(g, "SUM", binary(g, "MUL", a, b), None, False)


def _plus(g: Graph, x: Value, product: Value, beta: float, alpha: float) -> Value:
    product = scaled(g, product, alpha)
    if beta == 0:  # what it holds does not count then, not even NaN
        return g.broadcast_to(product, g.result[0].shape)
    return binary(g, "ADD", scaled(g, x, beta), product)


@computes(aten.addmm.default)
def addmm(g: Graph, x: Value, mat1: Value, mat2: Value, *, beta: float, alpha: float) -> Value:
    columns = mat2.shape[1]
    constant = x.data is not None and mat2.data is not None and mat1.data is None
    row = x.size == columns and x.shape[-1:] == (columns,)
    if constant and row and beta == 1 and alpha == 1 and mat1.size and mat1.dtype == "float32":
        return fully_connected(g, mat1, g.transpose(mat2, (1, 0)), g.reshape(x, (columns,)))
    return _plus(g, x, matmul(g, mat1, mat2), beta, alpha)


@computes(aten.baddbmm.default)
def baddbmm(
    g: Graph, x: Value, batch1: Value, batch2: Value, *, beta: float, alpha: float
) -> Value:
    return _plus(g, x, matmul(g, batch1, batch2), beta, alpha)


@computes(aten.addbmm.default)
def addbmm(g: Graph, x: Value, batch1: Value, batch2: Value, *, beta: float, alpha: float) -> Value:
    product = reduced(g, "SUM", matmul(g, batch1, batch2), [0], False)
    return _plus(g, x, product, beta, alpha)


@computes(aten.addmv.default)
def addmv(g: Graph, x: Value, mat: Value, vec: Value, *, beta: float, alpha: float) -> Value:
    product = matmul(g, mat, g.reshape(vec, (vec.size, 1)))
    return _plus(g, x, g.reshape(product, (mat.shape[0],)), beta, alpha)


@computes(aten.addr.default)
def addr(g: Graph, x: Value, vec1: Value, vec2: Value, *, beta: float, alpha: float) -> Value:
    product = binary(g, "MUL", g.reshape(vec1, (vec1.size, 1)), vec2)
    return _plus(g, x, product, beta, alpha)
