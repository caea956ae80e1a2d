"""CountSketch of dense and CSR rows.

The readable form is ``Y[i, h(j)] += s(j) * X[i, j]`` for every stored entry, with bucket h and sign s of
`streamkm.kernels.intrinsics.hashing`.
"""

from __future__ import annotations

import numpy as np

from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.forms import unfilled
from streamkm.kernels.intrinsics.hashing import bucket_of, mix
from streamkm.kernels.sketch.scattering import scatter_columns

_ONE = np.uint64(1)
MOST_TURNED = 2048
"""Components up to which rows are summed side by side: sums of sixteen rows then fit the second-level cache."""


@kernel
def sketch_dense(X, buckets, signs, out):
    """Add the CountSketch of dense rows to `out`.

    Up to `MOST_TURNED` components by whole vectors of rows, beyond row by row.

    Parameters
    ----------
    X : float32 or float64 (n, d), C-contiguous
    buckets : int32 (d,); each in [0, m)
    signs : float32 or float64 (d,); scale included
    out : same dtype as X (n, m), C-contiguous; added to
    """
    if out.shape[1] <= MOST_TURNED:
        scatter_columns(X, buckets, signs, out)
        return
    for i in range(X.shape[0]):
        x, y = X[i], out[i]
        for j in range(X.shape[1]):
            y[buckets[j]] += signs[j] * x[j]


@kernel
def sketch_csr(seeds, bounds, scale, indptr, indices, data, out_indices, out_data):
    """Relabel the stored entries of CSR rows: bucket for feature, signed value for value, in each of s blocks.

    A row is written block by block, so that the inner loop runs over neighbours in memory. Entries that meet in a
    bucket stay side by side (their sum is the sketch): products with centers need no merging, and that costs as much as
    sketching.

    Parameters
    ----------
    seeds : uint64 (s,); seeds of the blocks
    bounds : uint64 (s + 1,); block r has the components from bounds[r] to bounds[r + 1]
    scale : float32
    indptr, indices : int32 or int64
    data : (nnz,) any real dtype
    out_indices : int32 (s * nnz,); written: row i from s * indptr[i]
    out_data : float32 (s * nnz,); written
    """
    n_blocks = seeds.shape[0]
    for i in range(indptr.shape[0] - 1):
        start, n_entries = np.int64(indptr[i]), np.int64(indptr[i + 1]) - np.int64(indptr[i])
        row = indices[start : start + n_entries]
        values = data[start : start + n_entries]
        for r in range(n_blocks):
            first = n_blocks * start + r * n_entries
            row_indices = out_indices[first : first + n_entries]
            row_data = out_data[first : first + n_entries]
            seed, offset, size = seeds[r], bounds[r], bounds[r + 1] - bounds[r]
            for t in range(n_entries):
                bits = mix(seed, np.uint64(row[t]))
                row_indices[t] = np.int32(offset + bucket_of(bits, size))
                value = scale * np.float32(values[t])
                row_data[t] = value if (bits & _ONE) else -value


@kernel
def sketch_csr_to_dense(seeds, bounds, scale, indptr, indices, data, out):
    """Add the CountSketch by s blocks of CSR rows to `out`.

    Parameters
    ----------
    seeds, bounds : uint64 (s,), (s + 1,)
    scale : same dtype as data
    indptr, indices : int32 or int64
    data : float32 or float64 (nnz,)
    out : float32 or float64 (n, m); added to
    """
    for i in range(indptr.shape[0] - 1):
        y = out[i]
        for r in range(seeds.shape[0]):
            seed, offset, size = seeds[r], bounds[r], bounds[r + 1] - bounds[r]
            for t in range(indptr[i], indptr[i + 1]):
                bits = mix(seed, np.uint64(indices[t]))
                value = scale * data[t]
                y[offset + bucket_of(bits, size)] += value if (bits & _ONE) else -value


@kernel
def merged_d2norms(n_components, indptr, indices, data, out):
    """Squared norms of CSR rows whose entries may repeat an index; float64 sums.

    Parameters
    ----------
    n_components : int64; all indices are below it
    indptr, indices : int32 or int64
    data : float32 or float64 (nnz,)
    out : float64 (n,); written
    """
    buckets = unfilled(n_components, np.float64)
    buckets[:] = 0.0
    for i in range(indptr.shape[0] - 1):
        for t in range(indptr[i], indptr[i + 1]):
            buckets[indices[t]] += data[t]
        total = 0.0
        for t in range(indptr[i], indptr[i + 1]):
            value = buckets[indices[t]]
            total += value * value
            buckets[indices[t]] = 0.0
        out[i] = total
