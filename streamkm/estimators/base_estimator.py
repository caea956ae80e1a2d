"""Methods that all estimators share: checks of their arguments, and calls of the modules that do the work."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from streamkm.estimators.input_rows import open_rows
from streamkm.estimators.labelling import (
    Labelling,
    held_centers,
    known_labels,
    label_places,
    labelled,
    row_values,
    wide_centers,
    write_label_table,
    write_rows_by_cluster,
)
from streamkm.estimators.model_files import load_model, save_model
from streamkm.estimators.validation import check_weights
from streamkm.passes.labels import HeldLabels, open_labels
from streamkm.passes.predict import distances, nearest_d2, nearest_labels


def set_parameters(estimator: Any, arguments: dict[str, Any]) -> None:
    """Set the parameters of an estimator to the arguments of its `__init__`, as they are."""
    vars(estimator).update({name: value for name, value in arguments.items() if name != "self"})


class BaseKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """An estimator that has a `model_` once it is fitted."""

    if TYPE_CHECKING:  # what `set_parameters` and `set_fitted` set

        def __getattr__(self, name: str) -> Any: ...

    _label_blocks: tuple[tuple[int, ...], bool] | None = None
    _held_labels: HeldLabels | None = None
    # centers and means with the features that occur alone, by their attributes, where these are few of all
    _narrow: Mapping[str, NDArray[Any]] = MappingProxyType({})

    @cached_property
    def labels_(self) -> Any:
        """The cluster of each row (n,); workers that have made the labels keep them until they are asked for."""
        if self._held_labels is None:
            raise AttributeError(f"{type(self).__name__} has no labels_; fit sets them")
        return self._held_labels.gather()

    @cached_property
    def cluster_centers_(self) -> NDArray[Any]:
        """The centers that made the labels."""
        return wide_centers(self, "cluster_centers_")

    @cached_property
    def cluster_means_(self) -> NDArray[Any]:
        """The exact means of the clusters."""
        return wide_centers(self, "cluster_means_")

    def predict(self, X: Any) -> NDArray[np.int32]:
        """Find the cluster of each row; one pass.

        Parameters
        ----------
        X : as for `fit`, with the same features
            Iterators may be read only once. Tables are read as that of the fit: its columns by name, in any order,
            beside others, with its categories. After a fit of a frame without options, a frame of the same columns in
            the same order, as scikit-learn has it. Documents are weighted by the frequencies of the fit alone.

        Returns
        -------
        labels : int32 (n,)
            -1 for invalid rows, where they are skipped. For data of Dask, a lazy Dask array in blocks of the same rows.
        """
        return row_values(self, X, "predict", nearest_labels, np.empty(0, np.int32))

    def predict_to(
        self, X: Any, path: str | os.PathLike[str], *, partition_by: str | None = None, overwrite: bool = False
    ) -> Any:
        """Find the cluster of each row and write it to a file; one pass.

        Parameters
        ----------
        X : as for `predict`
        path : path
            NAME.zarr: an array of labels, which the workers of a Dask cluster write; all of them must see the path.
            NAME.csv or NAME.parquet: a table with a line for each row, in order: its number, or its id if the data have
            an id column; ``label``, ``distance`` to the center, ``second_label`` and ``second_distance`` of the second
            nearest center. Skipped rows have the label -1 and no numbers.
        partition_by : "cluster", optional
            Write the rows of a Parquet table, with all columns as stored, below the directory `path`:
            ``cluster=17/part-0.parquet``, in their order; ``cluster=-1`` has skipped rows. Also the float32 centers,
            ``centers.npy`` (k, d) and ``centers.arrow`` with columns ``cluster`` and ``center``. Two passes; the
            disk of `path` needs room for the rows twice.
        overwrite : bool
            Replace any file that is there; of directories only those of such labels or rows.

        Returns
        -------
        zarr.Array (n,), int32, or Written
            As `predict`, ``[:]`` gathers it; for a table the number of its rows, and of skipped ones; for rows also
            the number of files.

        Raises
        ------
        OutputError, SourceNotFoundError, MissingDependencyError
            It exists, cannot be written, or has another suffix; a worker does not see the directory of an array, and
            nothing was read; Parquet without pyarrow.
        InvalidInputError, InvalidParameterError
            `partition_by` for rows of no Parquet table, or with a column ``cluster``; another `partition_by`.

        Notes
        -----
        On a Dask cluster, this process receives counts of rows for an array, and workers hold 4 bytes a row until all
        rows are read. For a table it receives 32 bytes a row, a few chunks at a time. Measuring second centers doubles
        the time.
        """
        check_is_fitted(self, "model_")
        if partition_by is not None:
            return write_rows_by_cluster(self, X, path, partition_by, overwrite=overwrite)
        place, table = label_places(path, overwrite=overwrite)
        source = open_rows(self, X, reset=False, ids=table is not None)
        if table is not None:
            return write_label_table(self, source, table, overwrite=overwrite)
        Labelling(self, source).write_labels(place, overwrite=overwrite)
        return open_labels(place)

    def with_labels(self, X: Any, column: str = "cluster", *, overwrite: bool = False) -> Any:
        """Give a new frame of the rows with a column of their clusters, lazy for Dask's frames; one pass.

        Parameters
        ----------
        X : frame of pandas, polars (also lazy) or Dask
            With the features of the fit, taken by name; there may be more columns.
        column : str, default="cluster"
        overwrite : bool
            Whether a column of this name may be replaced.

        Raises
        ------
        InvalidInputError
            For other data, and where there is such a column.
        """
        features = vars(self).get("feature_names_in_", ())
        return labelled(X, column, self.predict, features, overwrite=overwrite)

    @property
    def dask_labels_(self) -> Any:
        """`labels_` as a Dask array in blocks as high as those of the array, or the chunks, that were fitted."""
        if self._label_blocks is None:
            raise AttributeError("dask_labels_ is there for Dask input and for fits on a Dask cluster only")
        from streamkm.sources.dask.dask_arrays import dask_labels

        labels, (heights, known) = known_labels(self), self._label_blocks
        return dask_labels(labels.to_dask() if isinstance(labels, HeldLabels) else labels, heights, known=known)

    def transform(self, X: Any) -> NDArray[Any]:
        """Distances of the rows to all centers, in the space of the assignment; one pass.

        Returns an ndarray (n, k), float64 for float64 input, else float32; NaN for skipped rows.
        """
        check_is_fitted(self, "model_")
        n_clusters = self._n_features_out
        return row_values(self, X, "transform", distances, np.empty((0, n_clusters)), n_clusters)

    def score(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> float:
        """Give minus the weighted sum of squared distances to the nearest centers, without skipped rows; one pass."""
        check_is_fitted(self, "model_")
        d2 = Labelling(self, open_rows(self, X, reset=False)).gathered("score", nearest_d2, np.empty(0))
        weights = check_weights(sample_weight)
        weights.check_rows(len(d2), "X")
        d2[np.isnan(d2)] = 0
        return -float(weights.each @ d2 if len(weights.each) else weights.factor * d2.sum())

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model, and an `IncrementalKMeans`'s stream, to one file that `load` reads; no pickle, no labels.

        `path` is the exact name. With `overwrite`, the complete new file replaces any old one. Raises DiskFullError,
        OutputError if it exists or cannot be written; the old file is as it was.
        """
        check_is_fitted(self, "model_")
        save_model(self, path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a saved estimator that can predict, transform and score, and go on with a stream.

        It checks the features' names like the fitted one, and has `counts_`, `inertia_`, `n_samples_`, `n_iter_`,
        `converged_`, `distortion_`, `n_passes_`, `seed_`, `tfidf_` and `fitted_on_`, as far as the file has them.
        `random_state` is `seed_`, so that `fit` repeats the fit. Raises ModelFileError for damaged or other files.
        """
        return load_model(cls, path)

    def __getstate__(self) -> Any:
        """The state without the rows of the last call, with gathered labels: workers serve this process alone."""
        if self._held_labels is not None:
            _ = self.labels_
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name not in ("_held_labels", "_last_rows")}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self.invalid != "raise"
        return tags

    @property
    def _n_features_out(self) -> int:
        """Columns of `transform`, for scikit-learn's feature names."""
        return len(held_centers(self))
