"""Walsh-Hadamard transforms of rows with random signs, in place, in vectors of the processor.

Entry c of the transform is ``sum_j (-1)^popcount(c & j) * row[j]``: not normalized, so whole numbers stay whole. A row
is worked on by itself in the first-level cache: butterflies of eight vectors for the upper bits of the index, shuffles
within a vector for the lowest. Sixteen rows side by side would need no shuffles, but a tile of 64 d bytes, which
leaves that cache from d = 512 on, and transposing both ways. Plain Python functions say what each step means and run
under ``NUMBA_DISABLE_JIT=1``; compiled callers get LLVM forms. Nothing is bounds-checked.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from llvmlite import ir
from numba.np.arrayobj import make_array

from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.forms import compiled_form
from streamkm.kernels.intrinsics.hashing import bucket_of, mix

VECTOR_BYTES = 64
CACHED_BYTES = 16384
"""Parts of a row that are transformed whole while they are in the first-level cache."""


def butterflies(row, start, stride, radix):
    """Transform `radix` vectors that are `stride` entries apart, over the vector's number.

    Parameters
    ----------
    row : float32 or float64 (d,), C-contiguous
        Changed.
    start, stride : int64
        Multiples of the entries in 64 bytes.
    radix : 2, 4 or 8, a literal
    """
    width = VECTOR_BYTES // row.itemsize
    places = [slice(start + q * stride, start + q * stride + width) for q in range(radix)]
    vectors = [row[place].copy() for place in places]
    half = 1
    while half < radix:
        for q in range(radix):
            if not q & half:
                vectors[q], vectors[q + half] = vectors[q] + vectors[q + half], vectors[q] - vectors[q + half]
        half *= 2
    for place, vector in zip(places, vectors, strict=True):
        row[place] = vector


def cross_lanes(row, start):
    """Transform the entries of one vector.

    Parameters
    ----------
    row : float32 or float64 (d,), C-contiguous
        Changed.
    start : int64
    """
    width = VECTOR_BYTES // row.itemsize
    lanes = np.arange(width)
    half = 1
    while half < width:
        vector = row[start : start + width].copy()
        row[start : start + width] = vector[lanes ^ half] + np.where(lanes & half, -vector, vector)
        half *= 2


def _vectors(context, builder, kind, array):
    """Vector type, entries in it, and the pointer to the vector at an offset."""
    scalar = context.get_data_type(kind.dtype)
    itemsize = kind.dtype.bitwidth // 8
    width = VECTOR_BYTES // itemsize
    vector = ir.VectorType(scalar, width)
    data = make_array(kind)(context, builder, array).data

    def place(offset):
        return builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())

    return vector, width, itemsize, place


@compiled_form(butterflies, prefer_literal=True)
def _butterflies(typingctx, row, start, stride, radix):
    def codegen(context, builder, signature, args):
        _, _, align, place = _vectors(context, builder, signature.args[0], args[0])
        offset, step = (
            context.cast(builder, value, kind, nb.int64)
            for value, kind in zip(args[1:3], signature.args[1:3], strict=True)
        )
        places = []
        for _ in range(radix.literal_value):
            places.append(place(offset))
            offset = builder.add(offset, step)
        vectors = [builder.load(pointer, align=align) for pointer in places]
        half = 1
        while half < len(vectors):
            for q in range(len(vectors)):
                if not q & half:
                    low, high = vectors[q], vectors[q + half]
                    vectors[q], vectors[q + half] = builder.fadd(low, high), builder.fsub(low, high)
            half *= 2
        for pointer, vector in zip(places, vectors, strict=True):
            builder.store(vector, pointer, align=align)
        return context.get_dummy_value()

    return nb.void(row, start, stride, radix), codegen


@compiled_form(cross_lanes)
def _cross_lanes(typingctx, row, start):
    def codegen(context, builder, signature, args):
        vector, width, align, place = _vectors(context, builder, signature.args[0], args[0])
        pointer = place(context.cast(builder, args[1], signature.args[1], nb.int64))
        entries = builder.load(pointer, align=align)
        half = 1
        while half < width:
            order = ir.Constant(ir.VectorType(ir.IntType(32), width), [lane ^ half for lane in range(width)])
            signs = ir.Constant(vector, [-1.0 if lane & half else 1.0 for lane in range(width)])
            swapped = builder.shuffle_vector(entries, ir.Constant(vector, ir.Undefined), order)
            entries = builder.fadd(swapped, builder.fmul(entries, signs), flags=("contract",))
            half *= 2
        builder.store(entries, pointer, align=align)
        return context.get_dummy_value()

    return nb.void(row, start), codegen


@kernel
def transform(row):
    """Transform a row in place.

    O(d log d). Long strides come first, over the whole row; from `CACHED_BYTES` on, part by part.

    Parameters
    ----------
    row : float32 or float64 (d,), C-contiguous; d a power of two, at least 16
    """
    width = VECTOR_BYTES // row.itemsize
    n = row.shape[0]
    part = n
    while part * row.itemsize > CACHED_BYTES:
        part //= 8
        for start in range(0, n, 8 * part):
            for offset in range(start, start + part, width):
                butterflies(row, offset, part, 8)
    for first in range(0, n, part):
        size = part
        while size >= 8 * width:
            size //= 8
            for start in range(first, first + part, 8 * size):
                for offset in range(start, start + size, width):
                    butterflies(row, offset, size, 8)
        if size == 4 * width:
            for start in range(first, first + part, size):
                butterflies(row, start, width, 4)
        if size == 2 * width:
            for start in range(first, first + part, size):
                butterflies(row, start, width, 2)
        for start in range(first, first + part, width):
            cross_lanes(row, start)


@kernel
def rotate_dense(X, signs, out):
    """Transform dense rows with signs: ``out[i] = H (signs * X[i])``, rows padded with zeros.

    Parameters
    ----------
    X : float32 or float64 (n, d), C-contiguous
    signs : same dtype (d,)
    out : same dtype (n, p), C-contiguous; p >= d a power of two, at least 16
        Written.
    """
    n_features = X.shape[1]
    for i in range(X.shape[0]):
        row = out[i]
        for j in range(n_features):
            row[j] = signs[j] * X[i, j]
        row[n_features:] = 0
        transform(row)


@kernel
def rotate_csr(indptr, indices, data, first, signs, out):
    """Transform CSR rows with signs.

    Parameters
    ----------
    indptr, indices : int32 or int64
    data : float32 or float64 (nnz,)
    first : int64
        The row that out[0] is for.
    signs : same dtype as data (d,)
    out : same dtype (n, p), C-contiguous; p >= d a power of two, at least 16
        Written.
    """
    for i in range(out.shape[0]):
        row = out[i]
        row[:] = 0
        for t in range(indptr[first + i], indptr[first + i + 1]):
            j = indices[t]
            row[j] += signs[j] * data[t]
        transform(row)


@kernel
def pick(rotated, picked, scale, out):
    """Take scaled columns: ``out[:] = scale * rotated[:, picked]``.

    Parameters
    ----------
    rotated : float32 or float64 (n, p)
    picked : int64 (m,)
    scale : same dtype
    out : same dtype (n, m)
        Written.
    """
    for i in range(rotated.shape[0]):
        row = rotated[i]
        for c in range(picked.shape[0]):
            out[i, c] = scale * row[picked[c]]


@kernel
def sample_entries(seed, n_kept, scale, rotated, bits, out_indices, out_data):
    """Keep some entries of each row, drawn without replacement by a hash of the row.

    Floyd's algorithm (Bentley and Floyd, "A sample of brilliance", Commun. ACM 30, 1987): n_kept draws, whatever the
    width. The hash takes the row's first 16 entries, each a signed sum of all features.

    Parameters
    ----------
    seed : uint64
    n_kept : int64
    scale : float64
    rotated : float32 or float64 (n, p)
    bits : uint32 or uint64 (n, p)
        The same memory.
    out_indices : int32 (n, n_kept)
        Written, ascending.
    out_data : float32 (n, n_kept)
        Written.
    """
    n_rows, width = rotated.shape
    taken, places = np.zeros(width, np.bool_), np.empty(width + 1, np.int32)
    for i in range(n_rows):
        word = seed
        for c in range(16):
            word = mix(word, np.uint64(0) if rotated[i, c] == 0 else np.uint64(bits[i, c]))  # -0 is 0
        for last in range(width - n_kept, width):
            drawn = np.int64(bucket_of(mix(word, np.uint64(last)), np.uint64(last + 1)))
            taken[last if taken[drawn] else drawn] = True
        n_found = 0
        for c in range(width):  # without a branch, which nothing could predict
            places[n_found] = c
            n_found += taken[c]
        taken[:] = False
        for t in range(n_kept):
            out_indices[i, t] = places[t]
            out_data[i, t] = np.float32(scale * rotated[i, places[t]])
