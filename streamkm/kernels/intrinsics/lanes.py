"""Sums of scaled rows of a table in vector registers, by LLVM forms (see `forms`).

``total += sum_t data[t] * table[indices[t]]`` dominates every step on sparse rows. Plain loops write the running sums
to memory for each stored entry; here a tile of columns at a time stays in registers.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import cgutils

from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.forms import LINE_BYTES, PLACE, arrays_of, compiled_form, prefetched, spread, unfilled

AHEAD = 24
"""Prefetch distance in entries: rows of a large table are in no near cache, and the processor looks some 20 entries
ahead by itself (7.1 to 4.4 ns an entry and 64 columns of 12 MB)."""
FUSED = ("contract",)  # multiply and add with one rounding where the processor can
LANES = 16
"""Columns of a table are padded to a multiple of it: whole vectors of float32, twice as many of float64."""


def add_tile(total, table, indices, data, start, stop, column, n_vectors, ahead):
    """Add scaled rows of a table to a tile of columns.

    The readable form is ``total[tile] += data[start:stop] @ table[indices[start:stop], tile]``.

    Parameters
    ----------
    total : float32 or float64 (p,), C-contiguous; added to, in the columns of the tile
    table : same dtype (m, p), C-contiguous
    indices : int32 or int64 (nnz,), C-contiguous
    data : same dtype as table (nnz,), C-contiguous
    start, stop : int64; entries to add
    column : int64; first column of the tile
    n_vectors : int, a literal; width of the tile in vectors of 64 bytes
    ahead : int, a literal; how many entries ahead rows of the table are asked for; 0: they are not
    """
    tile = slice(column, column + n_vectors * LINE_BYTES // table.itemsize)
    total[tile] += data[start:stop] @ table[indices[start:stop], tile]


@compiled_form(add_tile, prefer_literal=True)
def _add_tile(typingctx, total, table, indices, data, start, stop, column, n_vectors, ahead):
    def codegen(context, builder, signature, args):
        kinds = signature.args
        total_, table_, indices_, data_ = arrays_of(context, builder, signature, args, range(4))
        start, stop, column = args[4:7]
        scalar = context.get_data_type(kinds[1].dtype)
        width = LINE_BYTES // (kinds[1].dtype.bitwidth // 8)
        vector = ir.VectorType(scalar, width)
        align = kinds[1].dtype.bitwidth // 8
        n_columns = builder.extract_value(table_.shape, 1)
        offsets = [builder.add(column, PLACE(q * width)) for q in range(n_vectors.literal_value)]

        def place(base, offset):
            return builder.bitcast(builder.gep(base, [offset]), vector.as_pointer())

        def row_of(t):
            index = context.cast(builder, builder.load(builder.gep(indices_.data, [t])), kinds[2].dtype, nb.int64)
            return builder.gep(table_.data, [builder.mul(index, n_columns)])

        sums = [cgutils.alloca_once_value(builder, builder.load(place(total_.data, o), align=align)) for o in offsets]
        last = builder.sub(builder.extract_value(indices_.shape, 0), PLACE(1))
        with cgutils.for_range_slice(builder, start, stop, PLACE(1), inc=True) as (t, _):
            if ahead.literal_value:
                coming = builder.add(t, PLACE(ahead.literal_value))
                coming = builder.select(builder.icmp_signed("<", coming, last), coming, last)
                row = row_of(coming)
                for offset in offsets:
                    prefetched(builder, builder.gep(row, [offset]))
            value = builder.load(builder.gep(data_.data, [t]))
            scale = spread(builder, value, vector)
            row = row_of(t)
            for stored, offset in zip(sums, offsets, strict=True):
                entries = builder.load(place(row, offset), align=align)
                product = builder.fmul(scale, entries, flags=FUSED)
                builder.store(builder.fadd(product, builder.load(stored), flags=FUSED), stored)
        for stored, offset in zip(sums, offsets, strict=True):
            builder.store(builder.load(stored), place(total_.data, offset), align=align)
        return context.get_dummy_value()

    return nb.void(total, table, indices, data, nb.int64, nb.int64, nb.int64, n_vectors, ahead), codegen


@kernel(inline="always")
def add_entries(total, table, indices, data, start, stop):
    """Add scaled rows of a table: ``total += data[start:stop] @ table[indices[start:stop]]``.

    Parameters
    ----------
    total : float32 or float64 (p,); added to
    table : same dtype (m, p), C-contiguous; p a multiple of `LANES`
    indices : int32 or int64 (nnz,)
    data : same dtype as table (nnz,)
    start, stop : int64
    """
    width = LINE_BYTES // table.itemsize
    n_columns = table.shape[1]
    if n_columns == 4 * width:  # one tile: what comes ahead is the same tile of other rows
        add_tile(total, table, indices, data, start, stop, 0, 4, AHEAD)
        return
    column = 0
    while column + 4 * width <= n_columns:
        add_tile(total, table, indices, data, start, stop, column, 4, 0)
        column += 4 * width
    while column + 2 * width <= n_columns:
        add_tile(total, table, indices, data, start, stop, column, 2, 0)
        column += 2 * width
    while column + width <= n_columns:
        add_tile(total, table, indices, data, start, stop, column, 1, 0)
        column += width


TILE_VECTORS = 5  # of sums held in registers: enough to hide the latency of additions, on AVX2 too
TILE = TILE_VECTORS * LINE_BYTES // 4
PIECE = 128  # features of a table that meet all rows at once
_ZERO = np.float32(0.0)


@kernel
def products_of_nonzeros(rows, table, bias, out):
    """Compute ``bias + rows @ table`` by the nonzero entries of dense rows; O(v * d + nnz * c).

    All rows meet one cached piece of the table, `TILE` columns of `PIECE` features, before the next. A row's sums run
    over its features in order, whatever the other rows.

    Parameters
    ----------
    rows : float32 (at least v, d)
    table : float32 (tiles, d, TILE); columns, a tile after the other; those of the last are filled up
    bias : float32 (tiles, TILE)
    out : float32 (v, c); written
    """
    n_rows, n_columns = out.shape
    n_features = rows.shape[1]
    n_pieces = (n_features + PIECE - 1) // PIECE
    starts = unfilled(n_pieces * n_rows + 1, np.int64)
    starts[0] = 0
    indices = unfilled(n_rows * n_features + 1, np.int32)
    data = unfilled(n_rows * n_features + 1, np.float32)
    n_found = 0
    for piece in range(n_pieces):
        for i in range(n_rows):
            for j in range(piece * PIECE, min((piece + 1) * PIECE, n_features)):
                indices[n_found] = j  # every entry is written; the next one overwrites a 0
                data[n_found] = rows[i, j]
                n_found += rows[i, j] != _ZERO
            starts[piece * n_rows + i + 1] = n_found
    totals = unfilled((n_rows, TILE), np.float32)
    for tile in range(table.shape[0]):
        for i in range(n_rows):
            for c in range(TILE):
                totals[i, c] = bias[tile, c]
        for t in range(n_pieces * n_rows):
            add_tile(totals[t % n_rows], table[tile], indices, data, starts[t], starts[t + 1], 0, TILE_VECTORS, 0)
        first = tile * TILE
        for i in range(n_rows):
            for c in range(min(TILE, n_columns - first)):
                out[i, first + c] = totals[i, c]
