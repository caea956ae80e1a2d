"""Updates by other rows than arrays of numbers: documents, tables with ids, rows of unit length, weighted rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from streamkm import FeatureHashing, IncrementalKMeans, open_documents, open_source
from streamkm.core.exceptions import OutputError


def groups(seed, n_rows=600, d=4, k=3):
    rng = np.random.default_rng(seed)
    centers = 6 * np.random.default_rng(0).normal(size=(k, d))
    return centers[rng.integers(k, size=n_rows)] + rng.normal(size=(n_rows, d))


def texts(seed, n_rows=300):
    rng = np.random.default_rng(seed)
    topics = [["cat", "dog", "cow", "hen"], ["rain", "snow", "wind", "sun"], ["gold", "iron", "zinc", "lead"]]
    which = rng.integers(3, size=n_rows)
    return [" ".join(rng.choice(topics[one], 12)) for one in which], which


def test_documents():
    hashing = FeatureHashing(n_features=1 << 12)
    kmeans = IncrementalKMeans(3, metric="cosine", random_state=0)
    found, true = [], []
    for seed in range(3):
        documents, which = texts(seed)
        source = open_documents(documents, hashing=hashing)
        kmeans.update(source)
        np.testing.assert_array_equal(kmeans.labels_, kmeans.predict(source))
        found, true = [*found, kmeans.labels_], [*true, which]
    pairs = set(zip(np.concatenate(found).tolist(), np.concatenate(true).tolist(), strict=True))
    assert len(pairs) == 3
    np.testing.assert_allclose(kmeans.counts_.sum(), 900)
    assert kmeans.inertia_error_ == 0


def test_tables_of_labels_have_the_ids_of_rows(tmp_path):
    kmeans = IncrementalKMeans(3, random_state=0)
    for seed in range(2):
        frame = pd.DataFrame(groups(seed), columns=list("abcd"))
        frame.insert(0, "who", [f"row {seed} {number}" for number in range(len(frame))])
        frame.to_parquet(tmp_path / f"{seed}.parquet")
        target = tmp_path / f"{seed}-labels.{('csv', 'parquet')[seed]}"
        kmeans.update(open_source(tmp_path / f"{seed}.parquet", id_column="who"), labels_to=target)
        table = pd.read_parquet(target) if seed else pd.read_csv(target)
        np.testing.assert_array_equal(table["label"], kmeans.labels_)
        np.testing.assert_array_equal(table["who"], frame["who"])
    with pytest.raises(OutputError, match="exists"):
        kmeans.update(open_source(tmp_path / "1.parquet", id_column="who"), labels_to=target)
    assert kmeans.n_samples_seen_ == 1200


@pytest.mark.parametrize("kind", ["array", "number"])
def test_weighted_rows_of_unit_length(kind):
    kmeans, unit, ids, weights = IncrementalKMeans(3, metric="cosine", random_state=0), [], [], []
    for seed in range(3):
        X, w = groups(seed), np.random.default_rng(seed).uniform(0.1, 3, 600) if kind == "array" else 2.5
        kmeans.update(X, sample_weight=w)
        unit, ids = [*unit, X / np.linalg.norm(X, axis=1, keepdims=True)], [*ids, kmeans.labels_]
        weights.append(np.broadcast_to(w, 600))
    X, where, w = np.concatenate(unit), np.concatenate(ids), np.concatenate(weights)
    where = np.searchsorted(kmeans.cluster_ids_, where)
    counts, sums = np.bincount(where, w), np.zeros((3, 4))
    np.add.at(sums, where, w[:, None] * X)
    np.testing.assert_allclose(kmeans.counts_, counts, rtol=1e-9)
    np.testing.assert_allclose(kmeans.cluster_means_, sums / counts[:, None], rtol=1e-9, atol=1e-9)
    d2 = np.square(X - kmeans.model_.centers[where]).sum(axis=1)
    np.testing.assert_allclose(kmeans.inertia_, w @ d2, rtol=1e-9)
