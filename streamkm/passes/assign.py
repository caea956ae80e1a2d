"""Passes that label rows or measure them against centers: the assign pass, predictions, labels of kept blocks.

Each function here reads every row once. Knows nothing of parameters' defaults.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import BlockPass, Blocks, HeldRows, assigned, assigned_far, merged
from streamkm.cluster.centers.nearest import NearestCenters, shares_of
from streamkm.cluster.model import Model
from streamkm.cluster.profile import Profile, absorb_profile
from streamkm.cluster.rows import Block, batch_rows, row_d2
from streamkm.cluster.seeding.draws import Drawn, DrawRule
from streamkm.cluster.totals import Totals, absorb_totals, inertia_of
from streamkm.core.matrix import Matrix, rows_between
from streamkm.core.progress import Stage
from streamkm.engine.passes import Map, Pass, run
from streamkm.kernels.cluster.totals import weighted_sum
from streamkm.metrics.distances import euclidean_distances
from streamkm.passes.context import PassContext
from streamkm.passes.label_sinks import LabelSink, ScatteredLabels
from streamkm.passes.reader import ValidRows, changed_source
from streamkm.passes.sketch import Sketched

LEAST_SHARE = 1e-5
"""Of the squared norms that an objective must be to be found from them: its error is then below 1e-10 of it."""
FEWEST_AT_ONCE = 64  # dense rows whose distances to all centers are taken together

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Assigned:
    """What an assign pass leaves.

    Attributes
    ----------
    labels : int32 (n,)
        -1 for invalid rows.
    totals : Totals
        Exact sums and counts of the clusters, and the exact sum of squared distances to the model's centers, all in
        the model's space.
    drawn : Drawn or None
        Rows drawn by their share of the objective, in the model's space, if they were wanted.
    profile : Profile or None
        How the rows lie about the model's centers; None for rows that can be walked once only.
    """

    labels: NDArray[np.int32]
    totals: Totals
    drawn: Drawn | None = None
    profile: Profile | None = None


@dataclass(frozen=True, slots=True)
class Passed:
    """What an assign pass gathers over rows: one addend of the reduction.

    Attributes
    ----------
    totals : Totals or None
        None: there were no rows yet.
    profile : Profile
    drawn : tuple of Drawn
        Rows drawn by their share of the objective, if they are wanted.
    """

    totals: Totals | None
    profile: Profile
    drawn: tuple[Drawn, ...] = ()


@dataclass(frozen=True, slots=True)
class Gathered:
    """What an assign pass leaves besides labels; see `Assigned`."""

    totals: Totals
    drawn: Drawn | None
    profile: Profile


@dataclass(frozen=True, slots=True)
class Assign(Pass[Passed, NDArray[np.int32], Gathered]):
    """Label every row by its nearest center; gather exact sums, counts and the objective of the clusters.

    Attributes
    ----------
    model : Model
    table : NearestCenters
        The model's.
    rule : DrawRule, optional
        How rows are drawn on the way.
    """

    saved_as = Passed

    model: Model
    table: NearestCenters
    rule: DrawRule | None = None

    @property
    def state_bytes(self) -> float:
        """The sums are what is large."""
        return 8 * self.model.centers.size

    def start(self) -> Passed:
        """No rows."""
        return Passed(None, Profile.empty(self.table.n_clusters))

    def step(self, state: Passed, rows: ValidRows) -> tuple[Passed, NDArray[np.int32]]:
        """Add the rows of a chunk; its labels (n_read,), -1 for invalid rows."""
        model, table, weights = self.model, self.table, rows.weights
        norms, X = rows.d2norms if model.far else None, model.place(rows.X)
        gaps = np.empty(X.shape[0])
        if norms is None:
            labels, totals, d2 = assigned(state.totals, X, weights, table, with_d2=True, gaps=gaps)
            measured = d2
        else:
            measured = np.empty(X.shape[0])
            labels, totals, d2 = assigned_far(state.totals, X, weights, table, norms, (gaps, measured))
            d2 = shares_of(d2, norms)
        state.profile.add(labels, measured, gaps, weights=weights, first_row=rows.first_row, kept=rows.kept, X=rows.X)
        drawn = state.drawn
        if self.rule is not None and len(labels):
            drawn = self.rule.gather((*drawn, self.rule.draw(X, rows.places, weights, d2)))
        gathered = float(weighted_sum(weights, d2 if norms is None else norms))
        totals = Totals(totals.sums, totals.counts, totals.d2 + gathered)
        return Passed(totals, state.profile, drawn), rows.spread(labels, -1)

    def join(self, first: Passed, second: Passed) -> Passed:
        """Of both, in the memory of the first."""
        totals = second.totals
        if first.totals is not None:
            totals = first.totals if totals is None else absorb_totals(first.totals, totals)
        drawn = () if self.rule is None else self.rule.gather((*first.drawn, *second.drawn))
        return Passed(totals, absorb_profile(first.profile, second.profile), drawn)

    def finish(self, state: Passed) -> Gathered:
        """Sums, the rows that were drawn, and the profile."""
        totals = Totals.zeros(*self.model.centers.shape) if state.totals is None else state.totals
        drawn = self.rule.join(state.drawn) if self.rule is not None and state.drawn else None
        return Gathered(totals, drawn, state.profile)


def assign_pass(
    context: PassContext,
    model: Model,
    chunk_rows: NDArray[np.int64],
    stage: Stage,
    *,
    sink: LabelSink,
    record: str | None = None,
    rule: DrawRule | None = None,
) -> Assigned:
    """Read all rows once more: label each by its nearest center, and gather sums and the objective of the clusters.

    Where centers are far from sparse rows, the objective follows from squared norms and the clusters' sums, which saves
    a look at k * d numbers for every stored entry. Its error is some 1e-16 of the sum of squared norms: where it turns
    out to be a small part of that, rows are read once more for it.

    Parameters
    ----------
    context : PassContext
    chunk_rows : int64 (chunks,)
        Rows of each chunk, from the pass before.
    sink : LabelSink
        Takes the labels.
    record : str, optional
        Name under which labels and sums are saved as they come, and restored from an earlier run.
    rule : DrawRule, optional
        How rows are to be drawn.
    """
    found = context.run(Assign(model, model.table(), rule), stage, chunk_rows, sink=sink, record=record)
    if sink.n_taken != len(chunk_rows):
        raise changed_source(context.reader)
    totals, profile = found.totals, found.profile
    if model.far:
        d2 = inertia_of(totals, model.centers, totals.d2)
        if d2 <= LEAST_SHARE * totals.d2:
            logger.info(
                "%s: rows lie nearer to their centers than the sample said; the objective takes one more pass",
                stage.name,
            )
            near = replace(model, far=False)
            again = context.run(Assign(near, near.table()), Stage(stage.name), chunk_rows)
            d2, profile = again.totals.d2, again.profile
        totals = replace(totals, d2=d2)
    return Assigned(sink.labels, totals, found.drawn, profile)


class AssignBlock(BlockPass):
    """As `Assign`, of sketched rows that were kept: labels, exact sums and the objective in the sketch."""

    def step(self, state: Totals | None, rows: Block) -> tuple[Totals, NDArray[np.int32]]:
        """Add the rows of a block; their labels."""
        labels, totals, d2 = assigned(state, merged(rows.X), rows.weights, self.table, with_d2=True)
        gathered = float(weighted_sum(rows.weights, d2))
        return Totals(totals.sums, totals.counts, totals.d2 + gathered), labels


def assign_blocks(sketched: Sketched, blocks: Blocks, model: Model, stage: Stage) -> Assigned:
    """Label the sketched rows that were kept: what there is for rows that can be walked once only."""
    sink = ScatteredLabels(sketched.chunk_rows, sketched.kept)
    table = NearestCenters.build(model.centers, blocks.dtype)
    totals = run(AssignBlock(table), HeldRows(blocks.handles), blocks.executor, stage, sink=sink)
    return Assigned(sink.labels, totals)


@dataclass(frozen=True, slots=True)
class Values(Map[NDArray[Any]]):
    """A function's values of the rows in the model's space; -1 or NaN for invalid rows.

    Attributes
    ----------
    model : Model
    table : NearestCenters
        The model's.
    function : callable
        Of a matrix (v, m) and a NearestCenters; gives one value, or one row of values, for each row.
    """

    model: Model
    table: NearestCenters
    function: Callable[..., Any]

    def output(self, rows: ValidRows) -> NDArray[Any]:
        """The values of a chunk."""
        values = np.asarray(self.function(self.model.place(rows.X), self.table))
        return rows.spread(values, -1 if values.dtype.kind == "i" else np.nan)


class WideValues(Values):
    """As `Values`, of functions that give so many values for each row that few chunks' may wait."""

    large = True


def map_rows(
    context: PassContext, model: Model, function: Callable[..., Any], stage: Stage, *, wide: bool = False
) -> Iterator[NDArray[Any]]:
    """Read all rows once; yield ``function(X in the model's space, table)`` for each chunk, in order.

    Parameters
    ----------
    context : PassContext
    model : Model
    function : callable
        See `Values`.
    stage : Stage
    wide : bool
        Whether it gives a row of values for each row.
    """
    values = (WideValues if wide else Values)(model, model.table(), function)
    for part in context.outputs(values, stage):
        stage.rows += len(part)
        yield part


def nearest_labels(X: Matrix, table: NearestCenters) -> NDArray[np.int32]:
    """Labels of rows (v,), for `map_rows`."""
    return table.labels(X)


def nearest_d2(X: Matrix, table: NearestCenters) -> NDArray[np.float64]:
    """Squared distances of rows to their nearest centers (v,), for `map_rows`."""
    return row_d2(X, table.labels(X), table)


def distances(X: Matrix, table: NearestCenters) -> NDArray[Any]:
    """Distances of rows to all centers (v, k), for `map_rows`.

    Those to the nearest are by differences: products cancel where a row is (almost) a center.
    """
    dtype = np.float64 if X.dtype == np.float64 else np.float32
    if not X.shape[0]:
        return np.empty((0, table.n_clusters), dtype)
    centers = table.centers.astype(dtype, copy=False)  # as `cluster_centers_` has them
    found = np.empty((X.shape[0], len(centers)), dtype)
    given = centers.astype(np.float64, copy=False)
    step = max(FEWEST_AT_ONCE, batch_rows(X.shape[1])) if isinstance(X, np.ndarray) else X.shape[0]
    for start in range(0, len(found), step):  # few dense rows are copied to float64 at a time
        found[start : start + step] = euclidean_distances(rows_between(X, start, start + step), given)
    nearest = found.argmin(axis=1)
    d2 = row_d2(X, nearest.astype(np.int32), NearestCenters.build(given, dtype))
    found[np.arange(len(found)), nearest] = np.sqrt(d2)
    return found
