"""Combinations of kernel values against drawn rows, S Q K: Yin et al.'s sketches of the kernel matrix.

Q takes m of its n rows, S is m x m. K-means runs on the columns of S Q K as they are: no inverse root of the drawn
rows' own matrix, no singular vectors, no rank. So distances are not the kernel's own: a direction counts by its
eigenvalue once more than in the Nystroem features of `kernel_map`, which approach the kernel's. Only n m kernel values
are computed, a chunk at a time, whatever n.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidParameterError
from streamkm.kernels.sketch import kernel_values


def landmark_sketch(method: str, n_columns: int, n_rows: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """S' (m, m), by which kernel values against m rows are multiplied.

    "sampled-columns": the identity. "sub-gaussian": entry (i, j) of S is s_i / sqrt(m) with probability 1 / sqrt(n),
    else 0, s_i the hashed sign of row i; with m about sqrt(n), rows of S have about one entry, and a third have none.
    That is the sketch as the paper prints it, and more landmarks make it worse: entries of a row share their sign, so
    they add up instead of cancelling. Measured on blobs (500 rows, k = 8, mean of 8 seeds), exact objective over the
    least: 1.16 with 45 landmarks, 1.54 with 90, 2.21 with 180; on digits (1,000 rows, k = 10) 1.11, 1.10, 1.15.
    "sub-gaussian-entries": the same places, with a hashed sign for each entry: 1.00, 1.00, 1.00 and 1.06, 1.03, 1.02.
    "ros": S = D A with random signs D and the Hadamard matrix A over sqrt(m). It is orthogonal, so that all distances,
    and clusters, are those of "sampled-columns" with the same rows, but for rounding and for what is drawn later.

    Parameters
    ----------
    method : of `kernel_sizes.LANDMARK_SKETCHES`
    n_columns : int
        m; a power of 2 for "ros".
    n_rows : int
        n.

    Raises
    ------
    InvalidParameterError
        If a sub-Gaussian S has no entry but zeros.

    References
    ----------
    Yin, Liu, Wang and Meng, "Randomized sketches for clustering: fast and optimal kernel k-means", NeurIPS 2022,
    equation 4 and examples 1 to 3.
    """
    if method == "sampled-columns":
        return np.eye(n_columns, dtype=np.float32)
    own = method == "sub-gaussian-entries"  # a sign for each entry, not for each row
    signs = np.empty((n_columns if own else 1, n_columns), np.float32)
    kernel_values.hashed_signs(np.uint64(rng.integers(2**63)), 0, signs)
    if method == "ros":
        hadamard = np.eye(n_columns, dtype=np.float32)
        kernel_values.walsh_hadamard(hadamard)
        return hadamard * (signs / np.float32(np.sqrt(n_columns)))
    drawn = rng.random((n_columns, n_columns)) < 1 / np.sqrt(n_rows)
    if not drawn.any():
        raise InvalidParameterError(
            f'method="{method}" with n_landmarks={n_columns} and {n_rows:,} rows: all {n_columns}^2 entries of the '
            f"sketch are zero; needed: about {np.sqrt(n_rows):,.0f} landmarks"
        )
    of_entries = signs if own else signs.T
    return np.ascontiguousarray((drawn * (of_entries / np.float32(np.sqrt(n_columns)))).T, np.float32)
