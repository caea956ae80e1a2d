"""What steps of a preparation must know of all rows: a pass for each of them.

Knows nothing of estimators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import NO_WEIGHTS
from streamkm.cluster.row_sample import SampleRule
from streamkm.compute import Executor, Listener
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.progress import Progress, Stage
from streamkm.passes.reader import OnInvalid, Walk, Weighed
from streamkm.passes.resume import CheckpointWriter, Gathered, KeptSums
from streamkm.passes.sketch import sketch_pass
from streamkm.preparation import Preparation
from streamkm.preparation.moments import MomentsFit
from streamkm.preparation.preparation import FOUND, Scaling
from streamkm.preparation.quartiles import quartile_scaling
from streamkm.sources.base import ChunkedSource, RowSource
from streamkm.sources.prepared import prepared

SAMPLE_SEED = 0  # of the rows that quartiles are found on: the same whatever a fit draws


def check_replayable(source: RowSource, preparation: Preparation) -> None:
    """Refuse steps that need all rows before the first is used, of rows that can be walked once only.

    Raises
    ------
    InvalidInputError
    """
    if preparation.finding and not source.replayable:
        raise InvalidInputError(
            f"{source.name} can be walked once only, and the step {preparation.finding[0]!r} takes a pass of its own; "
            "pass a list of chunks, or a function that returns a fresh iterator"
        )


def find_preparation(
    executor: Executor,
    source: RowSource,
    steps: Sequence[str],
    sizes: tuple[int, int],
    on_invalid: OnInvalid,
    writer: CheckpointWriter,
    progress: Progress,
) -> Preparation:
    """Find what steps must know: a pass over all rows for each that must know something.

    Parameters
    ----------
    source : RowSource
        Of original rows.
    steps : sequence of str
    sizes : (int, int)
        Decoded bytes of a chunk, and rows of a sample, at most.
    writer : CheckpointWriter
        What an earlier run has found is not looked for again.

    Raises
    ------
    InvalidInputError
        For rows that are invalid, unless they are to be skipped, or no rows at all; see `check_replayable`.
    """
    preparation = Preparation(tuple(steps))
    check_replayable(source, preparation)
    chunk_bytes, sample_rows = sizes
    for number, step in enumerate(steps):
        if step not in FOUND:
            continue
        rows = prepared(source, preparation.before(number)) if number else source
        walk = Walk(rows, chunk_bytes, "euclidean", on_invalid, skims=True)
        scaling = _found(executor, walk, step, sample_rows, (writer, f"step-{number}"), progress)
        preparation = Preparation(preparation.steps, (*preparation.found, scaling))
    return preparation


def _found(
    executor: Executor, walk: Walk, step: str, sample_rows: int, kept: tuple[CheckpointWriter, str], progress: Progress
) -> Scaling:
    """What one step must know, of an earlier run if that has found it."""
    writer, name = kept
    record = writer.load(name)
    if record is not None:
        return Scaling(record[0]["shift"], record[0]["factor"])
    source = walk.source
    n_chunks = len(source.chunks(walk.target_bytes)) if isinstance(source, ChunkedSource) else None
    with progress.stage(step, n_chunks) as stage:
        if step == "robust":
            found = _by_sample(executor, walk, sample_rows, stage)
        else:
            found = _by_sums(executor, walk, n_chunks, KeptSums(writer, f"{name}-sums"), stage)
    writer.save(name, lambda: ({"shift": found.shift, "factor": found.factor}, {}))
    return found


def _by_sums(executor: Executor, walk: Walk, n_chunks: int | None, kept: KeptSums, stage: Stage) -> Scaling:
    """Means and deviations of all rows; sums go on from where an earlier run got to."""
    fit = MomentsFit(centers=not walk.source.is_sparse)
    listener: Listener[NDArray[np.float64]] = Listener(lambda _: stage.advance())
    if n_chunks is not None:
        stage.advance(0 if kept.begun is None else kept.begun.n_items)
        listener = Listener(lambda _: stage.advance(), kept.begun, kept.save)
    state = executor.fold(
        stage.name,
        _add_item,
        fit.join,
        walk.items(executor, NO_WEIGHTS, None),
        n_chunks or 1,
        executor.share((walk.for_calls(executor), fit)),
        large="items" if walk.gives_rows else "state",
        listener=listener,
    )
    stage.rows, stage.read_bytes = int(state[0, 0]), walk.source.n_bytes or 0
    if not stage.rows:
        raise InvalidInputError(f"{walk.source.name} has no valid rows; needed: at least 1")
    return fit.finish(state)


def _add_item(state: Any, item: Weighed, shared: tuple[Walk, MomentsFit]) -> tuple[NDArray[np.float64], None]:
    walk, fit = shared
    rows, weights = walk.read_weighed(item)
    return fit.step(state, rows.X, weights), None


def _by_sample(executor: Executor, walk: Walk, sample_rows: int, stage: Stage) -> Scaling:
    """Medians and quartiles of a sample of rows, all of them where they are few."""
    rule = SampleRule.of(sample_rows, SAMPLE_SEED, walk.source.estimated_rows, NO_WEIGHTS)
    sampled = sketch_pass(executor, walk, None, Gathered(rule), NO_WEIGHTS, None, stage)
    return quartile_scaling(sampled.sample.X)
