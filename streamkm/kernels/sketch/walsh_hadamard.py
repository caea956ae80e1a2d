"""Walsh-Hadamard transforms of rows that stand side by side, and samples of their entries.

Entry c of the transform is ``sum_j (-1)^popcount(c & j) * row[j]``: not normalized, so whole numbers stay whole.
"""

from __future__ import annotations

import numpy as np

from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.forms import LINE_BYTES, unfilled
from streamkm.kernels.intrinsics.hashing import bucket_of, mix


@kernel
def butterflies(flat, half):
    """Replace pairs of entries `half` apart by their sums and differences."""
    for start in range(0, flat.shape[0], 2 * half):
        low, high = flat[start : start + half], flat[start + half : start + 2 * half]
        for i in range(half):
            a, b = low[i], high[i]
            low[i], high[i] = a + b, a - b


@kernel
def transform(columns):
    """Transform each column in place. O(d log d) a column.

    Strides from 64 bytes on come first, eight-fold, largest first, then shorter ones: sums have a fixed order for any
    number of columns.

    Parameters
    ----------
    columns : float32 or float64 (d, n), C-contiguous; d a power of two, at least 16; changed
    """
    n = columns.shape[1]
    flat = columns.reshape(-1)
    width = LINE_BYTES // columns.itemsize
    size = columns.shape[0]
    while size > 1:
        radix = min(8, size // width) if size > width else size
        size //= radix
        half = size
        while half < radix * size:
            butterflies(flat, n * half)
            half *= 2


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
    rotated : float32 or float64 (p, n); rows as columns
    bits : uint32 or uint64 (p, n); the same memory
    out_indices : int32 (n, n_kept); written, ascending
    out_data : float32 (n, n_kept); written
    """
    width, n_rows = rotated.shape
    taken, places = unfilled(width, np.bool_), unfilled(width + 1, np.int32)
    for i in range(n_rows):
        word = seed
        for c in range(width):
            taken[c] = False
        for c in range(16):
            word = mix(word, np.uint64(0) if rotated[c, i] == 0 else np.uint64(bits[c, i]))  # -0 is 0
        for last in range(width - n_kept, width):
            drawn = np.int64(bucket_of(mix(word, np.uint64(last)), np.uint64(last + 1)))
            taken[last if taken[drawn] else drawn] = True
        n_found = 0
        for c in range(width):  # without a branch, which nothing could predict
            places[n_found] = c
            n_found += taken[c]
        for t in range(n_kept):
            out_indices[i, t] = places[t]
            out_data[i, t] = np.float32(scale * rotated[places[t], i])
