"""Which products of short rows with a panel are low enough: one bit for each row and column, never the product itself.

Products that are only compared with a limit need not leave the registers. What is done is a plain Python function (what
it means, and what runs under ``NUMBA_DISABLE_JIT=1``) with an LLVM form that compiled callers get instead. Nothing is
bounds-checked. May import forms, products, vectors, numba and numpy only.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.np.arrayobj import make_array

from streamkm.kernels.intrinsics import vectors
from streamkm.kernels.intrinsics.forms import compiled_form
from streamkm.kernels.intrinsics.products import DEPTH
from streamkm.kernels.intrinsics.vectors import PLACE, multiply_adds, spread, vector_at

PANEL_COLUMNS = 48
"""Columns of a panel: three vectors of 64 bytes, or twice three of 32; six bytes of marks."""
TILE = {64: 8, 32: 4}
"""Rows of a tile by the bytes of a vector: their sums fill the registers."""
TILE_ROWS = 8
"""Rows are read up to a multiple of this."""
BYTE = ir.IntType(8)


def mark_columns(X, first, n_rows, table, place, bias, column, limits, marks, at):
    """Mark the columns of a panel whose product with a row, and bias, is not above the row's limit.

    The readable form is ``marks[:, at:at + 6] = packbits(~(X @ panel + bias > limits[:, None]))``; of a score that is
    no number too.

    Parameters
    ----------
    X : float32 (n, depth), C-contiguous
        With rows to fill `n_rows` up to a multiple of `TILE_ROWS`.
    first, n_rows : int64
        Rows to look at.
    table : float32 (entries,)
        Panels of `PANEL_COLUMNS`, one (depth, PANEL_COLUMNS) after the other.
    place : int64
        Where the panel begins.
    bias : float32 (p,)
    column : int64
        First column of the panel among all.
    limits : float32 (at least n_rows, filled up)
    marks : uint64 (at least n_rows, filled up; words), C-contiguous
        Written: six bytes of each row, the lowest bit first.
    at : int64
        Where in a row, in bytes.
    """
    panel = table[place : place + X.shape[1] * PANEL_COLUMNS].reshape(-1, PANEL_COLUMNS).astype(np.float64)
    scores = X[first : first + n_rows].astype(np.float64) @ panel + bias[column : column + PANEL_COLUMNS]
    kept = ~(scores > limits[:n_rows, None])
    marks.view(np.uint8)[:n_rows, at : at + PANEL_COLUMNS // 8] = np.packbits(kept, axis=1, bitorder="little")


@compiled_form(mark_columns)
def _mark_columns(typing, X, first, n_rows, table, place, bias, column, limits, marks, at):
    def codegen(context, builder, signature, args):
        X_, table_, bias_, limits_, marks_ = (
            make_array(signature.args[q])(context, builder, args[q]) for q in (0, 3, 5, 7, 8)
        )
        first, n_rows, place, column, at = (args[q] for q in (1, 2, 4, 6, 9))
        features = context.codegen()._tm_features
        n_bytes = vectors.vector_bytes(features)
        lanes, height = n_bytes // 4, TILE[n_bytes]
        kind = ir.VectorType(ir.FloatType(), lanes)
        bits = ir.IntType(lanes)
        fma = multiply_adds(builder, kind, features)
        depth, n_vectors = builder.extract_value(X_.shape, 1), 3
        stride = builder.extract_value(marks_.strides, 0)
        base = builder.bitcast(marks_.data, BYTE.as_pointer())
        zeros = ir.Constant(kind, [0.0] * lanes)
        with cgutils.for_range_slice(builder, PLACE(0), n_rows, PLACE(height), inc=True) as (row, _):
            starts = [
                builder.gep(X_.data, [builder.mul(builder.add(builder.add(first, row), PLACE(r)), depth)])
                for r in range(height)
            ]
            for part in range(0, PANEL_COLUMNS, n_vectors * lanes):
                before, function = builder.block, builder.function
                loop, end = function.append_basic_block("chain"), function.append_basic_block("chained")
                builder.branch(loop)
                builder.position_at_end(loop)
                j = builder.phi(PLACE)
                j.add_incoming(PLACE(0), before)
                sums = [[builder.phi(kind) for _ in range(n_vectors)] for _ in range(height)]
                entry = builder.add(builder.add(place, PLACE(part)), builder.mul(j, PLACE(PANEL_COLUMNS)))
                loaded = [
                    builder.load(vector_at(builder, table_, builder.add(entry, PLACE(v * lanes)), kind), align=4)
                    for v in range(n_vectors)
                ]
                chained = []
                for start, row_sums in zip(starts, sums, strict=True):
                    value = spread(builder, builder.load(builder.gep(start, [j])), kind)
                    chained.append([fma(value, vector, total) for vector, total in zip(loaded, row_sums, strict=True)])
                following = builder.add(j, PLACE(1))
                j.add_incoming(following, loop)
                for row_sums, new in zip(sums, chained, strict=True):
                    for total, value in zip(row_sums, new, strict=True):
                        total.add_incoming(zeros, before)
                        total.add_incoming(value, loop)
                builder.cbranch(builder.icmp_signed("<", following, depth), loop, end)
                builder.position_at_end(end)
                here = builder.add(column, PLACE(part))
                biases = [
                    builder.load(vector_at(builder, bias_, builder.add(here, PLACE(v * lanes)), kind), align=4)
                    for v in range(n_vectors)
                ]
                for r, new in enumerate(chained):
                    number = builder.add(row, PLACE(r))
                    limit = spread(builder, builder.load(builder.gep(limits_.data, [number])), kind)
                    there = builder.add(builder.mul(number, stride), builder.add(at, PLACE(part // 8)))
                    for v, (value, more) in enumerate(zip(new, biases, strict=True)):
                        low = builder.fcmp_unordered("<=", builder.fadd(value, more), limit)
                        to = builder.gep(base, [builder.add(there, PLACE(v * lanes // 8))])
                        builder.store(builder.bitcast(low, bits), builder.bitcast(to, bits.as_pointer()), align=1)
        return context.get_dummy_value()

    return nb.void(X, nb.int64, nb.int64, table, nb.int64, bias, nb.int64, limits, marks, nb.int64), codegen


def lowest_bit(word):
    """Position of the lowest bit of a word that is not 0.

    Parameters
    ----------
    word : uint64

    Returns
    -------
    int64
    """
    return (int(word) & -int(word)).bit_length() - 1


@compiled_form(lowest_bit)
def _lowest_bit(typing, word):
    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return nb.int64(nb.uint64), codegen


def count_bits(word):
    """How many bits of a word are 1.

    Parameters
    ----------
    word : uint64

    Returns
    -------
    int64
    """
    return int(word).bit_count()


@compiled_form(count_bits)
def _count_bits(typing, word):
    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])

    return nb.int64(nb.uint64), codegen


def chained_product(a, first, b, other, n):
    """One product as `products` has it, to the bit: chains of `DEPTH` numbers, added up in order.

    Parameters
    ----------
    a, b : float32 ndarray, C-contiguous
        Entries are counted through all dimensions.
    first, other, n : int64

    Returns
    -------
    float32
    """
    x, y = a.reshape(-1)[first : first + n], b.reshape(-1)[other : other + n]
    total = None
    for start in range(0, n, DEPTH):
        chain = np.float32(0)
        for j in range(start, min(start + DEPTH, n)):
            chain = np.float32(np.float64(chain) + np.float64(x[j]) * np.float64(y[j]))
        total = chain if total is None else np.float32(total + chain)
    return total


@compiled_form(chained_product)
def _chained_product(typing, a, first, b, other, n):
    def codegen(context, builder, signature, args):
        a_, b_ = (make_array(signature.args[q])(context, builder, args[q]) for q in (0, 2))
        first, other, n = args[1], args[3], args[4]
        kind = ir.FloatType()
        fma = multiply_adds(builder, kind, context.codegen()._tm_features)
        total = cgutils.alloca_once_value(builder, ir.Constant(kind, 0.0))
        chain = cgutils.alloca_once_value(builder, ir.Constant(kind, 0.0))
        with cgutils.for_range_slice(builder, PLACE(0), n, PLACE(DEPTH), inc=True) as (start, _):
            builder.store(ir.Constant(kind, 0.0), chain)
            end = builder.add(start, PLACE(DEPTH))
            end = builder.select(builder.icmp_signed("<", end, n), end, n)
            with cgutils.for_range_slice(builder, start, end, PLACE(1), inc=True) as (j, _):
                x = builder.load(builder.gep(a_.data, [builder.add(first, j)]))
                y = builder.load(builder.gep(b_.data, [builder.add(other, j)]))
                builder.store(fma(x, y, builder.load(chain)), chain)
            found = builder.load(chain)
            whole = builder.fadd(builder.load(total), found)
            begins = builder.icmp_signed("==", start, PLACE(0))
            builder.store(builder.select(begins, found, whole), total)
        return builder.load(total)

    return nb.float32(a, nb.int64, b, nb.int64, nb.int64), codegen
