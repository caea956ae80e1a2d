"""The search for the two lowest scores of rows, beside the products that scores are made of.

What is done is a plain Python function (what it means, and what runs under ``NUMBA_DISABLE_JIT=1``) with an LLVM form
that compiled callers get instead. Nothing is bounds-checked. May import forms, vectors, numba and numpy only.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.np.arrayobj import make_array

from streamkm.kernels.intrinsics import vectors
from streamkm.kernels.intrinsics.forms import compiled_form
from streamkm.kernels.intrinsics.vectors import NUMBER, PLACE, spread, vector_at, vector_lanes


def lower(totals, n_rows, bias, column, n_columns, best, seconds, where):
    """Begin or go on with the search for the two lowest scores of rows, lane by lane.

    Parameters
    ----------
    totals : float32 or float64 (BLOCK_ROWS, width), C-contiguous
        Products of the rows with a panel.
    n_rows : int64
    bias : same dtype (p,), C-contiguous
        What is added to the products of a column; infinite where padded.
    column, n_columns : int64
        First column of the panel among all, and how many are looked at: as many as fill whole vectors. The search
        begins with column 0.
    best, seconds : same dtype (BLOCK_ROWS, at least lanes), C-contiguous
        Lowest and second lowest scores so far of the columns of each lane; written.
    where : int32 (BLOCK_ROWS, at least lanes), C-contiguous
        First column of the vector that `best` is of; written.
    """
    lanes = vector_lanes(totals)
    if column == 0:
        best[:n_rows], seconds[:n_rows], where[:n_rows] = np.inf, np.inf, 0
    for first in range(0, n_columns, lanes):
        scores = totals[:n_rows, first : first + lanes] + bias[column + first : column + first + lanes]
        before = best[:n_rows, :lanes].copy()
        less = scores < before
        seconds[:n_rows, :lanes] = np.minimum(seconds[:n_rows, :lanes], np.maximum(before, scores))
        best[:n_rows, :lanes] = np.where(less, scores, before)
        where[:n_rows, :lanes][less] = column + first


@compiled_form(lower)
def _lower(typing, totals, n_rows, bias, column, n_columns, best, seconds, where):
    def codegen(context, builder, signature, args):
        totals_, bias_, best_, seconds_, where_ = (
            make_array(signature.args[q])(context, builder, args[q]) for q in (0, 2, 5, 6, 7)
        )
        n_rows, column, n_columns = args[1], args[3], args[4]
        align = signature.args[0].dtype.bitwidth // 8
        lanes = vectors.vector_bytes(context.codegen()._tm_features) // align
        kind = ir.VectorType(ir.FloatType() if align == 4 else ir.DoubleType(), lanes)
        numbers = ir.VectorType(NUMBER, lanes)
        total_step, step = builder.extract_value(totals_.shape, 1), builder.extract_value(best_.shape, 1)
        begins = builder.icmp_signed("==", column, PLACE(0))
        nothing = [ir.Constant(kind, [float("inf")] * lanes)] * 2 + [ir.Constant(numbers, [0] * lanes)]
        with cgutils.for_range_slice(builder, PLACE(0), n_rows, PLACE(1), inc=True) as (row, _):
            held = builder.mul(row, step)
            pointers = [vector_at(builder, array, held, kind) for array in (best_, seconds_)]
            pointers.append(vector_at(builder, where_, held, numbers))
            held = [builder.load(pointer, align=4 if q == 2 else align) for q, pointer in enumerate(pointers)]
            given = [builder.select(begins, *pair) for pair in zip(nothing, held, strict=True)]
            start = builder.mul(row, total_step)
            before, function = builder.block, builder.function
            loop, end = function.append_basic_block("columns"), function.append_basic_block("seen")
            builder.branch(loop)
            builder.position_at_end(loop)
            at = builder.phi(PLACE)
            at.add_incoming(PLACE(0), before)
            states = [builder.phi(value.type) for value in given]
            for state, value in zip(states, given, strict=True):
                state.add_incoming(value, before)
            best, second, first = states
            here = builder.add(column, at)
            product = builder.load(vector_at(builder, totals_, builder.add(start, at), kind), align=align)
            score = builder.fadd(product, builder.load(vector_at(builder, bias_, here, kind), align=align))
            less = builder.fcmp_ordered("<", score, best)
            higher = builder.select(less, best, score)
            second_less = builder.fcmp_ordered("<", higher, second)
            found = [
                builder.select(less, score, best),
                builder.select(second_less, higher, second),
                builder.select(less, spread(builder, builder.trunc(here, NUMBER), numbers), first),
            ]
            following = builder.add(at, PLACE(lanes))
            at.add_incoming(following, loop)
            for state, value in zip(states, found, strict=True):
                state.add_incoming(value, loop)
            builder.cbranch(builder.icmp_signed("<", following, n_columns), loop, end)
            builder.position_at_end(end)
            for q, (value, pointer) in enumerate(zip(found, pointers, strict=True)):
                builder.store(value, pointer, align=4 if q == 2 else align)
        return context.get_dummy_value()

    return nb.void(totals, nb.int64, bias, nb.int64, nb.int64, best, seconds, where), codegen


def lowest_lanes(best, seconds, where, n_rows, first, labels, scores, second_scores):
    """Find the lowest and the second lowest score of rows among all lanes; the first column of equal ones.

    Parameters
    ----------
    best, seconds, where
        As `lower` leaves them.
    n_rows : int64
    first : int64
        Where in the arrays to come the rows begin.
    labels : int32 (n,)
        Written: columns of the lowest scores.
    scores, second_scores : of the dtype of `best` (n,)
        Written.
    """
    lanes = vector_lanes(best)
    for i in range(n_rows):
        columns, lowest = where[i, :lanes] + np.arange(lanes), best[i, :lanes]
        lane = np.lexsort([columns, lowest])[0]
        labels[first + i], scores[first + i] = columns[lane], lowest[lane]
        second_scores[first + i] = min(np.delete(lowest, lane).min(), seconds[i, :lanes].min())


@compiled_form(lowest_lanes)
def _lowest_lanes(typing, best, seconds, where, n_rows, first, labels, scores, second_scores):
    def codegen(context, builder, signature, args):
        best_, seconds_, where_, labels_, scores_, second_scores_ = (
            make_array(signature.args[q])(context, builder, args[q]) for q in (0, 1, 2, 5, 6, 7)
        )
        n_rows, first = args[3], args[4]
        align = signature.args[0].dtype.bitwidth // 8
        lanes = vectors.vector_bytes(context.codegen()._tm_features) // align
        kind = ir.VectorType(ir.FloatType() if align == 4 else ir.DoubleType(), lanes)
        numbers = ir.VectorType(NUMBER, lanes)
        step = builder.extract_value(best_.shape, 1)

        def lowest(values, less):
            while values.type.count > 1:
                n_left = values.type.count // 2
                halves = [
                    builder.shuffle_vector(
                        values,
                        ir.Constant(values.type, ir.Undefined),
                        ir.Constant(ir.VectorType(NUMBER, n_left), [start + lane for lane in range(n_left)]),
                    )
                    for start in (0, n_left)
                ]
                values = builder.select(less("<", *halves), *halves)
            return builder.extract_element(values, ir.Constant(NUMBER, 0))

        nothing, beyond = ir.Constant(kind, [float("inf")] * lanes), ir.Constant(numbers, [2**31 - 1] * lanes)
        with cgutils.for_range_slice(builder, PLACE(0), n_rows, PLACE(1), inc=True) as (row, _):
            held = builder.mul(row, step)
            best = builder.load(vector_at(builder, best_, held, kind), align=align)
            second = builder.load(vector_at(builder, seconds_, held, kind), align=align)
            columns = builder.load(vector_at(builder, where_, held, numbers), align=4)
            columns = builder.add(columns, ir.Constant(numbers, list(range(lanes))))
            score = lowest(best, builder.fcmp_ordered)
            equal = builder.fcmp_ordered("==", best, spread(builder, score, kind))
            column = lowest(builder.select(equal, columns, beyond), builder.icmp_signed)
            others = builder.icmp_signed("!=", columns, spread(builder, column, numbers))
            rest = builder.select(others, best, nothing)
            second = lowest(builder.select(builder.fcmp_ordered("<", rest, second), rest, second), builder.fcmp_ordered)
            at = builder.add(first, row)
            for value, array in ((column, labels_), (score, scores_), (second, second_scores_)):
                builder.store(value, builder.gep(array.data, [at]))
        return context.get_dummy_value()

    return nb.void(best, seconds, where, nb.int64, nb.int64, labels, scores, second_scores), codegen
