"""How many components a sketch needs for (eps, delta): the papers' formulas, each with its source and its promise.

Most promise Liu et al.'s definition 2, projection cost preserved: with probability 1 - delta, for all partitions of the
rows into k clusters at once, the sketched sum of squared distances to the means is within a factor 1 +- eps of the
original one. Theorems give orders; where the constant is ours, it is named here, and tests hold it against all
partitions of small matrices.
"""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from streamkm.core.exceptions import InvalidParameterError

logger = logging.getLogger(__name__)

SUBSPACE_CONSTANT = 4
"""Of (k + ln(2 / delta)) / eps^2. For one direction and small eps it is the Johnson-Lindenstrauss lemma's own; with 1
in its place, the partitions of seven rows are kept with probability 0.5 to 0.8 instead of 0.9."""
BLOCK_CONSTANT = 4
"""Of k ln(2 k / delta) / eps^2, for blocks of hashed signs: as many as leverage sampling needs."""

ALL_PARTITIONS = "the cost of every partition into k clusters, within 1 +- eps"
UP_TO_A_CONSTANT = "the cost of every partition into k clusters, within 1 + eps, but for a constant that all share"
BEST_PARTITION = "the cost of the sketch's best partition, within a factor 3 + eps of the least"


@dataclass(frozen=True, slots=True)
class Bound:
    """A number of components and what is known of it.

    Attributes
    ----------
    n_components : int
        m.
    formula : str
        In the letters k, d, n, eps, delta.
    source : str
        The paper, and what of the formula is not from it.
    keeps : str
        What so many components keep.
    """

    n_components: int
    formula: str
    source: str
    keeps: str = ALL_PARTITIONS


@dataclass(frozen=True, slots=True)
class _Case:
    """What formulas are functions of."""

    k: int
    eps: float
    delta: float
    n_rows: int | None
    n_features: int | None

    @property
    def rate(self) -> float:
        """``eps^2 / 2 - eps^3 / 3``: a squared length is kept but with probability 2 exp(-m * rate / 2)."""
        return self.eps**2 / 2 - self.eps**3 / 3


def n_components(
    sketch: str,
    *,
    n_clusters: int,
    eps: float,
    delta: float = 0.1,
    n_rows: int | None = None,
    n_features: int | None = None,
) -> int:
    """Give the components that a sketch needs; see the module."""
    return sizing(
        sketch, n_clusters=n_clusters, eps=eps, delta=delta, n_rows=n_rows, n_features=n_features
    ).n_components


def sizing(
    sketch: str,
    *,
    n_clusters: int,
    eps: float,
    delta: float = 0.1,
    n_rows: int | None = None,
    n_features: int | None = None,
) -> Bound:
    """Find the smallest number of components that some theorem gives, and say which.

    Parameters
    ----------
    sketch : str
        A key of `FORMULAS`.
    n_clusters : int
        k.
    eps : float
        Relative error of the objective, in (0, 1).
    delta : float
        Probability that it is larger, in (0, 1). "svd" and "pca" never fail.
    n_rows, n_features : int, optional
        n and d. Pairs of n rows give the Johnson-Lindenstrauss lemma's bound, the smaller one where rows are few; more
        than d components are never needed.

    Raises
    ------
    InvalidParameterError
        For a sketch without such a theorem, or a number out of range.
    """
    _check(n_clusters, eps, delta, n_rows, n_features)
    if sketch not in FORMULAS:
        near = difflib.get_close_matches(sketch, FORMULAS, 1)
        raise InvalidParameterError(
            f"no theorem gives the components of sketch={sketch!r} for eps and delta"
            f"{f'; did you mean {near[0]!r}?' if near else ''}; known are {', '.join(FORMULAS)}: else pass n_components"
        )
    case = _Case(n_clusters, eps, delta, n_rows, n_features)
    if sketch == "hadamard" and n_features is None:
        raise InvalidParameterError('sketch="hadamard" needs n_features for its number of components')
    best = min(FORMULAS[sketch](case), key=lambda bound: bound.n_components)
    if n_features is not None and best.n_components >= n_features:
        logger.info(
            "%s asks for %d components; the rows have %d features: take them all",
            best.source,
            best.n_components,
            n_features,
        )
        return Bound(n_features, "d", f"no sketch at all; {best.source} asks for {best.n_components:,}")
    return best


def _check(n_clusters: int, eps: float, delta: float, n_rows: int | None, n_features: int | None) -> None:
    for name, value in (("n_clusters", n_clusters), ("n_rows", n_rows), ("n_features", n_features)):
        if value is not None and value < 1:
            raise InvalidParameterError(f"{name}={value}; needed: an integer from 1")
    for name, share in (("eps", eps), ("delta", delta)):
        if not 0 < share < 1:
            raise InvalidParameterError(f"{name}={share}; needed: between 0 and 1, both excluded")
    if n_rows is not None and n_clusters > n_rows:
        raise InvalidParameterError(f"n_clusters={n_clusters} and n_rows={n_rows}; needed: no more clusters than rows")


def _sub_gaussian(case: _Case) -> tuple[Bound, ...]:
    """Maps whose entries are independent signs or Gaussians, or mostly zero as Achlioptas'."""
    k, eps, delta = case.k, case.eps, case.delta
    bounds = [
        Bound(
            math.ceil(SUBSPACE_CONSTANT * (k + math.log(2 / delta)) / eps**2),
            f"{SUBSPACE_CONSTANT} (k + ln(2 / delta)) / eps^2",
            "Boutsidis, Zouzias, Mahoney and Drineas, IEEE Trans. Inf. Theory 61 (2015): O(k / eps^2); for every "
            "partition Cohen et al., STOC 2015. The constant is ours",
        ),
        Bound(
            math.ceil(4 * math.log(k / (eps * delta)) / case.rate),
            "4 ln(k / (eps delta)) / (eps^2 / 2 - eps^3 / 3)",
            "Makarychev, Makarychev and Razenshteyn, STOC 2019: O(log(k / (eps delta)) / eps^2). The constant is that "
            "of the Johnson-Lindenstrauss lemma",
        ),
    ]
    if case.n_rows is not None:
        bounds.append(
            Bound(
                max(1, math.ceil(2 * math.log(max(2, case.n_rows**2) / delta) / case.rate)),
                "2 ln(n^2 / delta) / (eps^2 / 2 - eps^3 / 3)",
                "Johnson-Lindenstrauss lemma for all pairs of rows (Achlioptas, J. Comput. Syst. Sci. 66 (2003)): "
                "a cluster's cost is a sum over its pairs",
            )
        )
    return tuple(bounds)


def _countsketch(case: _Case) -> tuple[Bound, ...]:
    """One hashed sign a feature.

    Liu et al.'s two terms, and one more: of k + 1 rows with a feature each, every pair is a partition into k clusters;
    its cost is lost or doubled if the two features meet, and k (k + 1) / 2 pairs meet somewhere with probability delta
    at the third term. Nelson and Nguyen, "Sparsity lower bounds for dimensionality reducing maps", STOC 2013, show that
    m grows as k^2 for one non-zero a feature.
    """
    k, eps, delta = case.k, case.eps, case.delta
    wanted = max((k + math.log(1 / delta)) / eps**2, 6 / (eps**2 * delta), k * (k + 1) / (2 * delta))
    return (
        Bound(
            math.ceil(wanted),
            "max((k + ln(1 / delta)) / eps^2, 6 / (eps^2 delta), k (k + 1) / (2 delta))",
            "Liu, Shen and Tsang, NIPS 2017: O(max((k + log(1 / delta)) / eps^2, 6 / (eps^2 delta))), with "
            "the constant 1; the last term is ours: pairs of features must not meet",
        ),
    )


def _sparse_jl(case: _Case) -> tuple[Bound, ...]:
    """Several hashed signs a feature, one in each block: see `nnz_per_feature`."""
    return (
        Bound(
            math.ceil(BLOCK_CONSTANT * case.k * math.log(2 * case.k / case.delta) / case.eps**2),
            f"{BLOCK_CONSTANT} k ln(2 k / delta) / eps^2, with s = ln(2 k / delta) / eps for each feature",
            "Kane and Nelson, J. ACM 61 (2014); for subspaces Cohen, SODA 2016: O(k log(k / delta) / eps^2) with "
            "s = O(log(k / delta) / eps). The constants are ours",
        ),
    )


def _hadamard(case: _Case) -> tuple[Bound, ...]:
    """The subsampled randomized Hadamard transform."""
    k, third, d = case.k, case.delta / 3, 1 << ((case.n_features or 1) - 1).bit_length()  # it holds but for 3 delta
    root = math.sqrt(k) + math.sqrt(8 * math.log(d / third))
    return (
        Bound(
            math.ceil(6 * root**2 * math.log(k / third) / case.eps**2),
            "6 (sqrt(k) + sqrt(8 ln(3 d / delta)))^2 ln(3 k / delta) / eps^2",
            "Boutsidis and Gittens, SIAM J. Matrix Anal. Appl. 34 (2013), for subspaces, after Tropp, Adv. Adapt. "
            "Data Anal. 3 (2011); d is padded to a power of 2",
        ),
    )


def _svd(case: _Case) -> tuple[Bound, ...]:
    """Leading right singular vectors, exact ones."""
    source = "Cohen, Elder, Musco, Musco and Persu, STOC 2015 (for exact singular vectors)"
    bounds = [Bound(math.ceil(case.k / case.eps), "k / eps", source, UP_TO_A_CONSTANT)]
    if case.n_rows is not None:
        bounds.append(Bound(case.n_rows, "n", "the rank of n rows", ALL_PARTITIONS))
    return tuple(bounds)


def _leverage(case: _Case) -> tuple[Bound, ...]:
    """Draws by leverage scores of the leading k singular vectors."""
    return (
        Bound(
            math.ceil(4 * case.k * math.log(2 * case.k / case.delta) / case.eps**2),
            "4 k ln(2 k / delta) / eps^2",
            "Boutsidis, Zouzias, Mahoney and Drineas, IEEE Trans. Inf. Theory 61 (2015): "
            "O(k log(k) / eps^2); the constant is that of the sampled singular vectors (Rudelson and Vershynin, "
            "J. ACM 54 (2007))",
            BEST_PARTITION,
        ),
    )


FORMULAS: dict[str, Callable[[_Case], tuple[Bound, ...]]] = {
    "countsketch": _countsketch,
    "hadamard-countsketch": _countsketch,
    "sparse-jl": _sparse_jl,
    "signs": _sub_gaussian,
    "gaussian": _sub_gaussian,
    "sparse": _sub_gaussian,
    "hadamard": _hadamard,
    "svd": _svd,
    "pca": _svd,
    "leverage": _leverage,
}
"""By kind of sketch; "sparse-jl" is CountSketch with several non-zeros a feature, "sparse" Achlioptas' with a third."""


def nnz_per_feature(*, n_clusters: int, eps: float, delta: float = 0.1) -> int:
    """Non-zeros a feature that "sparse-jl" supposes: ``s = ln(2 k / delta) / eps`` (Cohen, SODA 2016; our constant)."""
    _check(n_clusters, eps, delta, None, None)
    return math.ceil(math.log(2 * n_clusters / delta) / eps)
