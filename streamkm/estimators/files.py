"""Models in files: what `save` keeps of a fitted estimator, and what `load` makes of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from importlib import import_module
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.fit_info import FitInfo
from streamkm.cluster.model import Model, read_stream
from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.core.atomic_io import check_new
from streamkm.core.exceptions import ClusterError, InvalidParameterError, ModelFileError
from streamkm.core.memory import given_process_memory, is_given, with_process_memory
from streamkm.engine.checkpoint import PROCESS, Checkpoint, CheckpointWriter, load_record, saved_stages
from streamkm.estimators.labelling import current_model, known_means, rounded_centers, set_model
from streamkm.estimators.validation import OF_THIS_RUN, digest, given_start, plain
from streamkm.fitting.streams.stream import Stream
from streamkm.planning.plan import Plan
from streamkm.sketches import OPTIONS, Sketch, full_options, sketch_from_dict
from streamkm.sources.base import RowSource
from streamkm.sources.fingerprints import fingerprint

ESTIMATORS = ("StreamKMeans", "StreamKernelKMeans", "IncrementalKMeans")  # what `streamkm` exports


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
    parameters = estimator.get_params()
    apart = (*OF_THIS_RUN, *(["init"] if callable(parameters["init"]) else []))  # no file holds functions
    parameters = {name: value for name, value in parameters.items() if name not in apart}
    if "init" in parameters:  # else what is loaded starts as by default
        parameters["init"] = given_start(parameters["init"])
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
    for name, attribute in _KEPT.items():
        value = getattr(fit, name)
        if value is not None:
            kinds = {"feature_names": object, "counts": np.float64}
            setattr(estimator, attribute, np.array(value, kinds[name]) if name in kinds else value)
    state = read_stream(path)
    if state is not None:
        _restore_stream(estimator, path, *state)
    return estimator


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


def limit_of_run(
    estimator: Any, directory: str | os.PathLike[str] | Checkpoint | None, *, restart: bool = False
) -> Any:
    """The estimator's `memory_limit`; of a run that is continued, with what the process held that began it.

    Another process may hold more or less: the plan, and with it the result, would be another one.
    """
    limit = estimator.memory_limit
    if directory is None or restart or not is_given(limit) or given_process_memory(limit) is not None:
        return limit
    is_begun = isinstance(directory, Checkpoint) or saved_stages(directory)
    begun = load_record(Path(directory), PROCESS) if is_begun else None
    return limit if begun is None else with_process_memory(limit, int(begun[1]["bytes"]))


@contextmanager
def checkpoint_writer(
    estimator: Any,
    source: RowSource,
    checkpoint: str | os.PathLike[str] | Checkpoint | None,
    plan: Plan | None,
    weights: NDArray[np.float64] = NO_WEIGHTS,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[CheckpointWriter]:
    """Keep what a fit or an update does in its `checkpoint`; a directory is removed at the end."""
    if checkpoint is None or isinstance(checkpoint, Checkpoint):
        yield CheckpointWriter(checkpoint)
        return
    with open_checkpoint(estimator, source, checkpoint, plan, weights=weights, more=more) as opened:
        yield CheckpointWriter(opened)
        opened.complete()


@contextmanager
def open_checkpoint(
    estimator: Any,
    source: RowSource,
    directory: str | os.PathLike[str],
    plan: Plan | None,
    *,
    weights: NDArray[np.float64] = NO_WEIGHTS,
    restart: bool = False,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[Checkpoint]:
    """Take a directory for a fit of `source`, or continue the fit that it is of; see `Checkpoint.open`.

    `plan`: of the estimator for the source; None for an update. `more`: settings that parameters do not tell.

    Notes
    -----
    What makes it the same fit: the source's files, the parameters, and the sizes that were chosen by them; not the
    executor, nor how progress is shown.
    """
    apart = (*OF_THIS_RUN, "progress", "memory_limit")
    given = {name: value for name, value in estimator.get_params().items() if name not in apart}
    init = given_start(given["init"])
    given["init"] = digest(init) if isinstance(init, np.ndarray) else init
    settings = {name: plain(full_options(name, value) if name in OPTIONS else value) for name, value in given.items()}
    chosen = ("chunk_bytes", "sketch", "n_components", "cluster_on", "sample_rows", "assign_space")
    settings |= {} if plan is None else {f"chosen {name}": getattr(plan, name) for name in chosen}
    seed = estimator.random_state
    begun_with = int(seed) if isinstance(seed, Integral) else None
    settings |= {"random_state": begun_with, "weights": digest(weights), **more}
    restart = restart or not saved_stages(directory)
    with Checkpoint.open(directory, {"source": fingerprint(source), "settings": settings}, restart=restart) as saved:
        if plan is not None and is_given(estimator.memory_limit) and saved.load(PROCESS) is None:
            saved.save(PROCESS, {}, {"bytes": plan.process_memory})
        try:
            yield saved
        except BaseException as error:
            if not saved_stages(directory):
                saved.discard()
            elif isinstance(error, ClusterError):
                raise ClusterError(
                    f"{error}; what was done is kept in {os.fspath(directory)}: the same fit with this checkpoint, or "
                    f"streamkm fit --resume, goes on from there, on another cluster or on none, to the same result"
                ) from error
            raise
