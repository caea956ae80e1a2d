"""Products with a matrix of random signs that is never written out.

Sign (j, c) is bit c % 64 of word c // 64 of feature j; a set bit means +1. A word is a hash of (seed, j, c // 64), so
neither d nor m need be known. The readable form is ``Y[i, c] = scale * sum_j sign(j, c) * X[i, j]``.

Dense rows are multiplied by tables (as in the Mailman algorithm and the method of four Russians: what few features can
add up to is worked out once, and looked up for every component): for 4 features of a row there are 16 signed sums. A
vector holds the same feature of several rows, so that one look-up serves them all. Sums and products with a sign are
plain float additions; a row's sums do not depend on the rows beside it. Plain Python functions say what each step
means; compiled callers get LLVM forms. Nothing is bounds-checked.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.np.arrayobj import make_array

from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.forms import compiled_form
from streamkm.kernels.intrinsics.hashing import mix

VECTOR_BYTES = 64
GROUP, GROUPS = 4, 16
"""Features that share a table, and tables that one 64-bit word of signs indexes."""
PATTERNS = 1 << GROUP
_ONE = np.uint64(1)


@kernel(inline="always")
def sign_word(seed, feature, q):
    """Signs of a feature in components 64 * q to 64 * q + 63, from the lowest bit.

    Parameters
    ----------
    seed, feature, q : uint64

    Returns
    -------
    uint64
    """
    return mix(mix(seed, feature), q)


def fill_tables(tables, turned):
    """Write the signed sums of 16 groups of 4 vectors.

    Parameters
    ----------
    tables : float32 or float64 (256, w), C-contiguous
        Written: row 16 * g + p has the sums of vectors 4 * g to 4 * g + 3, bit i of p saying that the i-th is added
        and not subtracted.
    turned : same dtype (64, w), C-contiguous
    """
    for g in range(GROUPS):
        for p in range(PATTERNS):
            a, b, c, d = (turned[GROUP * g + i] * (1 if (p >> i) & 1 else -1) for i in range(GROUP))
            tables[PATTERNS * g + p] = (a + b) + (c + d)


def look_up(total, tables, word):
    """Add what a word of 16 patterns of 4 bits selects from 16 tables, a vector each.

    Parameters
    ----------
    total : float32 or float64 (w,), C-contiguous; 64 bytes
        Added to.
    tables : same dtype (256, w), C-contiguous
        Pattern p of table g is row 16 * g + p.
    word : uint64
    """
    for g in range(GROUPS):
        total += tables[PATTERNS * g + ((int(word) >> (GROUP * g)) & (PATTERNS - 1))]


def add_signed(total, start, value, word):
    """Add a value to 64 entries, or subtract it where the bit of the word is not set.

    Parameters
    ----------
    total : float32 or float64 (p,), C-contiguous
        Added to.
    start : int64
    value : same dtype
    word : uint64
    """
    for c in range(64):
        total[start + c] += value if (int(word) >> c) & 1 else -value


def _as_vectors(context, builder, kind, array):
    """Pointer to an array's vectors, and the alignment that is known."""
    itemsize = kind.dtype.bitwidth // 8
    vector = ir.VectorType(context.get_data_type(kind.dtype), VECTOR_BYTES // itemsize)
    return builder.bitcast(make_array(kind)(context, builder, array).data, vector.as_pointer()), itemsize


@compiled_form(fill_tables)
def _fill_tables(typingctx, tables, turned):
    def codegen(context, builder, signature, args):
        (filled, align), (given, _) = (
            _as_vectors(context, builder, kind, array) for kind, array in zip(signature.args, args, strict=True)
        )
        index = ir.IntType(64)

        def signed_sums(first, second):
            """By pattern of two bits, the lower for the first vector."""
            below = builder.fneg(first)
            return [combine(start, second) for combine in (builder.fsub, builder.fadd) for start in (below, first)]

        with cgutils.for_range(builder, ir.Constant(index, GROUPS)) as loop:
            first = builder.mul(loop.index, ir.Constant(index, GROUP))
            a, b, c, d = (
                builder.load(builder.gep(given, [builder.add(first, ir.Constant(index, i))]), align=align)
                for i in range(GROUP)
            )
            place = builder.mul(loop.index, ir.Constant(index, PATTERNS))
            lower, upper = signed_sums(a, b), signed_sums(c, d)
            for p in range(PATTERNS):
                pointer = builder.gep(filled, [builder.add(place, ir.Constant(index, p))])
                builder.store(builder.fadd(lower[p & 3], upper[p >> 2]), pointer, align=align)
        return context.get_dummy_value()

    return nb.void(tables, turned), codegen


@compiled_form(look_up)
def _look_up(typingctx, total, tables, word):
    def codegen(context, builder, signature, args):
        (pointer, align), (base, _) = (
            _as_vectors(context, builder, kind, array) for kind, array in zip(signature.args[:2], args[:2], strict=True)
        )
        word64 = ir.IntType(64)
        found = []
        for g in range(GROUPS):
            pattern = builder.and_(
                builder.lshr(args[2], ir.Constant(word64, GROUP * g)), ir.Constant(word64, PATTERNS - 1)
            )
            place = builder.gep(base, [builder.add(pattern, ir.Constant(word64, PATTERNS * g))])
            found.append(builder.load(place, align=align))
        while len(found) > 1:
            found = [builder.fadd(found[i], found[i + 1]) for i in range(0, len(found), 2)]
        builder.store(builder.fadd(builder.load(pointer, align=align), found[0]), pointer, align=align)
        return context.get_dummy_value()

    return nb.void(total, tables, word), codegen


@compiled_form(add_signed)
def _add_signed(typingctx, total, start, value, word):
    def codegen(context, builder, signature, args):
        kinds = signature.args
        data = make_array(kinds[0])(context, builder, args[0]).data
        align = kinds[0].dtype.bitwidth // 8
        vector = ir.VectorType(context.get_data_type(kinds[0].dtype), 64)
        one = builder.insert_element(ir.Constant(vector, ir.Undefined), args[2], ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), 64), [0] * 64)
        values = builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)
        bits = builder.bitcast(args[3], ir.VectorType(ir.IntType(1), 64))
        offset = context.cast(builder, args[1], kinds[1], nb.int64)
        pointer = builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())
        entries = builder.load(pointer, align=align)
        added = builder.select(bits, builder.fadd(entries, values), builder.fsub(entries, values))
        builder.store(added, pointer, align=align)
        return context.get_dummy_value()

    return nb.void(total, start, value, word), codegen


@kernel
def pack_signs(seed, start, out):
    """Write the signs of features by component: bit b of out[f, c] is the sign of feature start + 64 * f + b.

    The words of 64 features are a matrix of 64 x 64 bits, which is transposed by swapping halves, quarters and so on.

    Parameters
    ----------
    seed : uint64
    start : int64
    out : uint64 (blocks, p); p a multiple of 64
        Written.
    """
    for f in range(out.shape[0]):
        for q in range(out.shape[1] // 64):
            words = out[f, 64 * q : 64 * q + 64]
            for b in range(64):
                words[b] = sign_word(seed, np.uint64(start + 64 * f + b), np.uint64(q))
            half, mask = 32, np.uint64(0xFFFFFFFF)
            while half > 0:
                shift = np.uint64(half)
                for b in range(64):
                    if not b & half:
                        swapped = ((words[b] >> shift) ^ words[b + half]) & mask
                        words[b] ^= swapped << shift
                        words[b + half] ^= swapped
                half //= 2
                mask ^= mask << np.uint64(half)


@kernel
def _turn(X, first, feature, turned):
    """Copy 64 features of the rows that a vector holds, transposed; what is past the last is zero."""
    n_rows, n_features = min(turned.shape[1], X.shape[0] - first), min(turned.shape[0], X.shape[1] - feature)
    if n_rows < turned.shape[1] or n_features < turned.shape[0]:
        turned[:] = 0
    for r in range(n_rows):
        row = X[first + r, feature : feature + n_features]
        for j in range(n_features):
            turned[j, r] = row[j]


@kernel
def project_dense(X, packed, out):
    """Add the products of dense rows with signs, not scaled.

    O(n * d * m / 4) additions and O(4 * n * d) for the tables, in vectors of 16 rows (8 of float64).

    Parameters
    ----------
    X : float32 or float64 (n, d)
    packed : uint64 (ceil(d / 64), p)
        Of `pack_signs`.
    out : same dtype as X (n, m), m <= p
        Added to.
    """
    width = VECTOR_BYTES // X.itemsize
    n_components = out.shape[1]
    turned = np.empty((GROUP * GROUPS, width), X.dtype)
    tables = np.empty((PATTERNS * GROUPS, width), X.dtype)
    totals = np.empty((n_components, width), X.dtype)
    for first in range(0, X.shape[0], width):
        totals[:] = 0
        for f in range(packed.shape[0]):
            _turn(X, first, GROUP * GROUPS * f, turned)
            fill_tables(tables, turned)
            words = packed[f]
            for c in range(n_components):
                look_up(totals[c], tables, words[c])
        for r in range(min(width, X.shape[0] - first)):
            for c in range(n_components):
                out[first + r, c] += totals[c, r]


@kernel
def project_csr(seed, scale, indptr, indices, data, out):
    """Write the scaled products of CSR rows with signs; O(nnz * m) additions.

    Parameters
    ----------
    seed : uint64
    scale : same dtype as data
    indptr, indices : int32 or int64
    data : float32 or float64 (nnz,)
    out : same dtype as data (n, m)
        Written.
    """
    n_components = out.shape[1]
    n_words = (n_components + 63) // 64
    total = np.empty(64 * n_words, out.dtype)
    for i in range(out.shape[0]):
        total[:] = 0
        for t in range(indptr[i], indptr[i + 1]):
            feature = mix(seed, np.uint64(indices[t]))
            for q in range(n_words):
                add_signed(total, 64 * q, data[t], mix(feature, np.uint64(q)))
        for c in range(n_components):
            out[i, c] = scale * total[c]
