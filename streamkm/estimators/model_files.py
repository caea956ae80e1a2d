"""Models in files: what `save` keeps of a fitted estimator, and what `load` makes of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from streamkm.cluster.fit_info import FitInfo
from streamkm.cluster.model import Model, read_stream
from streamkm.core.atomic_io import check_new
from streamkm.core.exceptions import InvalidParameterError, ModelFileError
from streamkm.estimators.input_rows import InputRows
from streamkm.estimators.registry import name_of
from streamkm.estimators.validation import OF_THIS_RUN, given_start, plain, plain_list
from streamkm.preparation import Preparation
from streamkm.sketches import OPTIONS, Sketch, sketch_from_dict

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


class SavedModel(InputRows):
    """Adds `save` and `load` to an estimator that has a `model_`."""

    get_params: Callable[..., dict[str, Any]]
    sketch_: Sketch
    preparation_: Preparation | None
    assign_space_: str
    n_components_: int
    n_features_in_: int

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model to one file, without pickle: what `load` gives back. Labels are not kept.

        The file of an `IncrementalKMeans` holds the stream as well: its coreset, of `stream_.n_bytes`.

        `path`: written under this very name. `overwrite`: replace a file that is there, whatever it is, by the complete
        new one. Raises DiskFullError, OutputError: it exists, or cannot be written; the old file is as it was.
        """
        self._check_fitted()
        check_new(path, overwrite=overwrite)
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
        named = {name: plain(value) for name, value in parameters.items()}
        self._current_model().save(path, named, fit, self._saved_state())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote: an estimator that can predict, transform and score; a stream goes on.

        It has the names of the features, and refuses others as the fitted one does; `counts_`, `inertia_`,
        `n_samples_`, `n_iter_`, `converged_`, `distortion_`, `n_passes_`, `seed_` and `fitted_on_`, as far as the file
        has them.

        Raises ModelFileError if the file is no saved model, or damaged.
        """
        model, parameters = Model.load(path)
        try:
            parameters |= {name: _read_options(name, value, model.sketch) for name, value in parameters.items()}
            estimator = cls(**parameters)
        except TypeError as error:
            raise InvalidParameterError(f"{os.fspath(path)} was saved by another estimator: {error}") from error
        estimator.model_ = model
        estimator._take_centers(cluster_centers_=model.centers)
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
        state = read_stream(path)
        if state is not None:
            estimator._restore_state(path, *state)
        return estimator

    def _saved_state(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Arrays and JSON values that the file keeps beside the model: of estimators that go on."""
        return None

    def _restore_state(self, path: str | os.PathLike[str], arrays: dict[str, Any], header: Any) -> None:
        """Take what `_saved_state` gave."""
        raise ModelFileError(f"{os.fspath(path)} keeps a stream, and {type(self).__name__} has none")


def _read_options(name: str, given: Any, made: Sketch) -> Any:
    """A parameter of what a file keeps of it, options in full; a sketch that was given with its seed is the model's."""
    if name not in OPTIONS or not isinstance(given, dict):
        return given
    if "kind" not in given:
        return OPTIONS[name](**{key: _read_options(key, value, made) for key, value in given.items()})
    lacks = None in (given.get("seed", 0), given.get("n_features", 0))
    return sketch_from_dict(given, {}, made=False) if lacks else made
