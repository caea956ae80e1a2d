"""What estimators do with a fitted model: label rows, measure distances, save and load.

Every method that takes rows walks them once.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from streamkm.cluster.fit_info import FitInfo
from streamkm.cluster.model import Metric, Model
from streamkm.compute import local_threads, open_executor
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.memory import give_back
from streamkm.core.progress import Progress
from streamkm.estimators.attached import with_labels
from streamkm.estimators.registry import name_of
from streamkm.estimators.validation import (
    OF_THIS_RUN,
    Weights,
    centers_dtype,
    check_weights,
    given_start,
    is_in_memory,
    joined,
    plain,
    plain_list,
)
from streamkm.fitting.context import FitContext
from streamkm.fitting.kmeans import Fit
from streamkm.passes.assign import distances, map_rows, nearest_d2, nearest_labels
from streamkm.passes.context import PassContext
from streamkm.passes.label_tables import N_VALUES, SUFFIXES, Written, check_table_place, nearest_two, write_table
from streamkm.passes.labels import check_labels_place, label_pass, n_writes, open_labels, write_labels
from streamkm.passes.reader import OnInvalid, Walk
from streamkm.planning.allowance import Allowance
from streamkm.planning.plan import Plan
from streamkm.sources import open_source
from streamkm.sources.base import RowSource
from streamkm.sources.memory.frames import check_same_columns
from streamkm.sources.open import is_collection, store_of
from streamkm.sources.prepared import prepared

if TYPE_CHECKING:
    from streamkm.sources.sketch_store import StoreSource


# what a model file keeps of a fit, and the attributes that hold it
_KEPT = {
    "feature_names": "feature_names_in_",
    "counts": "counts_",
    "inertia": "inertia_",
    "distortion": "distortion_",
    "n_samples": "n_samples_",
    "n_iter": "n_iter_",
    "converged": "converged_",
    "n_passes": "n_passes_",
    "seed": "seed_",
    "source": "fitted_on_",
    "profile": "profile_",
    "deviations": "feature_deviations_",
    "words": "feature_words_",
}
_ARRAYS = ("profile", "deviations", "words")  # of these, what is no JSON value


class Assigner(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """An estimator that has a `model_` once it is fitted."""

    n_clusters: int
    init: Any
    random_state: Any
    on_invalid: OnInvalid
    verbose: int
    model_: Model
    labels_: Any
    feature_names_in_: NDArray[Any]
    cluster_centers_: NDArray[Any]
    counts_: NDArray[np.float64]
    assign_space_: str
    _label_blocks: tuple[tuple[int, ...], bool] | None = None

    def predict(self, X: Any) -> NDArray[np.int32]:
        """Find the cluster of each row; one pass.

        Parameters
        ----------
        X : as for `fit`, with the same features
            May be an iterator that can be walked once only.

        Returns
        -------
        labels : int32 (n,)
            -1 for invalid rows, where they are skipped. For a Dask array or data frame, and what is over one, a Dask
            array in blocks of the same rows, computed when asked for.
        """
        lazy = self._lazily(X, nearest_labels)
        return self._gathered(X, "predict", nearest_labels, np.empty(0, np.int32)) if lazy is None else lazy

    def predict_to(self, X: Any, path: str | os.PathLike[str], *, overwrite: bool = False) -> Any:
        """Find the cluster of each row and write what was found to a file; one pass.

        Parameters
        ----------
        X : as for `predict`
        path : path
            NAME.zarr: labels, an array that workers write where rows are read, so that all must see the path. NAME.csv
            or NAME.parquet: a table with a line for each row, in order: its number, or its id where the data have an id
            column; ``label``, ``distance`` to the center, ``second_label`` and ``second_distance`` of the second
            nearest center, and ``outlier_score``: the distance over the mean distance of the cluster's rows in the fit,
            1 for usual rows, 3 for rows three times as far. Rows that are skipped have the label -1 and no numbers.
        overwrite : bool
            Replace labels that are there; nothing else is replaced.

        Returns
        -------
        zarr.Array (n,), int32, or Written
            As `predict`, ``[:]`` gathers it; of a table how many rows it has, and how many of them were skipped.

        Raises
        ------
        OutputError
            It exists, cannot be written, or has another suffix.
        MissingDependencyError
            Parquet without pyarrow.

        Notes
        -----
        Arrays: on a Dask cluster no label passes this process; workers hold 4 bytes a row until all rows are read.
        Tables: this process gets 32 bytes a row, chunk by chunk. Measuring the second nearest center takes as long
        again as finding the nearest.
        """
        self._check_fitted()
        if os.fspath(path).endswith(SUFFIXES):
            return self._predict_to_table(X, check_table_place(path, overwrite=overwrite), overwrite=overwrite)
        target = check_labels_place(path, overwrite=overwrite)
        walk, model, n_threads = self._walk(X)
        progress = Progress(self.progress, int(self.verbose))
        with open_executor(self.executor, n_threads) as workers:
            with progress.stage("predict") as stage:
                held = label_pass(PassContext(executor=workers, walk=walk), model, stage)
            with progress.stage("labels", n_writes(held)) as stage:
                write_labels(workers, held, target, stage, overwrite=overwrite)
        return open_labels(target)

    def _predict_to_table(self, X: Any, target: Path, *, overwrite: bool = False) -> Written:
        source = self._open(X, reset=False)
        profile, usual = getattr(self, "profile_", None), None
        if profile is not None and len(profile.sums) == self._n_features_out:
            usual = np.divide(profile.sums[:, 0], self.counts_, out=np.zeros(len(self.counts_)), where=self.counts_ > 0)
        column: str | None = getattr(source, "id_column", None)
        ids = () if column is None else source.ids()
        self._check_fitted()
        parts = self._map(self._walk(source, N_VALUES), "predict", nearest_two, N_VALUES)
        return write_table(target, parts, usual, id_column=column, ids=ids, overwrite=overwrite)

    def with_labels(self, X: Any, column: str = "cluster", *, overwrite: bool = False) -> Any:
        """Find the cluster of each row and put the labels beside the rows; one pass.

        Parameters
        ----------
        X : frame of pandas, polars (also lazy) or Dask, AnnData object, or path of an .h5ad file
            With the features of the fit.
        column : str, default="cluster"
        overwrite : bool
            Whether a column of this name may be replaced.

        Returns
        -------
        frame, AnnData or str
            A new frame with the column, lazy for Dask's: labels are found when it is computed. AnnData gets the column
            of `obs`, of categories "0", "1", ..., in place; a file is replaced by a copy with the column, complete and
            on the disk, so there must be room for both.

        Raises
        ------
        InvalidInputError, OutputError
            For other data, and where there is such a column.
        """
        self._check_fitted()
        return with_labels(X, column, self.predict, overwrite=overwrite)

    @property
    def dask_labels_(self) -> Any:
        """`labels_` as a Dask array in blocks as high as those of the array that was fitted."""
        check_is_fitted(self, "labels_")
        if self._label_blocks is None:
            raise AttributeError("dask_labels_ is there for Dask input only; labels_ has the labels of other data")
        from streamkm.sources.dask.arrays import dask_labels

        heights, known = self._label_blocks
        return dask_labels(self.labels_, heights, known=known)

    def fit_predict(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> NDArray[np.int32]:
        """Cluster the rows of X and return their labels (n,)."""
        return self.fit(X, sample_weight=sample_weight).labels_

    def transform(self, X: Any) -> NDArray[Any]:
        """Distances of the rows to all centers, in the space of the assignment; one pass.

        Returns
        -------
        ndarray (n, k)
            float64 for float64 input, else float32. NaN for invalid rows, where they are skipped.
        """
        self._check_fitted()
        n_clusters = self._n_features_out
        lazy = self._lazily(X, distances, n_clusters)
        if lazy is not None:
            return lazy
        return self._gathered(X, "transform", distances, np.empty((0, n_clusters)), n_clusters)

    def fit_transform(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> NDArray[Any]:
        """Cluster the rows of X and return their distances to all centers (n, k)."""
        return self.fit(X, sample_weight=sample_weight).transform(X)

    def score(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> float:
        """Give minus the weighted sum of squared distances to the nearest centers; one pass.

        Invalid rows count nothing, where they are skipped.
        """
        d2 = self._gathered(X, "score", nearest_d2, np.empty(0))
        weights = check_weights(sample_weight)
        weights.check_rows(len(d2), "X")
        d2[np.isnan(d2)] = 0
        return -float(weights.each @ d2 if len(weights.each) else weights.factor * d2.sum())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file, without pickle: what `load` gives back. Labels are not kept.

        Parameters
        ----------
        path : path
            Replaced only by a complete file.

        Raises
        ------
        DiskFullError, OutputError
            It cannot be written; the old file is as it was.
        """
        self._check_fitted()
        parameters = self.get_params()
        for name in OF_THIS_RUN:
            parameters.pop(name, None)
        if callable(parameters["init"]):
            del parameters["init"]  # no file holds functions; what is loaded starts as by default
        elif not isinstance(parameters["init"], str):
            parameters["init"] = given_start(parameters["init"]).tolist()
        kept = {name: getattr(self, attribute, None) for name, attribute in _KEPT.items()}
        values = {name: value if name in _ARRAYS else plain_list(value) for name, value in kept.items()}
        fit = FitInfo(estimator=name_of(type(self)), **values)
        self._current_model().save(path, {name: plain(value) for name, value in parameters.items()}, fit)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote: an estimator that can predict, transform and score.

        It has the names of the features, and refuses others as the fitted one does; `counts_`, `inertia_`,
        `n_samples_`, `n_iter_`, `converged_`, `distortion_`, `n_passes_`, `seed_` and `fitted_on_`, as far as the file
        has them.

        Raises
        ------
        ModelFileError
            If the file is no saved model, or damaged.
        """
        model, parameters = Model.load(path)
        if isinstance(parameters.get("sketch"), dict):
            parameters["sketch"] = model.sketch  # it was given, made already
        try:
            estimator = cls(**parameters)
        except TypeError as error:
            raise InvalidParameterError(f"{os.fspath(path)} was saved by another estimator: {error}") from error
        estimator.model_ = model
        estimator.cluster_centers_ = model.centers
        estimator.assign_space_ = model.space
        estimator.sketch_, estimator.preparation_ = model.sketch, model.preparation
        estimator.n_components_ = model.sketch.n_components
        estimator.n_features_in_ = model.n_features
        fit = FitInfo.load(path)
        for name, attribute in _KEPT.items():
            value = getattr(fit, name)
            if value is not None:
                kinds = {"feature_names": object, "counts": np.float64}
                setattr(estimator, attribute, np.array(value, kinds[name]) if name in kinds else value)
        return estimator

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self.on_invalid == "skip"
        return tags

    @property
    def _n_features_out(self) -> int:
        """Columns of `transform`, for scikit-learn's feature names."""
        return len(self.cluster_centers_)

    def _given(self, seed: int) -> tuple[Any, np.random.SeedSequence]:
        """`init`, and the random streams of a fit."""
        init = given_start(self.init)
        entropy = check_random_state(seed).randint(0, 2**32, 4, dtype=np.uint32)
        return init, np.random.SeedSequence([int(word) for word in entropy])

    def _fit_walk(self, source: RowSource, plan: Plan, metric: Metric) -> Walk:
        """How a fit walks the source."""
        return Walk(source, plan.chunk_bytes, metric, self.on_invalid, skims=True)

    def _take(self, fitted: Fit, model: Model, context: FitContext, weights: Weights, seed: int) -> None:
        """Set what every fit sets; warn, three calls up, of fewer clusters than were asked for."""
        source = context.walk.source
        n_samples, factor = int(fitted.chunk_rows.sum()), weights.factor
        weights.check_rows(n_samples, source.name)
        self._label_blocks = source.row_blocks(fitted.chunk_rows) if hasattr(source, "row_blocks") else None
        self.model_ = model
        self.labels_ = fitted.labels
        self.cluster_centers_ = fitted.model.centers.astype(centers_dtype(source.dtype), copy=False)
        self.cluster_means_ = fitted.totals.to_means(fallback=fitted.model.centers)
        self.counts_ = factor * fitted.totals.counts
        self.inertia_ = factor * fitted.totals.d2
        self.distortion_ = fitted.distortion
        self.assign_space_ = model.space
        self.n_iter_ = fitted.lloyd.n_iter
        self.converged_ = fitted.lloyd.converged
        self.history_ = [{**entry, "inertia": factor * entry["inertia"]} for entry in fitted.history]
        self.seed_ = seed
        self.stages_ = [*source.stages_before, *context.progress.stages]
        self.n_passes_ = context.plan.passes + fitted.n_rounds + len(source.stages_before)
        self.fitted_on_ = described(source)
        self.profile_ = None if fitted.profile is None else fitted.profile.weighted(factor)
        self.feature_words_ = source.words
        self.n_samples_ = n_samples
        self.n_features_in_ = model.n_features
        self.n_components_ = model.sketch.n_components
        self.sketch_ = model.sketch
        self.plan_ = context.plan
        self.sketch_sample_, self.sample_labels_ = fitted.view, fitted.view_labels
        if len(self.cluster_centers_) < self.n_clusters:
            warnings.warn(
                f"found {len(self.cluster_centers_)} clusters, fewer than n_clusters={self.n_clusters}: "
                "the data have no more distinct rows",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _current_model(self) -> Model:
        """What assigns rows: the model, by other centers where `cluster_centers_` was assigned, or written to.

        The attribute is rounded to the data's dtype; the model's centers are not, and count unless it was changed.

        Raises
        ------
        InvalidInputError
            For centers that no row can be compared with.
        """
        model, centers = self.model_, np.asarray(self.cluster_centers_)
        rounded = model.centers.astype(np.float32) if centers.dtype == np.float32 else model.centers
        if centers is model.centers or np.array_equal(centers, rounded):
            return model
        wanted = model.centers.shape[1]
        if centers.ndim != 2 or not len(centers) or centers.shape[1] != wanted:
            raise InvalidInputError(f"cluster_centers_ has shape {centers.shape}; needed: (clusters, {wanted:,})")
        if not np.isfinite(centers).all():
            raise InvalidInputError("cluster_centers_ holds NaN or infinity; needed: finite centers")
        return replace(model, centers=np.array(centers, np.float64, order="C"), index=None)

    def _check_fitted(self) -> None:
        check_is_fitted(self, ("model_", "stream_"), all_or_any=any)

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
        """Walk X once; the function's values of all rows, `empty` where there are none."""
        self._check_fitted()
        walked = self._walk(X, n_columns or 0)
        return joined(self._map(walked, name, function, n_columns), empty, walked[0].source.n_rows)

    def _map(
        self, walked: tuple[Walk, Model, int], name: str, function: Any, n_columns: int | None = None
    ) -> Iterator[NDArray[Any]]:
        """Walk rows once, as `_walk` says; yield the function's values chunk by chunk."""
        walk, model, n_threads = walked
        progress = Progress(self.progress, int(self.verbose))
        with open_executor(self.executor, n_threads) as workers, progress.stage(name) as stage:
            yield from map_rows(PassContext(executor=workers, walk=walk), model, function, stage, n_columns)

    def _walk(self, X: Any, n_columns: int = 0) -> tuple[Walk, Model, int]:
        """How X is walked within the limit, where each row gives so many values; the model for it, and threads."""
        source, model = self._open(X, reset=False), self._current_model()
        stored = store_of(source)
        if stored is not None:
            model = _model_on(stored, model)
        if model.preparation is not None:
            source = prepared(source, model.preparation)
        allowance = Allowance.of(self.memory_limit, source)
        here, held = local_threads(self.executor), model.centers.nbytes
        sizes = allowance.labelling(source, self.chunk_bytes, here, centers_bytes=held, n_columns=n_columns)
        give_back(allowance.limit_bytes)
        return Walk(source, sizes[0], model.metric, self.on_invalid), model, sizes[1]

    def _open(self, X: Any, *, reset: bool | None) -> RowSource:
        """Make a source of X; arrays in memory are validated as scikit-learn does, names of columns everywhere."""
        if is_in_memory(X):
            checks: dict[str, Any] = {"accept_sparse": "csr", "accept_large_sparse": True, "ensure_all_finite": False}
            if reset is None:
                from sklearn.utils import check_array

                X = check_array(X, dtype="numeric", **checks)
            else:
                X = validate_data(self, X, reset=reset, dtype="numeric", **checks)
            return open_source(X)
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


def described(source: RowSource) -> dict[str, Any]:
    """What a model says of the rows that it was fitted on, as JSON values."""
    return {
        "name": source.name,
        "files": list(source.files),
        "stored_bytes": source.n_bytes,
        "dtype": str(source.dtype),
        "sparse": source.is_sparse,
        **({"made_with": dict(source.made_with)} if source.made_with else {}),
    }


def _model_on(stored: StoreSource, model: Model) -> Model:
    """The model, for rows of a store."""
    from streamkm.stores.compatibility import model_on_store

    return model_on_store(model, stored)
