"""Clusters kept below a size: those that are too large are split, and all rows are labelled again, until none is."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from streamkm.cluster.in_memory import nearest_in
from streamkm.cluster.model import Model
from streamkm.cluster.rows import NO_WEIGHTS, rows_by_label
from streamkm.cluster.sampling.row_sample import Sample
from streamkm.cluster.size_cap import SizeCap, cap_rows, most_clusters, n_parts, parts_of
from streamkm.cluster.spherical import Placing, on_sphere
from streamkm.cluster.totals import Totals
from streamkm.core.matrix import Matrix
from streamkm.core.memory import trim_heap
from streamkm.fitting.clustering import Clustering
from streamkm.fitting.context import FitContext
from streamkm.fitting.labelling.inertia_estimate import InertiaEstimate
from streamkm.fitting.labelling.one_pass import label_once
from streamkm.fitting.labelling.rounds import Labelled, assign_found
from streamkm.passes.assign import Assigned
from streamkm.passes.gather import Members, gather_pass, members_of

MOST_ROUNDS = 30
ROWS_PER_PART = 128  # of a cluster that are looked at for each of its parts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Round:
    """What a round of splitting begins with.

    Attributes
    ----------
    labelled : Labelled
    cap : float
        Rows of a cluster at most.
    most : int
        Clusters at most, which memory was planned for.
    large : int64 (l,)
        Clusters to be split.
    number : int
        Of the round, from 1.
    """

    labelled: Labelled
    cap: float
    most: int
    large: NDArray[np.int64]
    number: int


def assign_all(context: FitContext, found: Clustering, sample: Sample | None = None) -> Labelled:
    """As `rounds.assign_found`; then split clusters that are too large, until none is or what is left is equal rows.

    A cluster gives way to the means of its parts, halves of halves of a few of its rows; then all rows are labelled, so
    that each has the label of its nearest center. Neighbours may grow by that, and are split in the next round.

    Warns
    -----
    ConvergenceWarning
        Clusters of equal rows, or more of them than memory was planned for, stay larger.
    """
    wanted, chunk_rows = context.settings.max_cluster_size, found.chunk_rows
    begun = None if wanted is None else context.writer.load("capped", _Begun)
    whole: NDArray[np.int64] = np.zeros(0, np.int64)  # clusters of equal rows
    number = 0
    if begun is None:
        labelled = assign_found(context, found, sample)
        if wanted is None:
            return labelled
        totals = labelled.assigned.totals
        largest, cap = float(totals.counts.max()), cap_rows(wanted, float(totals.counts.sum()), len(totals.counts))
        labelled = replace(labelled, size_cap=SizeCap(cap, len(totals.counts), totals.d2, largest, largest))
    else:
        whole, number = begun.whole, begun.number
        labelled = _again(context, begun.labelled(found, context), chunk_rows, sample, number)
    before = labelled.size_cap
    if wanted is None or before is None:
        raise TypeError("there is no cap")
    total = max(float(chunk_rows.sum()), float(labelled.assigned.totals.counts.sum()))
    most = most_clusters(wanted, total, max(before.n_clusters_before, context.settings.n_clusters))
    while number < MOST_ROUNDS:
        counts = labelled.assigned.totals.counts
        large = np.setdiff1d(np.flatnonzero(counts > before.rows), whole)
        if not len(large) or len(counts) >= most:
            break
        number += 1
        centers, more = _split(context, _Round(labelled, before.rows, most, large, number), chunk_rows, sample)
        whole = np.union1d(whole, more)
        labelled = replace(labelled, n_rounds=labelled.n_rounds + (sample is None))
        if len(centers) > len(counts):
            labelled = replace(labelled, model=replace(labelled.model, centers=centers), index=labelled.index + 1)
            context.writer.write("capped", _Begun.of(labelled, whole, number))  # labels that are kept are of one pass
            labelled = _again(context, labelled, chunk_rows, sample, number)
            logger.info("%d clusters were split: %d more", len(large), len(centers) - len(counts))
    counts = labelled.assigned.totals.counts
    if counts.max() > before.rows:
        warnings.warn(
            f"{int((counts > before.rows).sum()):,} clusters stay larger than max_cluster_size={wanted} allows, "
            f"{before.rows:,.0f} rows: the largest has {counts.max():,.0f}; rows that are equal cannot be told apart",
            ConvergenceWarning,
            stacklevel=6,
        )
    return replace(labelled, size_cap=replace(before, largest=float(counts.max())))


def _again(
    context: FitContext, labelled: Labelled, chunk_rows: NDArray[np.int64], sample: Sample | None, number: int
) -> Labelled:
    """Label all rows by the centers that a round of splitting gave."""
    trim_heap(context.plan.limit_bytes)
    name = f"assign-{number}"
    assigned = label_once(context, labelled.model, chunk_rows, labelled.index, sample, name=name)
    entry = {"stage": "split", "iteration": number, "inertia": assigned.totals.d2}
    return replace(
        labelled,
        assigned=assigned,
        history=(*labelled.history, entry),
        n_rounds=labelled.n_rounds + 1,
    )


@dataclass(frozen=True, slots=True)
class _Begun:
    """Where the next pass begins, for a checkpoint; see `Labelled` and `assign_all`."""

    centers: NDArray[np.float64]
    whole: NDArray[np.int64]
    number: int
    index: int
    history: tuple[dict[str, Any], ...]
    promise: InertiaEstimate | None
    gain: float | None
    n_rounds: int
    size_cap: SizeCap | None

    @classmethod
    def of(cls, labelled: Labelled, whole: NDArray[np.int64], number: int) -> _Begun:
        """After a round of splitting, before all rows are labelled."""
        told = (labelled.history, labelled.promise, labelled.gain, labelled.n_rounds, labelled.size_cap)
        return cls(labelled.model.centers, whole, number, labelled.index, *told)

    def labelled(self, found: Clustering, context: FitContext) -> Labelled:
        """As it was, without labels."""
        model = replace(found.model(context.reader.metric), centers=self.centers)
        nothing = Assigned(np.empty(0, np.int32), Totals.zeros(0, 0))
        told = {"promise": self.promise, "gain": self.gain, "n_rounds": self.n_rounds, "size_cap": self.size_cap}
        return Labelled(model, nothing, index=self.index, history=self.history, **told)  # type: ignore[arg-type]


def _split(
    context: FitContext, now: _Round, chunk_rows: NDArray[np.int64], sample: Sample | None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Centers with those of large clusters replaced by their parts', and which clusters cannot be split."""
    counts, model = now.labelled.assigned.totals.counts, now.labelled.model
    large = now.large[np.argsort(-counts[now.large], kind="stable")]
    parts = np.array([n_parts(size, now.cap) for size in counts[large]])
    room = now.most - len(counts)
    # the largest first, as many as there is room for
    by_rows = np.searchsorted(np.cumsum(ROWS_PER_PART * parts), context.plan.sample_rows // 2, side="right")
    by_room = np.searchsorted(np.cumsum(parts - 1), room, side="right")
    n_now = max(1, int(min(by_rows, by_room)))
    large, parts = large[:n_now], np.minimum(parts[:n_now], room + 1)
    row_weight = float(counts.sum()) / int(chunk_rows.sum())
    shares = np.zeros(len(counts))
    shares[large] = np.minimum(1.0, ROWS_PER_PART * parts * row_weight / counts[large])
    seed = context.settings.seed64("size cap") ^ now.number
    with context.progress.stage(f"split-{now.number}", None if sample is not None else len(chunk_rows)) as stage:
        if sample is not None:
            X = model.place(sample.X)
            labels = nearest_in(context.here, X, model.table(), stage.name)
            members = members_of(X, sample.rows, labels, NO_WEIGHTS, shares, seed)
        else:
            members = gather_pass(context, model, chunk_rows, stage, shares=shares, seed=seed)
        return _replaced(context, model, members, large, parts)


def _replaced(
    context: FitContext, model: Model, members: Members, large: NDArray[np.int64], parts: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Centers of the parts in place of the clusters' own: the first there, the others behind all."""
    X, labels, weights = members
    order, starts = rows_by_label(labels, len(model.centers))
    tasks = []
    for cluster, wanted in zip(large.tolist(), parts.tolist(), strict=True):
        rows = order[starts[cluster] : starts[cluster + 1]]
        tasks.append((rows, wanted))
    placed = on_sphere if context.settings.spherical else _as_they_are
    found = context.here.each("split", _parts, tasks, X, weights, placed)
    centers, added, whole = model.centers.copy(), [], []
    for cluster, points in zip(large.tolist(), found, strict=True):
        if len(points) < 2:
            whole.append(cluster)
            continue
        centers[cluster] = points[0]
        added.append(points[1:])
    return np.concatenate([centers, *added]), np.array(whole, np.int64)


def _parts(
    task: tuple[NDArray[np.int64], int], X: Matrix, weights: NDArray[np.float64], placed: Placing
) -> NDArray[np.float64]:
    rows, wanted = task
    if len(rows) < 2:
        return np.empty((len(rows), X.shape[1]))
    return parts_of(X[rows], weights[rows] if len(weights) else weights, wanted, placed)


def _as_they_are(centers: NDArray[np.float64]) -> NDArray[np.float64]:
    return centers
