"""How many columns a sketch of the kernel matrix needs, by theory."""

from __future__ import annotations

import math
from collections.abc import Callable

from streamkm.core.exceptions import InvalidParameterError
from streamkm.sketches.theory.records import Bound, Case
from streamkm.sketches.theory.theorems import check_case

EXCESS_RISK = "the excess risk of kernel k-means, of the order sqrt(k / n) + eps / (1 - eps) up to logarithms"


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
    check_case(1, eps, delta, n_rows, None)
    return kernel_sketch(Case(1, eps, delta, n_rows, None))[0].n_components


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
    check_case(rank, eps, 0.5, n_rows, None)
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


def of_kernel_matrix(bound: Bound, n_rows: int) -> Bound:
    """The bound, or all rows of the kernel matrix where it asks for more."""
    if bound.n_components < n_rows:
        return bound
    source = f"all rows of the kernel matrix; {bound.source}: asks for {bound.n_components:,}"
    return Bound(bound.theorem, n_rows, "n", source, "the kernel matrix itself", sketch="identity")


def kernel_sketch(case: Case) -> tuple[Bound, ...]:
    """Rows of the kernel matrix, for Yin et al.'s sketches of it; supposes that n is known."""
    columns = (4 * math.log(case.n_rows or 1) - 2 * math.log(case.delta)) / (case.eps - math.log1p(case.eps))
    return (
        Bound(
            "yin-2022",
            math.ceil(columns),
            "(4 ln n - 2 ln delta) / (eps - ln(1 + eps))",
            "Yin, Liu, Wang and Meng, NeurIPS 2022, theorems 1 and 2, with the constant 1 for Omega; the authors take "
            "some sqrt(n)",
            EXCESS_RISK,
        ),
    )


KERNEL_FORMULAS: dict[str, Callable[[Case], tuple[Bound, ...]]] = dict.fromkeys(
    ("sub-gaussian", "sub-gaussian-entries", "ros", "sampled-columns"), kernel_sketch
)
"""By method of `StreamKernelKMeans`: sketches of the kernel matrix, whose components are rows of it."""
