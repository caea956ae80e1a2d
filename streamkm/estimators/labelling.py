"""One pass over rows with a fitted model: labels, distances, and the files that they are written to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from streamkm.cluster.model import Model
from streamkm.core.memory import memory_limit_bytes, trim_heap
from streamkm.core.progress import Progress
from streamkm.engine import is_on_cluster, local_threads, open_executor, under_limit
from streamkm.estimators.centers import current_model
from streamkm.estimators.input_rows import open_rows, read_invalid
from streamkm.estimators.validation import joined
from streamkm.passes.context import PassContext
from streamkm.passes.label_tables import (
    N_VALUES,
    SUFFIXES,
    RowNames,
    TablePlace,
    Written,
    check_table_place,
    nearest_two,
    write_table,
)
from streamkm.passes.labels import check_labels_place, check_seen, label_pass, n_writes, write_labels
from streamkm.passes.observe import UpdateSizes
from streamkm.passes.predict import lazy_map, map_rows
from streamkm.passes.reader import RowReader
from streamkm.planning.memory_budget import MemoryBudget, accepted, with_line_room
from streamkm.sources.base import RowSource
from streamkm.sources.open import is_collection, store_of
from streamkm.sources.prepared import PreparedRows


def label_places(path: Any, *, overwrite: bool = False) -> tuple[Any, TablePlace | None]:
    """The place of a Zarr array of labels, or of a table, by the suffix; neither for None."""
    if path is None or os.fspath(path).endswith(SUFFIXES):
        return None, None if path is None else check_table_place(path, overwrite=overwrite)
    return check_labels_place(path, overwrite=overwrite), None


class Labelling:
    """One pass of a fitted estimator over rows, each of which gets so many values, within the memory limit."""

    def __init__(
        self,
        estimator: Any,
        source: RowSource,
        n_columns: int = 0,
        model: Model | None = None,
        update: UpdateSizes | None = None,
        memory_limit: Any = None,  # another than the estimator's
    ):
        model = current_model(estimator) if model is None else model
        executor, asked = estimator.executor, estimator.chunk_bytes
        limit = estimator.memory_limit if memory_limit is None else memory_limit
        stored = store_of(source)
        if stored is not None:
            from streamkm.stores.compatibility import model_on_store

            model = model_on_store(model, stored)
        if model.preparation is not None:
            source = PreparedRows(source, model.preparation)
        here, held, on_cluster = local_threads(executor), model.centers.nbytes, is_on_cluster(executor)

        def planned(below: Any) -> tuple[int, int, int]:
            budget = MemoryBudget.of(below, source, on_cluster=on_cluster)
            return budget.labelling(source, asked, here, centers_bytes=held, n_columns=n_columns, update=update)

        chunk_bytes, n_threads, peak = accepted(planned, limit)
        source = with_line_room(source, limit, peak, chunk_bytes, n_threads)
        self.model, self.n_columns = model, n_columns
        self.reader = RowReader(source, chunk_bytes, model.metric, read_invalid(estimator))
        self.progress = Progress(estimator.progress)
        self._executor, self._n_threads, self._memory_limit = executor, n_threads, limit

    @contextmanager
    def context(self, **given: Any) -> Iterator[PassContext]:
        """Open the executor, and keep the memory limit meanwhile; `given`: other values of the context."""
        with under_limit(self._memory_limit), open_executor(self._executor, self._n_threads) as workers:
            trim_heap(memory_limit_bytes(self._memory_limit))
            yield PassContext(executor=workers, reader=self.reader, **given)

    def values(self, name: str, function: Callable[..., Any]) -> Iterator[NDArray[Any]]:
        """Read the rows once, in a stage of this name; yield the function's values chunk by chunk."""
        with self.context() as context, self.progress.stage(name) as stage:
            yield from map_rows(context, self.model, function, stage, wide=self.n_columns > 0)

    def gathered(self, name: str, function: Callable[..., Any], empty: NDArray[Any]) -> NDArray[Any]:
        """Read the rows once; give the function's values of all, `empty` where there are none."""
        return joined(self.values(name, function), empty, self.reader.source.n_rows)

    def write_labels(self, target: Path, *, overwrite: bool) -> None:
        """Read the rows once; write their labels to a Zarr array."""
        with self.context() as context:
            check_seen(context.executor, target)
            with self.progress.stage("predict") as stage:
                held = label_pass(context, self.model, stage)
            with self.progress.stage("labels", n_writes(held)) as stage:
                write_labels(context.executor, held, target, stage, overwrite=overwrite)


def row_values(
    estimator: Any, X: Any, name: str, function: Callable[..., Any], empty: NDArray[Any], n_columns: int = 0
) -> Any:
    """Give the function's values of the rows of X, `empty` where there are none; lazily, for a Dask array."""
    check_is_fitted(estimator, "model_")
    source = open_rows(estimator, X, reset=False)
    if is_collection(X):
        from streamkm.sources.dask.arrays import DaskSource

        if isinstance(source, DaskSource):
            model, width = current_model(estimator), n_columns or None
            return lazy_map(source, model, function, invalid=read_invalid(estimator), n_columns=width)
    return Labelling(estimator, source, n_columns).gathered(name, function, empty)


def write_label_table(estimator: Any, source: RowSource, place: TablePlace, *, overwrite: bool = False) -> Written:
    """Read rows once; write their labels and distances to a table."""
    labelling = Labelling(estimator, source, N_VALUES)
    with labelling.context() as context, labelling.progress.stage("predict") as stage:
        found = map_rows(context, labelling.model, nearest_two, stage, wide=True)
        return write_table(found, labelling.model, place, stage, RowNames(source), overwrite=overwrite)
