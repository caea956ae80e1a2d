"""Products of dense rows with a table, in a fixed order; LLVM forms (see `forms`).

Every entry of a product is chains of fused multiply-adds over `DEPTH` features each, added up in order. Its bits depend
on neither other rows, threads nor the width of vectors, which a BLAS does not promise. A table (m, k) is laid out in
panels of `PANEL_BYTES` a feature, each (m, width) (see `panel_stop`), so that a panel stays in the cache while
`BLOCK_ROWS` rows pass it. May import core, forms, numba and numpy only.
"""

from __future__ import annotations

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
COPIED_ROWS = 4 * BLOCK_ROWS
"""Rows of another layout copied at a time."""
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
    for i in range(n_rows):
        row, there = X[first + i], out[i]
        if shift.shape[0]:
            for j in range(n_features):
                there[j] = (row[feature + j] - shift[feature + j]) * scale
        elif scale != 1.0:
            for j in range(n_features):
                there[j] = row[feature + j] * scale
        else:
            for j in range(n_features):
                there[j] = row[feature + j]


def block_room(table: Any, n_features: int, n_columns: int) -> tuple[Any, Any]:
    """Room for the copy of a block of rows, and for its products with panels.

    Returns `block` (BLOCK_ROWS, at most WIDE) and `totals` (panels, BLOCK_ROWS, columns), of the table's dtype. Rows of
    up to `WIDE` features meet one panel after the other; wider ones meet all panels a piece at a time.
    """
    full, widest = PANEL_BYTES // table.itemsize, WIDEST_BYTES // table.itemsize
    n_panels = -(-n_columns // full) if n_features > WIDE else 1
    block = aligned_empty((BLOCK_ROWS, min(WIDE, n_features)), table.dtype)
    return block, aligned_empty((n_panels, BLOCK_ROWS, widest), table.dtype)


@nb.njit(inline="always")
def multiply_wide(X, first, n_rows, shift, scale, table, n_padded, n_columns, block, totals):
    """Multiply a block of wide rows, moved and scaled, with all panels, a piece of the features at a time.

    Parameters
    ----------
    X, first, n_rows, shift, scale : as of `load_block`
    table : float32 or float64 (m * n_padded,)
    n_padded, n_columns : int64; columns of the table, and those that are needed
    block, totals : as `block_room` gives them; written
    """
    for feature in range(0, X.shape[1], WIDE):
        n_features = min(WIDE, X.shape[1] - feature)
        load_block(X, first, n_rows, feature, n_features, shift, scale, block)
        column, q = 0, 0
        while column < n_columns:
            stop = panel_stop(column, n_padded, table.itemsize)
            width, needed = stop - column, min(stop, n_columns) - column
            place = column * X.shape[1] + feature * width
            multiply_panel(block, 0, n_rows, n_features, table, place, width, needed, feature == 0, totals[q], 0, 0)
            column, q = stop, q + 1


@kernel
def multiply_narrow(X, shift, table, n_columns, add, block, totals, out):
    """Multiply as `multiply` does, rows of up to `WIDE` features; `block`, `totals`: scratch of `block_room`."""
    for first in range(0, X.shape[0], BLOCK_ROWS):
        n_rows = min(BLOCK_ROWS, X.shape[0] - first)
        load_block(X, first, n_rows, 0, X.shape[1], shift, 1.0, block)
        _multiply_block(block, 0, n_rows, first, table, n_columns, add, totals[0], out)


@kernel
def multiply_ready(X, shift, table, n_columns, add, block, totals, out):
    """Multiply as `multiply_narrow` does, without copies: C-contiguous rows of the table's dtype and no shift."""
    for first in range(0, X.shape[0], BLOCK_ROWS):
        n_rows = min(BLOCK_ROWS, X.shape[0] - first)
        rows, start = X, first
        if n_rows < BLOCK_ROWS:
            load_block(X, first, n_rows, 0, X.shape[1], shift, 1.0, block)
            rows, start = block, 0
        _multiply_block(rows, start, n_rows, first, table, n_columns, add, totals[0], out)


@nb.njit(inline="always")
def _multiply_block(rows, start, n_rows, first, table, n_columns, add, totals, out):
    """Multiply a block of rows with all panels.

    Products are written in place by whole vectors, the last of which may overlap; narrow tables, short blocks and
    additions go by way of `totals`.
    """
    n_features, narrow, column = rows.shape[1], NARROW_BYTES // table.itemsize, 0
    n_padded = table.shape[0] // max(1, n_features)
    while column < n_columns:
        stop = panel_stop(column, n_padded, table.itemsize)
        width, needed, done = stop - column, min(stop, n_columns) - column, 0
        direct = n_rows == BLOCK_ROWS and not add and needed >= narrow
        while done < needed:
            part = needed
            if direct:
                done = min(done, needed - narrow)
                part = (needed - done) // narrow * narrow
            multiply_panel(
                rows, start, n_rows, n_features, table, column * n_features + done, width, part, True,
                out if direct else totals, first if direct else 0, column + done if direct else 0,
            )  # fmt: skip
            if not direct:
                _write(totals, n_rows, first, column, needed, add, out)
            done += part
        column = stop


@kernel
def multiply_pieces(X, shift, table, n_columns, add, block, totals, out):
    """Multiply as `multiply_narrow` does, wider rows."""
    n_padded = table.shape[0] // X.shape[1]
    for first in range(0, X.shape[0], BLOCK_ROWS):
        n_rows = min(BLOCK_ROWS, X.shape[0] - first)
        multiply_wide(X, first, n_rows, shift, 1.0, table, n_padded, n_columns, block, totals)
        column, q = 0, 0
        while column < n_columns:
            stop = panel_stop(column, n_padded, table.itemsize)
            _write(totals[q], n_rows, first, column, min(stop, n_columns) - column, add, out)
            column, q = stop, q + 1


def multiply(X: Any, shift: Any, table: Any, n_columns: int, add: bool, out: Any) -> None:
    """Multiply rows with a table: ``out[:, :n_columns] (+)= (X - shift) @ table``. O(n * m * n_columns).

    Parameters
    ----------
    X : float32 or float64 (n, m); turned to the table's dtype block by block
    shift : float64 (m,) or (0,); empty: none
    table : float32 or float64 (m * p,); in panels
    n_columns : int; columns that are needed
    add : bool; whether to add to what `out` holds
    out : dtype of the table (n, at least n_columns), C-contiguous; written
    """
    if not X.flags.c_contiguous and X.shape[1] <= WIDE:  # rare, and a second to compile for each layout
        for first in range(0, len(X), COPIED_ROWS):
            part = slice(first, first + COPIED_ROWS)
            multiply(np.ascontiguousarray(X[part]), shift, table, n_columns, add, out[part])
        return
    multiply_rows = multiply_pieces if X.shape[1] > WIDE else multiply_narrow
    if multiply_rows is multiply_narrow and X.dtype == table.dtype and not len(shift):
        multiply_rows = multiply_ready
    multiply_rows(X, shift, table, n_columns, add, *block_room(table, X.shape[1], n_columns), out)


@nb.njit(inline="always")
def _write(totals, n_rows, first, column, n_columns, add, out):
    """Write the products with a panel to their place in the result."""
    for i in range(n_rows):
        written, total = out[first + i], totals[i]
        for j in range(n_columns):
            written[column + j] = total[j] + (written[column + j] if add else 0)
