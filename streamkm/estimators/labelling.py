"""Attributes of a fitted estimator, and one pass over rows with its model for labels, distances and their files."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from streamkm.cluster.model import Model
from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.core.atomic_io import REPLACED, check_new_directory, named, replace_tree, working_directory, writing
from streamkm.core.exceptions import InvalidInputError, StreamkmWarning
from streamkm.core.memory import memory_limit_bytes, resident_bytes, trim_heap
from streamkm.core.progress import Progress
from streamkm.engine import cluster_memory, is_alone, is_on_cluster, local_threads, open_executor, under_limit
from streamkm.estimators.input_rows import described, open_rows, read_invalid
from streamkm.estimators.validation import Weights, centers_dtype, check_value, joined, one_of
from streamkm.fitting.context import FitContext
from streamkm.fitting.state import FitState
from streamkm.passes.excerpts import look_at_words
from streamkm.passes.label_tables import (
    N_VALUES,
    OF_PARTITIONS,
    PARTITION,
    SUFFIXES,
    RowNames,
    Written,
    check_table_place,
    nearest_two,
    write_centers,
    write_partitions,
    write_table,
)
from streamkm.passes.labels import HeldLabels, check_labels_place, check_seen, label_pass, n_writes, write_labels
from streamkm.passes.pass_context import PassContext
from streamkm.passes.predict import lazy_map, map_rows, nearest_labels
from streamkm.passes.reader import RowReader
from streamkm.passes.sizes import UpdateSizes
from streamkm.planning.fit_plan import plan_labels
from streamkm.planning.memory_budget import planned_line_limit
from streamkm.planning.request import Resources
from streamkm.sources.open import is_collection, store_of
from streamkm.sources.prepared import PreparedRows
from streamkm.sources.row_source import RowSource


def set_model(estimator: Any, model: Model, **centers: NDArray[Any]) -> None:
    """Set the model and its facts; keep centers and means narrow, by their attributes, until they are asked for."""
    estimator.model_, estimator.sketch_, estimator.assign_space_ = model, model.sketch, model.space
    estimator.n_features_in_, estimator.n_components_ = model.n_features, model.sketch.n_components
    for name in centers:
        vars(estimator).pop(name, None)
    kept, estimator._narrow = (centers, {}) if model.columns is None else ({}, centers)
    vars(estimator).update(kept)


def rounded_centers(
    centers: NDArray[np.float64], counts: NDArray[Any], inertia: float, means: NDArray[np.float64], dtype: Any
) -> NDArray[Any]:
    """Centers in a dtype, or in float64 if rounding moves the objective by more than 1e-6 of it."""
    if dtype == np.float64:
        return centers
    rounded = centers.astype(dtype)
    # rounding c of n rows with mean m to r adds n |r - m|^2 - n |c - m|^2
    moved = sum(n * (r - c) @ (r + c - 2 * m) for n, r, c, m in zip(counts, rounded, centers, means, strict=True))
    least = 1e-26 * counts @ np.einsum("ij,ij->i", centers, centers)  # what rounding to float64 may have cost before
    return centers if abs(moved) > 1e-6 * inertia + least else rounded


def wide_centers(estimator: Any, name: str) -> NDArray[Any]:
    """Give the value of an attribute, with all features."""
    if name not in estimator._narrow:
        raise AttributeError(f"{type(estimator).__name__!r} object has no attribute {name!r}")
    return estimator.model_.columns.wide(estimator._narrow[name])


def held_centers(estimator: Any, name: str = "cluster_centers_") -> NDArray[Any]:
    """Give the value of an attribute, with few features if nobody has asked for all."""
    known = vars(estimator) if name in vars(estimator) else estimator._narrow
    return known[name] if name in known else getattr(estimator, name)


def known_means(estimator: Any) -> NDArray[np.float64] | None:
    """Give the clusters' means in the columns of `model_`; None for a loaded estimator."""
    known = "cluster_means_" in estimator._narrow or hasattr(estimator, "cluster_means_")
    return held_centers(estimator, "cluster_means_") if known else None


def current_model(estimator: Any) -> Model:
    """The model that assigns rows, with the centers of `cluster_centers_` only if that was assigned or written to.

    Model centers are never rounded to the data's dtype. Raises InvalidInputError for centers that rows do not fit.
    """
    model: Model = estimator.model_
    columns, centers = model.columns, np.asarray(held_centers(estimator))
    wanted = model.centers.shape[1] if columns is None else columns.n_features
    rounded = model.centers.astype(np.float32) if centers.dtype == np.float32 else model.centers
    known = columns.narrow(centers) if columns is not None and centers.shape == (len(rounded), wanted) else centers
    if centers is model.centers or np.array_equal(known, rounded):
        return model
    if centers.ndim != 2 or not len(centers) or centers.shape[1] != wanted:
        raise InvalidInputError(f"cluster_centers_ has shape {centers.shape}; needed: (clusters, {wanted:,})")
    if not np.isfinite(centers).all():
        raise InvalidInputError("cluster_centers_ holds NaN or infinity; needed: finite centers")
    return replace(model, centers=np.array(centers, np.float64, order="C"), columns=None, prices=None)


class FewClustersWarning(StreamkmWarning, ConvergenceWarning):  # type: ignore[misc] # scikit-learn's are Any
    """Fewer clusters were found than asked for."""


def set_fitted(estimator: Any, fit: FitState, model: Model, context: FitContext, weights: Weights, seed: int) -> None:
    """Set the attributes that every fit sets; warn, three calls up, of fewer clusters than were asked for."""
    source, found, assigned = context.reader.source, fit.found, fit.assigned
    n_samples, factor = int(found.chunk_rows.sum()), weights.factor
    weights.check_rows(n_samples, source.name)
    blocks = (tuple(found.chunk_rows.tolist()), True) if is_on_cluster(estimator.executor) else None
    estimator._label_blocks = source.computed.row_blocks(found.chunk_rows) if source.computed else blocks
    set_labels(estimator, assigned.labels)
    centers, counts, d2 = fit.model.centers, assigned.totals.counts, assigned.totals.d2
    means = assigned.totals.to_means(fallback=centers)
    rounded = rounded_centers(centers, counts, d2, means, centers_dtype(source.dtype))
    set_model(estimator, model, cluster_centers_=rounded, cluster_means_=means)
    estimator.counts_ = factor * counts
    estimator.inertia_ = factor * d2
    if fit.evened is not None and (moves := fit.evened.rule.moves) is not None:
        estimator.size_balance_ = told = fit.evened.balance(moves, assigned.totals, factor)
        estimator.counts_, estimator.inertia_ = factor * moves.counts, told["inertia_after"]
    estimate = fit.inertia_estimate
    expected = (None, None) if estimate is None else (estimate.inertia, estimate.error)
    estimator.expected_inertia_, estimator.expected_inertia_error_ = (each and factor * each for each in expected)
    estimator.possible_gain_ = fit.gain
    estimator.distortion_ = fit.distortion
    estimator.n_iter_ = found.result.n_iter
    estimator.converged_ = found.result.converged
    estimator.history_ = [{**entry, "inertia": factor * entry["inertia"]} for entry in fit.history]
    estimator.seed_ = seed
    estimator.feature_words_ = look_at_words(source, context.progress)
    estimator.stages_ = [*source.origin.stages_before, *context.progress.stages]
    for stage in estimator.stages_:
        stage.inertias = tuple(step["inertia"] for step in estimator.history_ if step["stage"] == stage.name)
    again = context.plan.reads_ahead and any(stage.name == "sketch-all" for stage in context.progress.stages)
    estimator.n_passes_ = context.plan.passes + again + fit.n_rounds
    estimator.fitted_on_ = {**described(source), "process_memory": context.plan.process_memory}
    estimator.tfidf_ = source.tfidf
    estimator.profile_ = assigned.profile and assigned.profile.weighted(factor)
    estimator.n_samples_ = n_samples
    estimator.plan_ = context.plan
    estimator.sample_labels_ = fit.view_labels
    estimator.sketch_sample_ = found.sample_view.sketched.X[: len(fit.view_labels)]
    n_found = len(model.centers)
    if n_found < estimator.n_clusters:
        asked, s = estimator.n_clusters, "" if n_found == 1 else "s"
        text = f"found {n_found} cluster{s} instead of {asked}: the data have only {n_found} distinct row{s}"
        warnings.warn(text, FewClustersWarning, stacklevel=4)


def set_labels(estimator: Any, labels: Any) -> None:
    """Keep labels in place of earlier ones: an array, or a handle of labels that workers hold."""
    for name in ("labels_", "_held_labels"):
        vars(estimator).pop(name, None)
    vars(estimator)["_held_labels" if isinstance(labels, HeldLabels) else "labels_"] = labels


def known_labels(estimator: Any) -> Any:
    """Labels of the rows of a fit, as an array or a handle of those on workers; None if there are none."""
    return vars(estimator).get("labels_", estimator._held_labels)


def label_places(path: Any, *, overwrite: bool = False) -> tuple[Any, str | None]:
    """The place of a Zarr array of labels, or of a table, by the suffix; neither for None."""
    if path is None or os.fspath(path).endswith(SUFFIXES):
        return None, None if path is None else check_table_place(path, overwrite=overwrite)
    return check_labels_place(path, overwrite=overwrite), None


def resources_of(given: Any, memory_limit: Any, **more: Any) -> Resources:
    """The machine's resources for a fit with these parameters, below another memory limit if one is given."""
    return Resources(
        memory_limit=given.memory_limit if memory_limit is None else memory_limit,
        chunk_bytes=given.chunk_bytes,
        n_threads=local_threads(given.executor),
        caches_rows=is_alone(given.executor),
        on_cluster=is_on_cluster(given.executor),
        workers=cluster_memory(given.executor),
        **more,
    )


class Labelling:
    """One pass of a fitted estimator over rows that gives values for each row, within the memory limit."""

    def __init__(
        self,
        estimator: Any,
        source: RowSource,
        n_columns: int = 0,
        model: Model | None = None,
        update: UpdateSizes | None = None,
        weights: Weights | None = None,
    ):
        self.estimator, self.weights = estimator, Weights(NO_WEIGHTS) if weights is None else weights
        model = current_model(estimator) if model is None else model
        stored = store_of(source)
        if stored is not None:
            from streamkm.stores.planned import model_on_store

            model = model_on_store(model, stored)
        if model.preparation is not None:
            source = PreparedRows(source, model.preparation)
        sizes: Any = {"centers_bytes": model.centers.nbytes, "n_columns": n_columns, "update": update}
        plan = plan_labels(source, resources_of(estimator, None), **sizes)
        source = planned_line_limit(source, estimator.memory_limit, plan)
        self.model, self.n_columns = model, n_columns
        self.reader = RowReader(source, plan.chunk_bytes, model.metric, read_invalid(estimator))
        self.progress = Progress(estimator.progress)
        self._n_threads = plan.n_threads

    @contextmanager
    def context(self, **given: Any) -> Iterator[PassContext]:
        """Open the executor within the memory limit; `given`: other values of the context."""
        limit = self.estimator.memory_limit
        with under_limit(limit), open_executor(self.estimator.executor, self._n_threads) as workers:
            trim_heap(memory_limit_bytes(limit))
            yield PassContext(executor=workers, reader=self.reader, weights=self.weights.each, **given)

    def gathered(self, name: str, function: Callable[..., Any], empty: NDArray[Any]) -> NDArray[Any]:
        """Read the rows once, in a stage of this name; give the function's values for all, or `empty` for no rows."""
        with self.context() as context, self.progress.stage(name) as stage:
            found = map_rows(context, self.model, function, stage, wide=self.n_columns > 0)
            return joined(found, empty, self.reader.source.n_rows)

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
    """Give the function's values for the rows of X, or `empty` for no rows; lazily for a Dask array."""
    check_is_fitted(estimator, "model_")
    source = open_rows(estimator, X, reset=False)
    if is_collection(X) and source.computed is source:
        model, width = current_model(estimator), n_columns or None
        return lazy_map(source.computed, model, function, invalid=read_invalid(estimator), n_columns=width)
    return Labelling(estimator, source, n_columns).gathered(name, function, empty)


def write_label_table(estimator: Any, source: RowSource, place: str, *, overwrite: bool = False) -> Written:
    """Read rows once; write their labels and distances to a table."""
    labelling = Labelling(estimator, source, N_VALUES)
    with labelling.context() as context, labelling.progress.stage("predict") as stage:
        found = map_rows(context, labelling.model, nearest_two, stage, wide=True)
        return write_table(found, labelling.model, place, stage, RowNames(source), overwrite=overwrite)


def write_rows_by_cluster(estimator: Any, X: Any, path: Any, partition_by: str, *, overwrite: bool) -> Written:
    """Read rows once to label them, into a file, and once to sort them; the directory appears when it is complete."""
    check_value("partition_by", partition_by, one_of((PARTITION,)))
    check_new_directory(path, OF_PARTITIONS, overwrite=overwrite)
    source, target = open_rows(estimator, X, reset=False), Path(path)
    rows = source.stored_rows(PARTITION)
    with working_directory(target) as stage, named(stage, target), writing(target):
        labelling = Labelling(estimator, source)
        with labelling.context() as context, labelling.progress.stage("predict") as predicting:
            parts = map_rows(context, labelling.model, nearest_labels, predicting)
            with open(stage / "labels", "wb") as file:
                file.writelines(labels.tobytes() for labels in parts)
        place, centers = stage / "rows", np.asarray(estimator.cluster_centers_, np.float32)
        room = memory_limit_bytes(estimator.memory_limit) - resident_bytes()
        written = write_partitions(rows, stage / "labels", place, min(64 << 20, max(1 << 20, room // 8)))
        write_centers(centers, current_model(estimator).names(np.arange(len(centers), dtype=np.int32)), place)
        check_new_directory(path, OF_PARTITIONS, overwrite=overwrite)  # once more: the passes may have taken hours
        replace_tree(place, target, stage / REPLACED)
    return written


def labelled(X: Any, column: str, predict: Callable[[Any], Any], features: Sequence[str], *, overwrite: bool) -> Any:
    """X with a column of labels by `predict`; see `BaseKMeans.with_labels`; `features`: those of the fit."""
    # lazy frames of polars say their columns no other way without a warning
    columns = X.collect_schema().names() if hasattr(X, "collect_schema") else getattr(X, "columns", None)
    if columns is None:
        raise InvalidInputError(f"{type(X).__name__} takes no column of labels; pass a frame, or use predict")
    if column in list(columns) and not overwrite:
        raise InvalidInputError(f"there is a column {column!r} already; choose another, or allow to overwrite")
    named = len(features) > 0 and set(features) <= set(columns)
    chosen = list(features) if named else [name for name in columns if name != column]
    if hasattr(X, "with_columns"):
        import polars as pl

        return X.with_columns(pl.Series(column, predict(X.select(chosen)), dtype=pl.Int32))
    return X.assign(**{column: predict(X[chosen])})
