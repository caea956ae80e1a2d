"""Streams that go on from a fit: what is known of its rows without reading them again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.tracking.clusters import TrackedClusters, origins_of
from streamkm.core.exceptions import InvalidInputError
from streamkm.estimators.fitted_attributes import known_labels
from streamkm.estimators.incremental import IncrementalKMeans, follow_fit
from streamkm.estimators.validation import check_stream_parameters, drawn_seed, parameters_of
from streamkm.passes.labels import count_skipped

_GO_ON = ("preparation_", "feature_names_in_", "fitted_on_", "tfidf_")
REACH_OF_A_FIT = 2.0
"""Mean distances of rows to their center within which nearly all lie, for clusters of a fit, which keeps no rows."""


def unfitted_incremental(fit: Any, *, half_life: float | None, first_row: int = 0) -> IncrementalKMeans:
    """Give a new estimator the parameters of a `StreamKMeans`, fitted or not; refuse those that streams do not take."""
    given = parameters_of(fit)
    shared = [name for name in IncrementalKMeans().get_params(deep=False) if name in vars(given)]
    options = {name: getattr(given, name) for name in shared}
    made = IncrementalKMeans(**options, half_life=half_life, first_row=first_row)
    check_stream_parameters(made)
    return made


def incremental_from(fitted: Any, *, half_life: float | None, first_row: int) -> IncrementalKMeans:
    """Continue a fitted `StreamKMeans`; see `StreamKMeans.incremental`."""
    if not hasattr(fitted, "cluster_means_"):
        raise InvalidInputError(
            f"this {type(fitted).__name__} was loaded, and does not know the means of its clusters; call fit, or "
            "partial_fit of a new IncrementalKMeans"
        )
    if fitted.assign_space_ != "original":
        raise InvalidInputError(
            "the clusters of the fit are known in the space of the sketch alone, where no stream goes on; fit with "
            'SketchOptions(assign_space="original"), or call partial_fit of a new IncrementalKMeans'
        )
    made, known = unfitted_incremental(fitted, half_life=half_life, first_row=first_row), vars(fitted)
    made.seed_ = drawn_seed(made.random_state)
    made.__dict__.update({name: known[name] for name in _GO_ON if name in known})
    means, counts = fitted.cluster_means_, np.asarray(fitted.counts_, np.float64)
    n_rows = fitted.n_samples_ - count_skipped(known_labels(fitted))
    centers = fitted.model_.wide_centers()
    moved = means - centers
    distances, reach = _distances(fitted, counts)
    clusters = TrackedClusters(
        ids=np.arange(len(counts)),
        centers=centers,
        means=means,
        counts=counts,
        distances=distances,
        reach=reach,
        within=max(0.0, fitted.inertia_ - float(counts @ np.einsum("ij,ij->i", moved, moved))),
        variance=0.0,
        unsearched=0.0,
        origins=origins_of(centers),
        n_updates=1,
    )
    on = fitted.fitted_on_
    follow_fit(made, clusters, n_rows, dtype=np.dtype(on["dtype"]), sparse=on["sparse"])
    return made


def _distances(fitted: Any, counts: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sums of distances of rows to their centers (k,), and how far out nearly all rows of each cluster lie (k,)."""
    profile = getattr(fitted, "profile_", None)
    if profile is None:
        return np.zeros(len(counts)), np.zeros(len(counts))
    sums: NDArray[np.float64] = profile.sums[:, 0]
    typical = np.divide(sums, counts, out=np.zeros(len(counts)), where=counts > 0)
    farthest = np.sqrt(np.abs(profile.far_d2[:, -1]))  # of as many rows as are kept; infinite where there are fewer
    return sums, np.minimum(REACH_OF_A_FIT * typical, farthest)
