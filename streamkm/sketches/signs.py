"""Projection on random signs, for rows of any width."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.matrix import Matrix, as_working, working_dtype
from streamkm.kernels.sketch import signs as kernels
from streamkm.sketches.seeded import SeededSketch
from streamkm.sketches.validation import check_components

MAX_COMPONENTS = 1 << 24
PACKED_WORDS = 1 << 18
"""Words of 64 signs that are made at once: 2 MiB."""
BATCH_ENTRIES = 1 << 20
"""Of dense rows that are converted at once."""


@dataclass(frozen=True, slots=True)
class SignProjection(SeededSketch):
    """Projection with independent entries +-1 / sqrt(m), made block by block, 64 to a word.

    `n_components`: m, from 1 to 2^24. `seed`: from 0 to 2^64 - 1. The sign of feature j in component c depends on
    (seed, j, c) alone. None: the estimator that the sketch is given to sets it, by its `random_state`.

    References: Boutsidis, Zouzias and Drineas, "Random projections for k-means clustering", NIPS 2010; Boutsidis,
    Zouzias, Mahoney and Drineas, "Randomized dimensionality reduction for k-means clustering", IEEE Trans. Inf. Theory
    61 (2015); Liberty and Zucker, "The Mailman algorithm: a note on matrix-vector multiplication", Inf. Process. Lett.
    109 (2009).

    Notes
    -----
    Boutsidis et al. multiply by the Mailman algorithm of Liberty and Zucker: O(n d m / log d) scalar additions, in
    blocks of log2(d) components with scattered reads and writes. Here dense rows take n d m / 4 additions and look-ups
    of 16-entry tables that stay in the first-level cache, in vectors of 16 rows: n d m / 64 instructions, where a
    product by BLAS takes n d m / 16. Measured, one thread of Zen 4, float32, d = 1024: 2.1 times (m = 256) to 2.4
    times (m = 1024) the speed of sgemm with signs written out, whose making is not counted. The Mailman
    algorithm was not built: it saves log2(d) = 10 times the operations of scalar products there, but its partial sums
    are d numbers, so that 16 rows side by side need 64 d bytes, more than that cache, and one row alone no vectors.

    Inner products are unbiased with variance (|x|^2 |y|^2 + <x, y>^2 - 2 sum x_j^2 y_j^2) / m. All distances of n rows
    are kept within 1 +- eps with probability 1 - n^-b if m >= (4 + 2 b) log(n) / (eps^2 / 2 - eps^3 / 3) (Achlioptas,
    2003). With m = O(k / eps^2), eps below 1 / 3, a partition that is optimal for the sketch costs at most 2 + eps
    times the optimum, with probability 0.96 (Boutsidis et al., 2015). They leave the constant open. Their lemma 10 says
    that the squared singular values of ``V_k' R`` are within 1 +- eps, with probability 0.97, and that
    ``A_k = A R (V_k' R)^+ V_k' + E`` with ``|E| <= 3 eps |A - A_k|`` for the best approximation A_k of rank k. (With A
    on the left it cannot hold: E would be as large as A - A_k at least.) Measured with 100 seeds, k = 5 and 20,
    eps = 0.3: the singular values are so in none to 3 of them for m = k / eps^2, and in 99 or more for 6 k / eps^2.
    """

    n_components: int
    seed: int | None = None
    kind: ClassVar[str] = "signs"
    passes_to_fit: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_components(self.n_components, MAX_COMPONENTS)
        self._check_seed()

    def apply(self, X: Matrix) -> NDArray[Any]:
        """Sketch rows.

        O(n * d * m) for dense rows, O(nnz * m) for CSR.

        `X`: ndarray (n, d) of any real dtype, or csr_array (n, d), d up to 2^63 - 1. Returns ndarray (n, m), float32,
        or float64 where float32 cannot hold the input. Raises InvalidParameterError: if the sketch has no seed.
        """
        out = np.zeros((X.shape[0], self.n_components), working_dtype(X.dtype))
        if isinstance(X, np.ndarray):
            self._apply_dense(X, out)
        else:
            self._apply_csr(X, out)
        return out

    @property
    def scale(self) -> float:
        """The size of an entry, 1 / sqrt(m)."""
        return 1 / math.sqrt(self.n_components)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "n_components": self.n_components, "seed": self.seed}

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {}

    def _apply_dense(self, X: NDArray[Any], out: NDArray[Any]) -> None:
        n_words = 64 * (-(-self.n_components // 64))
        n_features = 64 * max(1, PACKED_WORDS // n_words)
        n_batch = max(16, BATCH_ENTRIES // max(1, min(X.shape[1], n_features)) // 16 * 16)
        for start in range(0, X.shape[1], n_features):
            stop = min(start + n_features, X.shape[1])
            packed = np.empty((-(-(stop - start) // 64), n_words), np.uint64)
            kernels.pack_signs(np.uint64(self._seed), start, packed)
            for first in range(0, len(X), n_batch):
                batch = np.ascontiguousarray(as_working(X[first : first + n_batch, start:stop]))
                kernels.project_dense(batch, packed, out[first : first + n_batch])
        out *= out.dtype.type(self.scale)

    def _apply_csr(self, X: sp.csr_array, out: NDArray[Any]) -> None:
        scale = out.dtype.type(self.scale)
        kernels.project_csr(np.uint64(self._seed), scale, X.indptr, X.indices, as_working(X.data), out)
