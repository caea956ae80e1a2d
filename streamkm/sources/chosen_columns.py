"""Some columns of a source with named columns, in an order of their own. Opens nothing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.display import near_hint
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.matrix import Matrix
from streamkm.sources.row_source import RowSource, WrappedSource


class ChosenColumns(WrappedSource):
    """Chosen columns, each once, of a source with `feature_names`; `changed` attributes are not the source's.

    Chunks and their bytes are those of the source: a chunk is read whole before columns are taken from it.
    """

    n_features: int

    def __init__(self, source: RowSource, numbers: Sequence[int], **changed: Any) -> None:
        self.source = source
        self._numbers = np.array(numbers, np.int64)
        chosen = tuple((source.feature_names or ())[number] for number in numbers)
        self.take_after(
            source,
            n_features=len(chosen),
            feature_names=chosen,
            origin=source.origin.also_made_with(genes=list(chosen)),
            access=replace(source.access, read_factor=source.access.read_factor + 1),  # both are there at the same time
            **changed,
        )

    def apply(self, X: Matrix) -> Matrix:
        return columns_of(X, self._numbers)

    def details(self) -> dict[str, str]:
        return {**self.source.details(), "columns": f"{self.n_features:,} chosen of {self.source.n_features:,}"}


def choosable(source: RowSource) -> RowSource:
    """The source, if `genes` can choose its columns. Raises InvalidParameterError: a stream, a table, no names."""
    if source.computed or source.access.streams or source.feature_names is None or "table" in source.origin.made_with:
        raise InvalidParameterError(
            f"genes= does not apply to {source.name}; needed: cells whose genes have names, in files or memory, as of "
            f"AnnData and 10x Genomics. AnnData's own names, 0, 1, 2, ..., are none: set adata.var_names, as to gene0, "
            f"gene1, ..., and write the file again. Columns of tables are chosen by columns="
        )
    return source


def by_names(source: RowSource, names: Any) -> ChosenColumns:
    """The cells of a source with only the named genes, in order. Raises InvalidParameterError, InvalidInputError."""
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise InvalidParameterError(f"genes={names!r}; needed: a column of var, or a list of names")
    cells = choosable(source)
    number_of = {name: number for number, name in enumerate(cells.feature_names or ())}
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise InvalidParameterError(f"genes= has {name!r} {times} times; leave one")
    missing = [name for name in names if name not in number_of]
    if missing:
        raise InvalidInputError(
            f"{source.name} has no gene {missing[0]!r}{near_hint(missing[0], [*number_of])}; {len(missing):,} of "
            f"{len(names):,} chosen genes are missing. If another column of var has their names, pass it as var_column="
        )
    return ChosenColumns(cells, [number_of[name] for name in names])


def columns_of(X: Matrix, numbers: NDArray[np.int64]) -> Matrix:
    """Chosen columns of rows, in their order; indices of CSR rows rise. O(nnz + d)."""
    out = X[:, numbers]
    if isinstance(out, np.ndarray):
        return np.ascontiguousarray(out)
    out.sort_indices()
    return out


def named(source: RowSource, names: Any) -> RowSource:
    """The source with `feature_names`: a sequence, or the path of a file with one name a line."""
    is_path = isinstance(names, str | os.PathLike)
    given = Path(names).expanduser().read_text("utf-8").splitlines() if is_path else list(map(str, names))
    source.n_features = source.n_features or len(given)  # of svmlight text: a larger index is refused where it stands
    if source.feature_names is not None or source.n_features != len(given):
        features = f"{source.n_features:,} features: too {'few' if len(given) < source.n_features else 'many'} names"
        own = features if source.feature_names is None else "names of its own"
        raise InvalidParameterError(f"feature_names= gives {len(given):,} names, and {source.name} has {own}")
    source.feature_names = tuple(given)
    return source
