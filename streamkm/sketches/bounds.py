"""How many components a sketch needs for (eps, delta), and how many columns a sketch of the kernel matrix.

Most bounds promise Liu et al.'s definition 2, projection cost preserved: with probability 1 - delta, for all partitions
of the rows into k clusters at once, the sketched sum of squared distances to the means is within a factor 1 +- eps of
the original one. A partition that is best in such a sketch is then within 1 + 2 eps / (1 - eps) of the best of all
(lemma 1): `eps_of_loss` turns that round. Formulas and sources are in `theorems`; tests hold them against all
partitions of small matrices.
"""

from __future__ import annotations

import difflib
import logging
import math
from dataclasses import replace

from streamkm.core.exceptions import InvalidParameterError
from streamkm.sketches.countsketch import MAX_PER_FEATURE
from streamkm.sketches.residuals import feature_hashing, hashing_spread
from streamkm.sketches.theorems import (
    ALL_PARTITIONS,
    BEST_PARTITION,
    EXACT,
    FORMULAS,
    UP_TO_A_CONSTANT,
    Bound,
    Case,
)

__all__ = [
    "ALL_PARTITIONS",
    "BEST_PARTITION",
    "EXACT",
    "FORMULAS",
    "UP_TO_A_CONSTANT",
    "Bound",
    "eps_of_loss",
    "feature_hashing",
    "hashing_spread",
    "kernel_columns",
    "n_components",
    "nnz_per_feature",
    "nystroem_columns",
    "sizing",
]

logger = logging.getLogger(__name__)


def n_components(
    sketch: str,
    *,
    n_clusters: int,
    eps: float,
    delta: float = 0.1,
    n_rows: int | None = None,
    n_features: int | None = None,
) -> int:
    """Give the components that a sketch needs; see `sizing`."""
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
    theorem: str | None = None,
) -> Bound:
    """Find the smallest number of components that some theorem gives, and say which.

    Parameters
    ----------
    sketch : str
        A key of `FORMULAS`.
    n_clusters : int
        k.
    eps : float
        Relative error of the cost of a partition, in (0, 1); see `eps_of_loss`.
    delta : float
        Probability that it is larger, in (0, 1). "svd" and "pca" never fail.
    n_rows, n_features : int, optional
        n and d. Pairs of n rows give the Johnson-Lindenstrauss lemma's bound, the smaller one where rows are few. Where
        a bound asks for d components or more, rows are to be taken as they are: its `sketch` is "identity".
    theorem : str, optional
        The name of one, of whatever promise: for "signs", "gaussian" and "sparse" "cohen-2015", "makarychev-2019",
        "johnson-lindenstrauss", "boutsidis-2015" (k / eps^2 components: a factor 2 + eps in practice, which no theorem
        proves) and "boutsidis-2015-lemma-10" (6 k / eps^2: the lemma behind that factor holds); for "svd" and "pca"
        "drineas-1999" (k, a factor 2), "feldman-2013" (k / eps^2, a factor 1 + eps), "cohen-2015", "rank"; for
        "countsketch" "nelson-nguyen-2013" and "liu-2017", as printed. None: the smallest that keeps the cost of all
        partitions, or whatever the sketch is known to keep.

    Returns
    -------
    Bound

    Raises
    ------
    InvalidParameterError
        For a sketch without such a theorem, or a number out of range.

    See Also
    --------
    eps_of_loss : The eps that a loss of the clusters found asks for.
    feature_hashing : Components for one given partition, from its rows (Senuma's theorem 4.5).
    kernel_columns : Rows of the kernel matrix (theorem 1 of Yin et al.).
    nystroem_columns : Columns of rank-restricted Nystroem features (Wang et al.).

    Examples
    --------
    >>> from streamkm import sizing
    >>> sizing("countsketch", n_clusters=10, eps=0.25, n_rows=10**6).n_components
    17600
    >>> sizing("signs", n_clusters=10, eps=0.25, n_rows=10**6).n_components
    832
    >>> sizing("signs", n_clusters=10, eps=0.25, theorem="boutsidis-2015").n_components
    160
    """
    _check(n_clusters, eps, delta, n_rows, n_features)
    if sketch not in FORMULAS:
        near = difflib.get_close_matches(sketch, FORMULAS, 1)
        raise InvalidParameterError(
            f"no theorem gives the components of sketch={sketch!r} for eps and delta"
            f"{f'; did you mean {near[0]!r}?' if near else ''}; known are {', '.join(FORMULAS)}: else pass n_components"
        )
    case = Case(n_clusters, eps, delta, n_rows, n_features)
    if sketch == "hadamard" and n_features is None:
        raise InvalidParameterError('sketch="hadamard" needs n_features for its number of components')
    known = {bound.theorem: bound for bound in FORMULAS[sketch](case)}
    if theorem is not None and theorem not in known:
        raise InvalidParameterError(f"theorem={theorem!r} of sketch={sketch!r}; needed: one of {', '.join(known)}")
    best = _smallest(sketch, case) if theorem is None else known[theorem]
    if n_features is not None and best.n_components >= n_features:
        logger.info(
            "%s asks for %d components; the rows have %d features: take them all",
            best.source,
            best.n_components,
            n_features,
        )
        source = f"no sketch at all; {best.source} asks for {best.n_components:,}"
        return Bound(best.theorem, n_features, "d", source, EXACT, sketch="identity")
    return replace(best, sketch=sketch, less=_less(best, case))


def _smallest(sketch: str, case: Case) -> Bound:
    """The smallest bound that promises all that is known of a sketch."""
    return min((bound for bound in FORMULAS[sketch](case) if not bound.by_name), key=lambda bound: bound.n_components)


def _less(best: Bound, case: Case) -> tuple[tuple[str, int], ...]:
    """Sketches that keep the cost of all partitions with fewer components, and how many."""
    if best.keeps != ALL_PARTITIONS:
        return ()
    fewer = []
    for sketch in FORMULAS:
        if sketch == "hadamard" and case.n_features is None:
            continue
        if sketch == "sparse-jl" and _nnz_per_feature(case) > MAX_PER_FEATURE:
            continue
        bound = _smallest(sketch, case)
        if bound.keeps == ALL_PARTITIONS and bound.theorem != "rank" and bound.n_components < best.n_components:
            fewer.append((sketch, bound.n_components))
    return tuple(sorted(fewer, key=lambda named: named[1]))


def eps_of_loss(loss: float) -> float:
    """The eps of definition 2 that makes a sketch's best partition cost at most 1 + loss times the least.

    ``loss / (2 + loss)``, about half of it, so that components are some four times as many: Liu, Shen and Tsang, NIPS
    2017, lemma 1. A partition found in the sketch within gamma of the sketch's best is within (1 + loss) gamma.

    Parameters
    ----------
    loss : float
        Above 0.

    Raises
    ------
    InvalidParameterError
        If it is not.
    """
    if not 0 < loss < math.inf:
        raise InvalidParameterError(f"loss={loss}; needed: a finite number above 0")
    return loss / (2 + loss)


def nnz_per_feature(*, n_clusters: int, eps: float, delta: float = 0.1) -> int:
    """Non-zeros a feature that "sparse-jl" supposes: ``s = ln(2 k / delta) / eps`` (Cohen, SODA 2016; our constant)."""
    _check(n_clusters, eps, delta, None, None)
    return _nnz_per_feature(Case(n_clusters, eps, delta, None, None))


def _nnz_per_feature(case: Case) -> int:
    return math.ceil(math.log(2 * case.k / case.delta) / case.eps)


def kernel_columns(*, n_rows: int, eps: float, delta: float = 0.1) -> int:
    """Rows of the kernel matrix that a sub-Gaussian, ROS or Nystroem sketch of it needs by theory.

    ``(4 ln n - 2 ln delta) / (eps - ln(1 + eps))``, with the constant 1 for the theorem's Omega: with probability
    1 - delta the excess risk of k-means on the sketch is of the order sqrt(k / n) + eps / (1 - eps), up to logarithms,
    for kernels of at most 1; with k-means++ and local search (``init="ls++"``) in place of the exact minimizer the risk
    is of that order and of the least one together.
    For small eps it grows as 8 ln(n) / eps^2, and is often above n; the authors take some sqrt(n).

    Parameters
    ----------
    n_rows : int
        n.
    eps, delta : float
        In (0, 1).

    References
    ----------
    Yin, Liu, Wang and Meng, "Randomized sketches for clustering: fast and optimal kernel k-means", NeurIPS 2022,
    theorems 1 and 2.
    """
    _check(1, eps, delta, n_rows, None)
    return math.ceil((4 * math.log(n_rows) - 2 * math.log(delta)) / (eps - math.log1p(eps)))


def nystroem_columns(
    sketch: str, *, rank: int, eps: float, n_rows: int | None = None, coherence: float | None = None
) -> int:
    """Columns c of a sketch of the kernel matrix K for rank-restricted Nystroem features, with the constants 1.

    So many that the trace error of s features is at most 1 + eps times the least, with constant probability, up to a
    constant factor. "uniform": ``mu s (1 / eps + ln s)``, mu the coherence of K's s leading directions, 1 to n / s;
    "leverage": ``s (1 / eps + ln s)``; "gaussian": ``s / eps``; "srht": ``(s + ln n) (1 / eps + ln s)``; "countsketch":
    ``s (1 / eps + s)``. In the copy of Wang et al. that these follow, table 2 has lost its formulas: they are
    reconstructed from what is known of the sketches.

    Parameters
    ----------
    sketch : {"uniform", "leverage", "gaussian", "srht", "countsketch"}
    rank : int
        s.
    eps : float
        In (0, 1).
    n_rows : int, optional
        n, for "srht".
    coherence : float, optional
        mu, for "uniform".

    References
    ----------
    Wang, Gittens and Mahoney, JMLR 20 (2019), section 3.1 and table 2 (reconstructed); Woodruff, "Sketching as a tool
    for numerical linear algebra", Found. Trends Theor. Comput. Sci. 10 (2014).
    """
    _check(rank, eps, 0.5, n_rows, None)
    if (sketch == "uniform" and coherence is None) or (sketch == "srht" and n_rows is None):
        needed = "coherence" if sketch == "uniform" else "n_rows"
        raise InvalidParameterError(f"sketch={sketch!r} needs {needed} for its number of columns")
    share, log = 1 / eps, math.log(rank)
    sizes = {
        "uniform": (coherence or 1.0) * rank * (share + log),
        "leverage": rank * (share + log),
        "gaussian": rank * share,
        "srht": (rank + math.log(n_rows or 1)) * (share + log),
        "countsketch": rank * (share + rank),
    }
    if sketch not in sizes:
        raise InvalidParameterError(f"sketch={sketch!r}; needed: one of {', '.join(sizes)}")
    return math.ceil(sizes[sketch])


def _check(n_clusters: int, eps: float, delta: float, n_rows: int | None, n_features: int | None) -> None:
    for name, value in (("n_clusters", n_clusters), ("n_rows", n_rows), ("n_features", n_features)):
        if value is not None and value < 1:
            raise InvalidParameterError(f"{name}={value}; needed: an integer from 1")
    for name, share in (("eps", eps), ("delta", delta)):
        if not 0 < share < 1:
            raise InvalidParameterError(f"{name}={share}; needed: between 0 and 1, both excluded")
    if n_rows is not None and n_clusters > n_rows:
        raise InvalidParameterError(f"n_clusters={n_clusters} and n_rows={n_rows}; needed: no more clusters than rows")
