"""Vectors of numbers in LLVM code: how wide they are on a processor, how they are loaded, filled, multiplied and added.

Numba has no name for them.
"""

from __future__ import annotations

import numba as nb
from llvmlite import ir
from numba.core import cgutils

from streamkm.kernels.intrinsics.forms import compiled_form
from streamkm.kernels.intrinsics.prefetching import LINE_BYTES

NUMBER, PLACE = ir.IntType(32), ir.IntType(64)


def vector_bytes(features: str) -> int:
    """Bytes of a vector register of a processor with these LLVM features."""
    return 64 if "+avx512f" in features.split(",") else 32


def multiply_adds(builder, kind, features):
    """A function of an LLVM builder's vectors (a, b, c): ``a * b + c``, rounded once where the processor can."""
    if "-fma" in features.split(","):  # one rounding would be a call of the C library for each number
        return lambda a, b, c: builder.fadd(builder.fmul(a, b), c)
    one = kind.element if isinstance(kind, ir.VectorType) else kind
    name = f"f{32 if one == ir.FloatType() else 64}"
    if kind is not one:
        name = f"v{kind.count}{name}"
    fused = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), f"llvm.fma.{name}")
    return lambda a, b, c: builder.call(fused, [a, b, c])


def spread(builder, value, kind):
    """A vector of one number."""
    nothing = ir.Constant(kind, ir.Undefined)
    one = builder.insert_element(nothing, value, ir.Constant(NUMBER, 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(NUMBER, kind.count), [0] * kind.count))


def vector_at(builder, array, position, kind):
    """A pointer to a vector that begins at an entry of an array."""
    return builder.bitcast(builder.gep(array.data, [position]), kind.as_pointer())


def vector_lanes(table):
    """Numbers of a table's dtype in a vector register; a constant of the compiled code.

    Parameters
    ----------
    table : float32 or float64 ndarray

    Returns
    -------
    int64
    """
    return LINE_BYTES // table.itemsize


@compiled_form(vector_lanes)
def _vector_lanes(typing, table):
    def codegen(context, builder, signature, args):
        n_bytes = vector_bytes(context.codegen()._tm_features)
        return PLACE(8 * n_bytes // signature.args[0].dtype.bitwidth)

    return nb.int64(table), codegen
