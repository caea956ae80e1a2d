"""Which genes vary most for their mean, by the means and variances of counts that were scaled to a common total."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

N_BINS = 20
"""Of genes by their mean, within which dispersions are compared."""


def normalized_dispersions(means: NDArray[np.float64], variances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Dispersions of genes, in standard deviations from the mean of genes of like mean. O(d).

    The dispersion is log(variance / mean), after R. Satija et al., Spatial reconstruction of single-cell gene
    expression data, Nature Biotechnology 33 (2015), as Seurat's first version and scanpy's flavor "seurat" compute it:
    genes are cut into `N_BINS` bins of equal width by log(1 + mean), and a gene that is alone in its bin gets 1.

    Parameters
    ----------
    means, variances : float64 (d,)
        Of counts after the step "total"; variances have n - 1 below the line.

    Returns
    -------
    float64 (d,)
        NaN for genes without variance, and where all dispersions of a bin are equal.
    """
    dispersions = np.full(len(means), np.nan)
    np.divide(variances, means, out=dispersions, where=(means > 0) & (variances > 0))
    dispersions = np.log(dispersions)
    logs = np.log1p(means)
    edges = np.linspace(logs.min(), logs.max(), N_BINS + 1)
    bins = np.clip(np.searchsorted(edges, logs, side="left") - 1, 0, N_BINS - 1)  # on an edge: the bin below
    varies = ~np.isnan(dispersions)
    number, values = bins[varies], dispersions[varies]
    sizes = np.bincount(number, minlength=N_BINS)
    centers = np.bincount(number, values, N_BINS) / np.maximum(sizes, 1)
    squares = np.bincount(number, (values - centers[number]) ** 2, N_BINS)
    widths = np.sqrt(squares / np.maximum(sizes - 1, 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        made = (values - centers[number]) / widths[number]
    made[~np.isfinite(made)] = np.nan
    made[sizes[number] == 1] = 1.0
    dispersions[varies] = made
    return dispersions


def largest(scores: NDArray[np.float64], n_wanted: int) -> NDArray[np.int64]:
    """Numbers of the largest scores, rising; NaN comes last, and of equal scores the first is taken."""
    order = np.argsort(-np.where(np.isnan(scores), -np.inf, scores), kind="stable")
    return np.sort(order[:n_wanted])
