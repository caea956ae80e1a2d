"""Models in files: what `save` keeps of a fitted estimator, and what `load` makes of it."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import import_module
from typing import Any, TypeVar

import numpy as np

from streamkm.cluster.fit_info import FitInfo
from streamkm.cluster.model import Model, read_stream
from streamkm.core.atomic_io import check_new
from streamkm.core.exceptions import InvalidParameterError, ModelFileError
from streamkm.estimators.centers import current_model, hold_centers, known_means, rounded_centers
from streamkm.estimators.validation import OF_THIS_RUN, given_start, plain, plain_list
from streamkm.fitting.streams.stream import Stream
from streamkm.sketches import OPTIONS, Sketch, sketch_from_dict

ESTIMATORS = {
    "StreamKMeans": "streamkm.estimators.kmeans",
    "StreamKernelKMeans": "streamkm.estimators.kernel_kmeans",
    "IncrementalKMeans": "streamkm.estimators.incremental",
}
"""Names of the classes, and their modules, which are imported when they are needed."""


def name_of(estimator: type) -> str | None:
    """The registered name of a class, or of what it is derived from; None where there is none."""
    return next((each.__name__ for each in estimator.__mro__ if ESTIMATORS.get(each.__name__) == each.__module__), None)


def load_estimator(path: str | os.PathLike[str]) -> Any:
    """Read what any estimator saved; see `StreamKMeans.load`.

    Raises ModelFileError if the file is no saved model, damaged, or of an estimator that this release does not have.
    """
    name = FitInfo.load(path).estimator
    if name is None:  # written before files named it
        name = "StreamKernelKMeans" if "kernel" in Model.load(path)[1] else "StreamKMeans"
    if name not in ESTIMATORS:
        known = ", ".join(ESTIMATORS)
        raise ModelFileError(f"{os.fspath(path)} was saved by {name!r}; this release loads models of {known}")
    return getattr(import_module(ESTIMATORS[name]), name).load(path)


Loaded = TypeVar("Loaded")

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
    "tfidf": "tfidf_",
}
_ARRAYS = ("profile", "deviations", "words", "tfidf")  # of these, what is no JSON value


def save_model(estimator: Any, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write the model of a fitted estimator to a file; see `BaseKMeans.save`."""
    check_new(path, overwrite=overwrite)
    parameters = estimator.get_params()
    for name in OF_THIS_RUN:
        parameters.pop(name, None)
    if callable(parameters["init"]):
        del parameters["init"]  # no file holds functions; what is loaded starts as by default
    elif not isinstance(parameters["init"], str):
        parameters["init"] = given_start(parameters["init"]).tolist()
    kept = {name: getattr(estimator, attribute, None) for name, attribute in _KEPT.items()}
    values = {name: value if name in _ARRAYS else plain_list(value) for name, value in kept.items()}
    fit = FitInfo(estimator=name_of(type(estimator)), **values)
    named = {name: plain(value) for name, value in parameters.items()}
    model = current_model(estimator)
    if model is estimator.model_ and parameters.get("metric") == "spherical":  # centers of unit length are no means
        model = replace(model, means=known_means(estimator))
    model.save(path, named, fit, _stream_of(estimator))


def load_model(made: type[Loaded], path: str | os.PathLike[str]) -> Loaded:
    """Make an estimator of a class from a file; see `BaseKMeans.load`."""
    (model, parameters), fit = Model.load(path), FitInfo.load(path)
    parameters["random_state"] = fit.seed
    try:
        parameters |= {name: _read_options(name, value, model.sketch) for name, value in parameters.items()}
        estimator: Any = made(**parameters)
    except TypeError as error:
        raise InvalidParameterError(f"{os.fspath(path)} was saved by another estimator: {error}") from error
    estimator.model_ = model
    means = {} if model.means is None else {"cluster_means_": model.means}
    hold_centers(estimator, cluster_centers_=model.centers, **means)
    estimator.assign_space_ = model.space
    estimator.sketch_, estimator.preparation_ = model.sketch, model.preparation
    estimator.n_components_ = model.sketch.n_components
    estimator.n_features_in_ = model.n_features
    for name, attribute in _KEPT.items():
        value = getattr(fit, name)
        if value is not None:
            kinds = {"feature_names": object, "counts": np.float64}
            setattr(estimator, attribute, np.array(value, kinds[name]) if name in kinds else value)
    state = read_stream(path)
    if state is not None:
        _restore_stream(estimator, path, *state)
    return estimator


def _stream_of(estimator: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Arrays and JSON values of the stream that an estimator goes on with; None where it has none."""
    stream = getattr(estimator, "stream_", None)
    if stream is None:
        return None
    arrays, header = stream.state()
    return arrays, {"state": header, "n_steps": estimator.n_steps_}


def _restore_stream(estimator: Any, path: str | os.PathLike[str], arrays: dict[str, Any], header: Any) -> None:
    """Go on with the stream of a file, where it stopped."""
    if not hasattr(estimator, "partial_fit"):
        raise ModelFileError(f"{os.fspath(path)} keeps a stream, and {type(estimator).__name__} has none")
    try:
        stream, n_steps = Stream.restored(arrays, header["state"]), int(header["n_steps"])
        if stream.n_features != estimator.n_features_in_:
            raise ModelFileError(f"a stream of {stream.n_features:,} features, not {estimator.n_features_in_:,}")
    except (KeyError, TypeError, ValueError, ModelFileError) as error:
        raise ModelFileError(f"{os.fspath(path)} is not a model that this release reads: {error}") from error
    estimator.stream_, estimator.n_samples_seen_, estimator.n_steps_ = stream, stream.n_rows, n_steps
    centers, counts, inertia = estimator.model_.centers, estimator.counts_, estimator.inertia_
    estimator.cluster_centers_ = rounded_centers(centers, counts, inertia, centers, stream.dtype)


def _read_options(name: str, given: Any, made: Sketch) -> Any:
    """A parameter of what a file keeps of it, options in full; a sketch that was given with its seed is the model's."""
    if name == "n_clusters" and isinstance(given, list):
        return tuple(given)
    if name not in OPTIONS or not isinstance(given, dict):
        return given
    if "kind" not in given:
        return OPTIONS[name](**{key: _read_options(key, value, made) for key, value in given.items()})
    lacks = None in (given.get("seed", 0), given.get("n_features", 0))
    return sketch_from_dict(given, {}, made=False) if lacks else made
