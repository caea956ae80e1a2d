"""The parameters of a run, and how estimators open and reader the rows that users give.

Every method that takes rows walks them once.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted, validate_data

from streamkm.cluster.model import Model
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import MASKED_ROWS, check_unmasked, is_sparse
from streamkm.core.memory import memory_limit_bytes, trim_heap
from streamkm.core.progress import Progress
from streamkm.engine import is_on_cluster, local_threads, open_executor, under_limit
from streamkm.estimators.input_errors import clear_refusals
from streamkm.estimators.validation import is_in_memory, joined
from streamkm.passes.context import PassContext
from streamkm.passes.predict import map_rows
from streamkm.passes.reader import OnInvalid, RowReader
from streamkm.planning.line_room import with_line_room
from streamkm.planning.memory_budget import MemoryBudget
from streamkm.sources import open_source
from streamkm.sources.base import RowSource
from streamkm.sources.memory.arrays import open_array
from streamkm.sources.memory.frames import check_names_once, check_same_columns, is_frame
from streamkm.sources.memory.sparse_frames import is_read_by_column
from streamkm.sources.open import is_collection, store_of
from streamkm.sources.prepared import prepared

if TYPE_CHECKING:
    from streamkm.sources.sketch_store import StoreSource


class InputRows:
    """The parameters of a run that all estimators share, and the walks over rows that follow from them."""

    memory_limit: Any
    chunk_bytes: int | str
    executor: Any
    on_invalid: OnInvalid
    checkpoint: Any
    progress: bool | str
    random_state: Any
    model_: Model
    feature_names_in_: NDArray[Any]
    _narrow: Mapping[str, NDArray[Any]] = MappingProxyType({})
    """Centers and means with the features that occur alone, by their attributes, where these are few of all."""

    @cached_property
    def cluster_centers_(self) -> NDArray[Any]:
        """The centers that made the labels."""
        return self._wide("cluster_centers_")

    @cached_property
    def cluster_means_(self) -> NDArray[Any]:
        """The exact means of the clusters."""
        return self._wide("cluster_means_")

    def _take_centers(self, **values: NDArray[Any]) -> None:
        """Set attributes to centers or means of `model_`, or keep these as they are until they are asked for."""
        if self.model_.columns is None:
            vars(self).update(values)
            self._narrow = {}
            return
        for name in values:
            vars(self).pop(name, None)  # of the fit before
        self._narrow = values

    def _wide(self, name: str) -> NDArray[Any]:
        """What an attribute holds, with all features: made when it is first asked for."""
        if name not in self._narrow or self.model_.columns is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.model_.columns.wide(self._narrow[name])

    def _held(self, name: str) -> NDArray[Any]:
        """What an attribute holds; with few features where all have not been asked for."""
        return self._narrow[name] if name in self._narrow and name not in vars(self) else getattr(self, name)

    def _progress(self) -> Progress:
        """How stages are shown."""
        return Progress(self.progress)

    def _current_model(self) -> Model:
        """What assigns rows: the model, by other centers where `cluster_centers_` was assigned, or written to.

        The attribute is rounded to the data's dtype; the model's centers are not, and count unless it was changed.

        Raises InvalidInputError for centers that no row can be compared with.
        """
        model, columns = self.model_, self.model_.columns
        centers = np.asarray(self._held("cluster_centers_"))
        wanted = model.centers.shape[1]
        rounded = model.centers.astype(np.float32) if centers.dtype == np.float32 else model.centers
        if centers is model.centers or np.array_equal(centers, rounded):
            return model
        if columns is not None:
            wanted = columns.n_features
            if centers.shape == (len(rounded), wanted) and np.array_equal(columns.narrow(centers), rounded):
                return model
        if centers.ndim != 2 or not len(centers) or centers.shape[1] != wanted:
            raise InvalidInputError(f"cluster_centers_ has shape {centers.shape}; needed: (clusters, {wanted:,})")
        if not np.isfinite(centers).all():
            raise InvalidInputError("cluster_centers_ holds NaN or infinity; needed: finite centers")
        return replace(model, centers=np.array(centers, np.float64, order="C"), index=None, columns=None)

    def _check_fitted(self) -> None:
        check_is_fitted(self, "model_")

    def _lazily(self, X: Any, function: Any, n_columns: int | None = None) -> Any:
        """The function's values of a Dask array, as a Dask array; None for other data."""
        if not is_collection(X):
            return None
        self._check_fitted()
        from streamkm.passes.lazy import lazy_map
        from streamkm.sources.dask.arrays import DaskSource

        source = self._open(X, reset=False)
        if not isinstance(source, DaskSource):
            return None
        return lazy_map(source, self._current_model(), function, on_invalid=self.on_invalid, n_columns=n_columns)

    def _gathered(
        self, X: Any, name: str, function: Any, empty: NDArray[Any], n_columns: int | None = None
    ) -> NDArray[Any]:
        """RowReader X once; the function's values of all rows, `empty` where there are none."""
        self._check_fitted()
        walked = self._reader(X, n_columns or 0)
        return joined(self._map(walked, name, function, n_columns), empty, walked[0].source.n_rows)

    def _map(
        self,
        walked: tuple[RowReader, Model, int],
        name: str,
        function: Any,
        n_columns: int | None = None,
    ) -> Iterator[NDArray[Any]]:
        """Read rows once, as `_reader` says; yield the function's values chunk by chunk."""
        reader, model, n_threads = walked
        with (
            under_limit(self.memory_limit),
            open_executor(self.executor, n_threads) as workers,
            self._progress().stage(name) as stage,
        ):
            trim_heap(memory_limit_bytes(self.memory_limit))
            yield from map_rows(
                PassContext(executor=workers, reader=reader), model, function, stage, wide=n_columns is not None
            )

    def _reader(self, X: Any, n_columns: int = 0) -> tuple[RowReader, Model, int]:
        """How X is walked within the limit, where each row gives so many values; the model for it, and threads."""
        source, model = self._open(X, reset=False), self._current_model()
        stored = store_of(source)
        if stored is not None:
            model = _model_on(stored, model)
        if model.preparation is not None:
            source = prepared(source, model.preparation)
        here, held, on_cluster = local_threads(self.executor), model.centers.nbytes, is_on_cluster(self.executor)
        budget = MemoryBudget.of(self.memory_limit, source, on_cluster=on_cluster)
        sizes = budget.labelling(source, self.chunk_bytes, here, centers_bytes=held, n_columns=n_columns)
        chunk_bytes, n_threads, peak = sizes
        source = with_line_room(source, self.memory_limit, peak, chunk_bytes, n_threads, on_cluster=on_cluster)
        return RowReader(source, chunk_bytes, model.metric, self.on_invalid), model, n_threads

    def _open(self, X: Any, *, reset: bool | None) -> RowSource:
        """Make a source of X; arrays in memory are validated as scikit-learn does, names of columns everywhere."""
        if is_in_memory(X) and not (is_frame(X) and is_read_by_column(X)):
            checks: dict[str, Any] = {"accept_sparse": "csr", "accept_large_sparse": True, "ensure_all_finite": False}
            name = "data frame" if is_frame(X) else None
            if name is not None:
                check_names_once(X, name)
            check_unmasked(X, name or "array", MASKED_ROWS)
            with clear_refusals(X, name or "array"):
                if reset is None:
                    from sklearn.utils import check_array

                    X = check_array(X, dtype="numeric", **checks)
                else:
                    X = validate_data(self, X, reset=reset, dtype="numeric", **checks)
            return open_source(X) if name is None or is_sparse(X) else open_array(X, name=name)
        source = open_source(X)
        if reset is not None:
            self._check_names(source, reset=reset)
        return source

    def _check_names(self, source: RowSource, *, reset: bool) -> None:
        """Keep the names of a source's columns, or compare them with those that are kept; as scikit-learn does."""
        names: Any = source.feature_names
        known = vars(self).get("feature_names_in_")
        if reset:
            if known is not None:
                del self.feature_names_in_
            if names is not None:
                self.feature_names_in_ = np.array(names, object)
        elif names is None:
            return
        elif known is None:
            warnings.warn(
                f"{source.name} has feature names, but {type(self).__name__} was fitted without feature names: "
                "the order of columns cannot be checked",
                UserWarning,
                stacklevel=4,
            )
        else:
            check_same_columns(names, tuple(known), source.name, "the fit")


def _model_on(stored: StoreSource, model: Model) -> Model:
    """The model, for rows of a store."""
    from streamkm.stores.compatibility import model_on_store

    return model_on_store(model, stored)
