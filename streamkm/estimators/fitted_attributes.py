"""The attributes that a fit sets, of every estimator that fits."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from streamkm.cluster.model import Model
from streamkm.core.exceptions import StreamkmWarning
from streamkm.engine import is_on_cluster
from streamkm.estimators.centers import hold_centers, rounded_centers
from streamkm.estimators.validation import Weights, centers_dtype
from streamkm.fitting.context import FitContext
from streamkm.fitting.state import FitState
from streamkm.passes.labels import HeldLabels
from streamkm.passes.words import look_at_words
from streamkm.sources.base import RowSource

MANY_LABELS = 100_000_000  # rows whose labels are gathered from workers with a warning


class FewClustersWarning(StreamkmWarning, ConvergenceWarning):  # type: ignore[misc] # scikit-learn's are Any
    """Fewer clusters were found than asked for."""


def set_fitted(estimator: Any, fit: FitState, model: Model, context: FitContext, weights: Weights, seed: int) -> None:
    """Set the attributes that every fit sets; warn, three calls up, of fewer clusters than were asked for."""
    source, found, assigned = context.reader.source, fit.found, fit.assigned
    n_samples, factor = int(found.chunk_rows.sum()), weights.factor
    weights.check_rows(n_samples, source.name)
    if source.computed:
        estimator._label_blocks = source.computed.row_blocks(found.chunk_rows)
    else:  # on a cluster the blocks of labels are as high as chunks
        blocks = tuple(found.chunk_rows.tolist()), True
        estimator._label_blocks = blocks if is_on_cluster(estimator.executor) else None
    estimator.model_ = model
    vars(estimator).pop("labels_", None)  # gathered after an earlier fit
    estimator._held_labels = assigned.labels if isinstance(assigned.labels, HeldLabels) else None
    if estimator._held_labels is None:
        estimator.labels_ = assigned.labels
    centers, counts, d2 = fit.model.centers, assigned.totals.counts, assigned.totals.d2
    means = assigned.totals.to_means(fallback=centers)
    rounded = rounded_centers(centers, counts, d2, means, centers_dtype(source.dtype))
    hold_centers(estimator, cluster_centers_=rounded, cluster_means_=means)
    estimator.counts_ = factor * counts
    estimator.inertia_ = factor * d2
    estimate = fit.inertia_estimate
    estimator.expected_inertia_ = None if estimate is None else factor * estimate.inertia
    estimator.expected_inertia_error_ = None if estimate is None else factor * estimate.error
    estimator.possible_gain_ = fit.gain
    estimator.distortion_ = fit.distortion
    estimator.assign_space_ = model.space
    estimator.n_iter_ = found.result.n_iter
    estimator.converged_ = found.result.converged
    estimator.history_ = [{**entry, "inertia": factor * entry["inertia"]} for entry in fit.history]
    estimator.seed_ = seed
    estimator.feature_words_ = look_at_words(source, context.progress)
    estimator.stages_ = [*source.stages_before, *context.progress.stages]
    for stage in estimator.stages_:
        stage.inertias = tuple(step["inertia"] for step in estimator.history_ if step["stage"] == stage.name)
    again = context.plan.reads_ahead and any(stage.name == "sketch-all" for stage in context.progress.stages)
    estimator.n_passes_ = context.plan.passes + again + fit.n_rounds
    estimator.fitted_on_ = {**described(source), "process_memory": context.plan.process_memory}
    estimator.tfidf_ = source.tfidf
    estimator.profile_ = None if assigned.profile is None else assigned.profile.weighted(factor)
    estimator.n_samples_ = n_samples
    estimator.n_features_in_ = model.n_features
    estimator.n_components_ = model.sketch.n_components
    estimator.sketch_ = model.sketch
    estimator.plan_ = context.plan
    estimator.sample_labels_ = fit.view_labels
    estimator.sketch_sample_ = found.sample_view.sketched.X[: len(fit.view_labels)]
    if len(model.centers) < estimator.n_clusters:
        n_found, s = len(model.centers), "" if len(model.centers) == 1 else "s"
        warnings.warn(
            f"found {n_found} cluster{s} instead of {estimator.n_clusters}: "
            f"the data have only {n_found} distinct row{s}",
            FewClustersWarning,
            stacklevel=4,
        )


def gather_labels(held: HeldLabels) -> NDArray[np.int32]:
    """Gather the labels (n,) of a fit from workers; warn, three calls up, if they are many."""
    if held.n_rows > MANY_LABELS:
        warnings.warn(
            f"labels_ gathers the labels of {held.n_rows:,} rows from the workers into this process, 4 bytes each; "
            f"dask_labels_ leaves them there, and fit(..., labels_to=...) has the workers write them",
            StreamkmWarning,
            stacklevel=4,
        )
    return held.gather()


def known_labels(estimator: Any) -> Any:
    """Labels of the rows of a fit, as an array or where workers hold them; None if there are none."""
    labels = vars(estimator).get("labels_")
    return vars(estimator).get("_held_labels") if labels is None else labels


def described(source: RowSource) -> dict[str, Any]:
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
