"""Components that a sketch needs for an error eps, each number by a theorem.

Most theorems keep the projection cost of Liu et al. (definition 2): with probability 1 - delta, for all partitions of
the rows into k clusters at once, the sketched sum of squared distances to the means is within 1 +- eps of the original
one. Theorems give orders; this module sets the constants, and tests check them on all partitions of small matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from streamkm.core.display import near_hint
from streamkm.core.exceptions import InvalidParameterError

SUBSPACE_CONSTANT = 4
"""Factor of (k + ln(2 / delta)) / eps^2: for one direction and small eps, the Johnson-Lindenstrauss lemma's own. With
1, the partitions of seven rows are kept with probability 0.5 to 0.8 instead of 0.9."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Components of a sketch, and the theorem that gives them."""

    sketch: str  # "identity" where the theorem asks for as many components as rows have features, or more
    n_components: int
    formula: str  # in the letters k, d, n, eps, delta
    theorem: str  # the paper


_Size = tuple[float, str, str]  # components, formula, theorem


def sizing(
    sketch: str,
    *,
    n_clusters: int,
    eps: float,
    delta: float = 0.1,
    n_rows: int | None = None,
    n_features: int | None = None,
) -> Bound:
    """Find the smallest number of components that a theorem gives.

    Parameters
    ----------
    sketch : str
        A key of `FORMULAS`. "leverage" keeps only the best partition, within a factor 3 + eps of the least cost; "svd"
        and "pca" keep all costs up to a constant that all partitions share. Others keep all costs within 1 +- eps.
    n_clusters : int
        k.
    eps : float
        Relative error of the cost of a partition, in (0, 1). The best partition of the sketch costs at most
        1 + 2 eps / (1 - eps) times the least (Liu, Shen and Tsang, NIPS 2017, lemma 1).
    delta : float
        Probability that the error is larger, in (0, 1). "svd" and "pca" never fail.
    n_rows, n_features : int, optional
        n and d. With n, the pairs of rows give a smaller number if rows are few. With d, "identity" replaces a bound of
        d components or more.

    Returns
    -------
    Bound

    Raises
    ------
    InvalidParameterError
        For a sketch without a theorem, or a number out of range.

    Examples
    --------
    >>> from streamkm import sizing
    >>> sizing("countsketch", n_clusters=10, eps=0.25, n_rows=10**6).n_components
    17600
    >>> sizing("signs", n_clusters=10, eps=0.25, n_rows=10**6).n_components
    832
    """
    _check(n_clusters, eps, delta, n_rows, n_features)
    if sketch not in FORMULAS:
        raise InvalidParameterError(
            f"no theorem gives the components of sketch={sketch!r} for eps and delta"
            f"{near_hint(sketch, list(FORMULAS))}; known are {', '.join(FORMULAS)}: else pass n_components"
        )
    if sketch == "hadamard" and n_features is None:
        raise InvalidParameterError('sketch="hadamard" needs n_features for its number of components')
    size, formula, theorem = min(FORMULAS[sketch](n_clusters, eps, delta, n_rows, n_features))
    m = math.ceil(size)
    if n_features is not None and m >= n_features:
        return Bound("identity", n_features, "d", f"no sketch at all; {theorem} asks for {m:,}")
    return Bound(sketch, m, formula, theorem)


def kernel_columns(*, n_rows: int, eps: float, delta: float = 0.1) -> int:
    """Rows of the kernel matrix for a sub-Gaussian, ROS or Nystroem sketch of it: Yin et al., NeurIPS 2022, theorem 1.

    ``(4 ln n - 2 ln delta) / (eps - ln(1 + eps))``, with constant 1 for Omega: with probability 1 - delta the excess
    risk of k-means on the sketch is of the order sqrt(k / n) + eps / (1 - eps), up to logarithms, for kernels of at
    most 1. Theorem 2 has the same order for ``init="ls++"``, plus the least risk. The authors take some sqrt(n).
    """
    _check(1, eps, delta, n_rows)
    return math.ceil((4 * math.log(n_rows) - 2 * math.log(delta)) / (eps - math.log1p(eps)))


def nystroem_columns(sketch: str, *, rank: int, eps: float, n_rows: int = 1) -> int:
    """Columns of a sketch of the kernel matrix for s Nystroem features: Wang et al., JMLR 20 (2019), section 3.1.

    With constants 1: trace error at most 1 + eps times the least, up to a constant factor, with constant probability.
    The formulas of Table 2, lost in the available copy, are reconstructed from other work on the sketches (Woodruff,
    Found. Trends Theor. Comput. Sci. 10 (2014)).
    """
    _check(rank, eps)
    share, log = 1 / eps, math.log(rank)
    sizes = {
        "leverage": rank * (share + log),
        "gaussian": rank * share,
        "srht": (rank + math.log(n_rows)) * (share + log),
        "countsketch": rank * (share + rank),
    }
    return math.ceil(sizes[sketch])


def _check(
    n_clusters: int, eps: float, delta: float = 0.5, n_rows: int | None = None, n_features: int | None = None
) -> None:
    """Refuse numbers out of the range of all theorems."""
    for name, value in (("n_clusters", n_clusters), ("n_rows", n_rows), ("n_features", n_features)):
        if value is not None and value < 1:
            raise InvalidParameterError(f"{name}={value}; needed: an integer from 1")
    for name, share in (("eps", eps), ("delta", delta)):
        if not 0 < share < 1:
            raise InvalidParameterError(f"{name}={share}; needed: between 0 and 1, both excluded")
    if n_rows is not None and n_clusters > n_rows:
        raise InvalidParameterError(f"n_clusters={n_clusters} and n_rows={n_rows}; needed: no more clusters than rows")


def _projection(k: int, eps: float, delta: float, n: int | None, _: int | None) -> list[_Size]:
    """Gaussian, sign and sparse projections: Cohen et al. (2015) and Makarychev et al. (2019) for all partitions.

    Achlioptas (2003) gives the Johnson-Lindenstrauss lemma for all pairs of rows, over which a cluster's cost is a sum;
    its constant stands in Makarychev et al.'s formula, too.
    """
    rate = eps**2 / 2 - eps**3 / 3
    found = [
        (
            SUBSPACE_CONSTANT * (k + math.log(2 / delta)) / eps**2,
            f"{SUBSPACE_CONSTANT} (k + ln(2 / delta)) / eps^2",
            "Cohen, Elder, Musco, Musco and Persu, STOC 2015",
        ),
        (
            4 * math.log(k / (eps * delta)) / rate,
            "4 ln(k / (eps delta)) / (eps^2 / 2 - eps^3 / 3)",
            "Makarychev, Makarychev and Razenshteyn, STOC 2019",
        ),
    ]
    if n is not None:
        pairs = max(1.0, 2 * math.log(max(2, n**2) / delta) / rate)
        theorem = "Achlioptas, J. Comput. Syst. Sci. 66 (2003), theorem 1.1"
        found.append((pairs, "2 ln(n^2 / delta) / (eps^2 / 2 - eps^3 / 3)", theorem))
    return found


def _countsketch(k: int, eps: float, delta: float, *_: int | None) -> list[_Size]:
    """One hashed sign a feature: Nelson and Nguyen (2013), theorem 3; for one cluster Liu et al. (2017), theorem 1.

    Each pair among k + 1 rows with fewer than 1 / eps features each is a partition into k clusters. Its cost is wrong
    if two of its features meet; of all pairs of features, about (k + 1)^2 / (2 eps^2), one meets with probability delta
    / 2 at m = (k^2 + k) / (eps^2 delta), which keep every squared length of a k-dimensional space within 1 +- eps. For
    a single cluster Liu et al.'s term with 6 is larger.
    """
    theorem = "Nelson and Nguyen, FOCS 2013, theorem 3; Liu, Shen and Tsang, NIPS 2017, theorem 1"
    return [(max(6, k * k + k) / (eps**2 * delta), "max(6, k^2 + k) / (eps^2 delta)", theorem)]


def _hadamard(k: int, eps: float, delta: float, _: int | None, d: int | None) -> list[_Size]:
    """The subsampled randomized Hadamard transform: Boutsidis and Gittens (2013), for subspaces; d is padded."""
    third, padded = delta / 3, 1 << ((d or 1) - 1).bit_length()  # it holds but for 3 delta
    root = math.sqrt(k) + math.sqrt(8 * math.log(padded / third))
    formula = "6 (sqrt(k) + sqrt(8 ln(3 d / delta)))^2 ln(3 k / delta) / eps^2"
    m = 6 * root**2 * math.log(k / third) / eps**2
    return [(m, formula, "Boutsidis and Gittens, SIAM J. Matrix Anal. Appl. 34 (2013)")]


def _svd(k: int, eps: float, _: float, n: int | None, __: int | None) -> list[_Size]:
    """Exact leading right singular vectors of all rows: Cohen et al. (2015), up to a constant; or n, the rank."""
    found: list[_Size] = [(k / eps, "k / eps", "Cohen, Elder, Musco, Musco and Persu, STOC 2015")]
    if n is not None:
        found.append((n, "n", "the rank of n rows"))
    return found


def _leverage(k: int, eps: float, delta: float, *_: int | None) -> list[_Size]:
    """Draws by leverage scores of k singular vectors: Boutsidis et al. (2015), the best partition within 3 + eps.

    The constant is that of sampled singular vectors (Rudelson and Vershynin, J. ACM 54 (2007)).
    """
    m = 4 * k * math.log(2 * k / delta) / eps**2
    theorem = "Boutsidis, Zouzias, Mahoney and Drineas, IEEE Trans. Inf. Theory 61 (2015)"
    return [(m, "4 k ln(2 k / delta) / eps^2", theorem)]


FORMULAS: dict[str, Callable[..., list[_Size]]] = {
    "countsketch": _countsketch,
    **dict.fromkeys(("signs", "gaussian", "sparse"), _projection),
    "hadamard": _hadamard,
    **dict.fromkeys(("svd", "pca"), _svd),
    "leverage": _leverage,
}
"""By kind of sketch; "sparse" is Achlioptas' with a third of its entries."""
