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
from streamkm.sketches.theory.choices import sketch_choices
from streamkm.sketches.theory.kernel_bounds import KERNEL_FORMULAS, kernel_columns, nystroem_columns, of_kernel_matrix
from streamkm.sketches.theory.records import (
    ALL_PARTITIONS,
    BEST_PARTITION,
    EXACT,
    UP_TO_A_CONSTANT,
    Bound,
    Case,
    SketchChoice,
)
from streamkm.sketches.theory.residuals import feature_hashing, hashing_spread
from streamkm.sketches.theory.theorems import FORMULAS, blocks_of_theorem, check_case

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
    "which_sketch",
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
        A key of `FORMULAS`, or of `KERNEL_FORMULAS` ("sub-gaussian", "sub-gaussian-entries", "ros", "sampled-columns"):
        methods of `StreamKernelKMeans`, whose components are rows of the kernel matrix, at most all n. They need
        `n_rows`.
    n_clusters : int
        Number of clusters.
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
        "countsketch" "nelson-nguyen-2013" and "liu-2017", as printed; for "sparse-jl" "cohen-2016" and
        "nelson-nguyen-conjecture", O(k / eps^2). None: the smallest that keeps the cost of all
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
    which_sketch : All sketches that keep a promise, with the time they take.
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
    check_case(n_clusters, eps, delta, n_rows, n_features)
    formulas = FORMULAS | KERNEL_FORMULAS
    if sketch not in formulas:
        near = difflib.get_close_matches(sketch, formulas, 1)
        raise InvalidParameterError(
            f"no theorem gives the components of sketch={sketch!r} for eps and delta"
            f"{f'; did you mean {near[0]!r}?' if near else ''}; known are {', '.join(formulas)}: else pass n_components"
        )
    case = Case(n_clusters, eps, delta, n_rows, n_features)
    if sketch == "hadamard" and n_features is None:
        raise InvalidParameterError('sketch="hadamard" needs n_features for its number of components')
    if sketch in KERNEL_FORMULAS and n_rows is None:
        raise InvalidParameterError(f"sketch={sketch!r} needs n_rows for its number of components")
    known = {bound.theorem: bound for bound in formulas[sketch](case)}
    if theorem is not None and theorem not in known:
        raise InvalidParameterError(f"theorem={theorem!r} of sketch={sketch!r}; needed: one of {', '.join(known)}")
    best = (
        known[theorem]
        if theorem is not None
        else min((bound for bound in known.values() if not bound.by_name), key=lambda bound: bound.n_components)
    )
    if sketch in KERNEL_FORMULAS:
        return of_kernel_matrix(replace(best, sketch=sketch), n_rows or 0)
    if n_features is not None and best.n_components >= n_features:
        source = f"no sketch at all; {best.source} asks for {best.n_components:,}"
        exact = Bound(best.theorem, n_features, "d", source, EXACT, sketch="identity")
        less = _less(exact, case)
        logger.info(
            "%s asks for %d components; the rows have %d features: take them all%s",
            best.source,
            best.n_components,
            n_features,
            f", or {less[0][0]} with {less[0][1]:,} components" if less else "",
        )
        return replace(exact, less=less, choices=sketch_choices(case))
    return replace(best, sketch=sketch, less=_less(best, case), choices=sketch_choices(case))


def which_sketch(
    *,
    n_clusters: int,
    eps: float,
    delta: float = 0.1,
    n_rows: int | None = None,
    n_features: int | None = None,
    nnz: float | None = None,
) -> tuple[SketchChoice, ...]:
    """Compare the sketches that keep the cost of all partitions, the fastest first.

    Parameters
    ----------
    n_clusters, eps, delta, n_rows, n_features : as for `sizing`
    nnz : float, optional
        Stored entries of a row; None: rows are dense.

    Returns
    -------
    tuple of SketchChoice
        Those with fewer components than features, and "identity" where d is known. The first is recommended.

    Examples
    --------
    >>> from streamkm.sketches.theory.bounds import which_sketch
    >>> first = which_sketch(n_clusters=50, eps=0.3, n_features=47_236, nnz=300)[0]
    >>> first.sketch, first.n_components, first.recommended
    ('signs', 825, True)
    """
    check_case(n_clusters, eps, delta, n_rows, n_features)
    if nnz is not None and not 0 < nnz < math.inf:
        raise InvalidParameterError(f"nnz={nnz}; needed: a finite number above 0")
    return sketch_choices(Case(n_clusters, eps, delta, n_rows, n_features), nnz)


def _less(best: Bound, case: Case) -> tuple[tuple[str, int], ...]:
    """Sketches that keep the cost of all partitions with fewer components, and how many."""
    if best.keeps not in (ALL_PARTITIONS, EXACT):
        return ()
    fewer = [
        (choice.sketch, choice.n_components)
        for choice in sketch_choices(case)
        if choice.sketch != "identity" and choice.n_components < best.n_components
    ]
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
    check_case(n_clusters, eps, delta, None, None)
    return blocks_of_theorem(Case(n_clusters, eps, delta, None, None))
