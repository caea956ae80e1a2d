"""Passes that label rows or measure them against centers: the assign pass, predictions, labels of kept blocks.

Each function here reads every row once. Knows nothing of parameters' defaults.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import Blocks, assigned, assigned_far, merged
from streamkm.cluster.centers.table import CenterTable, shares_of
from streamkm.cluster.model import Model
from streamkm.cluster.profile import Profile, absorb_profile, join_profiles
from streamkm.cluster.rows import batch_rows, row_d2
from streamkm.cluster.seeding.draws import Drawn, DrawRule
from streamkm.cluster.spill import Held, loaded
from streamkm.cluster.totals import JOIN_TOTALS, Totals, absorb_totals, inertia_of, join_totals
from streamkm.compute import Joining, Listener
from streamkm.core.matrix import Matrix, rows_between
from streamkm.core.progress import Stage
from streamkm.kernels.cluster.totals import weighted_sum
from streamkm.metrics.distances import euclidean_distances
from streamkm.passes.context import PassContext
from streamkm.passes.reader import Item, Walk, Weighed, changed_source
from streamkm.passes.resume import KeptLabels, Passed
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


def assign_pass(
    context: PassContext,
    model: Model,
    chunk_rows: NDArray[np.int64],
    stage: Stage,
    *,
    record: str = "assign",
    rule: DrawRule | None = None,
) -> Assigned:
    """Read all rows once more: label each by its nearest center, and gather sums and the objective of the clusters.

    Parameters
    ----------
    context : PassContext
    chunk_rows : int64 (chunks,)
        Rows of each chunk, from the pass before.
    record : str
        Name under which labels and sums are saved as they come, and restored from an earlier run.
    rule : DrawRule, optional
        How rows are to be drawn.
    """
    bounds = np.concatenate([[0], np.cumsum(chunk_rows)])
    kept = KeptLabels(context.writer, record, int(bounds[-1]))
    done = 0 if kept.begun is None else kept.begun.n_items
    labels = np.empty(int(bounds[-1]), np.int32)
    if kept.begun is not None:
        labels[: bounds[done]] = kept.labels(int(bounds[done]))
        stage.advance(done)

    def take(part: NDArray[np.int32]) -> None:
        nonlocal done
        labels[bounds[done] : bounds[done + 1]] = part
        done += 1
        stage.advance()

    listener = Listener(take, kept.begun, partial(kept.save, labels, bounds))
    totals, drawn, profile = fold_assigned(context, model, chunk_rows, stage, listener, rule)
    if done != len(chunk_rows):
        raise changed_source(context.walk)
    return Assigned(labels, totals, drawn, profile)


def fold_assigned(
    context: PassContext,
    model: Model,
    chunk_rows: NDArray[np.int64],
    stage: Stage,
    listener: Listener[Passed],
    rule: DrawRule | None = None,
) -> tuple[Totals, Drawn | None, Profile]:
    """Read and label all rows; sums, objective and profile of the clusters. The listener gets each chunk's labels.

    Draws rows on the way, if there is a rule for it.

    Where centers are far from sparse rows, the objective follows from squared norms and the clusters' sums, which saves
    a look at k * d numbers for every stored entry. Its error is some 1e-16 of the sum of squared norms: where it turns
    out to be a small part of that, rows are read once more for it.
    """
    passed = _folded(context, model, chunk_rows, stage.name, listener, rule)
    totals, drawn = passed.totals, rule.join(passed.drawn) if rule is not None and passed.drawn else None
    stage.rows, stage.read_bytes = int(chunk_rows.sum()), context.walk.source.take_read_bytes()
    if not model.far:
        return totals, drawn, passed.profile
    d2 = inertia_of(totals, model.centers, totals.d2)
    if d2 > LEAST_SHARE * totals.d2:
        return replace(totals, d2=d2), drawn, passed.profile
    logger.info(
        "%s: rows lie nearer to their centers than the sample said; the objective takes one more pass", stage.name
    )
    again = _folded(context, replace(model, far=False), chunk_rows, stage.name, Listener(), None)
    return replace(totals, d2=again.totals.d2), drawn, again.profile


def _folded(
    context: PassContext,
    model: Model,
    chunk_rows: NDArray[np.int64],
    name: str,
    listener: Listener[Passed],
    rule: DrawRule | None,
) -> Passed:
    """Sums of the clusters, and their objective, or the rows' squared norms where the model's centers are far."""
    walk = context.walk
    return context.executor.fold(
        name,
        _assign_item,
        Joining(partial(_join, rule), partial(_absorb, rule)),
        context.items(chunk_rows),
        len(chunk_rows),
        context.share(model, model.table(), rule),
        large=walk.large(8 * model.centers.size),
        listener=listener,
    )


def _assign_item(
    state: Passed | None,
    item: Weighed,
    shared: tuple[Walk, Model, CenterTable, DrawRule | None],
) -> tuple[Passed, NDArray[np.int32]]:
    walk, model, table, rule = shared
    rows, weights = walk.read_weighed(item)
    norms, X = rows.d2norms if model.far else None, model.place(rows.X)
    before, drawn = (None, ()) if state is None else (state.totals, state.drawn)
    profile = Profile.empty(table.n_clusters) if state is None else state.profile
    gaps = np.empty(X.shape[0])
    if norms is None:
        labels, totals, d2 = assigned(before, X, weights, table, with_d2=True, gaps=gaps)
        measured = d2
    else:
        measured = np.empty(X.shape[0])
        labels, totals, d2 = assigned_far(before, X, weights, table, norms, (gaps, measured))
    profile.add(labels, measured, gaps, weights=weights, first_row=item[3], kept=rows.kept, X=rows.X)
    d2 = d2 if norms is None else shares_of(d2, norms)
    if rule is not None and len(labels):
        drawn = rule.gather((*drawn, rule.draw(X, rows.places, weights, d2)))
    gathered = float(weighted_sum(weights, d2 if norms is None else norms))
    return Passed(Totals(totals.sums, totals.counts, totals.d2 + gathered), profile, drawn), rows.spread(labels, -1)


def _join(rule: DrawRule | None, parts: Sequence[Passed]) -> Passed:
    """Add up, in order; no addend is changed."""
    totals, profile = join_totals([part.totals for part in parts]), join_profiles([part.profile for part in parts])
    return Passed(totals, profile, _gathered(rule, [each for part in parts for each in part.drawn]))


def _absorb(rule: DrawRule | None, first: Passed, second: Passed) -> Passed:
    """As `_join` of both, in the memory of the first."""
    totals, profile = absorb_totals(first.totals, second.totals), absorb_profile(first.profile, second.profile)
    return Passed(totals, profile, _gathered(rule, [*first.drawn, *second.drawn]))


def _gathered(rule: DrawRule | None, parts: Sequence[Drawn]) -> tuple[Drawn, ...]:
    return () if rule is None else rule.gather(parts)


def assign_blocks(sketched: Sketched, blocks: Blocks, model: Model, stage: Stage) -> Assigned:
    """Label the sketched rows that were kept: what there is for rows that can be walked once only."""
    labels = np.full(int(sketched.chunk_rows.sum()), -1, np.int32)
    ends = np.cumsum(sketched.chunk_rows)
    chunks = zip(ends - sketched.chunk_rows, ends, sketched.kept, strict=True)
    filled = ((start, stop, kept) for start, stop, kept in chunks if (stop - start if kept is None else len(kept)))

    def take(part: NDArray[np.int32]) -> None:
        start, stop, kept = next(filled)
        labels[start:stop][slice(None) if kept is None else kept] = part
        stage.advance()

    table = blocks.executor.share(CenterTable.build(model.centers, blocks.dtype))
    totals = blocks.executor.fold(
        stage.name, _assign_block, JOIN_TOTALS, blocks.handles, len(blocks.handles), table, listener=Listener(take)
    )
    return Assigned(labels, totals)


def _assign_block(state: Totals | None, held: Held, table: CenterTable) -> tuple[Totals, NDArray[np.int32]]:
    block = loaded(held)
    labels, totals, d2 = assigned(state, merged(block.X), block.weights, table, with_d2=True)
    gathered = float(weighted_sum(block.weights, d2))
    return Totals(totals.sums, totals.counts, totals.d2 + gathered), labels


def map_rows(
    context: PassContext, model: Model, function: Callable[..., Any], stage: Stage, n_columns: int | None = None
) -> Iterator[NDArray[Any]]:
    """Read all rows once; yield ``function(X in the model's space, table)`` for each chunk, in order.

    Parameters
    ----------
    context : PassContext
    model : Model
    function : callable
        Of a matrix (v, m) and a CenterTable; gives one value, or one row of `n_columns`, for each row.
    stage : Stage
    n_columns : int, optional
        None: the function gives one value for each row.
    """
    executor, walk = context.executor, context.walk
    shared = context.share(model, model.table())
    items = (item for item, _ in executor.items(walk.source, walk.target_bytes))
    large = n_columns is not None
    for part in executor.map(stage.name, _map_item, items, shared, function, n_columns, large=large):
        stage.advance()
        stage.rows += len(part)
        yield part
    stage.read_bytes = walk.source.take_read_bytes()


def _map_item(
    item: Item, shared: tuple[Walk, Model, CenterTable], function: Callable[..., Any], n_columns: int | None
) -> NDArray[Any]:
    walk, model, table = shared
    rows = walk.read(item)
    values = function(model.place(rows.X), table)
    if rows.kept is None:
        return np.asarray(values)
    fill = -1 if values.dtype.kind == "i" else np.nan
    out = np.full(rows.n_read if n_columns is None else (rows.n_read, n_columns), fill, values.dtype)
    out[rows.kept] = values
    return out


def nearest_labels(X: Matrix, table: CenterTable) -> NDArray[np.int32]:
    """Labels of rows (v,), for `map_rows`."""
    return table.labels(X)


def nearest_d2(X: Matrix, table: CenterTable) -> NDArray[np.float64]:
    """Squared distances of rows to their nearest centers (v,), for `map_rows`."""
    return row_d2(X, table.labels(X), table)


def distances(X: Matrix, table: CenterTable) -> NDArray[Any]:
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
    d2 = row_d2(X, nearest.astype(np.int32), CenterTable.build(given, dtype))
    found[np.arange(len(found)), nearest] = np.sqrt(d2)
    return found
