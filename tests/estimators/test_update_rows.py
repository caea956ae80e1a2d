"""Updates by rows far from all clusters, documents, tables with ids and weighted rows; memory of updates."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.metrics import adjusted_rand_score

from streamkm import FeatureHashing, IncrementalKMeans, open_documents, open_source
from streamkm.core.exceptions import MemoryLimitError, OutputError
from tests.fresh import run_compiled
from tests.tables import cases

CENTERS = np.random.default_rng(5).normal(0, 8, (6, 6))
N_ROWS = 4000


def night(n):
    rng = np.random.default_rng([6, n])
    which = rng.integers(0, 6, N_ROWS)
    return CENTERS[which] + rng.normal(0, 1, (N_ROWS, 6)), which


def with_wild_cells(n, n_wild=4):
    X, which = night(n)
    X[:n_wild, 0] = 1e5 * np.arange(1, n_wild + 1)
    return X, which


@pytest.fixture(scope="module")
def states():
    """Streams after nine updates, pickled, by the number of clusters."""
    found = {}
    for k in (6, (3, 12)):
        kmeans = IncrementalKMeans(k, random_state=0)
        for n in range(9):
            kmeans.update(night(n)[0])
        found[k] = pickle.dumps(kmeans)
    return found


def agreement(kmeans, which):
    return adjusted_rand_score(which, kmeans.labels_[-N_ROWS:])


@pytest.mark.parametrize("k", [6, (3, 12)])
def test_wild_cells_leave_clusters_as_they_are(states, k):
    kmeans = pickle.loads(states[k])
    X, which = with_wild_cells(9)
    update = kmeans.update(X)
    assert update.drift.verdict == "shifted"
    assert not update.events
    assert "4 rows lie far beyond the clusters: look at feature x0" in str(update)
    assert agreement(kmeans, which) >= 0.99
    assert np.abs(kmeans.cluster_centers_).max() < 40
    assert kmeans.inertia_ < 7 * 10 * N_ROWS
    X, which = night(10)
    assert kmeans.update(X).drift.verdict == "stable"
    assert agreement(kmeans, which) >= 0.99


@cases("share, far", [(0.005, 1e5), (0.02, 1e3), (0.1, 1e5)])
def test_a_new_group_far_away_is_born_at_once(states, share, far):
    kmeans = pickle.loads(states[3, 12])
    for n in (9, 10):
        (X, which), n_new = night(n), int(share * N_ROWS)
        X[:n_new] = far + np.random.default_rng(n).normal(0, 1, (n_new, 6))
        which[:n_new] = 6
        update = kmeans.update(X)
        assert [event.event for event in update.events] == ["born"] * (n == 9)
        assert not update.drift.far_rows
        assert agreement(kmeans, which) >= 0.99


def test_far_sparse_rows_of_a_decayed_stream_are_told_by_number():
    kmeans = IncrementalKMeans(6, random_state=0, half_life=5000)
    for n in range(2):
        kmeans.update(sp.csr_array(night(n)[0]))
    X, which = with_wild_cells(2)
    drift = kmeans.update(sp.csr_array(X), sample_weight=np.full(N_ROWS, 1e-3)).drift
    assert (drift.far_rows, drift.far_feature) == (4, "x0")
    assert agreement(kmeans, which) >= 0.99


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


MIB = 1 << 20
UPDATES = """
import json, sys
path, k, limit, n_updates = sys.argv[1:5]
from streamkm import IncrementalKMeans
kmeans = IncrementalKMeans(int(k), memory_limit=limit, n_init=1, max_iter=5, progress=False, random_state=0)
for _ in range(int(n_updates)):
    kmeans.update(path)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({"peak": int(status["VmHWM"].split()[0]) * 1024, "n_bytes": kmeans.stream_.n_bytes}))
"""


def write_groups(path, n_rows, width, k=20):
    rng = np.random.default_rng(0)
    centers = rng.normal(0, 4, (k, width)).astype(np.float32)
    X = np.lib.format.open_memmap(path, "w+", np.float32, (n_rows, width))
    for start in range(0, n_rows, 20_000):
        n_part = min(20_000, n_rows - start)
        X[start : start + n_part] = centers[rng.integers(k, size=n_part)] + rng.normal(size=(n_part, width))
    return path


@pytest.mark.parametrize(
    ("n_rows", "width", "limit"), [(300_000, 32, 300), pytest.param(40_000, 784, 750, marks=pytest.mark.slow)]
)
def test_updates_keep_the_limit(disk, n_rows, width, limit):
    path = write_groups(disk / f"{n_rows}.npy", n_rows, width)
    got = run_compiled(UPDATES, [str(path), "20", f"{limit}MiB", "2"])
    assert got["peak"] <= limit * MIB


def test_what_does_not_fit_is_refused_with_the_limit_that_will_do(tmp_path):
    path = write_groups(tmp_path / "x.npy", 2000, 2000, k=4)
    kmeans = IncrementalKMeans(2, memory_limit="300MiB, process 250 MiB", progress=False, random_state=0)
    with pytest.raises(
        MemoryLimitError, match=r"2 clusters of 2,000 features .* above the limit of 300\.0 MiB"
    ) as told:
        kmeans.update(path)
    assert not hasattr(kmeans, "stream_")
    needed = int(re.search(r"raise memory_limit to ([\d,]+) MiB", str(told.value))[1].replace(",", ""))
    for limit, fits in ((needed - 1, False), (needed, True)):
        kmeans.set_params(memory_limit=f"{limit}MiB, process 250 MiB")
        if fits:
            kmeans.update(path)
        else:
            with pytest.raises(MemoryLimitError):
                kmeans.update(path)
    assert kmeans.n_samples_seen_ == 2000


def test_many_wide_centers_are_refused_before_rows_are_read(monkeypatch):
    source = open_source(sp.csr_array((2000, 1 << 20), dtype=np.float32))
    monkeypatch.setattr(source, "read", None)
    with pytest.raises(MemoryLimitError, match=r"1,024 clusters of 1,048,576 features .* raise memory_limit to"):
        IncrementalKMeans(1024, memory_limit="300MiB", progress=False).update(source)
