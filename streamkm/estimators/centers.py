"""The centers and means that an estimator holds: with few features where only few occur, until all are asked for.

`cluster_centers_` and `cluster_means_` are made wide when they are first asked for; until then `_narrow` holds them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.model import Model
from streamkm.core.exceptions import InvalidInputError


def hold_centers(estimator: Any, **values: NDArray[Any]) -> None:
    """Set attributes to centers or means of `model_`, or keep these as they are until they are asked for."""
    vars(estimator).update(values)
    narrow = () if estimator.model_.columns is None else values
    estimator._narrow = {name: vars(estimator).pop(name) for name in narrow}


def rounded_centers(
    centers: NDArray[np.float64], counts: NDArray[Any], inertia: float, means: NDArray[np.float64], dtype: Any
) -> NDArray[Any]:
    """Centers in a dtype, or in float64 if rounding moves the objective by more than 1e-6 of it.

    Rounding a center c of n rows with mean m to r adds n |r - m|^2 - n |c - m|^2.
    """
    if dtype == np.float64:
        return centers
    rounded = centers.astype(dtype)
    moved = sum(n * (r - c) @ (r + c - 2 * m) for n, r, c, m in zip(counts, rounded, centers, means, strict=True))
    least = 1e-26 * counts @ np.einsum("ij,ij->i", centers, centers)  # what rounding to float64 may have cost before
    return centers if abs(moved) > 1e-6 * inertia + least else rounded


def wide_centers(estimator: Any, name: str) -> NDArray[Any]:
    """Give what an attribute holds, with all features."""
    if name not in estimator._narrow or estimator.model_.columns is None:
        raise AttributeError(f"{type(estimator).__name__!r} object has no attribute {name!r}")
    return estimator.model_.columns.wide(estimator._narrow[name])


def held_centers(estimator: Any, name: str = "cluster_centers_") -> NDArray[Any]:
    """Give what an attribute holds; with few features where all have not been asked for."""
    narrow = estimator._narrow
    return narrow[name] if name in narrow and name not in vars(estimator) else getattr(estimator, name)


def known_means(estimator: Any) -> NDArray[np.float64] | None:
    """Give the clusters' means, of the columns of `model_`; None where the estimator was loaded."""
    known = "cluster_means_" in estimator._narrow or hasattr(estimator, "cluster_means_")
    return held_centers(estimator, "cluster_means_") if known else None


def current_model(estimator: Any) -> Model:
    """Give what assigns rows: the model, by other centers where `cluster_centers_` was assigned, or written to.

    The attribute may be rounded to the data's dtype; the model's centers are not, and count unless it was changed.

    Raises InvalidInputError for centers that no row can be compared with.
    """
    model: Model = estimator.model_
    columns, centers = model.columns, np.asarray(held_centers(estimator))
    wanted = model.centers.shape[1] if columns is None else columns.n_features
    rounded = model.centers.astype(np.float32) if centers.dtype == np.float32 else model.centers
    known = columns.narrow(centers) if columns is not None and centers.shape == (len(rounded), wanted) else centers
    if centers is model.centers or np.array_equal(known, rounded):
        return model
    if centers.ndim != 2 or not len(centers) or centers.shape[1] != wanted:
        raise InvalidInputError(f"cluster_centers_ has shape {centers.shape}; needed: (clusters, {wanted:,})")
    if not np.isfinite(centers).all():
        raise InvalidInputError("cluster_centers_ holds NaN or infinity; needed: finite centers")
    return replace(model, centers=np.array(centers, np.float64, order="C"), index=None, columns=None)
