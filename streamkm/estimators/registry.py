"""The estimators that model files may be of: one line for each."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from streamkm.cluster.fit_info import FitInfo
from streamkm.cluster.model import Model
from streamkm.core.exceptions import ModelFileError

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
