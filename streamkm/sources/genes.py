"""Genes of cells that are chosen by name, or because they vary most, which a pass over all cells finds.

Genes that a column of a file marks, the reader of the file finds.
"""

from __future__ import annotations

import difflib
import time
import warnings
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.matrix import Matrix
from streamkm.core.progress import Stage
from streamkm.preparation import Preparation
from streamkm.preparation.dispersion import largest, normalized_dispersions
from streamkm.preparation.moments import MomentsFit, sample_moments
from streamkm.sources.base import ChunkedSource, RowSource
from streamkm.sources.chosen_columns import ChosenColumns, choosable

_CHUNK_BYTES = 16 << 20  # that the pass reads at a time
_TOTAL = Preparation(("total",))


def choose_genes(source: RowSource, genes: Any) -> RowSource:
    """The cells of a source with chosen genes alone.

    Parameters
    ----------
    source : RowSource
        With a row for each cell, and names of genes.
    genes : int or list of str
        How many of the most variable genes, in the order of the source; or names of genes, in this order.

    Raises
    ------
    InvalidParameterError
        Neither a number nor names; a source whose columns are no named genes.
    InvalidInputError
        Fewer genes than are wanted, or not those of these names. For the most variable: a negative value, NaN, or
        infinity, with its row.

    Notes
    -----
    The most variable genes take a pass over all cells on one thread, and 24 bytes a gene beside the cells that are read
    at a time. Counts are scaled to a common total as the step "total" does it.
    """
    is_number = isinstance(genes, int | np.integer) and not isinstance(genes, bool)
    if not is_number and not _are_names(genes):
        raise InvalidParameterError(
            f"genes={genes!r}; needed: a column of var, a number of most variable genes, or a list of names"
        )
    cells = choosable(source)
    names = cells.feature_names or ()
    if not is_number:
        return ChosenColumns(cells, _numbers_of(list(genes), names, source.name))
    if not 1 <= genes <= len(names):
        raise InvalidInputError(
            f"genes={genes:,}; {source.name} has {len(names):,} genes; pass a number from 1 to that"
        )
    started = time.perf_counter()
    scores, n_rows = _scores(cells)
    stage = Stage("genes", time.perf_counter() - started, source.take_read_bytes(), n_rows)
    return ChosenColumns(cells, largest(scores, int(genes)).tolist(), stages_before=(*source.stages_before, stage))


def _are_names(genes: Any) -> bool:
    return isinstance(genes, list | tuple) and bool(genes) and all(isinstance(name, str) for name in genes)


def _numbers_of(wanted: list[str], names: tuple[str, ...], where: str) -> list[int]:
    """Numbers of named genes."""
    number_of = {name: number for number, name in enumerate(names)}
    missing = [name for name in wanted if name not in number_of]
    if missing:
        near = difflib.get_close_matches(missing[0], names, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        more = f" and {len(missing) - 1:,} more of {len(wanted):,} genes" if len(missing) > 1 else ""
        raise InvalidInputError(
            f"{where} has no gene {missing[0]!r}{hint}{more}; needed: all genes that are chosen. If another column of "
            f"var has these names, pass it as var_column="
        )
    name, times = Counter(wanted).most_common(1)[0]
    if times > 1:
        raise InvalidParameterError(f"genes= has {name!r} {times} times; leave one")
    return [number_of[name] for name in wanted]


def _scores(source: ChunkedSource) -> tuple[NDArray[np.float64], int]:
    """How much each gene varies for its mean, and the number of cells behind it."""
    fit, state, are_counts = MomentsFit(centers=False), None, True
    for rows in source.stream(_CHUNK_BYTES):
        scaled = _TOTAL.apply(rows.X)
        _check_counts(source, scaled, rows.places)
        values = rows.X if isinstance(rows.X, np.ndarray) else rows.X.data
        are_counts = are_counts and (values.dtype.kind != "f" or bool((values == np.floor(values)).all()))
        state = fit.step(state, scaled, np.empty(0))
    if state is None:
        raise InvalidInputError(f"{source.name} has 0 rows; at least 1 is needed")
    if not are_counts:
        warnings.warn(
            f"{source.name} has values that are not whole numbers, and the most variable genes are found on raw counts;"
            " if these are logarithms, pass the layer with counts, or choose genes by a column of var",
            UserWarning,
            stacklevel=2,
        )
    return normalized_dispersions(*sample_moments(state)), int(state[0, 0])


def _check_counts(source: ChunkedSource, scaled: Matrix, places: NDArray[np.int64]) -> None:
    """Refuse cells that have no total: with negative values, NaN or infinity."""
    values = scaled if isinstance(scaled, np.ndarray) else scaled.data
    invalid = ~np.isfinite(values)
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
