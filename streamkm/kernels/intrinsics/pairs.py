"""Products of a few pairs of rows: rough ones for bounds, or the bits of `products`; LLVM forms (see `forms`)."""

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
    halves,
    multiply_adds,
    vector_at,
)
from streamkm.kernels.intrinsics.products import DEPTH

CHAINS = 8
"""Products computed side by side: a chain alone waits for its own sums."""


def rough_product(a, first, b, other, n):
    """Sum of products of float32 numbers, ``a[first:][:n] @ b[other:][:n]``, as a float32; n a literal multiple of 16.

    In no fixed order: for bounds and guesses. Other arguments are as of `short_product`.
    """
    return a.reshape(-1)[first : first + n] @ b.reshape(-1)[other : other + n]


@compiled_form(rough_product, prefer_literal=True)
def _rough_product(typing, a, first, b, other, n):
    def codegen(context, builder, signature, args):
        a_, b_ = arrays_of(context, builder, signature, args, (0, 2))
        features = context.codegen()._tm_features
        lanes = forms.vector_bytes(features) // 4
        kind = ir.VectorType(ir.FloatType(), lanes)
        fma = multiply_adds(builder, kind, features)
        sums = [ir.Constant(kind, [0.0] * lanes)] * 2
        for j in range(0, signature.args[4].literal_value, lanes):
            x, y = (
                builder.load(vector_at(builder, array, builder.add(place, PLACE(j)), kind), align=4)
                for array, place in ((a_, args[1]), (b_, args[3]))
            )
            sums = [sums[1], fma(x, y, sums[0])]
        total = builder.fadd(*sums)
        while lanes > 1:
            total, lanes = builder.fadd(*halves(builder, total)), lanes // 2
        return builder.extract_element(total, ir.Constant(NUMBER, 0))

    return nb.float32(a, nb.int64, b, nb.int64, n), codegen


def short_product(a, first, b, other, n):
    """Sum of products of int16 numbers, ``a[first:][:n] @ b[other:][:n]``, as an int32; n a literal power of two.

    `a`, `b`: C-contiguous, their entries counted through all dimensions. `first`, `other`: int64.
    """
    x, y = a.reshape(-1)[first : first + n], b.reshape(-1)[other : other + n]
    return np.int32(x.astype(np.int32) @ y.astype(np.int32))


@compiled_form(short_product, prefer_literal=True)
def _short_product(typing, a, first, b, other, n):
    def codegen(context, builder, signature, args):
        a_, b_ = arrays_of(context, builder, signature, args, (0, 2))
        n = signature.args[4].literal_value
        words = ir.VectorType(NUMBER, n)
        x, y = (
            builder.sext(
                builder.load(vector_at(builder, array, place, ir.VectorType(ir.IntType(16), n)), align=2), words
            )
            for array, place in ((a_, args[1]), (b_, args[3]))
        )
        kind, name = ir.FunctionType(NUMBER, [words]), f"llvm.vector.reduce.add.v{n}i32"
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [builder.mul(x, y)])

    return nb.int32(a, nb.int64, b, nb.int64, n), codegen


def chained_products(a, firsts, b, others, at, n, out):
    """Compute `CHAINS` products as `products` does, to the bit: chains of `products.DEPTH` numbers, added up in order.

    Parameters
    ----------
    a, b : float32 ndarray, C-contiguous; entries are counted through all dimensions
    firsts, others : int64 (q,); starts of the rows of a and b
    at : int64; first of `CHAINS` entries of `firsts`, `others` and `out`
    n : int64
    out : float32 (q,); written
    """
    x, y = a.reshape(-1), b.reshape(-1)
    for q in range(at, at + CHAINS):
        total = None
        for start in range(0, n, DEPTH):
            chain = np.float32(0)
            for j in range(start, min(start + DEPTH, n)):
                chain = np.float32(np.float64(chain) + np.float64(x[firsts[q] + j]) * np.float64(y[others[q] + j]))
            total = chain if total is None else np.float32(total + chain)
        out[q] = total


@compiled_form(chained_products)
def _chained_products(typing, a, firsts, b, others, at, n, out):
    def codegen(context, builder, signature, args):
        a_, firsts_, b_, others_, out_ = arrays_of(context, builder, signature, args, (0, 1, 2, 3, 6))
        at, n = args[4], args[5]
        kind = ir.FloatType()
        fma = multiply_adds(builder, kind, context.codegen()._tm_features)
        places = [builder.add(at, PLACE(q)) for q in range(CHAINS)]
        starts = [
            tuple(
                builder.gep(array.data, [builder.load(builder.gep(where.data, [place]))])
                for array, where in ((a_, firsts_), (b_, others_))
            )
            for place in places
        ]
        totals = [cgutils.alloca_once_value(builder, ir.Constant(kind, 0.0)) for _ in range(CHAINS)]
        with cgutils.for_range_slice(builder, PLACE(0), n, PLACE(DEPTH), inc=True) as (start, _):
            end = builder.add(start, PLACE(DEPTH))
            end = builder.select(builder.icmp_signed("<", end, n), end, n)

            def add(j, chains):
                return [
                    fma(builder.load(builder.gep(x, [j])), builder.load(builder.gep(y, [j])), chain)
                    for (x, y), chain in zip(starts, chains, strict=True)
                ]

            chained = carry(builder, (start, end), 1, [ir.Constant(kind, 0.0)] * CHAINS, add)
            begins = builder.icmp_signed("==", start, PLACE(0))
            for found, total in zip(chained, totals, strict=True):
                builder.store(builder.select(begins, found, builder.fadd(builder.load(total), found)), total)
        for total, place in zip(totals, places, strict=True):
            builder.store(builder.load(total), builder.gep(out_.data, [place]))
        return context.get_dummy_value()

    return nb.void(a, firsts, b, others, nb.int64, nb.int64, out), codegen
