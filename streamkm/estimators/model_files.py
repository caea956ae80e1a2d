"""Facts of a fitted estimator as values: model files that `load` reads, summaries, and the content of reports."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import fields, replace
from importlib import import_module
from importlib.metadata import version
from typing import Any, TypeVar

import numpy as np

from streamkm.cluster.fit_info import FitInfo
from streamkm.cluster.model import Model, read_stream
from streamkm.cluster.profile import euclidean_distances
from streamkm.core import __version__
from streamkm.core.atomic_io import check_new
from streamkm.core.display import displayed
from streamkm.core.exceptions import InvalidParameterError, ModelFileError
from streamkm.core.progress import Stage
from streamkm.estimators.labelling import current_model, known_labels, known_means, rounded_centers, set_model
from streamkm.estimators.validation import OF_THIS_RUN, given_start, plain
from streamkm.fitting.streams.stream import Stream
from streamkm.metrics.cluster_details import mean_silhouette, whole
from streamkm.metrics.cluster_summary import ClusterSummary
from streamkm.passes.labels import count_skipped
from streamkm.reports.report import cautions
from streamkm.sketches import sketch_from_dict
from streamkm.sketches.base_sketch import Sketch
from streamkm.sketches.options import OPTIONS

ESTIMATORS = ("StreamKMeans", "StreamKernelKMeans", "IncrementalKMeans")  # what `streamkm` exports


def load_estimator(path: str | os.PathLike[str]) -> Any:
    """Read what any estimator saved; ModelFileError for damaged or other files, and for unknown estimators."""
    name = FitInfo.load(path).estimator
    if name not in ESTIMATORS:
        known = ", ".join(ESTIMATORS)
        raise ModelFileError(f"{os.fspath(path)} was saved by {name!r}; this release loads models of {known}")
    return getattr(import_module("streamkm"), name).load(path)


Loaded = TypeVar("Loaded")

_NAMED = {"feature_names": "feature_names_in", "source": "fitted_on"} | {
    name: f"feature_{name}" for name in ("deviations", "words")
}
# what a model file keeps of a fit, and the attributes that hold it
_KEPT = {each.name: f"{_NAMED.get(each.name, each.name)}_" for each in fields(FitInfo) if each.name != "estimator"}
_ARRAYS = ("profile", "deviations", "words", "tfidf")  # of these, what is no JSON value


def save_model(estimator: Any, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write the model of a fitted estimator to a file; see `BaseKMeans.save`."""
    check_new(path, overwrite=overwrite)
    parameters = {name: value for name, value in estimator.get_params().items() if name not in OF_THIS_RUN}
    init = given_start(parameters.pop("init"))
    if not callable(init):  # no file holds functions: what is loaded starts as by default
        parameters["init"] = init
    kept = {name: getattr(estimator, attribute, None) for name, attribute in _KEPT.items()}
    values = {name: value if name in _ARRAYS else plain(value) for name, value in kept.items()}
    known = (each.__name__ for each in type(estimator).__mro__ if each.__module__.startswith("streamkm."))
    fit = FitInfo(estimator=next(known, None), **values)
    model = current_model(estimator)
    if model is estimator.model_ and parameters.get("metric") == "spherical":  # centers of unit length are no means
        model = replace(model, means=known_means(estimator))
    stream = getattr(estimator, "stream_", None)
    state = None
    if stream is not None:
        arrays, header = stream.state()
        state = arrays, {"state": header, "n_steps": estimator.n_steps_}
    model.save(path, plain(parameters), fit, state)


def load_model(made: type[Loaded], path: str | os.PathLike[str]) -> Loaded:
    """Make an estimator of a class from a file; see `BaseKMeans.load`."""
    (model, parameters), fit = Model.load(path), FitInfo.load(path)
    parameters["random_state"] = fit.seed
    try:
        parameters |= {name: _read_options(name, value, model.sketch) for name, value in parameters.items()}
        estimator: Any = made(**parameters)
    except TypeError as error:
        raise InvalidParameterError(f"{os.fspath(path)} was saved by another estimator: {error}") from error
    means = {} if model.means is None else {"cluster_means_": model.means}
    set_model(estimator, model, cluster_centers_=model.centers, **means)
    estimator.preparation_ = model.preparation
    kinds = {"feature_names": object, "counts": np.float64}
    for name, attribute in _KEPT.items():
        value = getattr(fit, name)
        if value is not None:
            setattr(estimator, attribute, np.array(value, kinds[name]) if name in kinds else value)
    if (state := read_stream(path)) is None:
        return estimator
    try:
        stream, n_steps = Stream.restored(state[0], state[1]["state"]), int(state[1]["n_steps"])
    except (KeyError, TypeError, ValueError, ModelFileError) as error:
        raise ModelFileError(f"{os.fspath(path)} is not a model that this release reads: {error}") from error
    estimator.stream_, estimator.n_samples_seen_, estimator.n_steps_ = stream, stream.n_rows, n_steps
    counts, inertia = estimator.counts_, estimator.inertia_
    estimator.cluster_centers_ = rounded_centers(model.centers, counts, inertia, model.centers, stream.dtype)
    return estimator


def _read_options(name: str, given: Any, made: Sketch) -> Any:
    """A parameter from its value in a file, options in full; a sketch that was given with its seed is the model's."""
    if name == "n_clusters" and isinstance(given, list):
        return tuple(given)
    if name not in OPTIONS or not isinstance(given, dict):
        return given
    if "kind" not in given:
        return OPTIONS[name](**{key: _read_options(key, value, made) for key, value in given.items()})
    lacks = None in (given.get("seed", 0), given.get("n_features", 0))
    return sketch_from_dict(given, {}, made=False) if lacks else made


_PACKAGES = ("numpy", "scipy", "scikit-learn", "numba", "dask", "h5py", "zarr")
_OF_FITS = ("distortion", "n_passes", "n_iter", "converged", "seed")  # attributes that not every estimator has
_STAGE = ("name", "seconds", "read_bytes", "rows")
JUDGED_PER_CLUSTER, FEWEST_JUDGED, MOST_JUDGED = 10, 500, 2000  # rows that silhouettes are taken of
MOST_DESCRIBED = 5000  # clusters: comparing all of them takes time by their square


def cluster_summary(estimator: Any, rows: Any = None) -> ClusterSummary | None:
    """Summary of the clusters, with examples of given rows; None if they are unknown or very many."""
    described = getattr(estimator, "feature_deviations_", None) is not None or hasattr(estimator, "kernel")
    return estimator.summary(rows=rows) if described and len(estimator.counts_) <= MOST_DESCRIBED else None


def summarize(estimator: Any, found: ClusterSummary | None = None) -> dict[str, Any]:
    """JSON values of streamkm.json and reports, null if unknown; `found`: the estimator's clusters, if known."""
    found = found or cluster_summary(estimator)
    profile, labels = getattr(estimator, "profile_", None), known_labels(estimator)
    is_fit = hasattr(estimator, "n_samples_")  # else a stream, whose labels are those of its last rows
    n_skipped = count_skipped(labels) if is_fit and labels is not None else None
    n_samples = estimator.n_samples_ if is_fit else estimator.n_samples_seen_
    fitted_on: dict[str, Any] = estimator.fitted_on_ if is_fit else {"name": "rows of a stream", "stored_bytes": None}
    stages: Sequence[Stage] = getattr(estimator, "stages_", ())
    summary: dict[str, Any] = {
        "data": {
            "name": displayed(fitted_on["name"]),
            "n_samples": n_samples,
            "n_skipped": n_skipped,
            "n_blank": 0 if profile is None else int(profile.n_blank.sum()),
            "missing": estimator.missing_ and str(estimator.missing_),
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
        "versions": {"streamkm": __version__, "python": platform.python_version()}
        | {name: version(name) for name in _PACKAGES},
    }
    if hasattr(estimator, "trace_residual_"):
        summary["result"] |= {"trace_residual": estimator.trace_residual_, "gamma": estimator.kernel_.gamma}
    summary["result"] |= result_facts(estimator) | _silhouette(estimator)
    summary |= {
        "clusters": None if found is None else found.to_dicts(),
        "by_words": found is not None and found.by_words,
        "cautions": list(cautions((), summary["result"]) if found is None else found.cautions),
    }
    return dict(plain(summary))


def result_facts(estimator: Any) -> dict[str, Any]:
    """Objective, its prediction by the sample, explained share of the variance and simplified silhouette, if known."""
    names = ("expected_inertia", "expected_inertia_error", "possible_gain", "size_balance")
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
    """The silhouette of sampled rows, if the estimator holds enough of them for each cluster."""
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
