"""One fit of a `StreamKMeans`: what its parameters mean for given rows, its plan, and its run."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamkm.cluster.model import Metric
from streamkm.core.exceptions import InvalidParameterError, StreamkmWarning
from streamkm.core.progress import Progress
from streamkm.engine import cluster_memory, is_alone, is_on_cluster, local_threads, open_executor
from streamkm.engine.checkpoint import CheckpointWriter
from streamkm.estimators.fitted_attributes import set_fitted
from streamkm.estimators.input_rows import read_invalid
from streamkm.estimators.validation import Weights, drawn_seed, given_start, parameters_of, random_streams, row_metric
from streamkm.fitting.context import FitContext, Settings
from streamkm.fitting.kmeans import run_fit
from streamkm.passes.context import PassContext
from streamkm.passes.prepare import find_preparation, planned_rows
from streamkm.passes.reader import RowReader
from streamkm.planning.memory_budget import planned_line_room
from streamkm.planning.plan import Plan
from streamkm.planning.request import Resources
from streamkm.preparation import Preparation
from streamkm.sources.base import RowSource
from streamkm.sources.open import store_of
from streamkm.sources.prepared import PreparedRows, cached_rows


def resources_of(given: Any, memory_limit: Any, **more: Any) -> Resources:
    """What a fit with these parameters may take; below another limit if one is given."""
    return Resources(
        memory_limit=given.memory_limit if memory_limit is None else memory_limit,
        chunk_bytes=given.chunk_bytes,
        n_threads=local_threads(given.executor),
        caches_rows=is_alone(given.executor),
        on_cluster=is_on_cluster(given.executor),
        workers=cluster_memory(given.executor),
        **more,
    )


def preparation_for(estimator: Any, source: RowSource) -> Preparation | None:
    """Give the steps that rows of a source go through, to be found; filling comes first. None where there are none."""
    made = Preparation.of(estimator.preprocess, source.feature_names, source.n_features, source.name)
    made = made.after_fill() if estimator.invalid == "mean" else made
    return made if made.steps else None


def rows_to_cluster(estimator: Any, source: RowSource) -> RowSource:
    """Give the rows that will be clustered; see `planned_rows`."""
    preparation = preparation_for(estimator, source)
    return source if preparation is None else planned_rows(source, preparation)


def cached_as_planned(estimator: Any, source: RowSource, plan: Plan) -> RowSource:
    """Give the rows as they are read, cached in memory by the first pass where the plan has room for them."""
    chunk_bytes = rows_to_cluster(estimator, source).original_bytes(plan.chunk_bytes)
    given = parameters_of(estimator)
    bounded = planned_line_room(source, given.memory_limit, plan)
    return cached_rows(bounded, chunk_bytes, plan.cached_bytes)


def labels_stay(executor: Any, source: RowSource, *, has_checkpoint: bool = False) -> bool:
    """Whether labels that are not written stay on workers: these can make them again, and no checkpoint saves them."""
    by_workers = source.replayable and not source.in_process and not source.streams
    return is_on_cluster(executor) and by_workers and not has_checkpoint


def settings_of(estimator: Any, seed: int) -> Settings:
    """Make the settings of a fit with this seed."""
    given = parameters_of(estimator)
    sketch = None if isinstance(given.sketch.sketch, str) else given.sketch.sketch
    return Settings(
        n_clusters=given.n_clusters,
        init=given_start(given.init),
        n_init=given.n_init,
        max_iter=given.max_iter,
        tol=given.tol,
        refine=given.refine,
        seeds=random_streams(seed),
        sketch=sketch,
        spherical=given.metric == "spherical",
    )


def fit_rows(
    estimator: Any,
    source: RowSource,
    plan: Plan,
    weights: Weights,
    writer: CheckpointWriter,
    progress: Progress,
    labels_to: Path | None,
    *,
    labels_stay: bool,
) -> None:
    """Fit rows, and set what `fit` sets."""
    source, preparation = _prepared_rows(estimator, source, plan, writer, progress)
    stored, metric = store_of(source), row_metric(estimator.metric)
    if stored is not None:
        from streamkm.stores.compatibility import metric_on_store, model_of_store, sketch_of_store

        metric = metric_on_store(stored, metric)
        if estimator.metric == "spherical" and not sketch_of_store(stored).is_identity:
            raise InvalidParameterError(
                f'{stored.path} holds sketched rows, and metric="spherical" is for original ones; fit the data, or '
                f'a store that was written with sketch="identity"'
            )
    seed = writer.same_seed(drawn_seed(estimator.random_state))
    with FitContext.opened(
        estimator.executor,
        reader=_reader(estimator, source, plan, metric),
        plan=plan,
        settings=settings_of(estimator, seed),
        weights=weights.each,
        writer=writer,
        progress=progress,
    ) as context:
        fitted = run_fit(replace(context, labels_to=labels_to, labels_stay=labels_stay))
    # a store's rows are sketched: the model that is kept sketches original rows first
    model = replace(fitted.model, preparation=preparation)
    if stored is not None:
        model = model_of_store(stored, fitted.model.centers)
    set_fitted(estimator, fitted, model, context, weights, seed)
    estimator.preparation_ = model.preparation
    estimator.feature_deviations_ = fitted.deviations
    missing = estimator.missing_
    if missing is not None and missing.most == 1:
        text = f"feature {missing.feature} has no value in any row and is filled with 0; leave it out"
        warnings.warn(text, StreamkmWarning, stacklevel=3)


def _prepared_rows(
    estimator: Any, source: RowSource, plan: Plan, writer: CheckpointWriter, progress: Progress
) -> tuple[RowSource, Preparation | None]:
    """The rows that are clustered, after the passes that `preprocess` needs."""
    preparation = preparation_for(estimator, source)
    if preparation is None:
        return source, None
    if preparation.finding:
        reader = _reader(estimator, source, plan, "euclidean")
        with open_executor(estimator.executor, plan.n_threads) as workers:
            context = PassContext(executor=workers, reader=reader, writer=writer)
            preparation = find_preparation(context, preparation, plan.sample_rows, progress)
    return PreparedRows(source, preparation), preparation


def _reader(estimator: Any, source: RowSource, plan: Plan, metric: Metric) -> RowReader:
    """Make the reader of the passes of a fit."""
    return RowReader(source, plan.chunk_bytes, metric, read_invalid(estimator), may_index=True)
