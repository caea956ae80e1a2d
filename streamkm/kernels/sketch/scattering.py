"""Columns of dense rows added to other columns, many rows at a time in vectors; LLVM forms (see `forms`).

``out[i, target[j]] += factor[j] * X[i, j]`` row after row adds through memory for every value. Here a square of values
is transposed in registers: a vector then holds one column of as many rows as it has lanes, and one addition serves all.
Each row's additions keep their order, so its sum does not depend on other rows.
"""

from __future__ import annotations

import numba as nb
from llvmlite import ir

from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.forms import (
    NUMBER,
    PLACE,
    arrays_of,
    compiled_form,
    prefetch,
    spread,
    unfilled,
    vector_at,
)

VECTOR_BYTES = 64


def add_square(X, row, column, targets, factors, sums):
    """Add a square of values to the sums of their targets.

    Parameters
    ----------
    X : float32 or float64 (n, d), C-contiguous
    row, column : int64; first row and column of the square; it has w rows and w columns, w = 64 / itemsize
    targets : int32 (d,), C-contiguous; column of the sums that each column of X is added to
    factors : float32 or float64 (d,), C-contiguous
    sums : same dtype as X (m, w), C-contiguous
        Added to: ``sums[targets[j], i - row] += factors[j] * X[i, j]``, j ascending.
    """
    width = VECTOR_BYTES // X.itemsize
    for j in range(column, column + width):
        sums[targets[j]] += X.dtype.type(factors[j]) * X[row : row + width, j]


def turn_square(source, first, target, row):
    """Add the transpose of a square of sums to rows.

    Parameters
    ----------
    source : float32 or float64 (m, w), C-contiguous; w = 64 / itemsize
    first : int64; the square's first row in `source`, its first column in `target`
    target : same dtype (n, m), C-contiguous
        Added to: ``target[row:row + w, first:first + w] += source[first:first + w].T``.
    row : int64
    """
    width = VECTOR_BYTES // source.itemsize
    target[row : row + width, first : first + width] += source[first : first + width].T


def _transposed(builder, vectors):
    """Transpose a square held in vectors: log2(w) rounds of pairwise exchanges."""
    width = len(vectors)
    step = 1
    while step < width:
        low = [e if not e & step else width + e - step for e in range(width)]
        high = [e + step if not e & step else width + e for e in range(width)]
        masks = [ir.Constant(ir.VectorType(NUMBER, width), mask) for mask in (low, high)]
        exchanged = list(vectors)
        for a in range(width):
            if not a & step:
                exchanged[a], exchanged[a + step] = (
                    builder.shuffle_vector(vectors[a], vectors[a + step], mask) for mask in masks
                )
        vectors = exchanged
        step *= 2
    return vectors


def _vector(context, dtype):
    align = dtype.bitwidth // 8
    return ir.VectorType(context.get_data_type(dtype), VECTOR_BYTES // align), align


def _square(builder, array, kind, row, column, n_columns):
    """Pointers to the rows of a square of an array."""
    rows = (builder.mul(builder.add(row, PLACE(q)), n_columns) for q in range(kind.count))
    return [vector_at(builder, array, builder.add(start, column), kind) for start in rows]


def _add(builder, pointer, values, align):
    builder.store(builder.fadd(builder.load(pointer, align=align), values), pointer, align=align)


@compiled_form(add_square)
def _add_square(typingctx, X, row, column, targets, factors, sums):
    def codegen(context, builder, signature, args):
        kinds, (row, column) = signature.args, args[1:3]
        X_, targets_, factors_, sums_ = arrays_of(context, builder, signature, args, (0, 3, 4, 5))
        vector, align = _vector(context, kinds[0].dtype)
        square = _square(builder, X_, vector, row, column, builder.extract_value(X_.shape, 1))
        rows = [builder.load(pointer, align=align) for pointer in square]
        for q, values in enumerate(_transposed(builder, rows)):
            j = builder.add(column, PLACE(q))
            factor = builder.load(builder.gep(factors_.data, [j]))
            factor = context.cast(builder, factor, kinds[4].dtype, kinds[0].dtype)
            target = context.cast(builder, builder.load(builder.gep(targets_.data, [j])), kinds[3].dtype, nb.int64)
            there = vector_at(builder, sums_, builder.mul(target, PLACE(vector.count)), vector)
            _add(builder, there, builder.fmul(spread(builder, factor, vector), values), align)
        return context.get_dummy_value()

    return nb.void(X, nb.int64, nb.int64, targets, factors, sums), codegen


@compiled_form(turn_square)
def _turn_square(typingctx, source, first, target, row):
    def codegen(context, builder, signature, args):
        source_, target_ = arrays_of(context, builder, signature, args, (0, 2))
        vector, align = _vector(context, signature.args[0].dtype)
        square = _square(builder, source_, vector, args[1], PLACE(0), PLACE(vector.count))
        there = _square(builder, target_, vector, args[3], args[1], builder.extract_value(target_.shape, 1))
        turned = _transposed(builder, [builder.load(pointer, align=align) for pointer in square])
        for pointer, values in zip(there, turned, strict=True):
            _add(builder, pointer, values, align)
        return context.get_dummy_value()

    return nb.void(source, nb.int64, target, nb.int64), codegen


@kernel
def scatter_columns(X, targets, factors, out):
    """Add scaled columns to others: ``out[i, targets[j]] += factors[j] * X[i, j]``, j ascending, as one sum a row.

    Parameters
    ----------
    X : float32 or float64 (n, d), C-contiguous
    targets : int32 (d,); each in [0, m)
    factors : float32 or float64 (d,)
    out : same dtype as X (n, m), C-contiguous; added to
    """
    n_rows, n_columns = X.shape
    n_targets = out.shape[1]
    width = VECTOR_BYTES // X.itemsize
    n_turned = n_targets - n_targets % width
    n_squared = n_columns - n_columns % width
    sums = unfilled((n_targets, width), X.dtype)
    values, totals = X.reshape(-1), out.reshape(-1)
    stop = n_rows - n_rows % width
    for row in range(0, stop, width):
        sums[:] = 0
        for column in range(0, n_squared, width):
            for q in range(row + width, row + 2 * width):
                prefetch(values, q * n_columns + column)
            add_square(X, row, column, targets, factors, sums)
        for j in range(n_squared, n_columns):
            for q in range(width):
                sums[targets[j], q] += X.dtype.type(factors[j]) * X[row + q, j]
        for first in range(0, n_turned, width):
            for q in range(row + width, row + 2 * width):
                prefetch(totals, q * n_targets + first)
            turn_square(sums, first, out, row)
        for q in range(width):
            for b in range(n_turned, n_targets):
                out[row + q, b] += sums[b, q]
    one = unfilled(n_targets, X.dtype)
    for i in range(stop, n_rows):
        one[:] = 0
        for j in range(n_columns):
            one[targets[j]] += X.dtype.type(factors[j]) * X[i, j]
        for b in range(n_targets):
            out[i, b] += one[b]
