"""Marks of low products of short rows with a panel: one bit for each row and column; LLVM forms (see `forms`).

Products that are only compared with a limit need not leave the registers, and bounds can be products of bytes.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import cgutils

from streamkm.kernels.intrinsics import forms
from streamkm.kernels.intrinsics.forms import (
    NUMBER,
    PLACE,
    arrays_of,
    carry,
    compiled_form,
    multiply_adds,
    spread,
    vector_at,
)

PANEL_COLUMNS = 48
"""Columns of a panel: three vectors of 64 bytes, or twice three of 32; six bytes of marks."""
TILE = {64: (8, 3), 32: (6, 2)}
"""Rows and vectors of a tile by the bytes of a vector: their sums fill the registers."""
DEPTH = 32
"""Bytes of a row."""
STEP = 4
"""Bytes of each column multiplied at a time: they fill one lane of 32 bits."""
OFFSET = 64
"""Offset of the bytes of rows, but for the last, so that they are not negative."""
HEADS = 2
"""Heads of a column, `STEP` bytes each: a sum of 32 bits, and the same in two of 16."""
PANEL_BYTES = PANEL_COLUMNS * (HEADS * STEP + DEPTH)
MULTIPLICATIONS = {
    32: ("+avx2", "llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
    64: ("+avx512bw", "llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"),
}
"""By the bytes of a vector: what a processor needs, and instructions for two products of bytes, and of 16 bits."""
BYTE, SHORT = ir.IntType(8), ir.IntType(16)


def mark_columns(X, first, n_rows, table, place, units, bias, column, row_units, limits, marks, at):
    """Mark the columns of a panel whose product with a row, plus bias, is at most the row's limit.

    The readable form is ``marks[:, at:at + 6] = packbits(~(X @ panel * units * row_units + bias > limits[:, None]))``,
    so NaN is marked too. Where a processor cannot sum byte products in 32 bits, each half of a product (the first and
    last two bytes of every `STEP`) is summed in 16: overflow on the way cancels if the result is below 2^15.

    Parameters
    ----------
    X : uint8 (n, DEPTH), C-contiguous
        Of numbers, and `OFFSET`, at most 127; with rows to fill `n_rows` up to whole tiles.
    first, n_rows : int64; rows to look at
    table : int8 (entries,)
        Panels (HEADS + DEPTH / STEP, PANEL_COLUMNS, STEP): the sum that a product with each column begins with, which
        takes `OFFSET` away again, int32; it once more for the two halves, int16, and bytes.
    place : int64; start of the panel
    units, bias : float32 (p,); factors of products with a column, and their addends
    column : int64; first column of the panel among all
    row_units : float32 (n,); factors of products with a row
    limits : float32 (at least n_rows, filled up)
    marks : uint64 (at least n_rows, filled up; words), C-contiguous
        Written: six bytes of each row, the lowest bit first.
    at : int64; position in a row, in bytes
    """
    panel = table[place : place + PANEL_BYTES].reshape(-1, PANEL_COLUMNS * STEP)
    rows = X[first : first + n_rows].astype(np.int32).reshape(n_rows, -1, STEP)
    columns = panel[HEADS:].astype(np.int32).reshape(-1, PANEL_COLUMNS, STEP)
    sums = np.einsum("ijb,jcb->ic", rows, columns) + panel[0].view(np.int32)
    here = slice(column, column + PANEL_COLUMNS)
    products = sums.astype(np.float32) * units[here]
    scores = products * row_units[first : first + n_rows, None].astype(np.float64) + bias[here]
    kept = ~(scores.astype(np.float32) > limits[:n_rows, None])
    marks.view(np.uint8)[:n_rows, at : at + PANEL_COLUMNS // 8] = np.packbits(kept, axis=1, bitorder="little")


@compiled_form(mark_columns)
def _mark_columns(typing, X, first, n_rows, table, place, units, bias, column, row_units, limits, marks, at):
    def codegen(context, builder, signature, args):
        X_, table_, units_, bias_, row_units_, limits_, marks_ = arrays_of(
            context, builder, signature, args, (0, 3, 5, 6, 8, 9, 10)
        )
        first, n_rows, place, column, at = (args[q] for q in (1, 2, 4, 7, 11))
        features = context.codegen()._tm_features
        n_bytes = forms.vector_bytes(features)
        lanes, (height, n_vectors) = n_bytes // STEP, TILE[n_bytes]
        kind, words = ir.VectorType(ir.FloatType(), lanes), ir.VectorType(NUMBER, lanes)
        bytes_, bits = ir.VectorType(BYTE, n_bytes), ir.IntType(lanes)
        fma = multiply_adds(builder, kind, features)
        sums_kind, head, add_bytes, end = byte_sums(builder, n_bytes, features)
        stride = builder.extract_value(marks_.strides, 0)
        base = builder.bitcast(marks_.data, BYTE.as_pointer())

        def loaded(array, position, kind, align):
            return builder.load(vector_at(builder, array, position, kind), align=align)

        with cgutils.for_range_slice(builder, PLACE(0), n_rows, PLACE(height), inc=True) as (row, _):
            numbers = [builder.add(row, PLACE(r)) for r in range(height)]
            starts = [builder.mul(builder.add(first, number), PLACE(DEPTH)) for number in numbers]
            for part in range(0, PANEL_COLUMNS, n_vectors * lanes):
                heads = builder.add(place, PLACE(STEP * (part + PANEL_COLUMNS * head)))
                begun = [
                    loaded(table_, builder.add(heads, PLACE(STEP * v * lanes)), sums_kind, sums_kind.element.width // 8)
                    for v in range(n_vectors)
                ]

                def add(j, sums, part=part):
                    entry = builder.add(place, builder.mul(builder.add(j, PLACE(STEP * HEADS)), PLACE(PANEL_COLUMNS)))
                    columns = [
                        loaded(table_, builder.add(entry, PLACE(STEP * (part + v * lanes))), bytes_, 1)
                        for v in range(n_vectors)
                    ]
                    added = []
                    for r, start in enumerate(starts):
                        four = builder.bitcast(builder.gep(X_.data, [builder.add(start, j)]), NUMBER.as_pointer())
                        value = builder.bitcast(spread(builder, builder.load(four, align=1), words), bytes_)
                        added += [add_bytes(sums[r * n_vectors + v], value, columns[v]) for v in range(n_vectors)]
                    return added

                added = carry(builder, (PLACE(0), PLACE(DEPTH)), STEP, begun * height, add)
                here = builder.add(column, PLACE(part))
                places = [builder.add(here, PLACE(v * lanes)) for v in range(n_vectors)]
                given = [[loaded(array, at_, kind, 4) for array in (units_, bias_)] for at_ in places]
                for r in range(height):
                    limit = spread(builder, builder.load(builder.gep(limits_.data, [numbers[r]])), kind)
                    unit = builder.load(builder.gep(row_units_.data, [builder.add(first, numbers[r])]))
                    unit = spread(builder, unit, kind)
                    there = builder.add(builder.mul(numbers[r], stride), builder.add(at, PLACE(part // 8)))
                    for v, (value, (scale, more)) in enumerate(zip(added[r * n_vectors :], given, strict=False)):
                        score = fma(builder.fmul(builder.sitofp(end(value), kind), scale), unit, more)
                        kept = builder.fcmp_unordered("<=", score, limit)
                        to = builder.gep(base, [builder.add(there, PLACE(v * lanes // 8))])
                        builder.store(builder.bitcast(kept, bits), builder.bitcast(to, bits.as_pointer()), align=1)
        return context.get_dummy_value()

    numbers = nb.int64, nb.int64
    return nb.void(X, *numbers, table, nb.int64, units, bias, nb.int64, row_units, limits, marks, nb.int64), codegen


def byte_sums(builder, n_bytes, features):
    """Choose a processor's best way: four products summed in 32 bits at once, or two in 16; the results agree.

    Returns the kind of sums, which of the `HEADS` they begin with, a function of sums, nonnegative bytes and signed
    ones to new sums, and one from sums to whole products, in 32 bits.
    """
    words = ir.VectorType(NUMBER, n_bytes // 4)
    bits, need = {32: (256, "+avxvnni"), 64: (512, "+avx512vnni")}[n_bytes]
    if need in features.split(","):
        name = f"llvm.x86.avx512.vpdpbusd.{bits}"
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(words, [words] * 3), name)

        def add(total, a, b):
            return builder.call(function, [total, builder.bitcast(a, words), builder.bitcast(b, words)])

        return words, 0, add, lambda total: total
    multiply = byte_products(builder, n_bytes, features)
    join = joined_halves(builder, n_bytes, features)
    return ir.VectorType(SHORT, n_bytes // 2), 1, lambda total, a, b: builder.add(total, multiply(a, b)), join


def byte_products(builder, n_bytes, features):
    """Make a function of LLVM vectors of bytes, the first nonnegative: sums of two products, in 16 bits."""
    given = ir.VectorType(BYTE, n_bytes)
    shorts = ir.VectorType(SHORT, n_bytes // 2)
    need, name, _ = MULTIPLICATIONS[n_bytes]
    if need in features.split(","):
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(shorts, [given] * 2), name)
        return lambda a, b: builder.call(function, [a, b])
    eight = ir.Constant(shorts, [8] * (n_bytes // 2))

    def multiply(a, b):
        a, b = builder.bitcast(a, shorts), builder.bitcast(b, shorts)
        first = builder.mul(builder.lshr(builder.shl(a, eight), eight), builder.ashr(builder.shl(b, eight), eight))
        return builder.add(first, builder.mul(builder.lshr(a, eight), builder.ashr(b, eight)))

    return multiply


def joined_halves(builder, n_bytes, features):
    """Make a function of an LLVM vector of 16-bit numbers: sums of each two, in 32 bits."""
    lanes = n_bytes // 4
    shorts, words = ir.VectorType(SHORT, 2 * lanes), ir.VectorType(NUMBER, lanes)
    need, _, name = MULTIPLICATIONS[n_bytes]
    if need in features.split(","):
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(words, [shorts] * 2), name)
        return lambda value: builder.call(function, [value, ir.Constant(shorts, [1] * (2 * lanes))])
    sixteen = ir.Constant(words, [16] * lanes)

    def join(value):
        both = builder.bitcast(value, words)
        return builder.add(builder.ashr(builder.shl(both, sixteen), sixteen), builder.ashr(both, sixteen))

    return join
