"""The pass that finds the most variable genes of cells: means and variances of counts scaled to a common total."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.core.exceptions import InvalidInputError, StreamkmWarning
from streamkm.core.matrix import Matrix, working_dtype
from streamkm.engine.memory import PassMemory
from streamkm.engine.passes import Pass
from streamkm.passes.reader import ReadItem, RowReader
from streamkm.preparation import Preparation
from streamkm.preparation.dispersion import largest, normalized_dispersions
from streamkm.preparation.moments import SUM_BYTES, MomentsFit, sample_moments
from streamkm.sources.base import RowSource

_TOTAL = Preparation(("total",))
_FIT = MomentsFit(centers=False)
INDEX_BYTES = 4
MARK_BYTES = 2  # of a value: whether it is finite, and the opposite


@dataclass(frozen=True, slots=True)
class Moments:
    """Sums of scaled cells, None without any; and whether all values that were read are whole numbers."""

    sums: NDArray[np.float64] | None
    are_counts: bool


class _Scaled(NamedTuple):
    """Cells of a chunk, scaled to a common total, and whether their values were whole numbers."""

    X: Matrix
    are_counts: bool


@dataclass(frozen=True, slots=True)
class VariableGenes(Pass[Moments, None, tuple[NDArray[np.int64], int]]):
    """Find the genes of largest normalized dispersion; see `preparation.dispersion`.

    Attributes
    ----------
    n_wanted, n_genes : int
        How many are to be found, of how many.
    name : str
        Name of the source, for messages.
    """

    n_wanted: int
    n_genes: int
    name: str

    @staticmethod
    def memory(source: RowSource, largest_chunk: int) -> PassMemory:
        """Memory of the sums, and of scaled cells."""
        n_values = largest_chunk // (source.dtype.itemsize + INDEX_BYTES * source.is_sparse)
        scaled = n_values * (working_dtype(source.dtype).itemsize + MARK_BYTES)
        return PassMemory(state=SUM_BYTES * (1 + (source.n_features or 0)), call=scaled)

    @property
    def state_bytes(self) -> float:
        """Bytes of the sums."""
        return SUM_BYTES * self.n_genes

    def start(self) -> Moments:
        """A state without cells."""
        return Moments(None, are_counts=True)

    def read(self, reader: RowReader, item: ReadItem) -> _Scaled:
        """Read the cells of a chunk, and scale them. Raises InvalidInputError for those that have no total."""
        rows = reader.rows(item[0])
        values = _values(rows.X)
        are_counts = values.dtype.kind != "f" or bool((values == np.floor(values)).all())
        scaled = _TOTAL.apply(rows.X)
        _check_counts(reader.source, scaled, rows.places)
        return _Scaled(scaled, are_counts)

    def step(self, state: Moments, rows: _Scaled) -> tuple[Moments, None]:
        """Add the cells of a chunk to the sums."""
        return Moments(_FIT.step(state.sums, rows.X, NO_WEIGHTS), state.are_counts and rows.are_counts), None

    def join(self, first: Moments, second: Moments) -> Moments:
        """Add the sums of two states."""
        sums = _FIT.join([each.sums for each in (first, second) if each.sums is not None])
        return Moments(sums, first.are_counts and second.are_counts)

    def finish(self, state: Moments) -> tuple[NDArray[np.int64], int]:
        """Return the numbers of the genes, rising, and the number of cells; warn of values that are no counts."""
        if state.sums is None:
            raise InvalidInputError(f"{self.name} has 0 rows; at least 1 is needed")
        if not state.are_counts:
            warnings.warn(
                f"{self.name} has values that are not whole numbers, and the most variable genes are found on raw "
                "counts; if these are logarithms, pass the layer with counts, or choose genes by a column of var",
                StreamkmWarning,
                stacklevel=2,
            )
        scores = normalized_dispersions(*sample_moments(state.sums))
        return largest(scores, self.n_wanted), int(state.sums[0, 0])


def _values(X: Matrix) -> NDArray[np.generic]:
    return X if isinstance(X, np.ndarray) else X.data


def _check_counts(source: RowSource, scaled: Matrix, places: NDArray[np.int64]) -> None:
    """Refuse cells that have no total: with negative values, NaN or infinity."""
    invalid = ~np.isfinite(_values(scaled))
    if not invalid.any():
        return
    if isinstance(scaled, np.ndarray):
        row = int(invalid.any(axis=1).argmax())
    else:
        row = int(np.searchsorted(scaled.indptr, invalid.argmax(), side="right")) - 1
    raise InvalidInputError(
        f"a negative value, NaN or infinity in {source.describe(int(places[row]))}; the most variable genes are found "
        f"on raw counts. Pass the layer with counts, or choose genes by a column of var"
    )
