"""Differences of new rows from earlier ones, judged by how much earlier updates differed; finds no centers."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.tracking.followed import ClusterState
from streamkm.metrics.cluster_details import Wording, largest
from streamkm.metrics.cluster_summary import ClusterDrift, Moved, Reason
from streamkm.metrics.drift_report import ALARMS, FEWEST_UPDATES, MANY_BEYOND, Drift, DriftFigure, Verdict

FEWEST_ROWS = 20.0  # effective rows of a cluster, before and now, that its mean is judged by
BEYOND = 0.01  # share of rows beyond a quantile of 99 %
SPREAD = 0.5  # of the largest of several standardized shifts, about
TINY = 1e-300  # in place of 0 where that has no quotient


def compare(
    before: ClusterState, now: ClusterState, novel: NDArray[np.float64], earlier: NDArray[np.float64], wording: Wording
) -> Drift:
    """Tell how new rows differ from those of before. O(k * d + u) for u earlier updates.

    Four figures, standardized by chance for independent rows: the largest change of a cluster's share, the mean
    distance to the center, the share of rows beyond the distances seen, and the largest shift of a mean. A figure is a
    change if it lies more than `ALARMS` deviations above the median of its earlier values (the mean distance: above or
    below). A deviation is the median absolute one, and at least the standard error by chance.

    `before` and `now` share clusters and centers. `novel`: float64 (k,), weights of new rows beyond the reach of their
    clusters. `earlier`: float64 (u, 8), `Drift.row` of each update, the oldest first.

    References: Anscombe, "The transformation of Poisson, binomial and negative-binomial data", Biometrika 35 (1948):
    arcsines of shares. Sidak, "Rectangular confidence regions for the means of multivariate normal distributions", JASA
    62 (1967): the largest of k. Leys, Ley, Klein, Bernard and Licata, "Detecting outliers: do not use standard
    deviation around the mean, use absolute deviation around the median", Journal of Experimental Social Psychology 49
    (2013): median absolute deviations.
    """
    scale, shifts = 1 / max(before.n_rows, 1.0) + 1 / max(now.n_rows, 1.0), _shifts(before, now)
    p, q = (np.arcsin(np.sqrt((each.effective() + 0.375) / (each.n_rows + 0.75))) for each in (before, now))
    changes = 2 * np.abs(q - p) / np.sqrt(scale)  # of shares, in standard errors by chance
    shares_of = before.shares(), now.shares()
    far = np.where((before.counts > 0) & (now.counts > 0), np.linalg.norm(now.means - before.means, axis=1), np.nan)
    units = np.where((before.effective() >= 2) & (before.distances > 0), before.distances, np.nan)
    most, moved = int(np.argmax(changes)), int(np.argmax(shifts))
    share = float(novel.sum() / max(float(now.counts.sum()), TINY))
    ratios, spread = _ratios(before.histogram), _ratios(now.histogram)[0]
    values = [
        (abs(float((shares_of[1] - shares_of[0])[most])), _of_largest(float(changes[most]), len(changes))),
        (spread, (spread - ratios[0]) / max(float(np.sqrt(ratios[1] * scale)), TINY)),
        (share, (share - BEYOND) / float(np.sqrt(BEYOND * scale))),
        (float(np.nan_to_num(far / units)[moved]), float(shifts[moved]) / SPREAD),
    ]
    known = earlier[:, 1::2] if now.n_rows > 0 and before.n_rows > 0 else np.empty((0, 4))
    figures = [DriftFigure(value, units) for value, units in values]
    if len(known):
        middle = np.median(known, axis=0)
        deviation = np.maximum(np.median(np.abs(known - middle), axis=0), 1.0)
        usual = np.median(earlier[:, ::2], axis=0)
        scores = (np.array(values)[:, 1] - middle) / deviation
        scores[1] = abs(scores[1])
        figures = [replace(each, usual=float(usual[n]), score=float(scores[n])) for n, each in enumerate(figures)]
    judged = len(known) >= FEWEST_UPDATES
    changed = [judged and each.score > alarm for each, alarm in zip(figures, ALARMS, strict=True)]
    verdict: Verdict = "shifted" if any(changed) else "stable" if judged else "too few updates"
    if changed[2] and share - figures[2].usual >= MANY_BEYOND:
        verdict = "fit again"
    places: dict[Reason, int] = {"share": most, "novel": int(np.argmax(novel)), "mean": moved}
    reasons = [(name, at) for (name, at), found in zip(places.items(), np.delete(changed, 1), strict=True) if found]
    clusters = tuple(
        ClusterDrift(
            id=int(now.ids[place]),
            rows=float(now.counts[place]),
            share_before=float(shares_of[0][place]),
            share=float(shares_of[1][place]),
            shift=float(far[place] / units[place]),
            moved=_moved(before, now, wording, place),
            distance_before=float(before.distances[place]) if before.counts[place] else np.nan,
            distance=float(now.distances[place]) if now.counts[place] else np.nan,
            novel=float(novel[place]),
            reasons=tuple(name for name, at in reasons if at == place),
        )
        for place in np.argsort(-now.counts, kind="stable").tolist()
    )
    shares, distances, beyond, largest = figures
    return Drift(verdict, clusters, shares, distances, beyond, largest, len(earlier))


def _ratios(histogram: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and variance of distances over reach, at most 1 each, so that far rows do not decide."""
    n_bins = len(histogram) - 1
    places, total = np.append((np.arange(n_bins) + 0.5) / n_bins, 1.0), max(float(histogram.sum()), TINY)
    mean = float(histogram @ places / total)
    return mean, float(histogram @ (places - mean) ** 2 / total)


def _of_largest(value: float, k: int) -> float:
    """The size of the largest of k normal values, as that of one normal value, by Sidak."""
    chance = -math.expm1(k * math.log1p(-math.erfc(min(max(value, 1e-3), 30.0) / math.sqrt(2))))
    return -NormalDist().inv_cdf(min(chance, 1 - 1e-9))


def _shifts(before: ClusterState, now: ClusterState) -> NDArray[np.float64]:
    """Shifts of means, in standard errors at most; 0 for too few rows."""
    x, y = before.effective(), now.effective()
    far, judged = np.linalg.norm(now.means - before.means, axis=1), (x >= FEWEST_ROWS) & (y >= FEWEST_ROWS)
    errors = before.distances**2 / np.maximum(x, 1) + now.distances**2 / np.maximum(y, 1)
    return np.where(judged, far / np.sqrt(np.maximum(errors, TINY)), 0.0)


def _moved(before: ClusterState, now: ClusterState, wording: Wording, place: int) -> tuple[Moved, ...]:
    """Features whose means moved most, in compared units, the farthest first."""
    if not (before.counts[place] > 0 and now.counts[place] > 0):
        return ()
    sizes = np.abs(now.means[place] - before.means[place])
    if wording.words is not None:
        sizes[~np.isin(np.arange(len(sizes)), wording.words)] = 0.0
    first, second = (state.means if state.shown is None else state.shown for state in (before, now))
    numbers = largest(sizes, wording.n_traits).tolist()
    return tuple(Moved(wording.name(n), float(first[place, n]), float(second[place, n])) for n in numbers)
