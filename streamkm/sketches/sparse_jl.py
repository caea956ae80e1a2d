"""Sparse Johnson-Lindenstrauss: every feature is added, with a random sign, to one component in each of s blocks.

`CountSketch` with several non-zeros a feature, under the name of the theorems about it, and with their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from streamkm.sketches.countsketch import CountSketch

USUAL_PER_FEATURE = 8


@dataclass(frozen=True, slots=True)
class SparseJL(CountSketch):
    """Sparse Johnson-Lindenstrauss transform with a stateless hash.

    The same map as ``CountSketch(n_components, seed, nnz_per_feature)``, bit for bit.

    Parameters
    ----------
    n_components : int
        m, from 1 to 2^31.
    seed : int, optional
        From 0 to 2^64 - 1. Buckets and signs of feature j depend on (seed, j) alone. None: as of `CountSketch`.
    nnz_per_feature : int, default 8
        s, from 1 to 64 and at most m. `SparseJL.for_error(eps)` takes the number of the theorem,
        ``ln(2 k / delta) / eps``; sparse rows keep s entries for each stored one.

    References
    ----------
    Kane and Nelson, "Sparser Johnson-Lindenstrauss transforms", J. ACM 61 (2014), section 1.1; Cohen, "Nearly tight
    oblivious subspace embeddings by trace inequalities", SODA 2016.
    """

    nnz_per_feature: int = USUAL_PER_FEATURE
    kind: ClassVar[str] = "sparse-jl"
    usual_entries: ClassVar[int] = USUAL_PER_FEATURE

    def to_dict(self) -> dict[str, Any]:
        described = {"kind": self.kind, "n_components": self.n_components, "seed": self.seed}
        return {**described, "nnz_per_feature": self.nnz_per_feature}
