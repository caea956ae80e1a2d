"""LLVM forms of plain Python functions: arrays that kernels work in, prefetches, vectors of numbers.

Compiled callers get the form; the Python function defines it and runs under ``NUMBA_DISABLE_JIT=1``. Nothing is
bounds-checked. `numba.extending.overload` would compile a function around an intrinsic for every signature, even where
it is inlined: half of what a first fit compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import infer, infer_global, make_intrinsic_template
from numba.np.arrayobj import _empty_nd_impl, make_array

from streamkm.core.matrix import LINE_BYTES


def compiled_form(meaning: Callable[..., Any], *, prefer_literal: bool = False) -> Callable[..., Any]:
    """Give compiled callers of a plain function, `meaning`, an LLVM form; others, and ``NUMBA_DISABLE_JIT=1``, run it.

    Decorates a function as `numba.extending.intrinsic` takes it: (typing context, *types) to (signature, code
    generator). `prefer_literal`: give the form the values of literal numbers.
    """

    def register(definition):
        template = make_intrinsic_template(meaning, definition, meaning.__name__, prefer_literal=prefer_literal)
        infer(template)
        infer_global(meaning, types.Function(template))
        return definition

    return register


def unfilled(shape, dtype):
    """Allocate a C-contiguous array of a shape and dtype (`np.float64`, or that of an array) without filling it."""
    return np.empty(shape, dtype)


@compiled_form(unfilled)
def _unfilled(typing, shape, dtype):
    kind = dtype.instance_type if isinstance(dtype, types.NumberClass) else dtype.dtype
    n_dimensions = len(shape) if isinstance(shape, types.BaseTuple) else 1
    array = types.Array(kind, n_dimensions, "C")
    sizes = types.UniTuple(types.int64, n_dimensions) if isinstance(shape, types.BaseTuple) else types.int64

    def codegen(context, builder, signature, args):
        each = cgutils.unpack_tuple(builder, args[0]) if sizes is not types.int64 else [args[0]]
        return _empty_nd_impl(context, builder, array, each)._getvalue()

    return array(sizes, dtype), codegen


def prefetch(array, position):
    """Ask for the cache line of an entry, to be read soon, of a C-contiguous array (n,); any int64 position is safe."""


def prefetched(builder, entry):
    """Have an LLVM builder ask for the cache line of a pointer."""
    byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    read, keep, data = (ir.Constant(word, value) for value in (0, 3, 1))
    builder.call(function, [builder.bitcast(entry, byte), read, keep, data])


@compiled_form(prefetch)
def _prefetch(typingctx, array, position):
    def codegen(context, builder, signature, args):
        array_ = make_array(signature.args[0])(context, builder, args[0])
        entry = builder.gep(array_.data, [context.cast(builder, args[1], signature.args[1], nb.int64)])
        prefetched(builder, entry)
        return context.get_dummy_value()

    return nb.void(array, position), codegen


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


def halves(builder, vector):
    """The first and the second half of a vector."""
    n_left, nothing = vector.type.count // 2, ir.Constant(vector.type, ir.Undefined)
    places = ir.VectorType(NUMBER, n_left)
    return [
        builder.shuffle_vector(vector, nothing, ir.Constant(places, list(range(lane, lane + n_left))))
        for lane in (0, n_left)
    ]


def arrays_of(context, builder, signature, args, places: Sequence[int]):
    """Array structures of some arguments."""
    return [make_array(signature.args[q])(context, builder, args[q]) for q in places]


def carry(builder, bounds, step, begun, body):
    """Write a loop of at least one turn that carries values in registers; return them as they are behind it.

    `bounds`: int64 values, first place and stop. `begun`: values carried into the first turn. `body`: maps a place and
    the carried values to the next ones; writes a turn without blocks of its own.
    """
    before, function = builder.block, builder.function
    loop, end = function.append_basic_block("loop"), function.append_basic_block("end")
    builder.branch(loop)
    builder.position_at_end(loop)
    place, carried = builder.phi(PLACE), [builder.phi(value.type) for value in begun]
    found = body(place, carried)
    following = builder.add(place, PLACE(step))
    for phi, first, later in zip([place, *carried], [bounds[0], *begun], [following, *found], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, loop)
    builder.cbranch(builder.icmp_signed("<", following, bounds[1]), loop, end)
    builder.position_at_end(end)
    return found


def vector_lanes(table):
    """Numbers (int64) of a float table's dtype in a vector register, as a constant of the compiled code."""
    return LINE_BYTES // table.itemsize


@compiled_form(vector_lanes)
def _vector_lanes(typing, table):
    def codegen(context, builder, signature, args):
        n_bytes = vector_bytes(context.codegen()._tm_features)
        return PLACE(8 * n_bytes // signature.args[0].dtype.bitwidth)

    return nb.int64(table), codegen
