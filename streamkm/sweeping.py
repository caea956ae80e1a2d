"""Many numbers of clusters from one look at the data.

One pass samples rows. Those are sketched, and clustered into the fewest clusters wanted; every next clustering is grown
from the one before. Each is scored among the original features. Takes parameters and sources, returns a frozen
`SweepResult`. May import fitting, swept and below.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from numbers import Integral
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from streamkm.budget import SAMPLE_BYTES, SAMPLE_ROWS_PER_CLUSTER, SMALLEST_SAMPLE_ROWS, chunk_size, decoded_row_bytes
from streamkm.centering import check_clusters
from streamkm.choosing import choose_sketch
from streamkm.cluster.blocks import NO_WEIGHTS, Block
from streamkm.cluster.growing import Growing, around_mean
from streamkm.cluster.lloyd import merged
from streamkm.cluster.sample import Sample, SampleRule, as_block_matrix
from streamkm.cluster.seeding import kmeans_plusplus
from streamkm.cluster.starting import SMALLEST_SEED_ROWS, Streams, prefix, search_rows, start_centers
from streamkm.compute import Executor, local_executor, open_executor
from streamkm.errors import InvalidParameterError
from streamkm.keeping import Gathered
from streamkm.limits import available_memory
from streamkm.making import FOUND, OBLIVIOUS, find_sketch, make_sketch
from streamkm.metrics import adjusted_rand
from streamkm.model import Metric, Space
from streamkm.progress import Progress, Stage
from streamkm.projection import pca_rows
from streamkm.rescoring import Distances, Rescoring, Scores
from streamkm.sketches import PCASketch, Sketch
from streamkm.sketching import sketch_pass
from streamkm.sources import open_source
from streamkm.sources.base import RowSource
from streamkm.swept import SweepResult, SweepRow
from streamkm.walk import OnInvalid, Walk

logger = logging.getLogger(__name__)

FEW_CLUSTERS, START_TRIES = 10, 4  # up to so many clusters, so many starts from nothing are tried as well
SEARCH_ALWAYS = 20  # up to so many clusters, swaps are looked for at every k; it is cheap there, and each center counts
SEARCH_AGAIN = 1.25  # beyond, whenever there are so many times more clusters than the last time
SEARCH_ROUNDS = 6
JUDGED_PER_CLUSTER, FEWEST_JUDGED, MOST_JUDGED = 20, 2000, 5000  # rows that silhouettes are taken of


def sweep(
    X: Any,
    n_clusters: int | Iterable[int] = range(2, 201),
    *,
    seeds: int = 2,
    sketch: str = "auto",
    n_components: int | str = "auto",
    metric: Metric = "euclidean",
    sample_rows: int | str = "auto",
    chunk_bytes: int | str = "auto",
    executor: Any = "auto",
    on_invalid: OnInvalid = "raise",
    progress: bool | str = "auto",
    random_state: Any = None,
) -> SweepResult:
    """Cluster rows into many numbers of clusters and score each.

    The data are read once, for a sample of rows. Each clustering starts from the one before: the clusters that gain
    most are split, lazy steps of Lloyd's algorithm follow, and now and then swaps are looked for. Up to ten clusters,
    the best of a few fresh starts replaces it where that is better.

    Parameters
    ----------
    X : whatever `streamkm.open_source` accepts
        May be an iterator that can be walked once only.
    n_clusters : int or iterable of int, default=range(2, 201)
        Every k, in any order.
    seeds : int, default=2
        Runs, each from a start of its own; stability needs two.
    sketch, n_components, metric, chunk_bytes, executor, on_invalid, progress, random_state
        As of `StreamKMeans`.
    sample_rows : int or "auto", default="auto"
        Rows that are clustered and scored, at most. "auto": 200 for each of the most clusters, from 10,000 to 50,000.

    Returns
    -------
    SweepResult
        Holds a sample of original rows, for `SweepResult.centers`: as large as a fit of the most clusters takes.

    Raises
    ------
    InvalidInputError, SourceError
        For data that cannot be read or are wrong; names the place.
    InvalidParameterError
        For a parameter out of range.

    Notes
    -----
    For s clustered rows a step from k to k + 1 costs some O(nnz) for the rows and clusters that change, plus O(k m);
    memory is that of the sample, K * d means for the largest k, K, and s labels for each k.

    Stability is the agreement of runs from several starts on the same rows, with the adjusted Rand index in place of a
    distance between clusterings: von Luxburg, "Clustering stability: an overview", Foundations and Trends in Machine
    Learning 2 (2010), section 2.

    Examples
    --------
    >>> import numpy as np
    >>> from streamkm import sweep
    >>> X = np.repeat([[0.0], [1.0], [9.0], [10.0]], 25, axis=0)
    >>> result = sweep(X, range(1, 5), random_state=0, progress=False)
    >>> result.best, round(result.rows[-1].inertia, 6)
    (2, 0.0)
    """
    wanted = _wanted(n_clusters)
    for name, value, choices in (
        ("sketch", sketch, ("auto", *OBLIVIOUS, *FOUND)),
        ("metric", metric, get_args(Metric)),
        ("on_invalid", on_invalid, get_args(OnInvalid)),
    ):
        if value not in choices:
            raise InvalidParameterError(f"{name}={value!r}; needed: one of {', '.join(map(repr, choices))}")
    source = open_source(X)
    if source.n_rows is not None:
        check_clusters(wanted[-1], source.n_rows)
    kind, m, _ = choose_sketch(source, sketch, _checked("n_components", n_components), wanted[-1])
    n_clustered, n_kept = _sample_sizes(source, wanted[-1], _checked("sample_rows", sample_rows))
    if isinstance(seeds, bool) or not isinstance(seeds, Integral) or seeds < 1:
        raise InvalidParameterError(f"seeds={seeds!r}; needed: an integer from 1")
    words = check_random_state(random_state).randint(0, 2**32, 4, dtype=np.uint32)
    sketch_seed, sample_seed, runs = np.random.SeedSequence([int(word) for word in words]).spawn(3)
    walk = Walk(source, _chunk_bytes(source, _checked("chunk_bytes", chunk_bytes)), metric, on_invalid)
    rule = SampleRule.of(n_kept, _word(sample_seed), source.estimated_rows, NO_WEIGHTS)
    stages = Progress(progress)
    with open_executor(executor) as workers, local_executor(workers) as here:
        with stages.stage("sample") as stage:
            read = sketch_pass(workers, walk, None, Gathered(rule), NO_WEIGHTS, None, stage)
        check_clusters(wanted[-1], read.n_valid)
        with stages.stage("sketch"):
            made = _made_sketch(kind, m, read.sample, _word(sketch_seed), wanted[-1])
            block = around_mean(read.sample.block(here, made, n_clustered))
            space = _space(read.n_features, wanted[-1])
            rows = (
                as_block_matrix(read.sample.X[:n_clustered], sketched=False) if space == "original" else merged(block.X)
            )
            n_judged = min(len(block.d2norms), MOST_JUDGED, max(FEWEST_JUDGED, JUDGED_PER_CLUSTER * wanted[-1]))
            distances = Distances(rows, n_judged)
        with stages.stage("sweep", len(wanted) * seeds, "clusterings") as stage:
            found = [
                _grown(here, block, wanted, Rescoring(here, rows, distances, wanted[-1]), seed, stage)
                for seed in runs.spawn(seeds)
            ]
    table = tuple(_rows(found, wanted, block.n_rows))
    labels = {
        k: min((run[at] for run in found), key=lambda step: step.scores.inertia).labels for at, k in enumerate(wanted)
    }
    return SweepResult(
        table, space, read.n_valid, block.n_rows, n_judged, read.sample.rows[: block.n_rows], made, labels, read.sample
    )


def clusters_of(text: str) -> list[int]:
    """Numbers of clusters that a text names: ``50``, ``2,5,10``, ``2:200`` (200 among them) or ``10:200:10``.

    Raises
    ------
    InvalidParameterError
        For anything else, or no number.
    """
    found: list[int] = []
    for part in text.split(","):
        bounds = [bound.strip() for bound in part.split(":")]
        if len(bounds) > 3 or not all(bound.isdecimal() for bound in bounds) or bounds[2:] == ["0"]:
            raise InvalidParameterError(f"clusters {part.strip()!r}; needed: a number as 50, or a range as 2:200:1")
        first, last, step = (*map(int, bounds), *(int(bounds[0]), 1)[len(bounds) - 1 :])
        found.extend(range(first, last + 1, step))
    return _wanted(found)


MEANS_COPIES = 24  # of the means of the most clusters, that must fit in what memory is left


@dataclass(frozen=True, slots=True)
class _Step:
    """One clustering of one run."""

    labels: NDArray[Any]
    scores: Scores
    seconds: float


def _grown(
    here: Executor,
    block: Block,
    wanted: Sequence[int],
    rescoring: Rescoring,
    seed: np.random.SeedSequence,
    stage: Stage,
) -> list[_Step]:
    """One run: a clustering for every k, each grown from the one before."""
    streams = [np.random.default_rng(stream) for stream in seed.spawn(3)]
    small = np.min_scalar_type(wanted[-1])
    steps: list[_Step] = []
    searched = wanted[0]
    growing: Growing | None = None
    for k in wanted:
        started = time.perf_counter()
        if growing is None:
            start = start_centers(here, block, k, init="k-means++", n_init=1, streams=Streams(streams[0], streams[1]))
            growing = Growing(here, block, start, rng=streams[2])
        growing.grow(k)
        if k <= SEARCH_ALWAYS or k >= SEARCH_AGAIN * searched:
            growing.search(SEARCH_ROUNDS)
            searched = k
        for _ in range(START_TRIES if k <= FEW_CLUSTERS else 0):
            start = kmeans_plusplus(prefix(block, SMALLEST_SEED_ROWS), k, rng=streams[0], executor=here)
            other = Growing(here, block, start, rng=streams[2])
            if other.n_clusters == growing.n_clusters and other.inertia < growing.inertia:
                growing = other
        scores = rescoring.score(growing.labels)
        steps.append(_Step(growing.labels.astype(small), scores, time.perf_counter() - started))
        stage.advance()
    return steps


def _rows(found: Sequence[Sequence[_Step]], wanted: Sequence[int], n_rows: int) -> Iterator[SweepRow]:
    for at, k in enumerate(wanted):
        pairs = combinations([run[at].labels for run in found], 2)
        agreements = [adjusted_rand(first, second) for first, second in pairs]
        stability = float(np.mean(agreements)) if agreements else float("nan")
        for seed, run in enumerate(found):
            scores = run[at].scores
            yield SweepRow(
                k,
                seed,
                scores.n_found,
                scores.inertia,
                scores.inertia / n_rows,
                scores.silhouette,
                scores.calinski_harabasz,
                scores.davies_bouldin,
                stability,
                run[at].seconds,
            )


def _wanted(n_clusters: int | Iterable[int]) -> list[int]:
    """Every k once, ascending."""
    given = list(n_clusters) if isinstance(n_clusters, Iterable) else [n_clusters]
    for k in given:
        if isinstance(k, bool) or not isinstance(k, Integral) or k < 1:
            raise InvalidParameterError(f"n_clusters holds {k!r}; needed: integers from 1")
    if not given:
        raise InvalidParameterError("n_clusters is empty; needed: at least one integer from 1")
    return sorted({int(k) for k in given})


def _checked(name: str, value: Any) -> Any:
    if value != "auto" and (isinstance(value, bool) or not isinstance(value, Integral) or value < 1):
        raise InvalidParameterError(f'{name}={value!r}; needed: an integer from 1 or "auto"')
    return value


def _sample_sizes(source: RowSource, most_clusters: int, sample_rows: int | str) -> tuple[int, int]:
    """Rows to cluster and score, and rows to keep: as many as a fit of the most clusters polishes its centers on."""
    clustered = search_rows(most_clusters) if sample_rows == "auto" else int(sample_rows)
    if clustered < most_clusters:
        raise InvalidParameterError(f"sample_rows={clustered:,} for up to {most_clusters:,} clusters; needed: as many")
    kept = max(SMALLEST_SAMPLE_ROWS, SAMPLE_ROWS_PER_CLUSTER * most_clusters)
    return clustered, max(clustered, min(kept, SAMPLE_BYTES // max(1, decoded_row_bytes(source))))


def _chunk_bytes(source: RowSource, chunk_bytes: int | str) -> int:
    if chunk_bytes != "auto":
        return int(chunk_bytes)
    n_rows = source.estimated_rows
    return chunk_size(None if n_rows is None else n_rows * decoded_row_bytes(source))


def _space(n_features: int, n_clusters: int) -> Space:
    """Where clusterings are scored: in the original space wherever the means of the most clusters fit there."""
    return "original" if MEANS_COPIES * 8 * n_clusters * n_features <= available_memory() else "sketch"


def _made_sketch(kind: str, m: int, sample: Sample, word: int, n_clusters: int) -> Sketch:
    d = sample.X.shape[1]
    if kind not in FOUND:
        return make_sketch(kind, m, word, d)
    rows = sample.X[: pca_rows(d, m)] if kind == PCASketch.kind else sample.X
    return find_sketch(kind, m, word, rows, n_clusters)


def _word(seed: np.random.SeedSequence) -> int:
    return int(seed.generate_state(1, np.uint64)[0])
