"""One pass that labels all rows, wherever labels are to be and wherever the rows are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.in_memory import label_sums, nearest_in
from streamkm.cluster.model import Model
from streamkm.cluster.profile import Profile
from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.cluster.sampling.row_sample import Sample
from streamkm.cluster.seeding.draws import DrawRule
from streamkm.core.progress import Stage
from streamkm.engine import Executor
from streamkm.fitting.context import FitContext
from streamkm.passes.assign import Assign, Assigned, assign_pass


def label_once(
    context: FitContext,
    model: Model,
    chunk_rows: NDArray[np.int64],
    index: int,
    sample: Sample | None,
    rule: DrawRule | None = None,
) -> Assigned:
    """Label all rows once; labels that are to be written, or to stay on workers, stay where they were made.

    `index`: number of the pass, from 0. `sample`: that holds all rows. `rule`: how rows are to be drawn.
    """
    with context.progress.stage("assign" if index == 0 else f"refine-{index}", len(chunk_rows)) as stage:
        sink = context.label_sink(chunk_rows)
        if sink.held or sample is None:
            record = None if sink.held else f"assign-{index}"
            pass_ = Assign(model, model.table(), rule)
            assigned = assign_pass(context, pass_, chunk_rows, stage, sink=sink, record=record)
        if sample is not None:  # the same sums, bit by bit, whether labels are gathered or written
            whole = assign_sample(context.here, sample, model, int(chunk_rows.sum()), stage, rule)
            assigned = replace(whole, labels=sink.labels) if sink.held else whole
    return assigned


def assign_sample(
    executor: Executor, sample: Sample, model: Model, n_rows: int, stage: Stage, rule: DrawRule | None = None
) -> Assigned:
    """As `assign.assign_pass`, from a row sample that holds all valid rows, unweighted, by threads of this process.

    `n_rows`: rows of the source, invalid ones included.
    """
    table, X = model.table(), model.place(sample.X)
    d2, gaps = np.empty(X.shape[0]), np.empty(X.shape[0])
    found = nearest_in(executor, X, table, stage.name, gaps)
    totals = label_sums(executor, X, NO_WEIGHTS, found, table.n_clusters, stage.name, (table, d2))
    drawn = None if rule is None else rule.draw(X, sample.rows, NO_WEIGHTS, d2)
    labels = np.full(n_rows, -1, np.int32)
    labels[sample.rows] = found
    stage.rows = n_rows
    profile = Profile.empty(table.n_clusters)
    profile.add(found, d2, gaps, kept=sample.rows, X=sample.X)
    return Assigned(labels, totals, drawn, profile)
