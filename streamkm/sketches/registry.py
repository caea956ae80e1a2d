"""Sketches by name: those that a size and a seed make, and those that are found on sampled rows."""

from __future__ import annotations

import dataclasses

import numpy as np

from streamkm.core.matrix import Matrix
from streamkm.sketches import SKETCHES, FeatureSelection, LeverageSampling, PCASketch, Sketch
from streamkm.sketches.base import SketchAnswers, SketchFit
from streamkm.sketches.pca import TruncatedSVDSketch
from streamkm.sketches.subspace import fit_rows

DATA_DEPENDENT = ("pca", "svd", "leverage")
"""Sketches that depend on the data: found on sampled rows, or on all rows in a pass of their own."""
NO_WEIGHTS = np.empty(0)


def is_oblivious(kind: str) -> bool:
    """Whether a size, a seed and the number of features make the sketch of a name."""
    if kind not in SKETCHES:
        return False
    needed = {field.name for field in dataclasses.fields(SKETCHES[kind]) if field.default is dataclasses.MISSING}
    return "n_components" in needed and needed <= {"n_components", "n_features", "seed"}


def oblivious_kinds() -> tuple[str, ...]:
    """Names of the sketches that do not depend on the data."""
    return tuple(kind for kind in SKETCHES if is_oblivious(kind))


def sketch_names() -> tuple[str, ...]:
    """All names of sketches that a fit can make or find."""
    return (*oblivious_kinds(), *DATA_DEPENDENT)


class _OtherSketch(SketchAnswers):
    """Of a name that is not known: a sketch of somebody else's that was given to a fit, whose plan has the name."""


def sketch_class(kind: str) -> type[SketchAnswers]:
    """The class that answers for sketches of a name, before one is made."""
    if kind == "leverage":
        return FeatureSelection
    return SKETCHES.get(kind, _OtherSketch)


def make_sketch(kind: str, n_components: int, seed: int, n_features: int | None) -> Sketch:
    """A sketch that does not depend on the data: one of `oblivious_kinds`, some of which need `n_features`."""
    given = {"n_components": n_components, "n_features": n_features, "seed": seed, "kind": kind}
    names = {field.name for field in dataclasses.fields(SKETCHES[kind])}
    sketch: Sketch = SKETCHES[kind](**{name: value for name, value in given.items() if name in names})
    return sketch


def needs_n_features(kind: str) -> bool:
    """Whether the number of features must be known to make the sketch."""
    return is_oblivious(kind) and "n_features" in {field.name for field in dataclasses.fields(SKETCHES[kind])}


def find_sketch(kind: str, n_components: int, seed: int, X: Matrix, n_clusters: int) -> Sketch:
    """A sketch that depends on rows, found on these (s, d).

    `kind`: one of `DATA_DEPENDENT`.
    """
    n_rows, d = X.shape
    if kind == PCASketch.kind:
        if not isinstance(X, np.ndarray):
            raise TypeError('sketch "pca" takes dense rows')
        return PCASketch.fit(X, min(n_components, n_rows, d), random_state=seed & 0xFFFFFFFF)
    return fit_rows(first_round(kind, n_components, seed, X, n_clusters), X, NO_WEIGHTS)


def first_round(kind: str, n_components: int, seed: int, X: Matrix, n_clusters: int) -> SketchFit:
    """Begin to find a sketch on all rows.

    `kind`: one of `DATA_DEPENDENT`. `X`: ndarray or csr_array (s, d), some of the rows: how wide they are, and for
    "pca" where they are.
    """
    d = X.shape[1]
    if kind == PCASketch.kind:
        near_mean = np.asarray(X.mean(axis=0, dtype=np.float64))
        return PCASketch.first_round(min(n_components, d), near_mean=near_mean, seed=seed)
    if kind == "leverage":
        return LeverageSampling(n_components, seed).first_round(min(n_clusters, d), n_features=d, seed=seed)
    return TruncatedSVDSketch.first_round(min(n_components, d), n_features=d, seed=seed)


def n_directions(kind: str, n_components: int, n_clusters: int) -> int:
    """Singular vectors that `first_round` looks for."""
    return n_clusters if kind == "leverage" else n_components
