"""A sketch of somebody else's: one class, one line in the table of sketches, one subclass of the contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.sparse as sp

from streamkm import SketchOptions, StreamKMeans
from streamkm.core.exceptions import InvalidParameterError, ModelFileError
from streamkm.core.matrix import as_working
from streamkm.sketches import SKETCHES, SketchAnswers
from streamkm.sketches.base_sketch import check_width
from tests.contracts import N_FEATURES, SketchContract


@dataclass(frozen=True, slots=True)
class GroupMeans(SketchAnswers):
    """Means of groups of neighbouring features, for rows of a certain width."""

    n_components: int
    n_features: int
    kind: ClassVar[str] = "group-means"

    def apply(self, X):
        check_width(X, self.n_features)
        groups = np.arange(self.n_features) * self.n_components // self.n_features
        means = sp.csr_array(
            (1 / np.bincount(groups)[groups], (np.arange(self.n_features), groups)),
            shape=(self.n_features, self.n_components),
        )
        Y = X @ means[: X.shape[1]]
        return as_working(Y.toarray() if sp.issparse(Y) else Y)

    def fits_features(self, n_features: int) -> bool:
        return n_features <= self.n_features

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "n_components": self.n_components, "n_features": self.n_features}

    def arrays(self) -> dict[str, Any]:
        return {}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(SKETCHES, GroupMeans.kind, GroupMeans)


class TestGroupMeans(SketchContract):
    def make_sketch(self):
        return GroupMeans(8, N_FEATURES)


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    centers = np.repeat(rng.normal(0, 5, (4, 20)), 5, axis=1)
    return (centers[np.arange(400) % 4] + rng.normal(size=(400, 100))).astype(np.float32)


@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
def test_it_is_fitted_by_its_name_saved_and_loaded(X, make, tmp_path):
    fitted = StreamKMeans(4, sketch=SketchOptions("group-means", 20), random_state=0, progress=False).fit(make(X))
    assert fitted.sketch_ == GroupMeans(20, 100)
    assert fitted.plan_.sketch == "group-means"
    assert len({tuple(fitted.labels_[i::4]) for i in range(4)}) == 4  # each cluster has a label of its own
    fitted.save(tmp_path / "model")
    loaded = StreamKMeans.load(tmp_path / "model")
    assert loaded.sketch_ == fitted.sketch_
    np.testing.assert_array_equal(loaded.predict(make(X)), fitted.labels_)


def test_a_model_is_refused_where_its_sketch_is_not_in_the_table(X, tmp_path, monkeypatch):
    StreamKMeans(4, sketch=SketchOptions("group-means", 20), random_state=0, progress=False).fit(X).save(tmp_path / "m")
    monkeypatch.delitem(SKETCHES, "group-means")
    with pytest.raises(ModelFileError, match="sketch of kind 'group-means'"):
        StreamKMeans.load(tmp_path / "m")
    with pytest.raises(InvalidParameterError, match="sketch='group-means'; needed: one of 'auto'"):
        StreamKMeans(4, sketch="group-means").fit(X)
