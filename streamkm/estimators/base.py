"""What all estimators offer: fitted clusters label rows, measure distances, and are saved.

Each method checks what it is given and calls the module that does the work.
"""

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

from streamkm.estimators.files import load_model, save_model
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
)
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
            May be an iterator that can be walked once only. After a fit of a table, a table: the columns of the fit are
            taken by name, in any order, beside others, with the categories of the fit. After a fit of a frame without
            options, a frame of the same columns in the same order, as scikit-learn has it. Documents are weighted by
            the frequencies of the fit, whatever `open_documents` counted.

        Returns
        -------
        labels : int32 (n,)
            -1 for invalid rows, where they are skipped. For a Dask array or data frame, and what is over one, a Dask
            array in blocks of the same rows, computed when asked for.
        """
        return row_values(self, X, "predict", nearest_labels, np.empty(0, np.int32))

    def predict_to(self, X: Any, path: str | os.PathLike[str], *, overwrite: bool = False) -> Any:
        """Find the cluster of each row and write what was found to a file; one pass.

        Parameters
        ----------
        X : as for `predict`
        path : path
            NAME.zarr: an array of labels, which the workers of a Dask cluster write; all of them must see the path.
            NAME.csv or NAME.parquet: a table with a line for each row, in order: its number, or its id where the data
            have an id column; ``label``, ``distance`` to the center, ``second_label`` and ``second_distance`` of the
            second nearest center. Rows that are skipped have the label -1 and no numbers. NAME.parquet/, text with the
            slash: a folder of such tables, ``part-00000.parquet`` and so on, of a million rows or more each, which
            engines read as one table.
        overwrite : bool
            Replace a file that is there, whatever it is; of directories only those of such labels.

        Returns
        -------
        zarr.Array (n,), int32, or Written
            As `predict`, ``[:]`` gathers it; of a table how many rows it has, and how many of them were skipped.

        Raises
        ------
        OutputError
            It exists, cannot be written, or has another suffix.
        SourceNotFoundError
            A worker does not see the directory of an array; nothing was read.
        MissingDependencyError
            Parquet without pyarrow.

        Notes
        -----
        On a Dask cluster, arrays: this process receives counts of rows only; workers hold 4 bytes a row until all rows
        are read. Tables: this process receives 32 bytes a row, a few chunks at a time, and writes them. Measuring the
        second nearest center takes as long again as finding the nearest.
        """
        check_is_fitted(self, "model_")
        place, table = label_places(path, overwrite=overwrite)
        source = open_rows(self, X, reset=False, ids=table is not None)
        if table is not None:
            return write_label_table(self, source, table, overwrite=overwrite)
        Labelling(self, source).write_labels(place, overwrite=overwrite)
        return open_labels(place)

    def with_labels(self, X: Any, column: str = "cluster", *, overwrite: bool = False) -> Any:
        """Find the cluster of each row and put the labels beside the rows; one pass.

        Parameters
        ----------
        X : frame of pandas, polars (also lazy) or Dask
            With the features of the fit, taken by name; there may be more columns.
        column : str, default="cluster"
        overwrite : bool
            Whether a column of this name may be replaced.

        Returns
        -------
        frame
            A new frame with the column, lazy for Dask's: labels are found when it is computed.

        Raises
        ------
        InvalidInputError
            For other data, and where there is such a column.
        """
        check_is_fitted(self, "model_")
        features = vars(self).get("feature_names_in_", ())
        return labelled(X, column, self.predict, features, overwrite=overwrite)

    @property
    def dask_labels_(self) -> Any:
        """`labels_` as a Dask array in blocks as high as those of the array, or the chunks, that were fitted."""
        if self._label_blocks is None:
            raise AttributeError("dask_labels_ is there for Dask input and for fits on a Dask cluster only")
        from streamkm.sources.dask.arrays import dask_labels

        labels, (heights, known) = known_labels(self), self._label_blocks
        return dask_labels(labels.to_dask() if isinstance(labels, HeldLabels) else labels, heights, known=known)

    def transform(self, X: Any) -> NDArray[Any]:
        """Distances of the rows to all centers, in the space of the assignment; one pass.

        Returns
        -------
        ndarray (n, k)
            float64 for float64 input, else float32. NaN for invalid rows, where they are skipped.
        """
        check_is_fitted(self, "model_")
        n_clusters = self._n_features_out
        return row_values(self, X, "transform", distances, np.empty((0, n_clusters)), n_clusters)

    def score(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> float:
        """Give minus the weighted sum of squared distances to the nearest centers; one pass.

        Invalid rows count nothing, where they are skipped.
        """
        check_is_fitted(self, "model_")
        d2 = Labelling(self, open_rows(self, X, reset=False)).gathered("score", nearest_d2, np.empty(0))
        weights = check_weights(sample_weight)
        weights.check_rows(len(d2), "X")
        d2[np.isnan(d2)] = 0
        return -float(weights.each @ d2 if len(weights.each) else weights.factor * d2.sum())

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model to one file, without pickle: what `load` gives back. Labels are not kept.

        The file of an `IncrementalKMeans` holds the stream as well: its coreset, of `stream_.n_bytes`.

        `path`: written under this very name. `overwrite`: replace a file that is there, whatever it is, by the complete
        new one. Raises DiskFullError, OutputError: it exists, or cannot be written; the old file is as it was.
        """
        check_is_fitted(self, "model_")
        save_model(self, path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote: an estimator that can predict, transform and score; a stream goes on.

        It has the names of the features, and refuses others as the fitted one does; `counts_`, `inertia_`,
        `n_samples_`, `n_iter_`, `converged_`, `distortion_`, `n_passes_`, `seed_`, `tfidf_` and `fitted_on_`, as far as
        the file has them. `random_state` is `seed_`, so that `fit` repeats the fit.

        Raises ModelFileError if the file is no saved model, or damaged.
        """
        return load_model(cls, path)

    def __getstate__(self) -> Any:
        """All but the rows of a last call; with labels gathered: workers keep them for this process alone."""
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
