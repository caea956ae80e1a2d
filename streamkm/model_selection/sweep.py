"""Scores of many numbers of clusters, from one pass that samples rows, in the original features for any sketch."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, astuple, dataclass, fields, replace
from typing import Any, get_args

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from streamkm.cluster.in_memory import LocalBlocks, cut, label_sums
from streamkm.cluster.lloyd import lloyd
from streamkm.cluster.model import Metric
from streamkm.cluster.profile import euclidean_distances
from streamkm.cluster.rows import NO_WEIGHTS, Block
from streamkm.cluster.sampling.row_sample import Sample, SampleRule
from streamkm.cluster.seeding.init import Starts, Streams, start_centers
from streamkm.cluster.seeding.search_set import centered, search_rows
from streamkm.core.atomic_io import replace_file
from streamkm.core.display import Lines
from streamkm.core.exceptions import InvalidParameterError
from streamkm.core.matrix import with_nan
from streamkm.core.memory import trim_heap
from streamkm.core.progress import Progress
from streamkm.engine import Executor, local_executor, local_threads, open_executor, under_limit
from streamkm.estimators.validation import check_value, drawn_seed, integer, one_of
from streamkm.fitting.context import check_clusters
from streamkm.metrics.cluster_details import mean_silhouette
from streamkm.metrics.cluster_summary import plain
from streamkm.passes.gathered import Gathered
from streamkm.passes.pass_context import PassContext
from streamkm.passes.prepare import find_preparation, planned_rows
from streamkm.passes.reader import Invalid, RowReader
from streamkm.passes.sketch import sketch_pass
from streamkm.planning.fit_plan import plan_sweep
from streamkm.planning.memory_budget import planned_line_limit
from streamkm.planning.memory_model import pca_rows
from streamkm.planning.request import Resources
from streamkm.planning.sketch_choice import choose_sketch
from streamkm.preparation import Preparation, check_preprocess
from streamkm.reports.report import check_matplotlib
from streamkm.sketches import DATA_DEPENDENT, find_sketch, make_sketch
from streamkm.sketches.base_sketch import Sketch
from streamkm.sketches.options import SketchOptions
from streamkm.sources import open_source
from streamkm.sources.prepared import PreparedRows

STARTS = Starts(2, 2)  # of each clustering; the search that follows corrects most of what two miss
MAX_ITER, TOL = 100, 1e-4
JUDGED_ROWS = 2000  # that silhouettes are taken of, within themselves
SAME_AGREEMENT = 0.05  # less than the best by which agreement still supports a number of clusters


@dataclass(frozen=True, slots=True)
class SweepRow:
    """Scores of one number of clusters."""

    n_clusters: int
    inertia: float  # sum of squared distances of the sampled rows to the means of their clusters
    silhouette: float  # mean of up to 2,000 sampled rows, and its standard error; NaN for one cluster
    silhouette_error: float
    # adjusted Rand index of two labellings of the sampled rows, each by the centers of one half of them; NaN for one
    # cluster, and for more clusters than a half has rows
    agreement: float
    seconds: float


@dataclass(frozen=True, slots=True)
class SweepResult(Lines):
    """Scores of many numbers of clusters."""

    rows: tuple[SweepRow, ...]  # by number of clusters, ascending
    n_samples: int  # valid rows of the data
    n_sampled: int  # rows that were clustered and scored

    @property
    def best(self) -> int:
        """The suggested k: the highest silhouette, the fewest clusters of equals; else the lowest inertia."""
        return max(self.rows, key=lambda row: (np.nan_to_num(row.silhouette, nan=-2.0), -row.inertia)).n_clusters

    @property
    def most_agreed(self) -> int | None:
        """`best` if halves agree on it within `SAME_AGREEMENT`, else where they agree most; None without agreements."""
        agreed = {row.n_clusters: row.agreement for row in self.rows if np.isfinite(row.agreement)}
        highest = max(agreed.values(), default=0.0)
        if agreed.get(self.best, -1.0) >= highest - SAME_AGREEMENT:
            return self.best
        return max((k for k in agreed if agreed[k] == highest), default=None)

    @property
    def advice(self) -> str:
        """One sentence: first a disagreement of silhouette and halves, then the suggestion."""
        k, agreed, at = self.best, self.most_agreed, {row.n_clusters: row for row in self.rows}
        row = at[k]
        if not np.isfinite(row.silhouette):
            return f"No number has a silhouette, so k = {k:,} is suggested for its low inertia alone."
        end = ", at the end of the range, so try more" if len(at) > 1 and k == max(at) else ""
        highest = f"the highest silhouette ({row.silhouette:.3f} +- {row.silhouette_error:.3f})"
        if agreed not in (k, None):
            return (
                f"Silhouette (k = {k:,}) and agreement of halves (k = {agreed:,}, {at[agreed].agreement:.2f}) "
                f"disagree, so look at both; k = {k:,} has {highest} and an agreement of {row.agreement:.2f}{end}."
            )
        halves = "" if agreed is None else f" and an agreement of halves of {row.agreement:.2f}"
        return f"k = {k:,} is suggested: it has {highest}{halves}{end}."

    def lines(self) -> list[tuple[str, str]]:
        """Label and text, for people: the advice, then the table."""
        line = "{1:<11.5g} {2:6.3f} +- {3:5.3f}    {4:6.3f}     {5:.2f}"
        table = [(f"{row.n_clusters:,}", line.format(*astuple(row))) for row in self.rows]
        head = ("clusters", "inertia     silhouette         agreement  seconds")
        return [("advice", self.advice), ("rows", f"{self.n_sampled:,} of {self.n_samples:,}"), head, *table]

    def to_dict(self) -> dict[str, Any]:
        """JSON values; null for NaN."""
        told = {name: getattr(self, name) for name in ("advice", "best", "most_agreed", "n_samples", "n_sampled")}
        return {**told, "rows": plain([asdict(row) for row in self.rows])}

    def csv_text(self) -> str:
        """The rows as CSV with a header; nothing for NaN."""
        lines = [[field.name for field in fields(SweepRow)], *plain([astuple(row) for row in self.rows])]
        return "".join(",".join("" if each is None else str(each) for each in line) + "\n" for line in lines)

    def to_csv(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write `csv_text` to a file; without `overwrite` one that is there is refused. Raises OutputError."""
        text = self.csv_text().encode()
        replace_file(path, lambda file: file.write(text), len(text), overwrite=overwrite)

    def plot(self) -> Any:
        """Draw inertia, silhouette and agreement by the number of clusters, the suggested one marked."""
        check_matplotlib()
        from streamkm.reports.figures import plot_scores

        return plot_scores(self.rows, self.best, self.n_sampled)


def sweep(
    X: Any,
    n_clusters: int | Iterable[int] = range(2, 51),
    *,
    metric: Metric = "euclidean",
    preprocess: Sequence[str] | Mapping[str, Any] | None = None,
    sample_rows: int | str = "auto",
    memory_limit: int | float | str | Mapping[str, Any] = "auto",
    executor: Any = "auto",
    invalid: Invalid = "raise",
    progress: bool | str = "auto",
    random_state: Any = None,
) -> SweepResult:
    """Cluster sampled rows into many numbers of clusters and score each number.

    One pass samples rows, after those that `preprocess` and filling need. For each number of clusters, k-means clusters
    the sampled rows, and each half of them for the agreement of halves.

    Parameters
    ----------
    X : whatever `streamkm.open_source` accepts
        May be an iterator that can be read only once.
    n_clusters : int or iterable of int, default=range(2, 51)
        Every k, in any order.
    metric, preprocess, memory_limit, executor, invalid, progress, random_state
        As of `StreamKMeans`. Scores are those of the prepared rows.
    sample_rows : int or "auto", default="auto"
        Largest number of rows to cluster and score. "auto": 200 times the largest k, from 10,000 to 50,000.

    Returns
    -------
    SweepResult

    Raises
    ------
    InvalidInputError, SourceError, InvalidParameterError
        For data that cannot be read or are invalid, with their place, and parameters out of range.
    MemoryLimitError
        If the work does not fit in memory, before rows are read.

    References
    ----------
    The agreement of halves is the stability of von Luxburg, "Clustering stability: an overview", Foundations and Trends
    in Machine Learning 2 (2010), section 2, with the adjusted Rand index in place of a distance.

    Examples
    --------
    >>> import numpy as np
    >>> from streamkm import sweep
    >>> X = np.repeat([[0.0], [1.0], [9.0], [10.0]], 25, axis=0)
    >>> result = sweep(X, range(1, 5), random_state=0, progress=False)
    >>> result.best, round(result.rows[-1].inertia, 6)
    (4, 0.0)
    """
    numbers = list(n_clusters) if isinstance(n_clusters, Iterable) else [n_clusters]
    for k in numbers:
        check_value("n_clusters", k, integer(1))
    if not numbers:
        raise InvalidParameterError("n_clusters is empty; needed: at least one integer from 1")
    wanted = sorted({int(k) for k in numbers})
    most = wanted[-1]
    check_value("sample_rows", sample_rows, integer(most, or_auto=True), f" for up to {most:,} clusters")
    n_rows = search_rows(most) if sample_rows == "auto" else int(sample_rows)
    check_value("metric", metric, one_of(get_args(Metric)))
    check_value("invalid", invalid, one_of(get_args(Invalid)))
    check_preprocess(preprocess)
    stages = Progress(progress)
    given = open_source(X if invalid == "raise" else with_nan(X))
    preparation = Preparation.of(preprocess, given.feature_names, given.n_features, given.name)
    preparation = preparation.after_fill() if invalid == "mean" else preparation
    source = planned_rows(given, preparation)
    if source.n_rows is not None:
        check_clusters(most, source.n_rows)
    sketch, sizes = choose_sketch(source, SketchOptions(), most), (n_rows, min(n_rows, JUDGED_ROWS), most)
    resources = Resources(memory_limit=memory_limit, chunk_bytes="auto", n_threads=local_threads(executor))
    plan = plan_sweep(source, resources, sketch, *sizes)
    refused = "raise" if invalid == "mean" else invalid
    reader = RowReader(planned_line_limit(given, memory_limit, plan), plan.chunk_bytes, metric, refused)
    seed = drawn_seed(random_state)
    sampling, sketching = np.random.SeedSequence(seed).generate_state(2, np.uint64).tolist()
    with under_limit(memory_limit), ExitStack() as stack:
        workers = stack.enter_context(open_executor(executor, plan.n_threads))
        here = stack.enter_context(local_executor(workers))
        context = PassContext(executor=workers, reader=reader)
        if preparation.steps:
            preparation = find_preparation(context, preparation, n_rows, stages)
            context = replace(context, reader=replace(reader, source=PreparedRows(given, preparation)))
        rule = SampleRule.of(n_rows, sampling, source.estimated_rows, NO_WEIGHTS)
        with stages.stage("sample") as stage:
            read = sketch_pass(context, Gathered(rule), stage)
        trim_heap(plan.limit_bytes)
        check_clusters(most, read.n_valid)
        with stages.stage("sketch"):
            sampled, m = read.sample.X, sketch.n_components
            if sketch.sketch in DATA_DEPENDENT:
                made = find_sketch(sketch.sketch, m, sketching, sampled[: pca_rows(sampled.shape[1], m)], most)
            else:
                made = make_sketch(sketch.sketch, m, sketching, sampled.shape[1])
            scoring = _Scoring.of(here, read.sample, made)
        with stages.stage("sweep", len(wanted), "clusterings") as stage:
            rows = []
            for k in wanted:
                rows.append(scoring.row(k, np.random.SeedSequence([seed, k])))
                stage.advance()
    return SweepResult(tuple(rows), read.n_valid, scoring.block.n_rows)


@dataclass(frozen=True, slots=True)
class _Scoring:
    """Sampled rows, and the distances that score clusterings of them."""

    here: Executor
    block: Block  # sketched, to be clustered
    originals: Block  # around their mean if they are dense
    distances: NDArray[np.float64]  # (s, s) between the first of them

    @classmethod
    def of(cls, here: Executor, sample: Sample, sketch: Sketch) -> _Scoring:
        """The scoring of a sample, clustered in a sketch."""
        originals, _ = centered(here, sample.original_block())
        block = originals if sketch.is_identity else centered(here, sample.block(here, sketch))[0]
        return cls(here, block, originals, euclidean_distances(originals.X[:JUDGED_ROWS]))

    def row(self, n_clusters: int, seed: np.random.SeedSequence) -> SweepRow:
        """Scores of the sampled rows in `n_clusters` clusters."""
        started = time.perf_counter()
        *halves, whole = seed.spawn(3)
        labels = self._labels(self.block, n_clusters, whole)
        agreement = float("nan")
        if 2 <= n_clusters <= self.block.n_rows // 2:
            pairs = zip(cut(self.block, 2), halves, strict=True)
            agreement = float(adjusted_rand_score(*(self._labels(half, n_clusters, seed) for half, seed in pairs)))
        scores = self._inertia(labels), *mean_silhouette(self.distances, labels[: len(self.distances)]), agreement
        return SweepRow(n_clusters, *scores, time.perf_counter() - started)

    def _labels(self, block: Block, n_clusters: int, seed: np.random.SeedSequence) -> NDArray[np.int32]:
        """Labels of all sampled rows by k-means of a block of them."""
        streams = Streams(*map(np.random.default_rng, seed.spawn(2)))
        start = start_centers(self.here, block, n_clusters, init="k-means++", n_init=STARTS, streams=streams)
        found = lloyd(LocalBlocks.of(self.here, block), start, accelerated=True, max_iter=MAX_ITER, tol=TOL)
        return LocalBlocks.of(self.here, self.block).labels(found.centers)

    def _inertia(self, labels: NDArray[np.int32]) -> float:
        """Sum of squared distances to the means, as squared norms of rows less those of the means."""
        X, counts = self.originals.X, np.bincount(labels)
        if isinstance(X, np.ndarray):
            explained = label_sums(self.here, X, NO_WEIGHTS, labels, len(counts)).explained()
        else:  # the sums have no more entries than the rows; dense ones might have many times more
            members = sp.csr_array((np.ones(len(labels)), (labels, np.arange(len(labels)))))
            explained = float(((members @ X).power(2).sum(axis=1) / np.maximum(counts, 1)).sum())
        return max(0.0, self.originals.total_d2norm() - explained)
