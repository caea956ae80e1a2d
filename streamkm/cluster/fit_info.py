"""Facts about a fit in a model file beside the model: sizes, objective, descriptions of the clusters."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.profile import ARRAYS as PROFILE_ARRAYS
from streamkm.cluster.profile import Profile
from streamkm.core.exceptions import ModelFileError, StreamkmError
from streamkm.sources.binary.numpy_files import DAMAGE, read_member
from streamkm.text.tfidf import TfIdf
from streamkm.text.words import ARRAYS as WORD_ARRAYS
from streamkm.text.words import WordTable

PREFIX = "fit_"  # of the names of arrays that are of the fit
_NUMBERS = ("near_rows", "far_rows", "n_blank")
_AS_ARRAYS = frozenset({"profile", "deviations", "words", "tfidf"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FitInfo:
    """Facts about the fit in a model file; None if unknown."""

    estimator: str | None = None  # name of the class whose fit it was
    feature_names: list[str] | None = None  # d of them
    counts: list[float] | None = None  # list of float, rows of each cluster, or their weight
    inertia: float | None = None
    distortion: float | None = None
    n_samples: int | None = None
    n_iter: int | None = None
    n_passes: int | None = None
    converged: bool | None = None
    seed: int | None = None  # as `random_state` it gives the same fit again
    source: dict[str, Any] | None = None  # of the rows, as JSON values
    profile: Profile | None = None  # how rows lie about the centers
    deviations: NDArray[np.float64] | None = None  # (d,): of the features; as float32 in the file
    words: WordTable | None = None  # behind hashed features
    tfidf: TfIdf | None = None  # the document frequencies that rows are weighted by

    def values(self) -> dict[str, Any]:
        """Known facts as JSON values."""
        told = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _AS_ARRAYS}
        return {name: value for name, value in told.items() if value is not None}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Known facts that are arrays."""
        arrays: dict[str, NDArray[Any]] = {}
        if self.profile is not None:
            arrays |= {PREFIX + name: getattr(self.profile, name) for name in PROFILE_ARRAYS}
        if self.deviations is not None:
            features = np.flatnonzero(self.deviations)
            arrays |= {
                PREFIX + "varying": features,
                PREFIX + "deviations": self.deviations[features].astype(np.float32),
            }
        for each in (self.words, self.tfidf):
            arrays |= {} if each is None else {PREFIX + name: array for name, array in each.arrays().items()}
        return arrays

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> FitInfo:
        """Read what `Model.save` wrote, all None for earlier releases' files; raises ModelFileError as `Model.load`."""
        header, arrays = read_arrays(path, lambda name: name.startswith(PREFIX) or name in ("centers", "center_counts"))
        try:
            centers = arrays["centers"] if "centers" in arrays else arrays["center_counts"]
            fit = _checked_fit(header.get("fit", {}), int(header["n_features"]), len(centers))
            known = {name.removeprefix(PREFIX): array for name, array in arrays.items() if name.startswith(PREFIX)}
            return replace(fit, **_checked_arrays(known, int(header["n_features"]), len(centers)))
        except (ValueError, KeyError, TypeError, IndexError, MemoryError) as error:
            raise ModelFileError(f"{os.fspath(path)} is not a model that this release reads: {error}") from error


def read_arrays(
    path: str | os.PathLike[str], wanted: Callable[[str], bool] = bool
) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Header and arrays, wanted by name, of a model file, unchecked.

    Raises ModelFileError: if the file is no archive of arrays, or damaged.
    """
    name = os.fspath(path)
    with open(path, "rb") as file:  # what it raises tells of the path, not of what is stored there
        try:
            with zipfile.ZipFile(file) as archive:
                infos = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
                header = json.loads(str(read_member(archive, infos.pop("header"), "header")))
                return header, {each: read_member(archive, info, each) for each, info in infos.items() if wanted(each)}
        except (StreamkmError, KeyError, *DAMAGE) as error:
            raise ModelFileError(f"{name} is not a saved model, or is damaged ({error})") from error


def _checked_fit(found: Any, n_features: int, n_clusters: int) -> FitInfo:
    """Check the facts in a file, where any values may stand; additions of later releases are dropped."""
    if not isinstance(found, dict):
        raise ModelFileError(f"fit is {found!r}; needed: a mapping")
    wanted: dict[str, tuple[type, ...]] = dict.fromkeys(("n_samples", "n_iter", "n_passes", "seed"), (int,))
    wanted |= {"feature_names": (list,), "counts": (list,), "inertia": (float, int), "distortion": (float, int)}
    wanted |= {"converged": (bool,), "source": (dict,), "estimator": (str,)}
    told = {name: found[name] for name in wanted if found.get(name) is not None}
    for name, value in told.items():
        if type(value) not in wanted[name]:
            raise ModelFileError(f"fit.{name} is {value!r}; needed: {wanted[name][0].__name__}")
    lengths = {"feature_names": (n_features, (str,)), "counts": (n_clusters, (float, int))}
    for name, (length, kinds) in lengths.items():
        if name in told and (len(told[name]) != length or any(type(each) not in kinds for each in told[name])):
            raise ModelFileError(f"fit.{name} holds other values than {length:,} of {kinds[0].__name__}")
    return FitInfo(**told)


def _checked_arrays(arrays: Mapping[str, NDArray[Any]], n_features: int, n_clusters: int) -> dict[str, Any]:
    """Check the arrays in a file that describe clusters; any values may stand there."""
    told: dict[str, Any] = {}
    # files of earlier versions do not say
    arrays = {"n_blank": np.zeros(n_clusters, np.int64), "blank_d2": np.full(n_clusters, np.nan), **arrays}
    if set(PROFILE_ARRAYS) <= set(arrays):
        told["profile"] = profile = Profile(**{name: arrays[name] for name in PROFILE_ARRAYS})
        shape = (n_clusters, profile.near_d2.shape[-1])
        wanted = {"sums": (n_clusters, 2), "n_blank": shape[:1], "blank_d2": shape[:1]}
        for name in PROFILE_ARRAYS:
            needed, dtype = wanted.get(name, shape), np.int64 if name in _NUMBERS else np.float64
            if arrays[name].dtype != dtype or arrays[name].shape != needed:
                raise ModelFileError(f"{PREFIX}{name} of {arrays[name].dtype} {arrays[name].shape}; needed: {needed}")
    if "varying" in arrays:
        features, values = arrays["varying"], arrays["deviations"]
        fits = features.dtype == np.int64 and values.dtype == np.float32 and features.ndim == 1
        if not fits or features.shape != values.shape or ((features < 0) | (features >= n_features)).any():
            raise ModelFileError(f"deviations do not fit {n_features:,} features")
        told["deviations"] = np.zeros(n_features)
        told["deviations"][features] = values
    if set(WORD_ARRAYS) <= set(arrays):
        told["words"] = WordTable.from_arrays(arrays)
    if "features" in arrays:
        told["tfidf"] = TfIdf.restored(arrays)
    return told
