"""Statistics of all rows: those that the steps of a preparation need, a pass for each, and document frequencies."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.cluster.sampling.row_sample import SampleRule
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.progress import Progress
from streamkm.engine.pass_memory import PassMemory
from streamkm.engine.passes import Pass
from streamkm.passes.gathered import Gathered
from streamkm.passes.pass_context import PassContext
from streamkm.passes.reader import Invalid, ValidRows
from streamkm.passes.sketch import FindSketch, sketch_pass
from streamkm.preparation import Preparation
from streamkm.preparation.moments import SUM_BYTES, FillFit, MomentsFit, quartile_scaling
from streamkm.preparation.preparation import FILL, FOUND, kind_of
from streamkm.preparation.scaling import Fill, Scaling, Table, rounding_of
from streamkm.sources.open import store_of
from streamkm.sources.prepared import PreparedRows
from streamkm.sources.row_source import RowSource
from streamkm.text.tfidf import Frequencies

logger = logging.getLogger(__name__)

COUNTING_COPIES = 24  # of the rows that documents become: texts, words, and entries, by two threads
SAMPLE_SEED = 0  # of the rows for quartiles: the same for every fit


def planned_rows(source: RowSource, preparation: Preparation) -> RowSource:
    """The rows that will be clustered, described before statistics are found; or InvalidInputError."""
    steps = preparation.steps
    if not steps:
        return source
    if store_of(source) is not None:
        named = 'invalid="mean"' if steps[0] == FILL else f"preprocess={list(steps)!r}"
        raise InvalidInputError(
            f"the rows of {source.name} are sketched already, and steps are for original rows; leave {named} out"
        )
    if preparation.finding and not source.access.replayable:
        step = preparation.finding[0]
        named = 'invalid="mean"' if step == FILL else f"the step {step!r}"
        raise InvalidInputError(
            f"{source.name} can be read only once, and {named} takes a pass of its own; "
            "pass a list of chunks, or a function that returns a fresh iterator"
        )
    if source.is_sparse and "table" in steps:
        raise InvalidInputError(
            f'{source.name} has sparse rows, and preprocess="table" is for dense ones; pass categories="onehot", or '
            'other steps, as preprocess=["standardize"]'
        )
    return PreparedRows(source, preparation)


def find_preparation(
    context: PassContext, preparation: Preparation, sample_rows: int, progress: Progress
) -> Preparation:
    """The steps with their statistics, found in one pass over all rows for each step that needs some.

    All rows weigh 1; saved statistics are restored. Quartiles are estimated from at most `sample_rows` rows. Raises
    InvalidInputError: a row is invalid and `invalid` is not "skip", or there are no rows.
    """
    source = context.reader.source
    for number, step in enumerate(preparation.steps):
        if step not in FOUND:
            continue
        rows = PreparedRows(source, preparation.before(number)) if number else source
        invalid: Invalid = "mean" if step == FILL else context.reader.invalid
        reader = replace(context.reader, source=rows, metric="euclidean", may_index=True, invalid=invalid)
        name = f"step-{number}"
        scaling = _found(replace(context, reader=reader, weights=NO_WEIGHTS), step, name, sample_rows, progress)
        columns = preparation.columns_of(number)
        if columns is not None and isinstance(scaling, Scaling):
            scaling = scaling.only(columns)
        preparation = replace(preparation, found=(*preparation.found, scaling))
    return preparation


def _found(context: PassContext, step: str, record: str, sample_rows: int, progress: Progress) -> Scaling | Fill:
    """The statistics of one step, restored from an earlier run if it saved them."""
    kept: Scaling | Fill | None = context.writer.load(record, kind_of(step))
    if kept is not None:
        return kept
    source, target_bytes = context.reader.source, context.reader.target_bytes
    n_chunks = len(source.chunks(target_bytes)) or None
    found: Scaling | Fill
    with progress.stage(step, n_chunks) as stage:
        if step in ("robust", "table"):
            rule = SampleRule.of(sample_rows, SAMPLE_SEED, source.estimated_rows, NO_WEIGHTS)
            sample = sketch_pass(context, Gathered(rule), stage).sample
            if step == "table":
                names = source.feature_names or ()
                found = table_columns(sample.X, sample.rows, names)
                for line in found.told(names.__getitem__ if names else "x{}".format):
                    logger.info("table: %s", line)
            else:
                found = quartile_scaling(sample.X)
        else:
            fit = FillFit() if step == FILL else MomentsFit(not source.is_sparse, source.dtype)
            sums = PreparationSums(fit, source.name, source.n_features)
            sums_record = None if n_chunks is None else f"{record}-sums"
            found, stage.rows = context.run(sums, stage, record=sums_record)
    context.writer.save(record, found)
    return found


@dataclass(frozen=True, slots=True)
class PreparationSums(FindSketch):
    """Means of all columns, and their deviations if rows are scaled."""

    name: str  # of the source, for messages
    n_features: int | None

    @property
    def state_bytes(self) -> float:
        """Bytes of the sums; infinite if the number of columns is unknown."""
        return SUM_BYTES * self.n_features if self.n_features else math.inf

    def finish(self, state: NDArray[np.float64] | None) -> tuple[Scaling | Fill, int]:
        """Return the statistics and the number of rows."""
        n_rows = 0 if state is None else int(state[0, 0])
        if state is None or not n_rows:
            raise InvalidInputError(f"{self.name} has no valid rows; needed: at least 1")
        return self.fit.finish(state), n_rows


@dataclass(frozen=True, slots=True)
class CountFeatures(Pass[Frequencies, None, Frequencies]):
    """Count the rows in which each feature occurs."""

    @staticmethod
    def memory(target_bytes: int) -> PassMemory:
        """Memory of texts, words and entries that readers of documents hold for a chunk."""
        return PassMemory(kept=COUNTING_COPIES * target_bytes, reads=False)

    def start(self) -> Frequencies:
        """A state without counts."""
        return Frequencies.of(sp.csr_array((0, 1)))

    def step(self, state: Frequencies, rows: ValidRows) -> tuple[Frequencies, None]:
        """Count the rows of a chunk."""
        return self.join(state, Frequencies.of(rows.X)), None

    def join(self, first: Frequencies, second: Frequencies) -> Frequencies:
        """Add the counts of two states."""
        return Frequencies.joined([first, second])


SKEWED = 0.35  # of the distance of the outer quantiles, the difference of their distances from the median
EVENER = 0.75  # as much of it a logarithm may leave
FEW_ROWS = 1000  # from which on different whole numbers identify rows
COUNTS = 0.999  # correlation with the rows' numbers of a column that counts
TAILS = (0.5, 99.5)  # percentiles; values as far beyond as these are apart are clipped


def table_columns(X: NDArray[np.generic], rows: NDArray[np.int64], names: Sequence[str]) -> Table:
    """The treatment of each column, by sampled rows and their numbers; one-hot names have a ``=``. O(s log s * d)."""
    found = np.empty((6, X.shape[1]))  # the fields of `Table`
    for number in range(X.shape[1]):
        name = names[number] if names else ""
        found[:, number] = _column(X[:, number].astype(np.float64), rows, name, rounding_of(X.dtype))
    return Table(*found)


def _column(values: NDArray[np.float64], rows: NDArray[np.int64], name: str, rounding: float) -> tuple[float, ...]:
    """Shift, factor, bounds, fate and the share beyond the bounds."""
    smallest, largest = values.min(), values.max()
    middle = float(np.float32(np.median(values)))
    if largest - smallest <= rounding * max(abs(smallest), abs(largest)):
        return middle, 1.0, middle, middle, 3, 0.0
    if np.isin(values, (0, 1)).all():  # two categories are 1 apart, in one column or two
        return 0.0, np.sqrt(0.5) if "=" in name else 1.0, 0.0, 1.0, 2, 0.0
    left_out = _identifies(values, rows)
    if left_out:
        return middle, 1.0, middle, middle, left_out, 0.0
    fate, skew = 0, _skew(values)
    if smallest >= 0 and skew > SKEWED and abs(_skew(np.log1p(values))) < EVENER * skew:
        fate, values = 1, np.log1p(values)
    tails = np.percentile(values, TAILS)
    low, high = tails + np.array([-1, 1]) * (tails[1] - tails[0])
    if low == high:  # but for rare rows
        return middle, 1.0, middle, middle, 3, 0.0
    low = max(low, 0.0) if fate else low
    beyond = float(((values < low) | (values > high)).mean())
    clipped = np.clip(values, low, high)
    bounds = np.expm1([low, high]) if fate else (low, high)
    return clipped.mean(), 1 / clipped.std(), *bounds, fate, beyond


def _identifies(values: NDArray[np.float64], rows: NDArray[np.int64]) -> int:
    """The fate of a column that counts or identifies rows; 0 for others."""
    if len(values) > 2 and abs(np.corrcoef(rows, values)[0, 1]) > COUNTS:
        return 4
    whole = len(values) >= FEW_ROWS and (values == np.floor(values)).all()
    return 5 if whole and len(np.unique(values)) == len(values) else 0


def _skew(values: NDArray[np.float64]) -> float:
    low, middle, high = np.percentile(values, (5, 50, 95))
    return float((high + low - 2 * middle) / (high - low)) if high > low else 0.0
