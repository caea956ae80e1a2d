"""The attributes that a fit sets, of every estimator that fits."""

from __future__ import annotations

import warnings
from typing import Any

from sklearn.exceptions import ConvergenceWarning

from streamkm.cluster.model import Model
from streamkm.estimators.centers import hold_centers
from streamkm.estimators.validation import Weights, centers_dtype
from streamkm.fitting.context import FitContext
from streamkm.fitting.kmeans import Fit
from streamkm.passes.words import look_at_words
from streamkm.sources.base import RowSource


def set_fitted(estimator: Any, fitted: Fit, model: Model, context: FitContext, weights: Weights, seed: int) -> None:
    """Set the attributes that every fit sets; warn, three calls up, of fewer clusters than were asked for."""
    source = context.reader.source
    n_samples, factor = int(fitted.chunk_rows.sum()), weights.factor
    weights.check_rows(n_samples, source.name)
    estimator._label_blocks = source.row_blocks(fitted.chunk_rows) if hasattr(source, "row_blocks") else None
    estimator.model_ = model
    estimator.labels_ = fitted.labels
    hold_centers(
        estimator,
        cluster_centers_=fitted.model.centers.astype(centers_dtype(source.dtype), copy=False),
        cluster_means_=fitted.totals.to_means(fallback=fitted.model.centers),
    )
    estimator.counts_ = factor * fitted.totals.counts
    estimator.inertia_ = factor * fitted.totals.d2
    promise = fitted.promise
    estimator.expected_inertia_ = None if promise is None else factor * promise.inertia
    estimator.expected_inertia_error_ = None if promise is None else factor * promise.error
    estimator.possible_gain_ = fitted.gain
    estimator.distortion_ = fitted.distortion
    estimator.assign_space_ = model.space
    estimator.n_iter_ = fitted.lloyd.n_iter
    estimator.converged_ = fitted.lloyd.converged
    estimator.history_ = [{**entry, "inertia": factor * entry["inertia"]} for entry in fitted.history]
    estimator.seed_ = seed
    estimator.feature_words_ = look_at_words(source, context.progress)
    estimator.stages_ = [*source.stages_before, *context.progress.stages]
    for stage in estimator.stages_:
        stage.inertias = tuple(step["inertia"] for step in estimator.history_ if step["stage"] == stage.name)
    again = context.plan.reading.reads_ahead and any(stage.name == "sketch-all" for stage in context.progress.stages)
    estimator.n_passes_ = context.plan.passes + again + fitted.n_rounds
    estimator.fitted_on_ = {**_described(source), "process_memory": context.plan.process_memory}
    estimator.profile_ = None if fitted.profile is None else fitted.profile.weighted(factor)
    estimator.n_samples_ = n_samples
    estimator.n_features_in_ = model.n_features
    estimator.n_components_ = model.sketch.n_components
    estimator.sketch_ = model.sketch
    estimator.plan_ = context.plan
    estimator.sketch_sample_, estimator.sample_labels_ = fitted.view, fitted.view_labels
    if len(model.centers) < estimator.n_clusters:
        n_found, s = len(model.centers), "" if len(model.centers) == 1 else "s"
        warnings.warn(
            f"found {n_found} cluster{s} instead of {estimator.n_clusters}: "
            f"the data have only {n_found} distinct row{s}",
            ConvergenceWarning,
            stacklevel=4,
        )


def _described(source: RowSource) -> dict[str, Any]:
    """What a model says of the rows that it was fitted on, as JSON values."""
    return {
        "name": source.name,
        "files": list(map(str, source.files)),
        "stored_bytes": source.n_bytes,
        "dtype": str(source.dtype),
        "sparse": source.is_sparse,
        **({"made_with": dict(source.made_with)} if source.made_with else {}),
        **({"id_column": source.id_column} if source.id_column else {}),
    }
