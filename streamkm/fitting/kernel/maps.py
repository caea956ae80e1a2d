"""From sampled rows to a feature map: landmarks and W's root, random frequencies, or sketches of all columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.cluster.sampling.row_sample import Sample
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.matrix import Matrix
from streamkm.core.progress import Stage
from streamkm.engine import Executor, Large
from streamkm.engine.passes import run
from streamkm.fitting.kernel.landmarks import Choice, choose_landmarks, kept, precomputed_landmarks
from streamkm.fitting.kernel.papers.column_sketches import column_sketch, sketched_columns_map
from streamkm.fitting.kernel.papers.landmark_sketches import landmark_sketch
from streamkm.passes.reader import ValidRows
from streamkm.passes.sketch import FindSketch
from streamkm.planning.kernel_sizes import COLUMN_SKETCHES, LANDMARK_SKETCHES
from streamkm.sketches import FourierMap, GramFit, Kernel, KernelMap, Sketch
from streamkm.sketches.kernel_columns import KernelColumns
from streamkm.sketches.kernel_map import inverse_root

GRAM_ROWS = 5_000  # of the sample, from which the leading directions are found where the data are not streamed for it
GRAM_ROWS_PER_COLUMN = 6
GRAM_PIECE_ROWS = 1280  # four pieces of 5,000 rows, for two threads or four


@dataclass(frozen=True, slots=True)
class MapRule:
    """How rows become features.

    Attributes
    ----------
    method : of `kernel_sizes.METHODS`
    choice : Choice
        Landmarks, or as many random features; and the rank.
    root_rank : int or None
        Rank that W's pseudo-inverse is cut to; None: what float32 values determine.
    """

    method: str
    choice: Choice
    root_rank: int | None


def first_round(
    here: Executor, sample: Sample, kernel: Kernel, rule: MapRule, n_rows: int, rng: np.random.Generator
) -> Sketch | GramFit:
    """The map, or the round of sums over rows that finds its projection.

    Parameters
    ----------
    n_rows : int
        Of the data, n.

    Raises
    ------
    InvalidInputError
        If a sketch of all columns is asked for and the sample does not hold all rows.
    InvalidParameterError
        For random Fourier features of another kernel than "rbf".
    """
    rank = rule.choice.rank
    if rule.method in COLUMN_SKETCHES:
        if not sample.complete:
            raise InvalidInputError(
                f"method={rule.method!r} needs all rows in memory; {len(sample.rows):,} of more are sampled: "
                'use method="nystroem"'
            )
        sketch = column_sketch(rule.method, len(sample.rows), rule.choice.n_landmarks, int(rng.integers(2**63)))
        return sketched_columns_map(here, kernel, kept(sample.X), sketch, rank, rule.root_rank)
    if rule.method.endswith("fourier"):
        if kernel.name != "rbf":
            raise InvalidParameterError(f'method={rule.method!r} with kernel={kernel.name!r}; needed: kernel="rbf"')
        n_columns = max(2, rule.choice.n_landmarks // 2 * 2)
        orthogonal = rule.method == "orthogonal-fourier"
        drawn = FourierMap.draw(kernel.gamma, _mean(sample.X), n_columns, orthogonal=orthogonal, rng=rng)
        return GramFit(drawn, np.eye(n_columns), rank)
    if rule.method in LANDMARK_SKETCHES:
        landmarks = choose_landmarks(here, sample, kernel, rule.choice, rng)
        n_columns = int(landmarks.shape[0])
        if rule.method == "ros":  # there may be fewer rows than were estimated
            n_columns = 1 << (n_columns.bit_length() - 1)
        mixing = landmark_sketch(rule.method, n_columns, n_rows, rng)
        return KernelMap.of(kernel, landmarks[:n_columns], mixing)
    if kernel.name == "precomputed":
        landmarks, rows = precomputed_landmarks(sample, rule.choice.n_landmarks)
    else:
        rows = landmarks = choose_landmarks(here, sample, kernel, rule.choice, rng)
    root = inverse_root(KernelColumns(kernel, landmarks).values(rows), rule.root_rank)
    whole = KernelMap.of(kernel, landmarks, root)
    return whole if rule.method == "two-step" else GramFit(whole, root, rank)


def fit_on_sample(here: Executor, sample: Sample, round_: GramFit) -> Sketch:
    """Finish a round by sampled rows alone: 5,000, or 6 a column, which fix the leading directions.

    Pieces are added up in order, whatever the number of threads.
    """
    n_rows = min(len(sample.rows), max(GRAM_ROWS, GRAM_ROWS_PER_COLUMN * round_.map.n_columns))
    found = run(FindSketch(round_), SampledRows(sample, n_rows), here, Stage("gram"))
    assert not isinstance(found, GramFit)  # one round is all there is
    return found  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class SampledRows:
    """The first rows of a sample, piece by piece, as `engine.passes.run` reads them."""

    sample: Sample
    n_rows: int

    @property
    def n_items(self) -> int:
        """Pieces."""
        return -(-self.n_rows // GRAM_PIECE_ROWS)

    def items(self, executor: Executor) -> Iterator[slice]:  # noqa: ARG002 - they are in this process
        """The rows of each piece."""
        cuts = [*range(0, self.n_rows, GRAM_PIECE_ROWS), self.n_rows]
        return (slice(start, stop) for start, stop in pairwise(cuts))

    def reader(self, executor: Executor) -> SampledRows:  # noqa: ARG002
        """The sample."""
        return self

    def large(self, state_bytes: float) -> Large:  # noqa: ARG002
        """States are larger than pieces."""
        return "state"

    def finished(self, stage: Stage) -> None:
        """Nothing was read."""

    def read(self, item: slice) -> ValidRows:
        """The rows of a piece."""
        X, places = self.sample.X[item], self.sample.rows[item]
        return ValidRows(X, places, len(places), None, None, self.sample.weights[item])


def _mean(X: Matrix) -> NDArray[np.float64]:
    """Mean of dense rows; zeros for sparse ones, which must stay sparse."""
    return np.zeros(X.shape[1]) if sp.issparse(X) else X.mean(axis=0, dtype=np.float64)
