"""Products of dense rows with a table, in a fixed order; LLVM forms (see `forms`).

Every entry of a product is chains of fused multiply-adds over `DEPTH` features each, added up in order. Its bits depend
on neither other rows, threads nor the width of vectors, which a BLAS does not promise. A table (m, k) is laid out in
panels of `PANEL_BYTES` a feature, each (m, width) (see `panel_stop`), so that a panel stays in the cache while
`BLOCK_ROWS` rows pass it. May import core, forms, numba and numpy only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import register_jitable

from streamkm.core.matrix import aligned_empty
from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics import forms
from streamkm.kernels.intrinsics.forms import (
    LINE_BYTES,
    PLACE,
    arrays_of,
    carry,
    compiled_form,
    multiply_adds,
    spread,
    vector_at,
    vector_lanes,
)

PANEL_BYTES = 3 * LINE_BYTES
"""Bytes of a feature in a panel: three vectors of 64 bytes, or twice three of 32."""
WIDEST_BYTES = PANEL_BYTES + LINE_BYTES
"""Bytes of a feature in the last panel: a leftover line would make a tile of one vector, which waits for its loads."""
BLOCK_ROWS = 96
"""Rows that a panel serves before the next one: a multiple of the rows of every tile."""
COPIED_BYTES = 1 << 20
"""Memory of rows that are copied at a time, in blocks."""
DEPTH = 128
"""Features of one chain: its part of a panel fits the nearest cache, and rounding grows with the sum of this and the
number of chains, not with their product."""
WIDE = 2048
"""Features of a block copied at a time, a multiple of `DEPTH`: bounds memory for wide rows."""
NARROW_BYTES = 32
"""Bytes of vectors for leftover columns, on every processor: few columns fill a wider one."""
TILE_ROWS = {32: {3: 4, 2: 6, 1: 12}, 64: {3: 8, 2: 8, 1: 8}}
"""Rows of a tile by the bytes of a vector and the vectors of a row: their sums fill the registers."""


@register_jitable
def panel_stop(column: int, n_padded: int, itemsize: int) -> int:
    """Find the end of the panel that begins at a column of a table of `n_padded` columns."""
    return n_padded if (n_padded - column) * itemsize <= WIDEST_BYTES else column + PANEL_BYTES // itemsize


def multiply_columns(
    X, table, totals, first_row, n_rows, feature, depth, place, width, fresh, to_row, to_column, column, n_vectors
):
    """Multiply rows with some columns of a panel: ``totals[rows, columns] (+)= X[:, features] @ panel[:, columns]``.

    Parameters
    ----------
    X : float32 or float64 (n, m), C-contiguous
    table : same dtype (entries,); panels, one after the other
    totals : same dtype (at least to_row + n_rows, at least to_column + width), C-contiguous; written
    first_row, n_rows : int64; rows to multiply. Whole tiles are read and written, up to `BLOCK_ROWS`.
    feature, depth : int64; first column of X, and the length of the chain
    place, width : int64; where the panel's row of that feature begins in the table, and the panel's width
    fresh : bool; whether sums begin here
    to_row, to_column : int64; where the products of the first row and the panel's first column go
    column : int64; first column in the panel
    n_vectors : int, a literal; vectors of `vector_lanes` from there on: 1, 2 or 3; or 0: one of `NARROW_BYTES`
    """
    n_columns = n_vectors * vector_lanes(table) or NARROW_BYTES // table.itemsize
    columns = slice(column, column + n_columns)
    panel = table[place + width * np.arange(depth)[:, None] + np.arange(columns.start, columns.stop)]
    X = X[first_row : first_row + n_rows, feature : feature + depth]
    chain = np.zeros((len(X), panel.shape[1]), table.dtype)
    for j in range(depth):  # float64 holds products of float32; NumPy has nothing to round float64 once
        chain[:] = chain + X[:, j, None].astype(np.float64) * panel[j].astype(np.float64)
    there = totals[to_row : to_row + n_rows, to_column:][:, columns]
    there[:] = (0 if fresh else there) + chain


@compiled_form(multiply_columns, prefer_literal=True)
def _multiply_columns(
    typing,
    X,
    table,
    totals,
    first_row,
    n_rows,
    feature,
    depth,
    place,
    width,
    fresh,
    to_row,
    to_column,
    column,
    n_vectors,
):
    def codegen(context, builder, signature, args):
        X, table, totals = arrays_of(context, builder, signature, args, range(3))
        first_row, n_rows, feature, depth, place, width, fresh, to_row, to_column, column = args[3:-1]
        features, wanted = context.codegen()._tm_features, signature.args[-1].literal_value
        n_vectors, n_bytes = max(1, wanted), forms.vector_bytes(features) if wanted else NARROW_BYTES
        align = signature.args[1].dtype.bitwidth // 8
        lanes = n_bytes // align
        kind = ir.VectorType(ir.FloatType() if align == 4 else ir.DoubleType(), lanes)
        zeros = ir.Constant(kind, [0.0] * lanes)
        fma = multiply_adds(builder, kind, features)
        height = TILE_ROWS[n_bytes][n_vectors]
        row_step = builder.extract_value(X.shape, 1)
        total_step = builder.sdiv(builder.extract_value(totals.strides, 0), PLACE(align))
        base, to = builder.add(place, column), builder.add(to_column, column)
        with cgutils.for_range_slice(builder, PLACE(0), n_rows, PLACE(height), inc=True) as (row, _):
            first = builder.add(first_row, row)
            starts = [
                builder.gep(X.data, [builder.add(builder.mul(builder.add(first, PLACE(r)), row_step), feature)])
                for r in range(height)
            ]

            def chain(j, sums, starts=starts):
                entry = builder.add(base, builder.mul(j, width))
                loaded = [
                    builder.load(vector_at(builder, table, builder.add(entry, PLACE(v * lanes)), kind), align=align)
                    for v in range(n_vectors)
                ]
                chained = []
                for r, start in enumerate(starts):
                    value = spread(builder, builder.load(builder.gep(start, [j])), kind)
                    chained += [fma(value, loaded[v], sums[r * n_vectors + v]) for v in range(n_vectors)]
                return chained

            values = carry(builder, (PLACE(0), depth), 1, [zeros] * (height * n_vectors), chain)
            pointers = []
            for r in range(height):
                there = builder.add(builder.mul(builder.add(builder.add(to_row, row), PLACE(r)), total_step), to)
                pointers += [
                    vector_at(builder, totals, builder.add(there, PLACE(v * lanes)), kind) for v in range(n_vectors)
                ]
            with builder.if_else(fresh) as (begun, added):
                with begun:
                    for pointer, value in zip(pointers, values, strict=True):
                        builder.store(value, pointer, align=align)
                with added:
                    for pointer, value in zip(pointers, values, strict=True):
                        builder.store(builder.fadd(builder.load(pointer, align=align), value), pointer, align=align)
        return context.get_dummy_value()

    numbers = (nb.int64,) * 6
    return nb.void(X, table, totals, *numbers, nb.boolean, *numbers[:3], n_vectors), codegen


@nb.njit(inline="always")
def multiply_panel(X, first_row, n_rows, n_features, table, place, width, n_columns, fresh, totals, to_row, to_column):
    """Multiply a block of rows with a panel: ``totals[rows, columns] (+)= X[rows, :n_features] @ panel``.

    O(n_rows * n_features * n_columns). Inlined: on its own it would be compiled again in every caller.

    Parameters
    ----------
    X : float32 or float64 (n, at least n_features), C-contiguous
        With rows to fill `n_rows` up to a multiple of those of a tile: up to `BLOCK_ROWS`.
    first_row, n_rows : int64; a block: at most `BLOCK_ROWS` rows
    n_features : int64
    table : same dtype (entries,)
    place, width : int64; where the panel, or its first feature that is looked at, begins in the table, and its width
    n_columns : int64; columns that are needed, at most `width`
    fresh : bool; whether sums begin here
    totals : same dtype (to_row + BLOCK_ROWS, at least to_column + n_columns, filled up to whole vectors), C-contiguous
        Written. Rows and columns beyond those that are needed hold anything.
    to_row, to_column : int64; where the products of the first row and the panel's first column go
    """
    lanes, narrow = vector_lanes(table), NARROW_BYTES // table.itemsize
    for feature in range(0, n_features, DEPTH):
        depth, begin = min(DEPTH, n_features - feature), fresh and feature == 0
        at, column, filled = place + feature * width, 0, (n_columns + narrow - 1) // narrow * narrow
        while column < filled:
            left = (filled - column) // lanes
            if left == 3 or left > 4:
                multiply_columns(
                    X, table, totals, first_row, n_rows, feature, depth, at, width, begin, to_row, to_column, column, 3
                )
                column += 3 * lanes
            elif left > 1:
                multiply_columns(
                    X, table, totals, first_row, n_rows, feature, depth, at, width, begin, to_row, to_column, column, 2
                )
                column += 2 * lanes
            elif left == 1:
                multiply_columns(
                    X, table, totals, first_row, n_rows, feature, depth, at, width, begin, to_row, to_column, column, 1
                )
                column += lanes
            else:
                multiply_columns(
                    X, table, totals, first_row, n_rows, feature, depth, at, width, begin, to_row, to_column, column, 0
                )
                column += narrow


@nb.njit(inline="always")
def load_block(X, first, n_rows, feature, n_features, shift, scale, out):
    """Copy a piece of rows as floats, moved and scaled: ``out = (X[rows, features] - shift[features]) * scale``.

    Parameters
    ----------
    X : real (n, m)
    first, n_rows, feature, n_features : int64
    shift : float64 (m,) or (0,); empty: none
    scale : float64; a power of two
    out : float32 or float64 (at least n_rows, at least n_features); written
    """
    begin, n_columns = np.uint64(feature), np.uint64(n_features)  # unsigned: no index counts from the end
    for i in range(n_rows):
        row, there = X[first + i], out[i]
        if shift.shape[0]:
            for j in range(n_columns):
                there[j] = (row[begin + j] - shift[begin + j]) * scale
        elif scale != 1.0:
            for j in range(n_columns):
                there[j] = row[begin + j] * scale
        else:
            for j in range(n_columns):
                there[j] = row[begin + j]


@kernel
def load_rows(X, first, n_rows, feature, shift, scale, out):
    """Copy a piece of C-contiguous rows as `load_block` does: the features from one on that `out` has columns for."""
    load_block(X, first, n_rows, feature, out.shape[1], shift, scale, out)


def block_room(table: Any, n_features: int) -> tuple[Any, Any]:
    """Room for the copy of a block of rows (BLOCK_ROWS, n_features), and for its products with a panel."""
    widest = WIDEST_BYTES // table.itemsize
    return aligned_empty((BLOCK_ROWS, n_features), table.dtype), aligned_empty((BLOCK_ROWS, widest), table.dtype)


def copies(X: Any, shift: Any, scale: float, dtype: Any, n_columns: int = 0) -> Iterator[tuple[int, int, Any, int]]:
    """Copy rows, moved and scaled as in `load_block`, some blocks and at most `WIDE` features at a time.

    `n_columns`: numbers that the caller keeps of each row, so that they are bounded too. Yields the first row, the
    number of rows, the copy (whole blocks, features), which the next one overwrites, and the first feature. All pieces
    of some rows follow one another.
    """
    n_rows, n_features = X.shape
    most = min(WIDE, n_features)
    n_blocks = COPIED_BYTES // (BLOCK_ROWS * max(n_features, n_columns) * dtype.itemsize)
    n_part = BLOCK_ROWS * max(1, min(n_blocks, -(-n_rows // BLOCK_ROWS)))
    room = aligned_empty((n_part * most,), dtype)
    for first in range(0, n_rows, n_part):
        stop = min(first + n_part, n_rows)
        for feature in range(0, n_features, WIDE):
            width = min(WIDE, n_features - feature)
            piece = room[: n_part * width].reshape(n_part, width)
            if X.flags.c_contiguous:
                load_rows(X, first, stop - first, feature, shift, scale, piece)
            else:  # rare, and another layout would be compiled anew
                part = np.ascontiguousarray(X[first:stop, feature : feature + width])
                load_rows(part, 0, stop - first, 0, shift[feature : feature + width], scale, piece)
            yield first, stop - first, piece, feature


def products_of_copies(X: Any, shift: Any, scale: float, table: Any, n_columns: int) -> Iterator[tuple[int, int, Any]]:
    """Multiply rows, moved and scaled, with a table, some blocks at a time.

    Yields the first row, the number of rows, and products (at least as many, at least n_columns); the next ones
    overwrite them.
    """
    lanes, found = LINE_BYTES // table.itemsize, None
    for first, n_rows, piece, feature in copies(X, shift, scale, table.dtype, n_columns):
        if found is None:
            found = aligned_empty((len(piece), -(-n_columns // lanes) * lanes), table.dtype)
            room = block_room(table, 1)
        multiply_ready(piece, n_rows, feature, X.shape[1], table, found.shape[1], *room, found)
        if feature + piece.shape[1] == X.shape[1]:
            yield first, n_rows, found


@kernel
def multiply_ready(X, n_rows, feature, n_features, table, n_columns, block, totals, out):
    """Multiply as `multiply` does, or one piece of the features.

    Products are written in place by whole vectors, the last of which may overlap; narrow tables and blocks without room
    in `out` go by way of `totals`.

    Parameters
    ----------
    X : dtype of the table (at least n_rows, m), C-contiguous
    n_rows : int64
    feature, n_features : int64
        First feature of X and number of all. Pieces behind the first are added to `out`, which then has room for whole
        blocks and vectors, and so has X.
    table, n_columns : as of `multiply`
    block, totals : as `block_room` gives them; overwritten
    out : same dtype (at least n_rows, at least n_columns), C-contiguous; written, in whole blocks where it has room
    """
    narrow, n_padded = NARROW_BYTES // table.itemsize, table.shape[0] // max(1, n_features)
    for first in range(0, n_rows, BLOCK_ROWS):
        rows, start, n_block = X, first, min(BLOCK_ROWS, n_rows - first)
        if first + BLOCK_ROWS > X.shape[0]:
            rows, start = block, 0
            for i in range(n_block):
                for j in range(X.shape[1]):
                    block[i, j] = X[first + i, j]
        column = 0
        while column < n_columns:
            stop = panel_stop(column, n_padded, table.itemsize)
            width, needed, done = stop - column, min(stop, n_columns) - column, 0
            direct = first + BLOCK_ROWS <= out.shape[0] and needed >= narrow
            while done < needed:
                part = needed
                if direct:
                    done = min(done, needed - narrow)
                    part = (needed - done) // narrow * narrow
                multiply_panel(
                    rows, start, n_block, X.shape[1], table, column * n_features + feature * width + done, width, part,
                    feature == 0, out if direct else totals, first if direct else 0, column + done if direct else 0,
                )  # fmt: skip
                if not direct:
                    for i in range(n_block):
                        for j in range(needed):
                            out[first + i, column + j] = totals[i, j]
                done += part
            column = stop


def multiply(X: Any, shift: Any, table: Any, n_columns: int, add: bool, out: Any) -> None:
    """Multiply rows with a table: ``out[:, :n_columns] (+)= (X - shift) @ table``. O(n * m * n_columns).

    Parameters
    ----------
    X : float32 or float64 (n, m); copied in parts unless C-contiguous, of the table's dtype and not moved
    shift : float64 (m,) or (0,); empty: none
    table : float32 or float64 (m * p,); in panels
    n_columns : int; columns that are needed
    add : bool; whether to add to what `out` holds
    out : dtype of the table (n, at least n_columns), C-contiguous; written
    """
    n_features = X.shape[1]
    if add or n_features > WIDE:
        for first, n_rows, products in products_of_copies(X, shift, 1.0, table, n_columns):
            there, found = out[first : first + n_rows, :n_columns], products[:n_rows, :n_columns]
            there[:] = there + found if add else found
        return
    as_it_is = X.flags.c_contiguous and X.dtype == table.dtype and not len(shift)
    room = block_room(table, n_features)
    for first, n_rows, rows, _ in [(0, len(X), X, 0)] if as_it_is else copies(X, shift, 1.0, table.dtype):
        multiply_ready(rows, n_rows, 0, n_features, table, n_columns, *room, out[first : first + n_rows])
