"""Products of dense rows that are mostly zeros: a copy of the other entries, sums held in vector registers.

numba only; arrays in, arrays out; the caller validates.
"""

from __future__ import annotations

import numpy as np

from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.lanes import VECTOR_BYTES, add_tile

TILE_VECTORS = 5  # of sums held in registers: enough to hide the latency of additions, on AVX2 too
TILE = TILE_VECTORS * VECTOR_BYTES // 4
PIECE = 128  # features of a table that meet all rows at once
_ZERO = np.float32(0.0)


@kernel
def products_of_nonzeros(rows, table, bias, out):
    """``bias + rows @ table`` by the entries of dense rows other than 0; O(v * d + nnz * c).

    All rows meet one piece of the table, `TILE` columns of `PIECE` features, before the next one: it stays in the
    cache. A row's sums run over its features in order, whatever the other rows.

    Parameters
    ----------
    rows : float32 (at least v, d)
    table : float32 (tiles, d, TILE)
        Columns, a tile after the other; those of the last are filled up.
    bias : float32 (tiles, TILE)
    out : float32 (v, c)
        Written.
    """
    n_rows, n_columns = out.shape
    n_features = rows.shape[1]
    n_pieces = (n_features + PIECE - 1) // PIECE
    starts = np.empty(n_pieces * n_rows + 1, np.int64)
    starts[0] = 0
    indices = np.empty(n_rows * n_features + 1, np.int32)
    data = np.empty(n_rows * n_features + 1, np.float32)
    n_found = 0
    for piece in range(n_pieces):
        for i in range(n_rows):
            for j in range(piece * PIECE, min((piece + 1) * PIECE, n_features)):
                indices[n_found] = j  # every entry is written; the next one overwrites a 0
                data[n_found] = rows[i, j]
                n_found += rows[i, j] != _ZERO
            starts[piece * n_rows + i + 1] = n_found
    totals = np.empty((n_rows, TILE), np.float32)
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
