"""The rows that a sweep clusters: sampled evenly, and drawn by their share of the objective of the most clusters.

What is drawn shows few rows far away, which no even sample of that size holds. Where all rows were sampled, rows are
drawn from those; else in one more pass over the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from streamkm.cluster.model import Metric, Model
from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.cluster.sampling.row_sample import Sample, SampleRule, stacked
from streamkm.cluster.seeding.draws import Drawn, DrawRule
from streamkm.cluster.seeding.search_set import rough_rows, seeded
from streamkm.core.matrix import rows_between
from streamkm.core.memory import trim_heap
from streamkm.core.progress import Progress
from streamkm.engine import Executor
from streamkm.fitting.centers import check_clusters
from streamkm.passes.context import PassContext
from streamkm.passes.draw import Shares, draw_pass
from streamkm.passes.gathered import Gathered
from streamkm.passes.sketch import Sketched, sketch_pass
from streamkm.planning.memory import pca_rows
from streamkm.planning.plan_parts import PlannedSketch
from streamkm.planning.sample_plan import SamplePlan, SweepSizes
from streamkm.sketches import Sketch
from streamkm.sketches.registry import sketch_class, sketch_of_rows

ROUGH_SHARE = 4  # of the sample, one part at most, for rough centers


@dataclass(frozen=True, slots=True)
class SweptRows:
    """Rows to cluster, and what the centers of a clustering are polished on.

    Attributes
    ----------
    clustered : Sample of s rows
        The first `n_even` rows of `sample`, then rows that were drawn and are not among those. Weights are 1 in the
        mean; none where nothing was drawn.
    n_even : int
    sample : Sample
        Rows sampled evenly.
    beyond : bool (s - n_even,)
        Which of the drawn rows are not in `sample` either.
    weights : float64 (rows of sample and those beyond,) or (0,)
        Of the rows of `sample` and then the drawn ones beyond it; none where nothing was drawn, or `sample` has all.
    """

    clustered: Sample
    n_even: int
    sample: Sample
    beyond: NDArray[np.bool_]
    weights: NDArray[np.float64]

    @classmethod
    def even(cls, sample: Sample, n_rows: int) -> SweptRows:
        """The first rows of a sample alone."""
        clustered = sample.part(0, n_rows)
        return cls(clustered, len(clustered.rows), sample, np.zeros(0, np.bool_), NO_WEIGHTS)

    @classmethod
    def joined(
        cls, sample: Sample, drawn: Drawn, chances: NDArray[np.float64], n_clustered: int, n_rows: int
    ) -> SweptRows:
        """Sampled and drawn rows: each with its weight over the probability that either has it, so sums are unbiased.

        Parameters
        ----------
        drawn : Drawn
            At most `n_clustered` rows; places are row numbers.
        chances : float64 (rows of sample and drawn rows,)
            Of the rows of `sample`, then those of `drawn`, to be drawn.
        n_rows : int
            All rows that count.
        """
        n_sampled = len(sample.rows)
        n_new = np.cumsum(~np.isin(sample.rows, drawn.places))  # among so many sampled rows
        n_even = 1 + int(np.searchsorted(n_new, n_clustered - drawn.n_rows)) if drawn.n_rows < n_clustered else 0
        n_even = min(n_even, n_sampled)
        others = np.flatnonzero(~np.isin(drawn.places, sample.rows[:n_even]))
        beyond = ~np.isin(drawn.places[others], sample.rows)

        def weights(n_taken: int, rows: NDArray[np.intp]) -> NDArray[np.float64]:
            drawing = np.concatenate([chances[:n_taken], chances[n_sampled:][rows]])
            return np.asarray(1 / (1 - (1 - n_taken / n_rows) * (1 - drawing)))

        found = weights(n_even, others)
        clustered = Sample(
            stacked([rows_between(sample.X, 0, n_even), drawn.X[others]]),
            np.concatenate([sample.rows[:n_even], drawn.places[others]]),
            found * (len(found) / found.sum()),
            False,
        )
        return cls(clustered, n_even, sample, beyond, weights(n_sampled, others[beyond]))

    def all_rows(self) -> Sample:
        """Sampled and drawn rows, to polish centers on."""
        if not len(self.weights):
            return self.sample
        further = self.n_even + np.flatnonzero(self.beyond)
        X = stacked([self.sample.X, self.clustered.X[further]])
        rows = np.concatenate([self.sample.rows, self.clustered.rows[further]])
        return Sample(X, rows, self.weights, False)


def draw_more(
    here: Executor,
    sample: Sample,
    sketch: Sketch,
    metric: Metric,
    *,
    n_clustered: int,
    n_clusters: int,
    n_rows: int,
    seed: np.random.SeedSequence,
    draw_all: Callable[[Shares, DrawRule], Drawn],
) -> SweptRows:
    """Draw rows by their share of the objective of rough centers, in the sketch, and join them with sampled ones.

    Rough centers are seeded on the last rows of the sample, which have no other part in this: probabilities to be drawn
    must not depend on which rows were sampled, or the weights of rows that are both would not be unbiased.

    Parameters
    ----------
    n_clustered : int
        Rows to cluster, of which half are drawn.
    n_clusters : int
        The most clusters.
    n_rows : int
        All rows that count.
    seed : SeedSequence
        Of the rough centers and of what is drawn.
    draw_all : callable
        Draws from all rows; called where `sample` has not all of them.
    """
    rng, word = np.random.default_rng(seed), int(seed.generate_state(1, np.uint64)[0])
    n_others = len(sample.rows) - min(2 * rough_rows(n_clusters), len(sample.rows) // ROUGH_SHARE)
    n_seeded = (len(sample.rows) - n_others) // 2
    rough = sample.part(n_others, len(sample.rows))
    centers = seeded(here, rough.part(0, n_seeded).block(here, sketch), n_clusters, rng)
    model = Model(centers, int(sample.X.shape[1]), metric, "sketch", sketch)
    shares, expected = Shares.of(model, rough.part(n_seeded, len(rough.rows)).X, n_rows)
    rule, table = DrawRule.of(max(1, n_clustered // 2), word, float(n_rows), expected), model.table()
    if sample.complete:
        drawn = rule.draw(sample.X, sample.rows, NO_WEIGHTS, shares(sample.X, table))
    else:
        drawn = draw_all(shares, rule)
    others = sample.part(0, n_others)
    each = np.concatenate([shares(others.X, table), drawn.d2])
    chances = rule.probabilities(np.ones(len(each)), each, drawn.limit)
    swept = SweptRows.joined(others, drawn, chances, n_clustered, n_rows)
    return replace(swept, sample=sample, weights=NO_WEIGHTS) if sample.complete else swept


def rows_to_sweep(
    context: PassContext,
    here: Executor,
    plan: SamplePlan,
    sketch: PlannedSketch,
    sizes: SweepSizes,
    seed: int,
    stages: Progress,
) -> tuple[Sketched, Sketch, SweptRows]:
    """What the first pass gathers, the sketch, and the rows that are clustered in it."""
    n_clustered = sizes.clustered_rows
    sketch_seed, sample_seed, _, draws = sweep_streams(seed)
    source = context.reader.source
    rule = SampleRule.of(plan.sample_rows, _word(sample_seed), source.estimated_rows, NO_WEIGHTS)
    with stages.stage("sample") as stage:
        read = sketch_pass(context, Gathered(rule), stage, record="sample")
    trim_heap(plan.limit_bytes)
    check_clusters(sizes.n_clusters, read.n_valid)
    made = _made_sketch(sketch, read.sample, _word(sketch_seed), sizes.n_clusters)
    if read.n_valid <= n_clustered or not (read.sample.complete or source.replayable):
        return read, made, SweptRows.even(read.sample, n_clustered)
    drawing = partial(_drawn_from_all, context, read.chunk_rows, stages)
    swept = draw_more(
        here,
        read.sample,
        made,
        context.reader.metric,
        n_clustered=n_clustered,
        n_clusters=sizes.n_clusters,
        n_rows=read.n_valid,
        seed=draws,
        draw_all=drawing,
    )
    trim_heap(plan.limit_bytes)
    return read, made, swept


def _drawn_from_all(
    context: PassContext, chunk_rows: NDArray[np.int64], stages: Progress, shares: Shares, rule: DrawRule
) -> Drawn:
    """Rows drawn in one more pass, or what an earlier sweep has kept of it."""
    begun = context.writer.load("drawn", Drawn)
    if begun is not None:
        return begun
    with stages.stage("draw", len(chunk_rows)) as stage:
        drawn = draw_pass(context, shares, rule, chunk_rows, stage)
    context.writer.save("drawn", drawn)
    return drawn


def _made_sketch(planned: PlannedSketch, sample: Sample, word: int, n_clusters: int) -> Sketch:
    kind, m, X = planned.sketch, planned.n_components, sample.X
    rows = X[: pca_rows(X.shape[1], m)] if sketch_class(kind).found_on_few else X
    return sketch_of_rows(kind, m, word, rows, n_clusters)


def _word(seed: np.random.SeedSequence) -> int:
    return int(seed.generate_state(1, np.uint64)[0])


def sweep_streams(seed: int) -> list[np.random.SeedSequence]:
    """The random streams of a sweep: of its sketch, of its sample, of its runs, and of what it draws."""
    words = check_random_state(seed).randint(0, 2**32, 4, dtype=np.uint32)
    return np.random.SeedSequence([int(word) for word in words]).spawn(4)
