"""Sums over the numbers of two rows, in a fixed order; LLVM forms (see `forms`).

Sums that a compiler may reorder have other last bits on other processors, or for read-only memory. These run in
`N_LANES` lanes on any processor, which are added up in a tree; leftover numbers are added last.
"""

from __future__ import annotations

from fractions import Fraction

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import cgutils

from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.forms import NUMBER, PLACE, arrays_of, compiled_form, halves, multiply_adds

N_LANES = 16
_TINY = float(np.finfo(np.float32).tiny)


def dot(a, first, b, other, n):
    """Sum of products, ``a[first:][:n] @ b[other:][:n]``, in float64.

    Parameters
    ----------
    a, b : float32 or float64 ndarray, C-contiguous; entries are counted through all dimensions
    first, other, n : int64

    Returns
    -------
    float64
    """
    return _in_lanes(a, first, b, other, n, lambda x, y: x * y)


def squared_distance(a, first, b, other, n):
    """Sum of squared differences, ``sum((a[first:][:n] - b[other:][:n]) ** 2)``, in float64; see `dot`."""
    return _in_lanes(a, first, b, other, n, lambda x, y: (x - y) ** 2)


def absolute_distance(a, first, b, other, n):
    """Sum of absolute differences, ``sum(abs(a[first:][:n] - b[other:][:n]))``, in float64; see `dot`."""
    return _in_lanes(a, first, b, other, n, lambda x, y: abs(x - y))


def chi_squared_distance(a, first, b, other, n):
    """Sum of ``(x - y)^2 / (x + y)`` over numbers that are not negative, in float64; see `dot`."""
    return _in_lanes(a, first, b, other, n, lambda x, y: (x - y) ** 2 / (x + y + _TINY))


@kernel(inline="always")
def add_square_pair(value, high, low):
    """Add a square to a sum of two parts (high, low) without loss, by Knuth's sum and a fused multiply-add."""
    square = value * value
    lost = fused(value, value, -square)
    total = high + square
    added = total - high
    low += (high - (total - added)) + (square - added) + lost
    return total, low


def fused(a, b, c):
    """Compute ``a * b + c`` in float64, rounded once."""
    return float(Fraction(a) * Fraction(b) + Fraction(c))


@compiled_form(fused)
def _fused(typing, a, b, c):
    def codegen(context, builder, signature, args):
        return multiply_adds(builder, ir.DoubleType(), "")(*args)  # always once: what is lost is what is asked for

    return nb.float64(nb.float64, nb.float64, nb.float64), codegen


def _in_lanes(a, first, b, other, n, term):
    terms = term(
        a.reshape(-1)[first : first + n].astype(np.float64), b.reshape(-1)[other : other + n].astype(np.float64)
    )
    whole = n // N_LANES * N_LANES
    lanes = np.zeros(N_LANES)
    for start in range(0, whole, N_LANES):
        lanes += terms[start : start + N_LANES]
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    rest = 0.0
    for value in terms[whole:]:
        rest += value
    return float(lanes[0] + rest)


def _constant(kind, value):
    """A vector or a number."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def _add_product(builder, fma, x, y, total):
    return fma(x, y, total)


def _add_square(builder, fma, x, y, total):
    difference = builder.fsub(x, y)
    return fma(difference, difference, total)


def _add_absolute(builder, fma, x, y, total):
    difference = builder.fsub(x, y)
    positive = builder.fcmp_ordered(">=", difference, _constant(x.type, 0.0))
    return builder.fadd(total, builder.select(positive, difference, builder.fneg(difference)))


def _add_chi_squared(builder, fma, x, y, total):
    difference = builder.fsub(x, y)
    both = builder.fadd(builder.fadd(x, y), _constant(x.type, _TINY))
    return fma(difference, builder.fdiv(difference, both), total)


def _compile(meaning, add_term):
    """Give compiled callers of a function its LLVM form; `add_term` adds a term to a total, of vectors or numbers."""

    @compiled_form(meaning)
    def in_lanes(typing, a, first, b, other, n):
        def codegen(context, builder, signature, args):
            a_, b_ = arrays_of(context, builder, signature, args, (0, 2))
            kinds = [signature.args[q].dtype for q in (0, 2)]
            first, other, n = args[1], args[3], args[4]
            double, half = ir.DoubleType(), N_LANES // 2
            vector = ir.VectorType(double, half)
            features = context.codegen()._tm_features
            fma, fma_one = multiply_adds(builder, vector, features), multiply_adds(builder, double, features)
            totals = [cgutils.alloca_once_value(builder, _constant(vector, 0.0)) for _ in range(2)]
            rest = cgutils.alloca_once_value(builder, _constant(double, 0.0))
            whole = builder.and_(n, PLACE(-N_LANES))

            def loaded(array, kind, position, type_):
                one = ir.FloatType() if kind.bitwidth == 32 else double
                narrow = ir.VectorType(one, half) if type_ is vector else one
                value = builder.load(
                    builder.bitcast(builder.gep(array.data, [position]), narrow.as_pointer()), align=kind.bitwidth // 8
                )
                return value if one is double else builder.fpext(value, type_)

            def add(total, offset, type_, fused):
                x = loaded(a_, kinds[0], builder.add(first, offset), type_)
                y = loaded(b_, kinds[1], builder.add(other, offset), type_)
                builder.store(add_term(builder, fused, x, y, builder.load(total)), total)

            with cgutils.for_range_slice(builder, PLACE(0), whole, PLACE(N_LANES), inc=True) as (j, _):
                for q, total in enumerate(totals):
                    add(total, builder.add(j, PLACE(q * half)), vector, fma)
            with cgutils.for_range_slice(builder, whole, n, PLACE(1), inc=True) as (j, _):
                add(rest, j, double, fma_one)
            lanes = builder.fadd(*(builder.load(total) for total in totals))
            while half > 1:
                lanes, half = builder.fadd(*halves(builder, lanes)), half // 2
            total = builder.extract_element(lanes, ir.Constant(NUMBER, 0))
            return builder.fadd(total, builder.load(rest))

        return nb.float64(a, nb.int64, b, nb.int64, nb.int64), codegen


_compile(dot, _add_product)
_compile(squared_distance, _add_square)
_compile(absolute_distance, _add_absolute)
_compile(chi_squared_distance, _add_chi_squared)
