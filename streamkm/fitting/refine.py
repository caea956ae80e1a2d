"""Better centers for another pass over all rows, if they are asked for, or if drawn rows show that it pays."""

from __future__ import annotations

import logging
import warnings
from dataclasses import replace

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.cluster.even_sizes import BEYOND, MOST_OUTSIDE, SIZE_ROUNDS, Evened, Moves, SizeBounds
from streamkm.cluster.in_memory import LocalBlocks, nearest_in
from streamkm.cluster.lloyd import POLISH_STEPS, POLISH_TOL, LloydResult, filled, lloyd, original_centers, polish
from streamkm.cluster.normalization import on_sphere
from streamkm.cluster.rows import NO_WEIGHTS, Block, densified, row_d2, row_d2norms
from streamkm.cluster.sampling.row_sample import Sample, as_block_matrix, stacked
from streamkm.cluster.seeding.draws import NO_OBJECTIVE, Drawn, DrawRule, combined
from streamkm.cluster.seeding.init import Streams, best_start, local_search
from streamkm.cluster.seeding.search_set import ROWS_PER_CLUSTER, SearchRows
from streamkm.core.exceptions import StreamkmWarning
from streamkm.core.matrix import Matrix
from streamkm.core.memory import trim_heap
from streamkm.fitting.context import FitContext
from streamkm.fitting.gain import GainEstimate, GlobalSearch
from streamkm.fitting.state import FitState

WORTH = 0.01  # share of the objective that another round should gain, at least
WORTH_OF_FEW = 0.002  # the same if memory left few sampled rows
# Such a share, from which starts are searched anew, too: the first ones were blind to much of the data. That means of
# the sample are not those of all rows costs less: with s rows a cluster, 1 / s of the objective.
ANEW = 0.05

logger = logging.getLogger(__name__)


def improve(context: FitContext, state: FitState) -> bool:
    """Set the centers of the next pass; False if the last one was the end.

    An integer `refine` takes the means of the clusters that often; "auto" searches for better centers while drawn rows
    show that it pays. If an earlier pass was better, its centers label all rows once more, and the fit ends.
    """
    plan, settings, totals = context.plan, context.settings, state.assigned.totals
    may_search = settings.searches and not state.is_final
    normalization = state.found.sample_view.normalization
    if state.model.columns is not None:
        normalization = state.model.columns.normalization(normalization)
    search = GlobalSearch(
        context.here, state.model, normalization, totals, state.rule, state.assigned.drawn, settings.spherical
    )
    centers, is_round = None, state.index >= settings.n_refinements
    if state.evened is not None:
        centers = _tuned(context, state, state.evened)
    elif state.best is not state.centers:
        centers = state.best
    elif (more := made_up(search, settings.n_clusters)) is not None:
        centers = more
    elif not is_round and not state.is_final:
        centers = totals.means(fallback=state.centers)
    elif plan.drawn_rows or (settings.searches and plan.more_passes):
        centers = _searched_further(context, state, search, plan.more_passes if may_search else 0)
    del search
    if centers is None:
        if state.inertia_estimate is not None and state.inertia_estimate.few_decide:
            logger.info("no objective is predicted: too few rows of the sample decide it")
            state.inertia_estimate = None
        return False
    if settings.spherical and centers is not state.best:
        centers = on_sphere(centers)
    state.centers = centers
    state.index += 1
    state.n_rounds += is_round
    # a run that makes this pass again would write its labels over those that the next pass has saved
    context.writer.save("refined", state)
    del state.assigned  # the next pass needs the memory
    trim_heap(plan.limit_bytes)
    return True


def _tuned(context: FitContext, state: FitState, evened: Evened) -> NDArray[np.float64] | None:
    """Centers of the next pass, once its prices are set by the sizes that the last one counted; None if these will do.

    What prices leave outside the bounds is moved row by row; where candidates do not suffice, another pass finds more.
    """
    settings, totals, edges, rule = context.settings, state.assigned.totals, state.assigned.edges, evened.rule
    assert edges is not None
    bounds, soft = settings.size_bounds(totals.counts.sum(), context.weights), len(settings.cluster_size or ()) == 3
    outside, is_round = bounds.outside(totals.counts), state.index >= settings.n_refinements
    if not is_round or (outside > MOST_OUTSIDE * totals.counts.sum() and state.n_rounds < SIZE_ROUNDS):
        state.evened = replace(evened, prices=edges.tuned(totals.counts, evened.prices, bounds))
        return state.centers if is_round else totals.means(fallback=state.centers)
    n_rows, stays = int(state.found.chunk_rows.sum()), len(totals.counts)
    before = rule.moves or Moves(np.full(n_rows, stays, np.min_scalar_type(stays)), totals.counts, 0.0)
    trim_heap(context.plan.limit_bytes, context.plan.memory["assign"])  # solving takes much
    moves = edges.moved(before, SizeBounds(0, np.inf) if soft else bounds)
    state.evened, left = replace(evened, rule=replace(rule, moves=moves)), bounds.outside(moves.counts)
    logger.info("%s rows are moved to keep the bounds of sizes; %.6g stay outside", f"{moves.moving.sum():,}", left)
    if soft or left <= BEYOND:
        return None
    if rule.moves is not None and left >= bounds.outside(before.counts):
        said = f"sizes miss the bounds of cluster_size by {left:,.6g} rows in all; widen them"
        warnings.warn(said, StreamkmWarning, stacklevel=6)
        return None
    state.evened = replace(evened, rule=rule.among(moves, bounds))
    return state.centers


def _searched_further(
    context: FitContext, state: FitState, search: GlobalSearch, most_rounds: int
) -> NDArray[np.float64] | None:
    """Centers for another round if it is worth one; sets the estimated gain of the state."""
    plan, estimate = context.plan, state.inertia_estimate
    trim_heap(plan.limit_bytes)
    could = search.estimate(estimate, int(state.found.chunk_rows.sum()))
    state.gain = gain = could.gain
    few, worth = plan.few_sampled, WORTH_OF_FEW if plan.few_sampled else WORTH
    trim_heap(plan.limit_bytes)
    logger.info(
        "objective %.6g; moving one center elsewhere would lower it by at least %.2f %%", search.totals.d2, 100 * gain
    )
    # one split and merge shows nothing if a small sample missed several groups; starts among drawn rows may
    blind = few and plan.keeps_sample and estimate is not None and not estimate.is_kept(search.totals.d2)
    if state.n_rounds >= most_rounds or (gain <= worth and not blind):
        return None
    with context.progress.stage(f"search-{state.n_rounds + 1}"):
        # a search ends at means of sampled rows: those of all rows are better if little but moving gains
        if not plan.keeps_sample or (worth < gain <= ANEW and could.by_swaps < could.by_moving):
            return search.swapped(could, carried_on=state.n_rounds + 1 < most_rounds)
        centers, gained = next_centers(context, state, search, could, anew=blind or gain > ANEW)
        return centers if gained > worth else None


def made_up(search: GlobalSearch, n_clusters: int) -> NDArray[np.float64] | None:
    """Centers made up to `n_clusters` by drawn rows; None if none is missing, or if all rows lie on a center."""
    centers = search.model.centers
    if len(centers) >= n_clusters or search.drawn is None or search.totals.d2 <= 0:
        return None
    # rows that were not drawn lie on centers
    both = _with_means(search, replace(search.drawn, X=as_block_matrix(search.drawn.X, sketched=False)), centers)
    block, centers, shift = search.normalized(both.X, both.weights, centers)
    pieces, rng = LocalBlocks.of(search.here, block), np.random.default_rng(n_clusters)
    result = lloyd(pieces, filled(pieces, centers, n_clusters), max_iter=POLISH_STEPS, tol=POLISH_TOL)
    result = local_search(block, pieces, result, rng=rng)
    return search.normalization.originals(result.centers + shift) if len(result.centers) > len(centers) else None


def next_centers(
    context: FitContext, state: FitState, search: GlobalSearch, found: GainEstimate, *, anew: bool
) -> tuple[NDArray[np.float64], float]:
    """Centers for another round (k, m), and the share of the objective of the searched rows that they gain.

    The search goes on, on sampled and drawn rows. `anew`: starts are also searched on them, and the better centers win.
    """
    if "search" not in context.plan.memory:  # the rows that it keeps and draws are too few
        return search.swapped(found), found.gain
    sample = state.found.sample_view.originals(whole=True)
    own_weights = context.weights[sample.rows] if len(context.weights) else np.ones(len(sample.rows))
    rng = np.random.default_rng([context.settings.seed64("draws"), len(found.swaps)])
    start = search.totals.means(fallback=search.model.centers)
    both = _joined(search, sample, own_weights)
    weights = both.weights * (search.totals.counts.sum() / both.weights.sum())
    both = _with_means(search, replace(both, weights=weights), start)
    if both.n_rows < ROWS_PER_CLUSTER * len(start):
        return search.swapped(found), found.gain
    in_sketch = search.is_sketched(both.X)
    block, centers, shift = _searched_in(search, both.X, both.weights, start)
    pieces = LocalBlocks.of(search.here, block)
    result = local_search(block, pieces, LloydResult(centers, float("nan"), 0, False, ()), rng=rng)
    gained = found.gain
    if anew:
        before = lloyd(pieces, centers, max_iter=1, tol=0).history[0]
        pool, streams = SearchRows(n_rows=int(state.found.chunk_rows.sum())), Streams(*rng.spawn(2))
        other = best_start(search.here, block, len(start), init="k-means++", n_init="auto", streams=streams, pool=pool)
        result = min(result, lloyd(pieces, other, max_iter=1, tol=0), key=lambda each: each.inertia)
        # k means gain a share of k / n on the rows that they are means of
        gained = max(gained, 1 - result.inertia / max(before, NO_OBJECTIVE) - len(start) / both.n_rows)
    rows = Sample(
        both.X if in_sketch else search.normalization.rows(both.X), both.row_ids, both.weights, sample.complete
    )
    searched = result.centers + shift
    if in_sketch:
        searched, _ = original_centers(search.here, rows, block, result.centers)
    if len(searched) < len(start):
        return start, gained
    polished = polish(search.here, rows, searched, max_iter=POLISH_STEPS, tol=POLISH_TOL).centers
    return polished if in_sketch else search.normalization.originals(polished), gained


def _joined(search: GlobalSearch, sample: Sample, own_weights: NDArray[np.float64]) -> Drawn:
    """Sampled and drawn rows as one drawing."""
    X, drawn, model = as_block_matrix(search.model.place(sample.X), sketched=False), search.drawn, search.model
    if sample.complete or drawn is None or search.rule is None:
        return Drawn(X, sample.rows, own_weights, NO_WEIGHTS, NO_WEIGHTS, np.inf)
    table = model.table()
    shares = row_d2(X, nearest_in(search.here, X, table, "draws"), table)
    # rows of weight w are in the sample with probability 1 - exp(-limit w)
    chance = own_weights[0] / sample.weights[0] if len(sample.weights) else X.shape[0] / search.totals.counts.sum()
    limit = float(-np.log1p(-min(chance, 1 - 1e-12)) / own_weights[0])
    taken = Drawn(X, sample.rows, own_weights, shares, NO_WEIGHTS, limit)
    drawn = replace(drawn, X=as_block_matrix(drawn.X, sketched=False))
    every = np.concatenate([shares, drawn.d2])
    return combined([DrawRule(len(shares), 0, 1.0, 0.0), search.rule], [taken, drawn], [every, every])


def _with_means(search: GlobalSearch, drawn: Drawn, means: NDArray[np.float64]) -> Drawn:
    """Drawn rows, and each cluster's mean with the weight that its drawn rows do not represent.

    Without its mean, a cluster of few rows near their mean would hardly count, and the search would move its center.
    """
    counts, weights = search.totals.counts, drawn.weights
    labels = nearest_in(search.here, drawn.X, search.model.table(), "search")
    missing = counts - np.bincount(labels, weights, minlength=len(counts))
    unseen = np.flatnonzero(missing > 0)
    more: Matrix = means[unseen].astype(drawn.X.dtype)
    if not isinstance(drawn.X, np.ndarray):
        more = sp.csr_array(more)
    X, row_ids = stacked([drawn.X, more]), np.concatenate([drawn.row_ids, np.full(len(unseen), -1)])
    return replace(drawn, X=X, row_ids=row_ids, weights=np.concatenate([weights, missing[unseen]]))


def _searched_in(
    search: GlobalSearch, X: Matrix, weights: NDArray[np.float64], centers: NDArray[np.float64]
) -> tuple[Block, NDArray[np.float64], NDArray[np.float64]]:
    """Rows and centers for the search, and the shift of both; see `is_sketched`."""
    if search.is_sketched(X):
        X, n_clusters = as_block_matrix(search.model.sketched(X)), len(centers)
        points = search.model.sketched(centers)
        centers = densified(points, np.arange(n_clusters), points.shape[1])
        return Block(X, row_d2norms(X), weights), centers, np.zeros(centers.shape[1])
    return search.normalized(X, weights, centers, exactly=False)


def warn_of_gain(context: FitContext, gain: float | None) -> None:
    """Warn of clusters that could be better, if the settings forbid to improve them."""
    settings = context.settings
    if not settings.searches or gain is None or gain <= WORTH:
        return
    remedy = "" if settings.refine == "auto" else 'refine="auto", '
    warnings.warn(
        f"The last pass estimates that the objective can fall by at least {gain:.1%}: the sample missed some clusters. "
        f'Use {remedy}coreset="sensitivity", or more memory.',
        StreamkmWarning,
        stacklevel=5,
    )
