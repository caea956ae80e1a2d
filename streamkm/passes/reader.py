"""Reading of a source in passes: the items that calls read, and the valid rows of each, scaled for cosine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.model import Metric
from streamkm.cluster.rows import NO_WEIGHTS, normalized, row_d2norms
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import Matrix, working_dtype
from streamkm.core.progress import Stage
from streamkm.engine import Executor, Large
from streamkm.preparation import DOMAINS
from streamkm.sources.chunks import Chunk
from streamkm.sources.remote import unchanged
from streamkm.sources.row_source import IndexedRows, Rows, RowSource, row_ids_between

Invalid = Literal["raise", "skip", "mean"]
Item = Chunk | Rows | tuple[Chunk, Any, list[Any]]
ReadItem = tuple[Item, int | None, NDArray[np.float64], int, int]
"""An item, its expected number of rows, their weights, the rows before it, each if known, and the items before it."""
LARGEST_D2 = 1e300  # squared norms above it leave no room for sums,
LARGEST_SINGLE_D2 = 1e34  # in single precision
SMALL = (np.dtype(np.uint8), np.dtype(np.int8), np.dtype(np.bool_))  # rows of them are valid


@dataclass(frozen=True, slots=True)
class RowReader:
    """A source, and the settings by which every pass of a run reads it."""

    source: RowSource
    target_bytes: int  # decoded bytes of a chunk, about
    metric: Metric  # "euclidean" or "cosine", "cosine": rows are scaled to unit length as they come
    # "raise", "skip" or "mean", whether rows with NaN or infinity raise InvalidInputError or are left out. "mean": rows
    # with NaN are read as they are, for a pass that gathers means; others raise
    invalid: Invalid
    # whether a pass that needs a few rows may leave the others unread, because another pass of the run reads and checks
    # all of them
    may_index: bool = False

    def items(
        self, executor: Executor, weights: NDArray[np.float64], chunk_rows: NDArray[np.int64] | None
    ) -> Iterator[ReadItem]:
        """Items that the executor's calls read, with their numbers of rows and the rows' weights.

        `chunk_rows` (chunks,), from an earlier pass, is needed if there are weights and the source does not know its
        rows.
        """
        first_row = 0
        for index, (item, known) in enumerate(executor.items(self.source, self.target_bytes)):
            if chunk_rows is not None and index >= len(chunk_rows):
                raise changed_source(self)
            n_rows = known if chunk_rows is None else int(chunk_rows[index])
            stop = first_row + (n_rows or 0)
            if len(weights) and stop > len(weights):
                raise InvalidInputError(f"sample_weight has {len(weights):,} values; {self.source.name} has more rows")
            yield item, n_rows, weights[first_row:stop] if len(weights) else NO_WEIGHTS, first_row, index
            first_row = stop

    def index_rows(self, item: Item) -> IndexedRows | None:
        """Find an item's rows without reading them; None unless `may_index` and the source can."""
        if not self.may_index or self.invalid == "skip" or not isinstance(item, Chunk):
            return None
        return self.source.index_rows(item)

    def read(self, item: ReadItem) -> ValidRows:
        """Read an item of `items`: its valid rows, with their weights.

        Raises InvalidInputError: NaN or infinity, unless such rows are skipped (names the row); another number of rows.
        """
        what, n_expected, weights, first_row, _ = item
        valid = self.read_rows(what)
        if n_expected is not None and valid.n_read != n_expected:
            raise changed_source(self)
        kept = weights if valid.kept is None or not len(weights) else weights[valid.kept]
        return replace(valid, weights=kept, first_row=first_row)

    def read_rows(self, item: Item) -> ValidRows:
        """Read an item of `items`, or a chunk, as `read` does."""
        if isinstance(item, tuple):  # a chunk of a Dask array, its graph, and inputs of the graph
            chunk, block, inputs = item
            X = self.source.finished(block(inputs))
            return self.checked(X, row_ids_between(chunk.start, chunk.start + X.shape[0]))
        rows = self.source.read(item) if isinstance(item, Chunk) else item
        return self.checked(rows.X, rows.row_ids)

    def checked(self, X: Matrix, row_ids: NDArray[np.int64]) -> ValidRows:
        """Take out invalid rows; see `read`."""
        n_read = X.shape[0]
        if isinstance(X, np.ndarray) and X.dtype in SMALL and self.metric == "euclidean":
            return ValidRows(X, row_ids, n_read, None, None)
        d2norms = row_d2norms(X)
        valid = d2norms <= largest_d2(X)  # false for NaN too
        if self.invalid == "mean" and not valid.all():
            some = np.flatnonzero(~valid)
            filled = X[some]  # a copy
            values = filled if isinstance(filled, np.ndarray) else filled.data
            values[np.isnan(values)] = 0
            d2norms[some] = row_d2norms(filled)
            valid = d2norms <= largest_d2(X)
        kept = None
        if not valid.all():
            if self.invalid != "skip":
                raise InvalidInputError(_describe_invalid(self.source, X, d2norms, row_ids, int(np.argmin(valid))))
            kept = np.flatnonzero(valid)
            X, row_ids, d2norms = X[kept], row_ids[kept], d2norms[kept]
        if self.metric == "cosine":
            X = normalized(X)
            d2norms = row_d2norms(X)
        return ValidRows(X, row_ids, n_read, kept, d2norms)


@dataclass(frozen=True, slots=True)
class ValidRows:
    """Valid rows of one chunk."""

    X: Matrix  # ndarray or csr_array (v, d)
    row_ids: NDArray[np.int64]  # (v,)
    n_read: int  # rows of the chunk, invalid ones included
    kept: NDArray[np.int64] | None  # (v,): or None, numbers of these rows in the chunk; None: all
    # (v,): squared norms of the rows; None for dtypes whose values are always valid
    d2norms: NDArray[np.float64] | None
    # (v,) or (0,), sample weights; empty if every row weighs 1
    weights: NDArray[np.float64] = field(default_factory=lambda: NO_WEIGHTS)
    first_row: int = 0  # number of rows before the chunk, if known

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Numbers of the valid rows, counted from the chunk's first (v,)."""
        return np.arange(self.n_read) if self.kept is None else self.kept

    def spread(self, values: NDArray[Any], fill: Any) -> NDArray[Any]:
        """Values of all rows of the chunk: those of the valid rows (v, ...), and `fill`."""
        if self.kept is None:
            return values
        out = np.full((self.n_read, *values.shape[1:]), fill, values.dtype)
        out[self.kept] = values
        return out


@dataclass(frozen=True, slots=True)
class SourceRows:
    """The rows of a source as `engine.passes.run` reads them."""

    row_reader: RowReader
    weights: NDArray[np.float64] = field(default_factory=lambda: NO_WEIGHTS)  # (n,) or (0,)
    chunk_rows: NDArray[np.int64] | None = None  # (chunks,): optional, rows of each chunk, from an earlier pass
    n_before: int = 0  # chunks to leave out, because an earlier run has processed them
    chosen: frozenset[int] | None = None  # numbers of the chunks to read; None: all

    @property
    def n_items(self) -> int:
        """Number of chunks, if known."""
        source = self.row_reader.source
        if self.chunk_rows is not None:
            return len(self.chunk_rows)
        return 1 if source.access.streams else len(source.chunks(self.row_reader.target_bytes))

    def items(self, executor: Executor) -> Iterator[ReadItem]:
        """See `RowReader.items`."""
        items = islice(self.row_reader.items(executor, self.weights, self.chunk_rows), self.n_before, None)
        return items if self.chosen is None else (item for item in items if item[-1] in self.chosen)

    def reader(self, executor: Executor) -> RowReader:
        """The reader for calls, which carries no rows to a cluster."""
        return replace(self.row_reader, source=executor.for_calls(self.row_reader.source))

    def large(self, state_bytes: float) -> Large:
        """Whether states or items decide the runs of a fold with states of this size; see `Executor.fold`."""
        source, is_large = self.row_reader.source, state_bytes > self.row_reader.target_bytes
        if source.access.streams or (source.access.sequential and not is_large):
            return "items"
        return "state" if is_large else None

    @contextmanager
    def reading(self, stage: Stage) -> Iterator[None]:
        """Add the bytes that were read to a stage, and the rows if an earlier pass has counted them."""
        with unchanged(self.row_reader.source.origin.files):
            yield
        if self.chunk_rows is not None:
            stage.rows = int(self.chunk_rows.sum())
        stage.read_bytes = self.row_reader.source.take_read_bytes()


def changed_source(reader: RowReader) -> InvalidInputError:
    """The error for a source whose rows differ between passes."""
    return InvalidInputError(
        f"{reader.source.name} gave other rows than in the pass before; it must not change during a fit"
    )


def largest_d2(X: Matrix) -> float:
    """The largest squared norm of a row that is accepted; sparse rows are clustered in single precision."""
    double = isinstance(X, np.ndarray) and working_dtype(X.dtype) == np.float64
    return LARGEST_D2 if double else LARGEST_SINGLE_D2


def what_is_invalid(X: Matrix, row: int, d2norm: float) -> str:
    """The message about a row whose squared norm is not accepted."""
    values = X[row] if isinstance(X, np.ndarray) else X.data[X.indptr[row] : X.indptr[row + 1]]
    if np.isnan(d2norm) or np.isinf(values).any():
        return "NaN" if np.isnan(d2norm) else "infinity"
    found = f"of {d2norm:.6g}" if np.isfinite(d2norm) else "that float64 does not hold"
    most, precision = largest_d2(X), "double" if largest_d2(X) == LARGEST_D2 else "single"
    return f"a squared norm {found}, above {most:g}, the most that sums in {precision} precision have room for,"


def _describe_invalid(
    source: RowSource, X: Matrix, d2norms: NDArray[np.float64], row_ids: NDArray[np.int64], row: int
) -> str:
    """The message about an invalid row: the fault, the place, and remedies."""
    what, column, domains = what_is_invalid(X, row, float(d2norms[row])), "", ""
    remedies = ['pass invalid="skip" to leave such rows out (they get the label -1)']
    if what == "NaN":
        remedies.append('fit StreamKMeans with invalid="mean" to fill missing values')
    elif what == "infinity":
        steps = source.origin.prepared_by.steps if source.origin.prepared_by else ()
        domains = "".join(f"; {DOMAINS[step]}" for step in steps if step in DOMAINS)
    else:
        remedies.insert(0, "divide all values by a number")
    wrong = np.flatnonzero(~np.isfinite(X[row])) if isinstance(X, np.ndarray) else np.empty(0, np.int64)
    if source.feature_names is not None and len(wrong):
        name = source.feature_names[wrong[0]]
        hint = "" if name else " (do lines end in a delimiter? Choose the other columns with columns=)"
        column = f"column {name!r}{hint}, "
    return f"{what} in {column}{source.describe(int(row_ids[row]))}; {'; or '.join(remedies)}{domains}"
