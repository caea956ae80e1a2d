"""Maps that shrink features before clustering: one module for each sketch, and the table that names them.

A sketch maps each row by itself. Nothing here reads data or clusters.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidParameterError, ModelFileError
from streamkm.core.matrix import Matrix
from streamkm.sketches.base_sketch import IdentitySketch, Sketch, SketchAnswers, SketchFit
from streamkm.sketches.countsketch import CountSketch
from streamkm.sketches.fourier_map import FourierMap
from streamkm.sketches.hadamard import SubsampledHadamard
from streamkm.sketches.kernel_map import KernelMap
from streamkm.sketches.pca import PCASketch, TruncatedSVDSketch
from streamkm.sketches.projections import PROJECTIONS, RandomProjection
from streamkm.sketches.sampling import FeatureSelection, LeverageSampling, PreconditionedSampling
from streamkm.sketches.subspace import fit_rows, subspace_fit

SKETCHES: dict[str, type[Any]] = {
    sketch.kind: sketch
    for sketch in (
        CountSketch,
        FeatureSelection,
        FourierMap,
        IdentitySketch,
        KernelMap,
        PCASketch,
        PreconditionedSampling,
        SubsampledHadamard,
        TruncatedSVDSketch,
    )
} | dict.fromkeys(PROJECTIONS, RandomProjection)


def sketch_from_dict(described: dict[str, Any], arrays: dict[str, NDArray[Any]], *, made: bool = True) -> Sketch:
    """Make a sketch from its `to_dict` and `arrays`; unless `made`, it may lack its seed.

    Raises ModelFileError: if the kind is unknown, or values are missing or wrong.
    """
    kind = described.get("kind")
    if kind not in SKETCHES:
        raise ModelFileError(f"sketch of kind {kind!r}; this release knows {sorted(SKETCHES)}")
    values = {name: value for name, value in described.items() if name != "kind" or kind in PROJECTIONS}
    try:
        sketch: Sketch = SKETCHES[kind](**values, **arrays)
        sketch.n_components + 0  # a number, not what looks like one
        if made and not sketch.is_made:
            raise InvalidParameterError("the seed or the number of features is missing")
    except (TypeError, AttributeError, InvalidParameterError) as error:
        raise ModelFileError(f"the {kind} sketch cannot be made of {values} and {sorted(arrays)}: {error}") from error
    return sketch


DATA_DEPENDENT = ("pca", "svd", "leverage")
"""Sketches found on sampled rows, or on all rows in a pass of their own."""


def is_oblivious(kind: str) -> bool:
    """Whether a size, a seed and the number of features determine the sketch of this name."""
    if kind not in SKETCHES:
        return False
    needed = {field.name for field in fields(SKETCHES[kind]) if field.default is MISSING}
    return "n_components" in needed and needed <= {"n_components", "n_features", "seed"}


def oblivious_kinds() -> tuple[str, ...]:
    """Names of the sketches that do not depend on the data."""
    return tuple(kind for kind in SKETCHES if is_oblivious(kind))


def sketch_names() -> tuple[str, ...]:
    """Names of all sketches that a fit can make or find."""
    return (*oblivious_kinds(), *DATA_DEPENDENT)


def sketch_class(kind: str) -> type[SketchAnswers]:
    """The class whose methods answer for sketches of a name before one is made."""
    if kind == "leverage":
        return FeatureSelection
    return SKETCHES.get(kind, SketchAnswers)  # those of others answer as usual


def make_sketch(kind: str, n_components: int, seed: int, n_features: int | None) -> Sketch:
    """Make one of `oblivious_kinds`, some of which need `n_features`."""
    given = {"n_components": n_components, "n_features": n_features, "seed": seed, "kind": kind}
    names = {field.name for field in fields(SKETCHES[kind])}
    sketch: Sketch = SKETCHES[kind](**{name: value for name, value in given.items() if name in names})
    return sketch


def needs_n_features(kind: str) -> bool:
    """Whether the number of features must be known to make the sketch."""
    return is_oblivious(kind) and "n_features" in {field.name for field in fields(SKETCHES[kind])}


def find_sketch(kind: str, n_components: int, seed: int, X: Matrix, n_clusters: int) -> Sketch:
    """Find a sketch of one of the kinds `DATA_DEPENDENT` on rows (s, d)."""
    n_rows, d = X.shape
    if kind == PCASketch.kind:
        if not isinstance(X, np.ndarray):
            raise TypeError('sketch "pca" takes dense rows')
        return PCASketch.fit(X, min(n_components, n_rows, d), random_state=seed & 0xFFFFFFFF)
    return fit_rows(first_round(kind, n_components, seed, X, n_clusters), X, np.empty(0))


def first_round(kind: str, n_components: int, seed: int, X: Matrix, n_clusters: int) -> SketchFit:
    """Begin to find a sketch of one of the kinds `DATA_DEPENDENT` on all rows.

    `X`: some rows (s, d), for the width, and for "pca" the location.
    """
    d = X.shape[1]
    if kind == PCASketch.kind:
        near_mean = np.asarray(X.mean(axis=0, dtype=np.float64))
        return subspace_fit(min(n_components, d), PCASketch.of_subspace, n_features=d, seed=seed, shift=near_mean)
    if kind == "leverage":
        return subspace_fit(min(n_clusters, d), LeverageSampling(n_components, seed), n_features=d, seed=seed)
    return subspace_fit(min(n_components, d), TruncatedSVDSketch.of_subspace, n_features=d, seed=seed)


def n_directions(kind: str, n_components: int, n_clusters: int) -> int:
    """Number of singular vectors that `first_round` finds."""
    return n_clusters if kind == "leverage" else n_components
