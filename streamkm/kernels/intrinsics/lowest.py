"""Search for the two lowest scores of rows, beside the products that scores are made of; LLVM forms (see `forms`)."""

from __future__ import annotations

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.np.arrayobj import make_array

from streamkm.kernels.intrinsics import forms
from streamkm.kernels.intrinsics.forms import (
    NUMBER,
    PLACE,
    arrays_of,
    carry,
    compiled_form,
    halves,
    spread,
    vector_at,
    vector_lanes,
)


def lower(totals, n_rows, bias, column, n_columns, state, last, first, labels, scores, second_scores):
    """Continue the search for the two lowest scores of rows, lane by lane; at the last panel, among all lanes.

    Ties go to the first column.

    Parameters
    ----------
    totals : float32 or float64 (at least n_rows, width), C-contiguous; products of the rows with a panel
    n_rows : int64
    bias : same dtype (p,), C-contiguous; added to the products of a column, infinite where padded
    column, n_columns : int64
        First column of the panel, and columns to search, in whole vectors. The search begins with column 0.
    state : tuple of same dtype (at least n_rows, lanes) twice, and int32 (at least n_rows, lanes), C-contiguous
        Each lane's lowest and second lowest scores so far, and the first column of the lowest's vector; written before
        the last panel.
    last : bool; whether this panel is the last
    first : int64; position of the rows in the arrays that follow
    labels : int32 (n,); columns of the lowest scores, written at the last panel
    scores, second_scores : same dtype (n,); the two lowest scores, written at the last panel
    """
    (best, seconds, where), lanes = state, vector_lanes(totals)
    if column == 0:
        best[:n_rows], seconds[:n_rows], where[:n_rows] = np.inf, np.inf, 0
    for at in range(0, n_columns, lanes):
        products = totals[:n_rows, at : at + lanes] + bias[column + at : column + at + lanes]
        before = best[:n_rows, :lanes].copy()
        less = products < before
        seconds[:n_rows, :lanes] = np.minimum(seconds[:n_rows, :lanes], np.maximum(before, products))
        best[:n_rows, :lanes] = np.where(less, products, before)
        where[:n_rows, :lanes][less] = column + at
    for i in range(n_rows if last else 0):
        columns, lowest = where[i, :lanes] + np.arange(lanes), best[i, :lanes]
        lane = np.lexsort([columns, lowest])[0]
        labels[first + i], scores[first + i] = columns[lane], lowest[lane]
        second_scores[first + i] = min(np.delete(lowest, lane).min(), seconds[i, :lanes].min())


@compiled_form(lower)
def _lower(typing, totals, n_rows, bias, column, n_columns, state, last, first, labels, scores, second_scores):
    def codegen(context, builder, signature, args):
        totals_, bias_, labels_, scores_, seconds_ = arrays_of(context, builder, signature, args, (0, 2, 8, 9, 10))
        state_ = [
            make_array(kind)(context, builder, builder.extract_value(args[5], q))
            for q, kind in enumerate(signature.args[5])
        ]
        n_rows, column, n_columns, last, first = args[1], args[3], args[4], args[6], args[7]
        align = signature.args[0].dtype.bitwidth // 8
        lanes = forms.vector_bytes(context.codegen()._tm_features) // align
        kind = ir.VectorType(ir.FloatType() if align == 4 else ir.DoubleType(), lanes)
        numbers = ir.VectorType(NUMBER, lanes)
        kinds, aligns = (kind, kind, numbers), (align, align, 4)
        total_step, step = builder.extract_value(totals_.shape, 1), builder.extract_value(state_[0].shape, 1)
        begins = builder.icmp_signed("==", column, PLACE(0))
        nothing = [ir.Constant(kind, [float("inf")] * lanes)] * 2 + [ir.Constant(numbers, [0] * lanes)]
        with cgutils.for_range_slice(builder, PLACE(0), n_rows, PLACE(1), inc=True) as (row, _):
            held = builder.mul(row, step)
            pointers = [vector_at(builder, array, held, kind) for array, kind in zip(state_, kinds, strict=True)]
            held = [builder.load(pointer, align=align) for pointer, align in zip(pointers, aligns, strict=True)]
            given = [builder.select(begins, *pair) for pair in zip(nothing, held, strict=True)]
            start = builder.mul(row, total_step)

            def look(at, state, start=start):
                (best, second, where), here = state, builder.add(column, at)
                product = builder.load(vector_at(builder, totals_, builder.add(start, at), kind), align=align)
                score = builder.fadd(product, builder.load(vector_at(builder, bias_, here, kind), align=align))
                less = builder.fcmp_ordered("<", score, best)
                return [
                    builder.select(less, score, best),
                    _lesser(builder, builder.select(less, best, score), second),
                    builder.select(less, spread(builder, builder.trunc(here, NUMBER), numbers), where),
                ]

            found = carry(builder, (PLACE(0), n_columns), lanes, given, look)
            with builder.if_else(last) as (ended, goes_on):
                with ended:
                    there = builder.add(first, row)
                    for value, array in zip(_lowest(builder, *found), (labels_, scores_, seconds_), strict=True):
                        builder.store(value, builder.gep(array.data, [there]))
                with goes_on:
                    for value, pointer, align in zip(found, pointers, aligns, strict=True):
                        builder.store(value, pointer, align=align)
        return context.get_dummy_value()

    kinds = (totals, nb.int64, bias, nb.int64, nb.int64, state, nb.boolean, nb.int64, labels, scores, second_scores)
    return nb.void(*kinds), codegen


def _lesser(builder, one, other):
    """Take the lesser of two numbers, lane by lane."""
    return builder.select(builder.fcmp_ordered("<", one, other), one, other)


def _lowest(builder, best, second, where):
    """Find column, score and second score of a row in the state of `lower`."""
    kind, numbers, lanes = best.type, where.type, best.type.count
    columns = builder.add(where, ir.Constant(numbers, list(range(lanes))))
    score = _lowest_lane(builder, best, builder.fcmp_ordered)
    equal = builder.fcmp_ordered("==", best, spread(builder, score, kind))
    beyond = ir.Constant(numbers, [2**31 - 1] * lanes)
    column = _lowest_lane(builder, builder.select(equal, columns, beyond), builder.icmp_signed)
    rest = builder.select(equal, ir.Constant(kind, [float("inf")] * lanes), best)
    other = _lowest_lane(builder, _lesser(builder, rest, second), builder.fcmp_ordered)
    bits = builder.bitcast(equal, ir.IntType(lanes))
    several = builder.and_(bits, builder.sub(bits, ir.Constant(bits.type, 1)))
    alone = builder.icmp_unsigned("==", several, ir.Constant(bits.type, 0))
    return column, score, builder.select(alone, other, score)


def _lowest_lane(builder, values, compare):
    """Find the lowest number of a vector by halves."""
    while values.type.count > 1:
        first, second = halves(builder, values)
        values = builder.select(compare("<", first, second), first, second)
    return builder.extract_element(values, ir.Constant(NUMBER, 0))
