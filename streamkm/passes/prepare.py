"""What steps of a preparation must know of all rows: a pass for each of them.

Knows nothing of estimators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.cluster.sampling.row_sample import SampleRule
from streamkm.compute import Listener
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.progress import Progress, Stage
from streamkm.passes.context import PassContext
from streamkm.passes.reader import Walk, Weighed
from streamkm.passes.resume import Gathered, KeptSums
from streamkm.passes.sketch import sketch_pass
from streamkm.preparation import Preparation
from streamkm.preparation.moments import SUM_BYTES, MomentsFit
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


def find_preparation(context: PassContext, steps: Sequence[str], sample_rows: int, progress: Progress) -> Preparation:
    """Find what steps must know: a pass over all rows for each that must know something.

    Parameters
    ----------
    context : PassContext
        Of original rows, which count once each. What an earlier run has found is not looked for again.
    steps : sequence of str
    sample_rows : int
        Rows that quartiles are found on, at most.
    progress : Progress

    Raises
    ------
    InvalidInputError
        For rows that are invalid, unless they are to be skipped, or no rows at all; see `check_replayable`.
    """
    source, preparation = context.walk.source, Preparation(tuple(steps))
    check_replayable(source, preparation)
    for number, step in enumerate(steps):
        if step not in FOUND:
            continue
        rows = prepared(source, preparation.before(number)) if number else source
        walk = replace(context.walk, source=rows, metric="euclidean", skims=True)
        name = f"step-{number}"
        scaling = _found(replace(context, walk=walk, weights=NO_WEIGHTS), step, name, sample_rows, progress)
        preparation = Preparation(preparation.steps, (*preparation.found, scaling))
    return preparation


def _found(context: PassContext, step: str, record: str, sample_rows: int, progress: Progress) -> Scaling:
    """What one step must know, of an earlier run if that has found it."""
    kept = context.writer.load(record)
    if kept is not None:
        return Scaling(kept[0]["shift"], kept[0]["factor"])
    source, target_bytes = context.walk.source, context.walk.target_bytes
    n_chunks = len(source.chunks(target_bytes)) if isinstance(source, ChunkedSource) else None
    with progress.stage(step, n_chunks) as stage:
        if step == "robust":
            rule = SampleRule.of(sample_rows, SAMPLE_SEED, source.estimated_rows, NO_WEIGHTS)
            found = quartile_scaling(sketch_pass(context, Gathered(rule), stage).sample.X)
        else:
            found = _by_sums(context, n_chunks, stage, f"{record}-sums")
    context.writer.save(record, lambda: ({"shift": found.shift, "factor": found.factor}, {}))
    return found


def _by_sums(context: PassContext, n_chunks: int | None, stage: Stage, record: str) -> Scaling:
    """Means and deviations of all rows; sums go on from where an earlier run got to."""
    source, fit = context.walk.source, MomentsFit(centers=not context.walk.source.is_sparse)
    listener: Listener[NDArray[np.float64]] = Listener(lambda _: stage.advance())
    if n_chunks is not None:
        kept = KeptSums(context.writer, record)
        stage.advance(0 if kept.begun is None else kept.begun.n_items)
        listener = Listener(lambda _: stage.advance(), kept.begun, kept.save)
    state = context.executor.fold(
        stage.name,
        _add_item,
        fit.join,
        context.items(),
        n_chunks or 1,
        context.share(fit),
        large=context.walk.large(SUM_BYTES * source.n_features if source.n_features else math.inf),
        listener=listener,
    )
    stage.rows, stage.read_bytes = int(state[0, 0]), source.take_read_bytes()
    if not stage.rows:
        raise InvalidInputError(f"{source.name} has no valid rows; needed: at least 1")
    return fit.finish(state)


def _add_item(state: Any, item: Weighed, shared: tuple[Walk, MomentsFit]) -> tuple[NDArray[np.float64], None]:
    walk, fit = shared
    rows, weights = walk.read_weighed(item)
    return fit.step(state, rows.X, weights), None
