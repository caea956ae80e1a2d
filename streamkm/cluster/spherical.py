"""Spherical k-means: centers of unit length, so that the nearest center is the one at the smallest angle.

Rows are of unit length already. Knows no source and no sketch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import Blocks
from streamkm.cluster.lloyd import LloydResult
from streamkm.cluster.model import normalized
from streamkm.cluster.normalization import Normalization
from streamkm.cluster.totals import inertia_of

Placing: TypeAlias = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""What becomes of centers (k, d) before rows are assigned to them."""


def on_sphere(centers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centers scaled to unit length (k, d); one of zeros stays where it is: it has no direction."""
    return np.asarray(normalized(centers), np.float64)


def placed_in(frame: Normalization) -> Placing:
    """The same for centers of a frame: those of the original rows have unit length."""

    def placed(centers: NDArray[np.float64]) -> NDArray[np.float64]:
        return frame.points(on_sphere(frame.originals(centers)))

    return placed


def spherical_lloyd(
    blocks: Blocks,
    centers: NDArray[np.float64],
    placed: Placing,
    *,
    max_iter: int,
    tol: float,
    on_step: Callable[[LloydResult], None] | None = None,
    begun: LloydResult | None = None,
) -> LloydResult:
    """Run spherical k-means: assign every row to the center at the smallest angle, move centers to their directions.

    Each step raises the sum of the cosines. O(n * m * k) a step.

    `blocks`: of rows of unit length, in a frame. `centers`: float64 (k, m), where to start. `placed`: as of `placed_in`
    that frame. `max_iter`: steps at most. `tol`: stop when a step lowers the inertia, twice the rows' number less the
    sum of their cosines, by no more than this share of it. 0: at the fixed point. `on_step`: gets where the algorithm
    is after every step. `begun`: where to go on, in place of `centers`. Returns LloydResult: the same number of
    centers: one that no row is nearest to stays where it was.

    References: Dhillon and Modha, "Concept decompositions for large sparse text data using clustering", Mach. Learn. 42
    (2001), section 3.
    """
    history: list[float] = []
    converged = False
    if begun is None:
        centers = placed(centers)
    else:
        centers, history, converged = begun.centers, list(begun.history), begun.converged
    while len(history) < max_iter and not converged:
        totals = blocks.totals(centers, f"sphere-{len(history) + 1}")
        inertia = inertia_of(totals, centers, blocks.total_d2norm)
        updated = placed(totals.to_means(fallback=centers))
        if history:
            converged = history[-1] - inertia <= tol * inertia if tol > 0 else np.array_equal(updated, centers)
        history.append(inertia)
        centers = updated
        if on_step is not None:
            on_step(LloydResult(centers, inertia, len(history), converged, tuple(history)))
    return LloydResult(centers, history[-1] if history else float("nan"), len(history), converged, tuple(history))
