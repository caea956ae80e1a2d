"""How shares, means and distances of clusters differ between new rows and those of before, and whether by chance.

Arrays in, values out: nothing here finds centers or reads rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError
from streamkm.metrics.clusters import Wording, largest
from streamkm.metrics.drift_report import ClusterDrift, Drift, Evidence, Moved, Reason, Verdict

LEVEL = 0.005
"""Nominal probability that rows without change are not called stable: tests of five kinds have a fifth of it each."""
EACH = LEVEL / 5
FEWEST_ROWS = 20.0  # effective rows of a cluster, before and now, that its mean is judged by
CHANGED_PSI, LARGE_PSI = 0.1, 0.25
MOVED = 0.25  # shift of a mean that matters, in mean distances
GREW = 1.5  # ratio of shares that matters, and its reciprocal
NOVEL, MANY_NOVEL = 0.02, 0.1  # share of novel rows above the expected one that matters, and that calls for a new fit
BEYOND = 0.01  # share of rows beyond a quantile of 99 %
TINY = 1e-300  # in place of 0 where that has no quotient


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What is known of rows by cluster, about given centers.

    Attributes
    ----------
    ids : int64 (k,)
    counts : float64 (k,)
        Weights of the rows; decayed ones are no integers.
    means : float64 (k, d)
        Of the rows; of any value where there are none.
    distances : float64 (k,)
        Mean distances to the centers.
    reach : float64 (k,) or None
        Quantiles of 99 % of the distances; None in the state of new rows.
    histogram : float64 (b,)
        As of `distance_histogram`.
    n_rows : float
        Effective number of rows, ``sum(w)**2 / sum(w**2)`` (Kish).
    shown : float64 (k, d), optional
        The means in the units to tell; by default `means`.
    """

    ids: NDArray[np.int64]
    counts: NDArray[np.float64]
    means: NDArray[np.float64]
    distances: NDArray[np.float64]
    reach: NDArray[np.float64] | None
    histogram: NDArray[np.float64]
    n_rows: float
    shown: NDArray[np.float64] | None = None

    def shares(self) -> NDArray[np.float64]:
        """Of clusters, in all rows."""
        total = self.counts.sum()
        return self.counts / total if total else np.zeros_like(self.counts)

    def effective(self) -> NDArray[np.float64]:
        """Effective rows of each cluster."""
        return self.shares() * self.n_rows


def compare(before: ClusterState, now: ClusterState, novel: NDArray[np.float64], wording: Wording) -> Drift:
    """Tell how new rows differ from those of before. O(k * d).

    A change counts if chance explains it with a probability below `LEVEL` over the number of tests, and if it is
    large enough to matter. A cluster shifted if its share changed 1.5 fold, its mean moved by a quarter of its mean
    distance, or it has novel rows. Conventional limits of the population stability index (PSI), 0.1 and 0.25, decide
    about shares and distances of all. A new fit is called for by distances or novel rows: shares leave centers as good
    as they were.

    Parameters
    ----------
    before, now : ClusterState
        Of the same clusters, about the same centers.
    novel : float64 (k,)
        Weights of new rows beyond the reach of their clusters.
    wording : Wording
        Names of features, which of them are words, and how many to tell.

    Raises
    ------
    InvalidInputError
        If the states are not about the same clusters and features.

    Notes
    -----
    Changes of a cluster by half or double are told for certain only with hundreds of its rows before and now.

    The PSI is ``sum((q - p) * log(q / p))`` over cells with shares p before and q now [1]_; half a row is added to each
    cell. Without change it is about chi-squared [2]_, times ``1 / n_before + 1 / n_now``: the mean of this is told
    beside it, and subtracted before it is held against a limit. Shares of one cluster are compared by a binomial test
    given the rows of both. The shift of a mean is held against the heaviest tail of a quadratic form of normal
    variables with the same trace [3]_; the trace is at most pi / 2 times the square of the mean distance.

    References
    ----------
    .. [1] Siddiqi, "Credit Risk Scorecards", Wiley (2006), chapter 8, also for the limits.
    .. [2] Yurdakul and Naranjo, "Statistical properties of the population stability index", Journal of Risk Model
       Validation 14 (2020).
    .. [3] Szekely and Bakirov, "Extremal probabilities for Gaussian quadratic forms", Probability Theory and Related
       Fields 126 (2003).
    """
    _check(before, now, novel)
    shares, distances = _psi(before.effective(), now.effective()), _distance_change(before, now)
    far, novelty = _shifts(before, now), _novelty(before, now, novel)
    reasons: dict[Reason, NDArray[np.bool_]] = {
        "share": _changed_shares(before, now),
        "mean": _moved_means(before, now, far),
        "novel": _novel_clusters(before, now, novel) & novelty.exceeds(NOVEL, EACH),
    }
    verdict: Verdict = "stable"
    if distances.exceeds(LARGE_PSI, EACH) or novelty.exceeds(MANY_NOVEL, EACH):
        verdict = "fit again"
    elif (
        np.any(list(reasons.values()))
        or novelty.exceeds(NOVEL, EACH)
        or any(each.exceeds(CHANGED_PSI, EACH) for each in (shares, distances))
    ):
        verdict = "shifted"
    shares_of = before.shares(), now.shares()
    units = np.where((before.effective() >= 2) & (before.distances > 0), before.distances, np.nan)
    clusters = tuple(
        ClusterDrift(
            id=int(now.ids[place]),
            rows_before=float(before.counts[place]),
            rows=float(now.counts[place]),
            share_before=float(shares_of[0][place]),
            share=float(shares_of[1][place]),
            shift=float(far[place] / units[place]),
            moved=_moved(before, now, wording, place),
            distance_before=float(before.distances[place]) if before.counts[place] else np.nan,
            distance=float(now.distances[place]) if now.counts[place] else np.nan,
            novel=float(novel[place]),
            reasons=tuple(name for name, found in reasons.items() if found[place]),
        )
        for place in np.argsort(-now.counts, kind="stable").tolist()
    )
    return Drift(verdict, clusters, shares, distances, novelty, before.n_rows, now.n_rows, wording.words is not None)


def _check(before: ClusterState, now: ClusterState, novel: NDArray[np.float64]) -> None:
    """Refuse states of different clusters or features."""
    if not np.array_equal(before.ids, now.ids):
        ids = f"{before.ids.tolist()} before, {now.ids.tolist()} now"
        raise InvalidInputError(f"states of different clusters: {ids}; give both the same ids in the same order")
    for name in ("counts", "means", "distances", "histogram"):
        shapes = getattr(before, name).shape, getattr(now, name).shape
        if shapes[0] != shapes[1]:
            raise InvalidInputError(f"{name} of shape {shapes[0]} before and {shapes[1]} now; both need the same shape")
    if novel.shape != now.counts.shape:
        raise InvalidInputError(f"novel has shape {novel.shape}; it needs a weight for each of {len(now.ids)} clusters")


def _stretched(before: ClusterState, now: ClusterState) -> NDArray[np.float64]:
    """Shares of rows before by distance over reach, as they would be for rows that did not set the centers."""
    # a row left out of the mean of x rows lies x / (x - 1) times as far from it; about as much again is due to the
    # choice of rows by the center, by measurements with 25 rows a cluster and 24 features
    x, total = np.maximum(before.effective(), 2.0), float(before.histogram.sum())
    if total <= 0 or now.n_rows <= 0:
        return np.zeros(len(before.histogram))
    stretch = float(((x + 1) / (x - 1)) @ now.shares())
    edges = np.linspace(0, 1, len(before.histogram))
    below = np.append(0.0, np.cumsum(before.histogram[:-1])) / total
    return np.diff(np.append(np.interp(edges / stretch, edges, below), 1.0))


def _distance_change(before: ClusterState, now: ClusterState) -> Evidence:
    """How distances over reach differ."""
    total = max(float(now.histogram.sum()), TINY)
    return _psi(_stretched(before, now) * before.n_rows, now.histogram * (now.n_rows / total))


def _psi(before: NDArray[np.float64], now: NDArray[np.float64]) -> Evidence:
    """The population stability index of effective rows by cell, and the chi-squared test of both being alike."""
    from scipy.special import chdtrc

    cells = before + now > 0
    p, q = before[cells], now[cells]
    n_before, n_now, freedom = float(p.sum()), float(q.sum()), len(p) - 1
    if freedom < 1 or not n_before or not n_now:
        return Evidence(0.0, 0.0, 1.0)
    scale = 1 / n_before + 1 / n_now
    chi2 = float(((p / n_before - q / n_now) ** 2 / (p + q)).sum()) * (n_before + n_now) / scale
    p, q = (p + 0.5) / (n_before + len(p) / 2), (q + 0.5) / (n_now + len(q) / 2)
    return Evidence(float(((q - p) * np.log(q / p)).sum()), freedom * scale, float(chdtrc(freedom, chi2)))


def _changed_shares(before: ClusterState, now: ClusterState) -> NDArray[np.bool_]:
    """Clusters whose share changed, by a binomial test given the rows of both and by the ratio."""
    from scipy.special import betainc

    if before.n_rows <= 0 or now.n_rows <= 0:
        return np.zeros(len(now.ids), np.bool_)
    x, y, new = before.effective(), now.effective(), now.n_rows / (before.n_rows + now.n_rows)
    more = betainc(np.maximum(y, TINY), x + 1, new)
    fewer = betainc(np.maximum(x, TINY), y + 1, 1 - new)
    ratio = (y + 0.5) / (x + 0.5) * before.n_rows / now.n_rows
    large = (ratio >= GREW) | (ratio <= 1 / GREW)
    return np.asarray(large & (2 * np.minimum(more, fewer) < EACH / len(x)))


def _shifts(before: ClusterState, now: ClusterState) -> NDArray[np.float64]:
    """How far means moved; NaN where either state has no rows."""
    far = np.linalg.norm(now.means - before.means, axis=1)
    return np.where((before.counts > 0) & (now.counts > 0), far, np.nan)


def _moved_means(before: ClusterState, now: ClusterState, far: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Clusters whose mean moved, by a normal test and in mean distances."""
    from scipy.special import erfc

    x, y = before.effective(), now.effective()
    judged = (x >= FEWEST_ROWS) & (y >= FEWEST_ROWS)
    errors = np.pi / 2 * (before.distances[judged] ** 2 / x[judged] + now.distances[judged] ** 2 / y[judged])
    moved = (far[judged] > 0) & (far[judged] >= MOVED * before.distances[judged])
    found = np.zeros(len(judged), np.bool_)
    found[judged] = moved & (erfc(far[judged] / np.sqrt(np.maximum(2 * errors, TINY))) < EACH / len(judged))
    return found


def _expected_novel(before: ClusterState, now: ClusterState) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and variance of novel rows by chance: the share beyond a quantile of x rows is beta distributed."""
    x, y = before.effective(), now.effective()
    pushed = _stretched(before, now)[-1] - before.histogram[-1] / max(float(before.histogram.sum()), TINY)
    expected = y * ((BEYOND * x + 1 - BEYOND) / (x + 1) + pushed)
    return expected, expected * (1 + y / (x + 1))


def _novelty(before: ClusterState, now: ClusterState, novel: NDArray[np.float64]) -> Evidence:
    """The share of novel rows, beside the one that chance gives."""
    if before.n_rows <= 0 or now.n_rows <= 0:
        return Evidence(0.0, 0.0, 1.0)
    expected, variance = (each.sum(keepdims=True) for each in _expected_novel(before, now))
    share = float(novel.sum() / now.counts.sum())
    p_value = _novel_p(np.array([share * now.n_rows]), expected, variance)
    return Evidence(share, float(expected[0] / now.n_rows), float(p_value[0]))


def _novel_clusters(before: ClusterState, now: ClusterState, novel: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Clusters with more novel rows than chance gives."""
    rows = novel * (now.n_rows / max(float(now.counts.sum()), TINY))
    return _novel_p(rows, *_expected_novel(before, now)) < EACH / len(rows)


def _novel_p(
    rows: NDArray[np.float64], expected: NDArray[np.float64], variance: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Probability of so many novel rows or more, negative binomial with this mean and variance."""
    from scipy.special import betainc

    more = np.maximum(variance - expected, TINY)
    shape, new = np.maximum(expected**2 / more, TINY), more / np.maximum(variance, TINY)
    return np.where(rows > 0, betainc(np.maximum(rows, TINY), shape, np.minimum(new, 1.0)), 1.0)


def _moved(before: ClusterState, now: ClusterState, wording: Wording, place: int) -> tuple[Moved, ...]:
    """The features whose mean moved most, by the units that are compared, the farthest first."""
    if not (before.counts[place] > 0 and now.counts[place] > 0):
        return ()
    sizes = np.abs(now.means[place] - before.means[place])
    if wording.words is not None:
        sizes[~np.isin(np.arange(len(sizes)), wording.words)] = 0.0
    first, second = (state.means if state.shown is None else state.shown for state in (before, now))
    numbers = largest(sizes, wording.n_traits).tolist()
    return tuple(Moved(wording.name(n), float(first[place, n]), float(second[place, n])) for n in numbers)
