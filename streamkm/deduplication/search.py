"""Near-duplicates in data that need not fit in memory: rows are clustered, then compared within clusters."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamkm.core.display import Lines
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.memory import memory_limit_bytes, trim_heap, with_process_memory
from streamkm.core.progress import Progress, Stage
from streamkm.deduplication.buckets import Buckets, Members
from streamkm.deduplication.compare import Compared, Comparison, compare_bucket
from streamkm.deduplication.shares import BorderRows, GatherPlan, invited, plan_run
from streamkm.engine import Executor, local_executor, open_executor, under_limit
from streamkm.engine.checkpoint import CheckpointWriter
from streamkm.engine.passes import outputs
from streamkm.estimators.input_rows import checkpoint_writer, limit_of_run
from streamkm.estimators.kmeans import StreamKMeans
from streamkm.estimators.labelling import FewClustersWarning
from streamkm.estimators.validation import check_parameters, check_value, number, one_of
from streamkm.passes.pass_context import PassContext
from streamkm.passes.reader import RowReader
from streamkm.planning.memory_budget import accepted
from streamkm.sources import open_source
from streamkm.sources.row_source import RowSource

MOST_CLUSTERS = 65_536  # that are chosen
LLOYD_STEPS = 10  # more would not bring near-duplicates together
PROBES = 512  # rows that are compared with all others, to tell what clusters keep apart

Keep = Literal["nearest", "farthest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduplicated(Lines):
    """Rows to keep, and numbers of the search."""

    rows: NDArray[np.int64]  # (r,): numbers of the rows that are kept, ascending, counted from 0
    n_rows: int  # of the data
    n_skipped: int  # of them with NaN or infinity, which are not kept
    n_clusters: int  # within which rows were compared
    largest_cluster: int  # rows of the largest
    # pairs of rows: each with those of its cluster that were kept before it, and guests with those that were kept
    n_compared: int
    # share of the pairs at the threshold or above that have both rows in one cluster or one as its guest
    recall: float | None
    recall_pairs: int  # by how many pairs of a few rows with all others; None where there are no such pairs
    stages: tuple[Stage, ...] = ()  # seconds, rows and bytes read of each stage

    @property
    def n_removed(self) -> int:
        """Rows that are near-duplicates of a kept one."""
        return self.n_rows - self.n_skipped - len(self.rows)

    def lines(self) -> list[tuple[str, str]]:
        """Label and text, for people."""
        skipped = f" ({self.n_skipped:,} skipped)" if self.n_skipped else ""
        recall = "no near-duplicates among the pairs that were looked at"
        if self.recall is not None:
            recall = f"about {self.recall:.1%} of near pairs are compared, by {self.recall_pairs:,} of them"
        return [
            ("rows", f"{self.n_rows:,}{skipped}"),
            ("kept", f"{len(self.rows):,}"),
            ("removed", f"{self.n_removed:,}"),
            ("clusters", f"{self.n_clusters:,}, {self.largest_cluster:,} rows in the largest"),
            ("compared", f"{self.n_compared:,} pairs"),
            ("recall", recall),
            ("time", f"{sum(stage.seconds for stage in self.stages):.2f} s"),
        ]


def dedupe(
    X: Any,
    threshold: float = 0.95,
    *,
    n_clusters: int | str = "auto",
    keep: Keep = "nearest",
    memory_limit: int | float | str | Mapping[str, Any] = "auto",
    chunk_bytes: int | str = "auto",
    executor: Any = "auto",
    invalid: Literal["raise", "skip"] = "raise",
    checkpoint: Any = None,
    progress: bool | str = "auto",
    random_state: Any = None,
) -> Deduplicated:
    """Find near-duplicates among rows, and the rows to keep without them.

    Spherical k-means clusters the rows. Within a cluster, rows are visited by their distance to the center, equally
    distant ones by their number, and kept unless their cosine to a kept row is at least the threshold. Rows near the
    border to another cluster are also compared with the rows kept there. Of such a pair, the row with the lower number
    stays, unless only the other one is needed. So each removed row is that near to a kept one. Other pairs of rows in
    different clusters are not compared; their number is estimated.

    Parameters
    ----------
    X : path, array, ... of n rows
        As for `StreamKMeans.fit`; rows that can be read only once are refused, and sketch stores.
    threshold : float, default=0.95
        Cosine from which rows are near-duplicates, above 0 and at most 1. Rows of zeros have none.
    n_clusters : int or "auto", default="auto"
        k. More clusters take less comparing; the rows of the largest must fit in memory eight times. "auto": a quarter
        of the square root of the number of rows, at most 65,536.
    keep : {"nearest", "farthest"}, default="nearest"
        Which row of near-duplicates stays: that nearest to the center, or farthest from it.
    memory_limit, chunk_bytes, executor, invalid, progress, random_state
        As of `StreamKMeans`. Rows are compared by threads of this process, whatever the executor.
    checkpoint : path, optional
        Empty or new directory of the state, from which the same call continues after a kill; removed at the end.

    Returns
    -------
    Deduplicated
        Depends on rows, parameters, the limit and an integer `random_state` alone, not on executor or interruptions.

    Raises
    ------
    InvalidInputError, SourceError, InvalidParameterError
        For data that cannot be read or are invalid, with their place, and parameters out of range.
    MemoryLimitError
        If the centers, or the rows of the largest cluster, do not fit in memory.

    Notes
    -----
    The passes of a fit, and one that gathers the rows of clusters: in memory if they fit in half of the limit, else in
    a temporary directory, which takes the bytes of the rows in float32, or up to twice as many. O(n * k * d) for the
    clusters and O(n * s * d) for pairs in clusters of s rows that are kept.

    References
    ----------
    Abbas, Tirumala, Simig, Ganguli and Morcos, "SemDeDup: data-efficient learning at web-scale through semantic
    deduplication", arXiv:2303.09540 (2023), section 3: clusters, and cosines within them.

    Examples
    --------
    >>> import numpy as np
    >>> from streamkm import dedupe
    >>> X = np.array([[1.0, 0.0], [0.0, 1.0], [0.999, 0.001], [0.0, 2.0]])
    >>> dedupe(X, 0.99, n_clusters=2, random_state=0).n_removed
    2
    """
    check_value("threshold", threshold, number(lambda value: 0 < value <= 1, "a cosine above 0 and at most 1, as 0.95"))
    check_value("keep", keep, one_of(("nearest", "farthest")))
    check_value("invalid", invalid, one_of(("raise", "skip")))
    source = open_source(X)
    if not source.access.replayable or source.origin.is_sketched:
        what = "holds sketched rows" if source.origin.is_sketched else "can be read only once"
        raise InvalidInputError(f"{source.name} {what}; near-duplicates are looked for in original rows, read again")
    estimator = StreamKMeans(
        default_clusters(source) if n_clusters == "auto" else n_clusters,  # type: ignore[arg-type]
        metric="spherical",
        init="random",
        n_init=1,
        max_iter=LLOYD_STEPS,
        refine=0,
        memory_limit=memory_limit,
        chunk_bytes=chunk_bytes,
        executor=executor,
        invalid=invalid,
        progress=progress,
        random_state=random_state,
    )
    check_parameters(estimator)
    plan = accepted(partial(plan_run, estimator, source), limit_of_run(estimator, checkpoint))
    # the stages to come are planned for what the process held before the first
    estimator.set_params(memory_limit=with_process_memory(memory_limit, plan.process_memory))
    more = {"threshold": float(threshold), "keep": keep}
    with checkpoint_writer(estimator, source, checkpoint, plan, more=more) as writer:
        return _Run(source, estimator, float(threshold), keep == "farthest", writer, Progress(progress)).run()


def default_clusters(source: RowSource) -> int:
    """A quarter of the root of n: comparing then costs about as much as clustering; InvalidInputError for unknown n."""
    n_rows = source.estimated_rows
    if n_rows is None:
        raise InvalidInputError(f"{source.name} does not say how many rows it has; pass n_clusters=")
    return max(1, min(MOST_CLUSTERS, round(n_rows**0.5 / 4)))


@dataclass(frozen=True, slots=True)
class _Clustered:
    """Labels and centers of the clustering."""

    labels: NDArray[np.int32]  # (n,)
    centers: NDArray[np.float64]  # (k, d)
    seed: int


@dataclass
class _Run:
    """One search for near-duplicates, in three stages: cluster, gather, compare."""

    source: RowSource
    estimator: StreamKMeans
    threshold: float
    farthest: bool
    writer: CheckpointWriter
    progress: Progress

    def run(self) -> Deduplicated:
        """Run the stages that an earlier run has not finished."""
        clustered = self._clustered()
        labels, n_clusters = clustered.labels, len(clustered.centers)
        sizes = np.bincount(labels[labels >= 0], minlength=n_clusters)
        none = np.zeros(len(labels), np.bool_)
        told = self.writer.load("compared", Compared) or Compared(none, none.copy(), np.zeros(n_clusters, np.bool_))
        plan = GatherPlan.of(self.source, self.estimator, sizes)
        plan.bucket_of[told.done] = -1
        todo = np.unique(plan.bucket_of[~told.done & (sizes > 0)]).tolist()
        with (
            under_limit(self.estimator.memory_limit),
            open_executor(self.estimator.executor, plan.n_threads) as workers,
            local_executor(workers) as here,
            closing(Buckets(plan.n_buckets, clustered.centers.shape[1], plan.room_bytes, plan.piece_bytes)) as buckets,
        ):
            trim_heap(memory_limit_bytes(self.estimator.memory_limit))
            if not told.done.all():
                probes = self._gathered(workers, clustered, plan, buckets)
                comparison = Comparison(clustered.centers, self.threshold, self.farthest, probes, plan.bucket_of, told)
                with self.progress.stage("compare", len(todo), "buckets") as stage:
                    tasks = here.map(stage.name, compare_bucket, todo, buckets, comparison)
                    for bucket, (pairs, counts) in zip(todo, tasks, strict=True):
                        told.pairs.append(pairs)
                        told.counts += counts
                        told.done[plan.bucket_of == bucket] = True
                        buckets.drop(bucket)
                        stage.advance()
                        self.writer.save_if_due("compared", told.joined)
        self.writer.save("compared", told.joined())
        told.finish()
        kept = (labels >= 0) & ~told.removed
        n_compared, n_near, n_together = told.counts.tolist()
        return Deduplicated(
            rows=np.flatnonzero(kept).astype(np.int64),
            n_rows=len(labels),
            n_skipped=int(np.count_nonzero(labels < 0)),
            n_clusters=n_clusters,
            largest_cluster=int(sizes.max(initial=0)),
            n_compared=n_compared,
            recall=n_together / n_near if n_near else None,
            recall_pairs=n_near,
            stages=(*getattr(self.estimator, "stages_", []), *self.progress.stages),
        )

    def _clustered(self) -> _Clustered:
        """Clusters of all rows, found now or in an earlier run."""
        begun = self.writer.load("clustered", _Clustered)
        if begun is not None:
            return begun
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewClustersWarning)  # of a number that is ours, as a rule
            fitted = self.estimator.fit(self.source, checkpoint=self.writer.checkpoint)
        found = _Clustered(fitted.labels_, fitted.model_.wide_centers(), fitted.seed_)
        self.writer.save("clustered", found)
        return found

    def _gathered(self, workers: Executor, clustered: _Clustered, plan: GatherPlan, buckets: Buckets) -> Members:
        """Read all rows once, add them to the buckets of their clusters, and return the probes."""
        labels, centers, first, probes = clustered.labels, clustered.centers, 0, []
        valid, rng = np.flatnonzero(labels >= 0), np.random.default_rng([clustered.seed, len(labels)])
        probed = np.sort(rng.choice(valid, min(PROBES, len(valid)), replace=False))
        reader = RowReader(self.source, plan.chunk_bytes, "cosine", self.estimator.invalid)
        context, room = PassContext(executor=workers, reader=reader), plan.most_guests.copy()
        with self.progress.stage("gather") as stage:
            border = BorderRows.of(centers, self.threshold)
            for X, numbers, n_read, nearest, second in outputs(border, context.rows(), workers, stage, large=True):
                rows = first + numbers
                first += n_read
                if first > len(labels):
                    break
                own = labels[rows]
                members = Members(X, rows, own, invited(own, nearest, second, room))
                probes.append(members[np.flatnonzero(np.isin(rows, probed, assume_unique=True))])
                places = plan.bucket_of[own]
                guests = np.flatnonzero(members.others >= 0)
                elsewhere = plan.bucket_of[members.others[guests]]
                guests, elsewhere = (each[elsewhere != places[guests]] for each in (guests, elsewhere))
                places, which = np.append(places, elsewhere), np.append(np.arange(len(own)), guests)
                order = np.argsort(places, kind="stable")
                starts = np.searchsorted(places[order], np.arange(buckets.n_buckets + 1))
                for bucket in np.flatnonzero(np.diff(starts)).tolist():
                    buckets.add(bucket, members[which[order[starts[bucket] : starts[bucket + 1]]]])
            if first != len(labels):
                raise InvalidInputError(
                    f"{self.source.name} gave other rows than when they were clustered; it must not change"
                )
            stage.rows, stage.read_bytes = first, self.source.n_bytes or 0
        return Members.joined(probes, centers.shape[1])
