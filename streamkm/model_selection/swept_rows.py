"""The rows that a sweep clusters: sampled evenly, and drawn by their share of the objective of the most clusters.

What is drawn shows few rows far away, which no even sample of that size holds. Where all rows were sampled, rows are
drawn from those; else in one more pass over the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.model import Metric, Model
from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.cluster.sampling.row_sample import Sample, stacked
from streamkm.cluster.seeding.draws import Drawn, DrawRule
from streamkm.cluster.seeding.search_set import rough_rows, seeded
from streamkm.core.matrix import rows_between
from streamkm.engine import Executor
from streamkm.passes.draw import Shares
from streamkm.sketches import Sketch

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
