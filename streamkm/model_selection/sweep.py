"""Many numbers of clusters from one look at the data.

One pass samples rows, and where that is a part of them, a second draws more by their share of the objective. They are
sketched, and clustered into the fewest clusters wanted; every next clustering is grown from the one before. Each is
scored among the original features. Takes parameters and sources, returns a frozen `SweepResult`.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import Any, get_args

from streamkm.cluster.blocks import merged
from streamkm.cluster.model import Metric, Space
from streamkm.cluster.rows import Block
from streamkm.cluster.sampling.row_sample import as_block_matrix
from streamkm.cluster.search.incremental_k import around_mean
from streamkm.core.exceptions import InvalidParameterError, StreamkmWarning
from streamkm.core.matrix import Matrix, with_nan
from streamkm.core.memory import human_bytes, with_process_memory
from streamkm.core.progress import Progress
from streamkm.engine import Executor, local_executor, local_threads, open_executor, under_limit
from streamkm.engine.checkpoint import Checkpoint
from streamkm.engine.saving import CheckpointWriter
from streamkm.estimators.validation import drawn_seed
from streamkm.fitting.centers import check_clusters
from streamkm.fitting.genes import find_genes
from streamkm.kernels.compiling import COMPILATION
from streamkm.metrics.incremental import Distances, Rescoring
from streamkm.model_selection.sweep_parameters import (
    check_choice,
    check_count,
    check_preparation,
    sweep_sizes,
    swept_preparation,
    wanted_clusters,
)
from streamkm.model_selection.sweep_result import SweepResult
from streamkm.model_selection.sweep_runs import grown, kept_run, table_rows
from streamkm.model_selection.swept_rows import SweptRows, rows_to_sweep, sweep_streams
from streamkm.passes.context import PassContext
from streamkm.passes.prepare import find_preparation, planned_rows
from streamkm.passes.reader import OnInvalid, OnMissing, RowReader
from streamkm.planning.line_room import planned_line_room
from streamkm.planning.sample_plan import plan_sweep
from streamkm.planning.sketch_choice import choose_sketch
from streamkm.sketches import Sketch, SketchOptions
from streamkm.sketches.registry import sketch_names
from streamkm.sources import open_source
from streamkm.sources.fingerprints import fingerprint
from streamkm.sources.prepared import prepared

logger = logging.getLogger(__name__)


def sweep(
    X: Any,
    n_clusters: int | Iterable[int] = range(2, 201),
    *,
    seeds: int = 2,
    sketch: str = "auto",
    n_components: int | str = "auto",
    metric: Metric = "euclidean",
    preprocess: Sequence[str] | Mapping[str, Any] | None = None,
    sample_rows: int | str = "auto",
    memory_limit: int | float | str | Mapping[str, Any] = "auto",
    chunk_bytes: int | str = "auto",
    executor: Any = "auto",
    on_invalid: OnInvalid = "raise",
    on_missing: OnMissing = "raise",
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | str = "auto",
    random_state: Any = None,
    restart: bool = False,
    extend: bool = False,
) -> SweepResult:
    """Cluster rows into many numbers of clusters and score each.

    The first pass samples rows evenly. If the sample lacks some rows, one more pass draws rows far from rough centers,
    by their share of the objective, so that small distant groups are not missed. Half of the clustered rows are drawn
    in this way; weights keep sums unbiased. Data that can be read once only are sampled evenly.
    Each clustering starts from the one before. It splits the clusters with the largest gain, makes lazy steps of
    Lloyd's algorithm, and sometimes searches for swaps. Up to ten clusters, the best of a few fresh starts replaces
    this clustering if its objective is lower.

    Parameters
    ----------
    X : whatever `streamkm.open_source` accepts
        May be an iterator that can be walked once only.
    n_clusters : int or iterable of int, default=range(2, 201)
        Every k, in any order.
    seeds : int, default=2
        Runs, each from a start of its own; stability needs two.
    sketch : str, default="auto"
    n_components : int or "auto", default="auto"
        As of `SketchOptions`.
    metric, preprocess, memory_limit, chunk_bytes, executor, on_invalid, progress, random_state
        As of `StreamKMeans`. Clusterings are scored, and their centers given, in the units of the prepared rows.
    on_missing : {"raise", "skip", "mean"}, default="raise"
        As of `StreamKMeans`.
    sample_rows : int or "auto", default="auto"
        Largest number of rows to cluster and score. "auto": 200 times the largest k, from 10,000 to 50,000.
    checkpoint : path, optional
        A directory for the state: the sample while it is read, and each complete run. After a kill, the same call with
        the same data goes on from this state. The directory is removed at the end.
    restart : bool, default=False
        Ignore the state in the checkpoint.
    extend : bool, default=False
        If the elbow or a score is best at the largest k, continue to twice this k with the last step of the range, and
        repeat this while there are 20 clustered rows per cluster. The data must be readable again.

    Returns
    -------
    SweepResult
        Holds a sample of original rows, for `SweepResult.centers`. It is as large as that of a fit of the largest k.

    Raises
    ------
    InvalidInputError, SourceError
        The data cannot be read, or are invalid; names the place.
    InvalidParameterError
        For a parameter out of range.
    MemoryLimitError
        The work does not fit in memory; raised before rows are read.
    CheckpointError, InUseError
        The checkpoint is of another sweep, or another process uses it.

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
    wanted = wanted_clusters(n_clusters)
    check_choice("sketch", sketch, ("auto", *sketch_names()))
    check_choice("metric", metric, get_args(Metric))
    check_preparation(preprocess, on_invalid, on_missing)
    given = open_source(X if on_missing == "raise" else with_nan(X))
    given = find_genes(given, executor=executor, memory_limit=memory_limit, progress=Progress(progress))
    preparation = swept_preparation(preprocess, on_missing, given)
    source = planned_rows(given, preparation)
    if extend and not source.replayable:
        raise InvalidParameterError(
            f"extend=True for {source.name}; needed: data that can be read again, as from files"
        )
    if source.n_rows is not None:
        check_clusters(wanted[-1], source.n_rows)
    options = SketchOptions(sketch, check_count("n_components", n_components))
    planned_sketch = choose_sketch(source, options, wanted[-1])
    sizes = sweep_sizes(source, wanted, seeds, sample_rows)
    plan = plan_sweep(
        source,
        planned_sketch,
        sizes,
        chunk_bytes=check_count("chunk_bytes", chunk_bytes),
        memory_limit=memory_limit,
        n_threads=local_threads(executor),
    )
    reader = RowReader(
        planned_line_room(given, memory_limit, plan),
        plan.chunk_bytes,
        metric,
        on_invalid,
        on_missing="skip" if on_missing == "skip" else "raise",
    )
    stages = Progress(progress)
    settings = {
        "n_clusters": wanted,
        "seeds": int(seeds),
        "sketch": [planned_sketch.sketch, planned_sketch.n_components],
        "metric": metric,
        "steps": preparation.described(),
        "rows": [sizes.clustered_rows, plan.sample_rows],
        "chunk_bytes": plan.chunk_bytes,
        "on_invalid": on_invalid,
        "on_missing": on_missing,
        "random_state": int(random_state) if isinstance(random_state, Integral) else None,
    }
    with under_limit(memory_limit), COMPILATION.shown_on(stages), ExitStack() as stack:
        saved = None
        if checkpoint is not None:
            saved = stack.enter_context(
                Checkpoint.open(checkpoint, {"source": fingerprint(given), "settings": settings}, restart=restart)
            )
        writer = CheckpointWriter(saved)
        seed = writer.same_seed(drawn_seed(random_state))
        workers = stack.enter_context(open_executor(executor, plan.n_threads))
        here = stack.enter_context(local_executor(workers))
        context = PassContext(executor=workers, reader=reader, writer=writer)
        if preparation.steps:
            preparation = find_preparation(context, preparation, plan.sample_rows, stages)
            context = replace(context, reader=replace(reader, source=prepared(given, preparation)))
        read, made, swept = rows_to_sweep(context, here, plan, planned_sketch, sizes, seed, stages)
        space = plan.space_for(read.n_features)
        if space == "sketch" and not made.is_identity:
            warnings.warn(_in_the_sketch(wanted[-1], read.n_features, plan.limit_bytes), StreamkmWarning, stacklevel=2)
        clustered = swept.clustered
        with stages.stage("sketch"):
            block, rows, distances = _to_score(here, swept, made, space, sizes.judged_rows)
        with stages.stage("sweep", len(wanted) * seeds, "clusterings") as stage:
            scoring = partial(Rescoring, here, rows, distances, wanted[-1], clustered.weights)
            found = [
                kept_run(
                    partial(grown, here, block, wanted, scoring(), run_seed, stage), writer, f"run-{number}", stage
                )
                for number, run_seed in enumerate(sweep_streams(seed)[2].spawn(seeds))
            ]
        if saved is not None:
            saved.discard()
    table = tuple(table_rows(found, wanted, block.n_rows))
    labels = {
        k: min((run[at] for run in found), key=lambda step: step.scores.inertia).labels for at, k in enumerate(wanted)
    }
    result = SweepResult(
        table,
        space,
        read.n_valid,
        block.n_rows,
        min(sizes.judged_rows, swept.n_even),
        clustered.rows,
        made,
        labels,
        swept,
        {"metric": metric, "preprocess": preprocess or [], "on_invalid": on_invalid, "on_missing": on_missing},
    )
    more = result.further() if extend else []
    if not more:
        return result
    logger.info("the best value of a score lies at %d clusters: sweeping on, to %d", wanted[-1], more[-1])
    return sweep(
        given,
        [*wanted, *more],
        seeds=seeds,
        sketch=sketch,
        n_components=n_components,
        metric=metric,
        preprocess=preprocess,
        sample_rows=sample_rows,
        memory_limit=with_process_memory(memory_limit, plan.process_memory),
        chunk_bytes=chunk_bytes,
        executor=executor,
        on_invalid=on_invalid,
        on_missing=on_missing,
        checkpoint=None if checkpoint is None else f"{os.fspath(checkpoint)}-{more[-1]}",
        progress=progress,
        random_state=random_state,
        restart=restart,
        extend=True,
    )


def _to_score(
    here: Executor, swept: SweptRows, sketch: Sketch, space: Space, n_judged: int
) -> tuple[Block, Matrix, Distances]:
    """Rows to cluster, the same rows where they are scored, and their distances for silhouettes."""
    block = around_mean(swept.clustered.block(here, sketch))
    rows = as_block_matrix(swept.clustered.X, sketched=False) if space == "original" else merged(block.X)
    return block, rows, Distances(rows, min(n_judged, swept.n_even))


def _in_the_sketch(n_clusters: int, n_features: int, limit_bytes: int) -> str:
    """What to say where scores are not those of the original space."""
    return (
        f"clusterings are scored in the space of the sketch: the means of {n_clusters:,} clusters of {n_features:,} "
        f"features have no room below the limit of {human_bytes(limit_bytes)}; raise memory_limit for scores in the "
        "original space"
    )
