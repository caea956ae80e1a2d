"""The runs of a sweep: clusterings of the same rows into more and more clusters, each scored.

Every clustering is grown from the one before. A block of rows and what scores it come in, steps and rows of the table
go out; a run that is complete is kept in a checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score as adjusted_rand

from streamkm.cluster.rows import Block
from streamkm.cluster.search.incremental_k import Growing
from streamkm.cluster.seeding.init import Streams, start_centers
from streamkm.cluster.seeding.kmeans_plusplus import kmeans_plusplus
from streamkm.cluster.seeding.search_set import prefix
from streamkm.core.progress import Stage
from streamkm.engine import Executor
from streamkm.engine.saving import CheckpointWriter
from streamkm.metrics.incremental import Rescoring, Scores
from streamkm.model_selection.sweep_result import SweepRow

START_ROWS = 5000  # that k-means++ is given for a start from nothing
FEW_CLUSTERS, START_TRIES = 10, 4  # up to so many clusters, so many starts from nothing are tried as well
SEARCH_ALWAYS = 20  # up to so many clusters, swaps are looked for at every k; it is cheap there, and each center counts
SEARCH_AGAIN = 1.25  # beyond, whenever there are so many times more clusters than the last time
SEARCH_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class Step:
    """One clustering of one run."""

    labels: NDArray[Any]
    scores: Scores
    seconds: float


def kept_run(run: Callable[[], list[Step]], writer: CheckpointWriter, name: str, stage: Stage) -> list[Step]:
    """One run, or what an earlier sweep has kept of it."""
    steps = writer.load(name, list[Step])
    if steps is not None:
        stage.advance(len(steps))
        return steps
    steps = run()
    writer.save(name, steps)
    return steps


def grown(
    here: Executor,
    block: Block,
    wanted: Sequence[int],
    rescoring: Rescoring,
    seed: np.random.SeedSequence,
    stage: Stage,
) -> list[Step]:
    """One run: a clustering for every k, each grown from the one before."""
    streams = [np.random.default_rng(stream) for stream in seed.spawn(3)]
    small = np.min_scalar_type(wanted[-1])
    steps: list[Step] = []
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
            start = kmeans_plusplus(prefix(block, START_ROWS), k, rng=streams[0], executor=here)
            other = Growing(here, block, start, rng=streams[2])
            if other.n_clusters == growing.n_clusters and other.inertia < growing.inertia:
                growing = other
        scores = rescoring.score(growing.labels)
        steps.append(Step(growing.labels.astype(small), scores, time.perf_counter() - started))
        stage.advance()
    return steps


def table_rows(found: Sequence[Sequence[Step]], wanted: Sequence[int], n_rows: int) -> Iterator[SweepRow]:
    """Every clustering of every run as a row of the table."""
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
                scores.silhouette_error,
                run[at].seconds,
            )
