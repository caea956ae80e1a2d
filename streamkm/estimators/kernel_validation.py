"""Parameters of the kernel estimator: what they may be, and what to say of anything else.

Knows no estimator.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamkm.cluster.seeding.init import FEW_CLUSTERS, Starts
from streamkm.core.exceptions import InvalidParameterError
from streamkm.estimators.validation import as_number, check_choice, check_integer, check_shared
from streamkm.planning.kernel_sizes import LANDMARKS, METHODS
from streamkm.sketches import Kernel, full_options

STARTS = Starts(least=10, most=30)  # for few clusters
ALIASES = {"poly": "polynomial"}  # as scikit-learn's other estimators call it


def check_kernel_parameters(estimator: Any) -> None:
    """Refuse parameters of a kernel estimator that are out of range, saying what is needed."""
    check_shared(estimator, estimator.n_clusters)
    kernel, method = full_options("kernel", estimator.kernel), full_options("method", estimator.method)
    check_integer("degree", kernel.degree, 1)
    if method.landmark_rank is not None:
        check_integer("landmark_rank", method.landmark_rank, 1)
    for name, smallest in (("n_landmarks", 1), ("rank", 1), ("refine", 0)):
        check_integer(name, getattr(estimator, name), smallest, or_auto=True)
    for name, value in (
        ("eps", estimator.eps),
        ("gamma_factor", estimator.gamma_factor),
        ("gamma_factor", kernel.gamma_factor),
    ):
        if not (value is None and name == "eps") and not 0 < as_number(value) < np.inf:
            raise InvalidParameterError(f"{name}={value!r}; needed: a number above 0")
    for name, value, known in (
        ("method", method.method, tuple(METHODS)),
        ("landmarks", method.landmarks, LANDMARKS),
        ("fit_on", estimator.fit_on, ("sample", "all")),
        ("invalid", estimator.invalid, ("raise", "skip")),
    ):
        check_choice(name, value, known)
    gamma = estimator.gamma
    if isinstance(gamma, str) and gamma not in ("auto", "neighbors", "scale"):
        raise InvalidParameterError(
            f'gamma={gamma!r}; needed: a finite number above 0, "auto", "neighbors", "scale", or None'
        )
    if gamma == "neighbors" and (kernel.kernel, method.method, method.landmarks) != ("rbf", "nystroem", "uniform"):
        raise InvalidParameterError(
            f'gamma="neighbors" with kernel={kernel.kernel!r} and {method}; needed: "rbf" and "nystroem", uniform'
        )
    width = 1.0 if gamma is None or isinstance(gamma, str) else gamma
    Kernel(kernel_name(kernel.kernel), width, int(kernel.degree), float(kernel.coef0))
    if kernel.kernel == "precomputed":
        for name, known in (("method", ("nystroem", "two-step")), ("landmarks", ("uniform",))):
            if getattr(method, name) not in known:
                raise InvalidParameterError(
                    f'{name}={getattr(method, name)!r} with kernel="precomputed"; needed: one of '
                    f"{', '.join(map(repr, known))}: other rows than those of the fit have no kernel values"
                )


def kernel_name(kernel: Any) -> Any:
    """The name that sketches know a kernel by; functions as they are."""
    return ALIASES.get(kernel, kernel) if isinstance(kernel, str) else kernel


def kernel_starts(n_init: int | str, n_clusters: int, init: Any) -> int | str | Starts:
    """What `n_init` stands for: features are few, so that starts cost little beside kernel values."""
    searched = isinstance(init, str) and init == "k-means++"
    return STARTS if n_init == "auto" and n_clusters <= FEW_CLUSTERS and searched else n_init
