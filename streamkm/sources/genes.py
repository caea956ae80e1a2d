"""Genes of cells that are chosen by name, or because they vary most, which a pass over all cells has to find.

Genes that a column of a file marks, the reader of the file finds. Reads no rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from streamkm.core.display import near_hint
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.progress import Stage
from streamkm.sources.base import ChunkedSource, RowSource, WrappedSource
from streamkm.sources.chosen_columns import ChosenColumns, choosable


def choose_genes(source: RowSource, genes: Any) -> RowSource:
    """The cells of a source with chosen genes alone; of a number of genes, which ones a pass has to find.

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
        Fewer genes than are wanted, or not those of these names.
    """
    is_number = isinstance(genes, int | np.integer) and not isinstance(genes, bool)
    listed = list(genes) if isinstance(genes, list | tuple) else []
    if not is_number and not (listed and all(isinstance(name, str) for name in listed)):
        raise InvalidParameterError(
            f"genes={genes!r}; needed: a column of var, a number of most variable genes, or a list of names"
        )
    cells = choosable(source)
    names = cells.feature_names or ()
    if not is_number:
        return ChosenColumns(cells, _numbers_of(listed, names, source.name))
    if not 1 <= genes <= len(names):
        raise InvalidInputError(
            f"genes={genes:,}; {source.name} has {len(names):,} genes; pass a number from 1 to that"
        )
    return GenesToFind(cells, int(genes))


class GenesToFind(WrappedSource):
    """Cells whose most variable genes are still to be found, in a pass over `source`: no row can be read before.

    `n_features`: how many genes are wanted.
    """

    source: ChunkedSource
    n_features: int

    def __init__(self, source: ChunkedSource, n_genes: int) -> None:
        self.source = source
        self.take_after(source, n_features=n_genes, feature_names=None)

    def found(self, numbers: Sequence[int], stage: Stage) -> ChosenColumns:
        """The cells with the genes of these numbers, which a pass has found; `stage` tells of the pass."""
        return ChosenColumns(self.source, numbers, stages_before=(*self.stages_before, stage))

    def details(self) -> dict[str, str]:
        """Say how many columns will be read, and how they are stored."""
        columns = f"the {self.n_features:,} most variable of {self.source.n_features:,}"
        return {**self.source.details(), "columns": columns}

    def stream(self, target_bytes: int) -> NoReturn:  # noqa: ARG002
        """Raise InvalidInputError: which columns the rows have is not known."""
        raise InvalidInputError(
            f"the {self.n_features:,} most variable genes of {self.name} are not found yet; pass "
            f"streamkm.open_source(..., genes={self.n_features}), which finds them"
        )


def _numbers_of(wanted: list[str], names: tuple[str, ...], where: str) -> list[int]:
    """Numbers of named genes."""
    number_of = {name: number for number, name in enumerate(names)}
    missing = [name for name in wanted if name not in number_of]
    if missing:
        hint = near_hint(missing[0], names)
        more = f" and {len(missing) - 1:,} more of {len(wanted):,} genes" if len(missing) > 1 else ""
        raise InvalidInputError(
            f"{where} has no gene {missing[0]!r}{hint}{more}; needed: all genes that are chosen. If another column of "
            f"var has these names, pass it as var_column="
        )
    name, times = Counter(wanted).most_common(1)[0]
    if times > 1:
        raise InvalidParameterError(f"genes= has {name!r} {times} times; leave one")
    return [number_of[name] for name in wanted]
