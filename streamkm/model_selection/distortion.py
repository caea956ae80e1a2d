"""How well sketches keep the objective, on a row sample: what to look at before a long run.

One pass samples the rows; every sketch of a grid is then measured on them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from streamkm.cluster.blocks import merged
from streamkm.cluster.centers.nearest import NearestCenters, step_labels
from streamkm.cluster.in_memory import LocalBlocks
from streamkm.cluster.lloyd import lloyd
from streamkm.cluster.model import Metric
from streamkm.cluster.rows import NO_WEIGHTS, Block, add_rows, row_d2
from streamkm.cluster.sampling.row_sample import Sample, SampleRule
from streamkm.cluster.seeding.init import Streams, start_centers
from streamkm.cluster.totals import Totals
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.matrix import Matrix
from streamkm.core.progress import Progress
from streamkm.engine import Executor, local_executor, open_executor
from streamkm.fitting.genes import find_genes
from streamkm.model_selection.distortion_result import Distortion, SketchDistortion
from streamkm.passes.context import PassContext
from streamkm.passes.gathered import Gathered
from streamkm.passes.reader import RowReader
from streamkm.passes.sketch import sketch_pass
from streamkm.sketches import Sketch
from streamkm.sketches.registry import sizes_within, sketch_class, sketch_names, sketch_of_rows
from streamkm.sources import open_source
from streamkm.sources.chunking import default_chunk_bytes

COMPONENTS = (16, 64, 256)
SAMPLE_ROWS = 10_000
MAX_ITER, TOL = 100, 1e-4


def distortion(
    X: Any,
    clusters: int | ArrayLike = 8,
    *,
    sketches: Sequence[str] | None = None,
    n_components: Sequence[int] = COMPONENTS,
    sample_rows: int = SAMPLE_ROWS,
    metric: Metric = "euclidean",
    executor: Any = "auto",
    random_state: Any = None,
) -> Distortion:
    """Measure how sketches keep the objective of given clusters.

    One pass over the data; then O(s * m * k) a sketch on s sampled rows.

    Parameters
    ----------
    X : whatever `open_source` accepts
    clusters : int, int array (n,), or float array (k, d)
        How many to find on the sample; or labels of all rows, -1 for rows to leave out; or centers, of which each row
        takes the nearest.
    sketches : sequence of str, optional
        Kinds of `SKETCHES` that are made of a size and a seed, and "svd", "pca", "leverage", "laplacian", which are
        found on the sample: on few rows they look better there than they are. By default CountSketch, SVD and, for
        dense rows, PCA.
    n_components : sequence of int
        Sizes m to try. "svd" takes some 50 * m * d bytes where d is above 2,048.
    sample_rows : int
        s.
    metric : "euclidean" or "cosine"
    executor : "auto", int, or dask.distributed.Client
    random_state : int, RandomState or None

    Returns
    -------
    Distortion

    Raises
    ------
    InvalidInputError, SourceError
        For data that are wrong or cannot be read, and for labels or centers that do not fit them.
    InvalidParameterError
        For sketches or numbers that cannot be.

    References
    ----------
    Liu, Shen and Tsang, "Sparse embedded k-means clustering", NIPS 2017, definition 2; Cohen, Elder, Musco, Musco and
    Persu, STOC 2015, definition of projection-cost preserving sketches (with the constant c); Senuma, "K-means
    clustering with feature hashing", ACL 2011 student session, whose analysis bounds how much the objective is
    distorted by an addend.
    """
    for name, value in (("sample_rows", sample_rows), *(("n_components", m) for m in n_components)):
        if value < 1:
            raise InvalidParameterError(f"{name}={value}; needed: integers from 1")
    source = find_genes(open_source(X), executor=executor, progress=Progress(show=False))
    if sketches is None:
        sketches = ("countsketch", "svd") if source.is_sparse else ("countsketch", "svd", "pca")
    _check_sketches(sketches, sparse=source.is_sparse)
    words = check_random_state(random_state).randint(0, 2**32, 4, dtype=np.uint32)
    seeds = np.random.SeedSequence([int(word) for word in words]).spawn(4)
    sampling, sketching = (int(seed.generate_state(1, np.uint64)[0]) for seed in seeds[:2])
    streams = Streams(*(np.random.default_rng(seed) for seed in seeds[2:]))
    reader = RowReader(source, default_chunk_bytes(source), metric, "raise")
    rule = SampleRule.of(sample_rows, sampling, source.estimated_rows, NO_WEIGHTS)
    given_clusters = np.asarray(clusters)
    if source.n_rows is not None:
        _check_clusters(given_clusters, source.n_rows, min(source.n_rows, sample_rows))
    with open_executor(executor) as workers, local_executor(workers) as here:
        with Progress(show=False).stage("sample") as stage:
            sketched = sketch_pass(PassContext(executor=workers, reader=reader), Gathered(rule), stage)
        given = _given(here, sketched.sample, int(sketched.chunk_rows.sum()), given_clusters, streams)
        rows = []
        for name in sketches:
            for m in sizes_within(name, n_components, given.X.shape):
                started = time.perf_counter()
                sketch = sketch_of_rows(name, m, sketching, given.X, given.n_clusters)
                found = time.perf_counter()
                block = given.sample.block(here, sketch)
                seconds = time.perf_counter() - found
                kept = _kept(here, given, block, sketch)
                rows.append(SketchDistortion(name, sketch.n_components, *kept, found - started, seconds))
    return Distortion(len(given.labels), sketched.n_features, given.n_clusters, given.objective, tuple(rows))


@dataclass(frozen=True, slots=True)
class _Given:
    """Sampled rows that belong to clusters.

    Attributes
    ----------
    sample : Sample
    X : ndarray or csr_array (s, d)
        Its rows, as floats.
    labels : int32 (s,)
        From 0, without gaps.
    objective : float
    """

    sample: Sample
    X: Matrix
    labels: NDArray[np.int32]
    objective: float

    @property
    def n_clusters(self) -> int:
        return int(self.labels.max()) + 1


def _check_sketches(sketches: Sequence[str], *, sparse: bool) -> None:
    known = sketch_names()
    for name in sketches:
        if name not in known:
            raise InvalidParameterError(f"sketch {name!r}; needed: one of {', '.join(map(repr, known))}")
        if sparse and not sketch_class(name).takes_sparse:
            raise InvalidParameterError(f'sketch "{name}" takes dense rows; use "svd" for sparse ones')


def _check_clusters(given: NDArray[Any], n_rows: int, n_sampled: int) -> None:
    """Refuse what is no number of clusters for so many sampled rows, no labels of so many rows, and no centers."""
    counts = np.issubdtype(given.dtype, np.integer)
    if not (counts and given.ndim < 2) and not (given.ndim == 2 and np.issubdtype(given.dtype, np.number)):
        raise InvalidParameterError(
            f"clusters of {given.dtype} {given.shape}; needed: a number, integer labels (n,) or centers (k, d)"
        )
    if given.ndim == 0 and not 1 <= given <= n_sampled:
        raise InvalidParameterError(f"clusters={given}; needed: 1 to {n_sampled:,}, the rows sampled")
    if given.ndim == 1 and len(given) != n_rows:
        raise InvalidInputError(f"{len(given):,} labels; the data have {n_rows:,} rows")


def _given(here: Executor, sample: Sample, n_rows: int, given: NDArray[Any], streams: Streams) -> _Given:
    """The sampled rows with the labels that `distortion` was given."""
    X = sample.original_block().X
    _check_clusters(given, n_rows, len(sample.rows))
    if given.ndim == 2:
        if given.shape[1] != X.shape[1]:
            raise InvalidInputError(f"centers have {given.shape[1]} features; the data have {X.shape[1]:,}")
        labels = NearestCenters.build(given.astype(np.float64), X.dtype).labels(X)
    else:
        labels = given[sample.rows] if given.ndim == 1 else _clustered(here, sample, int(given), streams)
    kept = np.flatnonzero(labels >= 0)
    if not len(kept):
        raise InvalidInputError("no sampled row has a label from 0; at least one must")
    compact: NDArray[np.int32] = np.unique(labels[kept], return_inverse=True)[1].astype(np.int32)
    if len(kept) < len(labels):
        X = X[kept]
        sample = replace(sample, X=sample.X[kept], rows=sample.rows[kept])
    return _Given(sample, X, compact, _objective(X, compact, int(compact.max()) + 1))


def _clustered(here: Executor, sample: Sample, n_clusters: int, streams: Streams) -> NDArray[np.int32]:
    """Labels of k-means on the sampled rows."""
    block = sample.original_block()
    centers = start_centers(here, block, n_clusters, init="k-means++", n_init=1, streams=streams)
    return _iterated(here, block, centers)


def _iterated(here: Executor, block: Block, centers: NDArray[np.float64]) -> NDArray[np.int32]:
    """Labels after Lloyd's algorithm from these centers."""
    blocks = LocalBlocks.of(here, block)
    result = lloyd(blocks, centers, max_iter=MAX_ITER, tol=TOL)
    return step_labels(block.X, blocks.table(result.centers))


def _kept(here: Executor, given: _Given, block: Block, sketch: Sketch) -> tuple[float, float, float, float]:
    """(eps, ratio, loss, drss) of one sketch: see `SketchDistortion`."""
    sketched, before = merged(block.X), given.objective
    constant = _lost_alike(given.X, sketched, sketch)
    after = _objective(sketched, given.labels, given.n_clusters)
    totals = _totals(sketched, given.labels, given.n_clusters)
    found = _iterated(here, block, totals.means(fallback=totals.sums))
    before_found, after_found = (_objective(X, found, given.n_clusters) for X in (given.X, sketched))
    eps = max(
        _share(abs(after + constant - before), before), _share(abs(after_found + constant - before_found), before_found)
    )
    ratio, loss = ((after + constant) / before, before_found / before) if before > 0 else (1.0, 1.0)
    return eps, ratio, loss, abs(after - before)


def _share(part: float, whole: float) -> float:
    """Part of the whole; nothing of nothing is 0."""
    if whole > 0:
        return part / whole
    return 0.0 if part == 0 else float("inf")


def _lost_alike(original: Matrix, sketched: Matrix, sketch: Sketch) -> float:
    """What the objective of every partition loses by an orthogonal projection: the squared lengths that it cuts off."""
    if not sketch.is_projection:
        return 0.0
    centers = np.zeros((1, original.shape[1]))
    if sketch.center is not None:
        centers[0] = sketch.center
    everyone = np.zeros(original.shape[0], np.int32)
    there = row_d2(sketched, everyone, NearestCenters.build(np.zeros((1, sketched.shape[1])), np.float64))
    return max(0.0, float(row_d2(original, everyone, NearestCenters.build(centers, np.float64)).sum() - there.sum()))


def _totals(X: Matrix, labels: NDArray[np.int32], n_clusters: int) -> Totals:
    totals = Totals.zeros(n_clusters, X.shape[1])
    add_rows(X, NO_WEIGHTS, labels, totals.sums, totals.counts)
    return totals


def _objective(X: Matrix, labels: NDArray[np.int32], n_clusters: int) -> float:
    """Sum of squared distances to the clusters' means."""
    totals = _totals(X, labels, n_clusters)
    return float(row_d2(X, labels, NearestCenters.build(totals.means(fallback=totals.sums), np.float64)).sum())
