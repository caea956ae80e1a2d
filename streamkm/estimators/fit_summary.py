"""What a fitted estimator has to tell, as JSON values: data, result, clusters, stages and versions.

Where these values are written and how they look is not decided here.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.profile import euclidean_distances
from streamkm.core import __version__
from streamkm.core.display import displayed
from streamkm.core.exceptions import InvalidParameterError
from streamkm.estimators.labelling import known_labels, known_means
from streamkm.estimators.validation import plain
from streamkm.metrics.clusters import mean_silhouette, whole
from streamkm.passes.excerpts import row_ids, rows_as_values
from streamkm.passes.labels import count_skipped
from streamkm.reports.report import cautions, check_image_shape, with_pictures

if TYPE_CHECKING:
    from streamkm.core.progress import Stage
    from streamkm.metrics.cluster_summary import ClusterSummary
    from streamkm.sources.base import RowSource

_PACKAGES = ("numpy", "scipy", "scikit-learn", "numba", "dask", "h5py", "zarr")
_OF_FITS = ("distortion", "n_passes", "n_iter", "converged", "seed")  # attributes that not every estimator has
_STAGE = ("name", "seconds", "read_bytes", "rows")
JUDGED_PER_CLUSTER, FEWEST_JUDGED, MOST_JUDGED = 10, 500, 2000  # rows that silhouettes are taken of
MOST_DESCRIBED = 5000  # clusters: comparing all of them takes time by their square


def cluster_summary(estimator: Any) -> ClusterSummary | None:
    """What is in each cluster; None where it is not known, and of very many clusters."""
    described = getattr(estimator, "feature_deviations_", None) is not None or hasattr(estimator, "kernel")
    return estimator.summary() if described and len(estimator.counts_) <= MOST_DESCRIBED else None


def summarize(estimator: Any, found: ClusterSummary | None = None) -> dict[str, Any]:
    """Gather what streamkm.json and a report say, as JSON values.

    `estimator`: of clusters, fitted. `found`: its `cluster_summary`, where that is known. The result: ``data``,
    ``result``, ``clusters``, ``stages``, ``history``, ``parameters`` and ``versions``. Numbers that are not finite, and
    what streams and loaded models do not know, are null; clusters are null where no more is known than their sizes.
    ``cautions`` are sentences.
    """
    found = found or cluster_summary(estimator)
    profile, labels = getattr(estimator, "profile_", None), known_labels(estimator)
    is_fit = hasattr(estimator, "n_samples_")  # else a stream, whose labels are those of its last rows
    n_skipped = count_skipped(labels) if is_fit and labels is not None else None
    n_samples = estimator.n_samples_ if is_fit else estimator.n_samples_seen_
    fitted_on: dict[str, Any] = estimator.fitted_on_ if is_fit else {"name": "rows of a stream", "stored_bytes": None}
    missing = getattr(estimator, "missing_", None)
    stages: Sequence[Stage] = getattr(estimator, "stages_", ())
    summary: dict[str, Any] = {
        "data": {
            "name": displayed(fitted_on["name"]),
            "n_samples": n_samples,
            "n_skipped": n_skipped,
            "n_blank": 0 if profile is None else int(profile.n_blank.sum()),
            "missing": None if missing is None else str(missing),
            "n_features": estimator.n_features_in_,
            "stored_bytes": fitted_on["stored_bytes"],
        },
        "result": {
            **{name: getattr(estimator, f"{name}_", None) for name in _OF_FITS},
            "n_clusters": len(estimator.counts_),
            "objective_per_row": estimator.inertia_ / max(n_samples - (n_skipped or 0), 1),
            "n_components": estimator.sketch_.n_components,
            "assign_space": estimator.assign_space_,
            "process_memory": fitted_on.get("process_memory"),
            "counts": [whole(count) for count in estimator.counts_.tolist()],
            "ids": estimator.cluster_ids_.tolist() if hasattr(estimator, "cluster_ids_") else None,
        },
        "seconds": sum(stage.seconds for stage in stages) if stages else None,
        "stages": [{name: getattr(stage, name) for name in _STAGE} for stage in stages],
        "history": getattr(estimator, "history_", []),
        "parameters": estimator.get_params(),
        "versions": {"streamkm": __version__, "python": platform.python_version(), **dict(_versions())},
    }
    if hasattr(estimator, "trace_residual_"):
        summary["result"] |= {"trace_residual": estimator.trace_residual_, "gamma": estimator.kernel_.gamma}
    summary["result"] |= result_facts(estimator) | _silhouette(estimator)
    summary |= {
        "clusters": None if found is None else found.to_dicts(),
        "by_words": found is not None and found.by_words,
        "cautions": list(cautions((), summary["result"]) if found is None else found.cautions),
    }
    values: dict[str, Any] = plain(summary)
    return values


def add_pass(summary: dict[str, Any], stage: Stage) -> None:
    """Add a pass to a summary that was made before it, in place."""
    summary["stages"].append({name: getattr(stage, name) for name in _STAGE})
    summary["seconds"] += stage.seconds
    summary["result"]["n_passes"] += 1


def shown_clusters(
    estimator: Any, clusters: Sequence[Mapping[str, Any]], source: RowSource | None, image_shape: Any
) -> list[dict[str, Any]]:
    """What a report says of clusters, with the ids of their typical rows, and with pictures, where these are wanted.

    `clusters`: of `summarize`. `source`: the rows that were fitted, which are read once more. `image_shape` (height,
    width) or (height, width, 3): of rows of pixels. Raises InvalidParameterError: an `image_shape` that rows do not
    have.
    """
    if image_shape is not None and estimator.assign_space_ != "original":
        raise InvalidParameterError(f"image_shape={image_shape!r}; centers of a sketch or a kernel are no pictures")
    told, names = [dict(row) for row in clusters], ("typical", "outlying")
    shape = None if image_shape is None else check_image_shape(image_shape, estimator.n_features_in_)
    values: dict[int, NDArray[Any]] = {}
    preparation = estimator.model_.preparation
    if source is not None:
        wanted = sorted({each["row"] for row in told for name in names for each in row[name]})
        ids = row_ids(source, wanted)
        for row in told:
            row |= {name: [{**each, "id": ids.get(each["row"])} for each in row[name]] for name in names}
        values = {} if shape is None else rows_as_values(source, wanted)
    if shape is None:
        return told
    centers = estimator.model_.wide_centers()
    if preparation is not None and preparation.is_invertible:
        centers = preparation.undone(centers)
    elif preparation is not None:
        values = {row: np.asarray(preparation.apply(each[None]))[0] for row, each in values.items()}
    return with_pictures(told, centers, shape, values)


def result_facts(estimator: Any) -> dict[str, Any]:
    """Objective, what the sample predicted, explained share of the variance and simplified silhouette, where known."""
    names = ("expected_inertia", "expected_inertia_error", "possible_gain")
    shares = {name: getattr(estimator, f"{name}_") for name in names if hasattr(estimator, f"{name}_")}
    shares["objective"] = estimator.inertia_
    counts, total = estimator.counts_, float(estimator.counts_.sum())
    in_features = estimator.assign_space_ == "original" and not hasattr(estimator, "trace_residual_")
    means = known_means(estimator) if in_features else None
    if means is not None and total > 0:
        everywhere = counts @ means / total
        between = float(counts @ np.einsum("ij,ij->i", means, means)) - total * float(everywhere @ everywhere)
        if between + estimator.inertia_ > 0:
            shares["explained"] = max(0.0, between) / (max(0.0, between) + estimator.inertia_)
    profile = getattr(estimator, "profile_", None)
    if profile is not None and len(counts) > 1 and total > 0 and np.isfinite(profile.sums).all():
        shares["simplified_silhouette"] = float(profile.sums[:, 1].sum()) / total
    return shares


def _silhouette(estimator: Any) -> dict[str, Any]:
    """The silhouette of sampled rows, where the estimator holds enough of them for each cluster."""
    if "sketch_sample_" not in vars(estimator):
        return {}
    n_clusters, labels = len(estimator.counts_), estimator.sample_labels_
    n_rows = min(len(labels), MOST_JUDGED, max(FEWEST_JUDGED, JUDGED_PER_CLUSTER * n_clusters))
    if n_rows < JUDGED_PER_CLUSTER * n_clusters:
        return {}
    drawn = np.random.RandomState(0).permutation(len(labels))[:n_rows]  # as scikit-learn draws its sample_size
    mean, error = mean_silhouette(euclidean_distances(estimator.sketch_sample_[drawn]), labels[drawn])
    return {
        "silhouette": mean,
        "silhouette_error": error,
        "silhouette_rows": n_rows,
        "silhouette_sketched": not estimator.sketch_.is_identity,
    }


def _versions() -> Iterator[tuple[str, str]]:
    for package in _PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            yield package, "unknown"
