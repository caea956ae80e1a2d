"""Preconditioned sampling: rotate rows so that their entries are alike, then keep a part of each row's entries.

What is kept differs from row to row, so the map is not linear; given a row it is repeatable, and unbiased over seeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidParameterError
from streamkm.core.matrix import Matrix
from streamkm.kernels.intrinsics.hashing import stream_seed
from streamkm.kernels.sketch.hadamard import sample_entries
from streamkm.sketches.base import SketchAnswers
from streamkm.sketches.hadamard import Rotation


@dataclass(frozen=True, slots=True)
class PreconditionedSampling(SketchAnswers):
    """A uniform sample of the entries of each rotated row.

    Parameters
    ----------
    gamma : float
        Share of the p entries that is kept, above 0 up to 1; rounded to whole entries, at least one.
    n_features : int
        d, from 1 to 2^30.
    seed : int
        From 0 to 2^64 - 1.

    Notes
    -----
    Kept entries are scaled by p / q for q kept of p, so that <sketch(x), R c> has the mean <x, c> for every fixed c,
    with variance (|x|^2 |c|^2 + <x, c>^2 - 2 sum x_j^2 c_j^2) / q * (p - q) / (p - 1) over seeds. That is what the
    comparison with a center needs: |sketch(x)|^2 is too large by a factor of about p / q, but alike for all centers.
    The paper compares on the kept entries alone and divides centers by how often each entry was kept; a mean over n
    rows of a cluster comes to the same center for large n.

    Which entries are kept depends on the seed and on the row's own values (rows that are equal in the precision of
    work are sketched alike), not on its place: `apply` is given rows alone, and no chunking may change a row.

    One pass: labels, and centers in the rotated space; what ``StreamKMeans(sketch=PreconditionedSampling(...))`` finds
    in rows that can be walked once only. Two passes: labels, and means of the original rows; what it finds in others.

    References
    ----------
    Pourkamali-Anaraki and Becker, "Preconditioned data sparsification for big data with applications to PCA and
    K-means", IEEE Trans. Inf. Theory 63 (2017).
    """

    gamma: float
    n_features: int
    seed: int
    kind: ClassVar[str] = "sampling"
    passes_to_fit: ClassVar[int] = 0
    sparsifies: ClassVar[bool] = True
    inflates_lengths: ClassVar[bool] = True
    moves_with_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        Rotation(self.n_features, self.seed)
        if not 0 < self.gamma <= 1:
            raise InvalidParameterError(f"gamma={self.gamma}; needed: above 0, at most 1")

    @property
    def n_components(self) -> int:
        """The width of the sketch: the padded width p."""
        return Rotation(self.n_features, self.seed).n_padded

    @property
    def n_kept(self) -> int:
        """Entries that are kept of a row, q."""
        return max(1, round(self.gamma * self.n_components))

    def apply(self, X: Matrix) -> sp.csr_array:
        """Sketch rows.

        O(n p log p).

        Parameters
        ----------
        X : ndarray (n, d) of any real dtype, or csr_array (n, d)

        Returns
        -------
        csr_array (n, p), float32
            With q entries in each row, indices ascending.

        Raises
        ------
        InvalidInputError
            If rows are wider than `n_features`.
        """
        n, q = X.shape[0], self.n_kept
        indices, data = np.empty((n, q), np.int32), np.empty((n, q), np.float32)
        seed = np.uint64(stream_seed(np.uint64(self.seed), np.uint64(1)))
        scale = math.sqrt(self.n_components) / q
        for rows, rotated in Rotation(self.n_features, self.seed).batches(X):
            bits = rotated.view(np.uint32 if rotated.itemsize == 4 else np.uint64)
            sample_entries(seed, q, scale, rotated, bits, indices[rows], data[rows])
        indptr = (np.arange(n + 1) * q).astype(np.int32 if n * q <= np.iinfo(np.int32).max else np.int64)
        return sp.csr_array((data.ravel(), indices.ravel(), indptr), shape=(n, self.n_components))

    def fits_features(self, n_features: int) -> bool:
        return self.n_features >= n_features  # narrower rows lack their last features

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "gamma": self.gamma, "n_features": self.n_features, "seed": self.seed}

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {}
