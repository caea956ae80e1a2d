"""Updates, merges and relabelling in any order, against all rows in plain NumPy; far rows, documents, memory."""

from __future__ import annotations

import pickle
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, rule, run_state_machine_as_test
from sklearn.metrics import adjusted_rand_score

from streamkm import FeatureHashing, IncrementalKMeans, open_documents, open_source
from streamkm.core.exceptions import MemoryLimitError, OutputError
from tests.fresh import run_compiled
from tests.tables import cases, slow_but

D = 4
FIRST_ROWS = 1 << 20
CORESET_ROWS = 300
"""So few that a coreset of some calls leaves rows out."""
WAITING = -1
"""Label of rows that no update has counted."""
EXACT = {"rtol": 1e-9, "atol": 1e-9}
seeds = st.integers(0, 2**16)
sizes = st.integers(20, 250)
PLACES = 6 * np.random.default_rng(0).normal(size=(7, D))


def rows_of(seed, n_rows):
    """Normal groups in some of seven places, which lie a little elsewhere each time."""
    rng = np.random.default_rng(seed)
    places = PLACES[rng.permutation(7)[: rng.integers(2, 6)]]
    places = places + 0.2 * rng.normal(size=places.shape)
    spread = rng.choice([0.2, 1.0])
    return (places[rng.integers(0, len(places), n_rows)] + spread * rng.normal(size=(n_rows, D))).astype(np.float32)


@dataclass
class Rows:
    """An estimator, and all rows that it has taken."""

    kmeans: IncrementalKMeans
    X: np.ndarray = field(default_factory=lambda: np.empty((0, D)))
    ids: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # of the clusters they were counted in
    exact: bool = True  # each row was counted in the cluster of its id, and none by drawn ones
    is_known: bool = True  # ids say where rows were counted: a cluster that died does not tell where its rows went
    gone: set[int] = field(default_factory=set)
    highest: int = -1
    n_left: int = 0  # rows that an update may have left out, as they lie far from all clusters

    @property
    def is_followed(self) -> bool:
        return self.highest >= 0

    @property
    def is_waiting(self) -> bool:
        return bool((self.ids == WAITING).any())

    def far(self, X, limit=None, fewest=8) -> np.ndarray:
        """Rows farther from all centers than a limit, by default ten reaches; none where they are `fewest` and 10 %."""
        if not self.is_followed or not len(X):
            return np.zeros(len(X), bool)
        clusters = self.kmeans.stream_.followed.clusters
        limit = 10 * clusters.reach.max() if limit is None else limit
        d2 = np.square(X[:, None].astype(np.float64) - clusters.centers).sum(axis=2).min(axis=1)
        is_far = (d2 > limit**2) & (limit > 0)
        return is_far & ~(is_far.sum() >= max(fewest, 0.1 * len(X)))

    def take(self, X, ids) -> None:
        self.X = np.concatenate([self.X, X.astype(np.float64)])
        self.ids = np.append(self.ids, ids)

    def d2(self, rows, ids) -> np.ndarray:
        centers = self.kmeans.model_.centers[np.searchsorted(self.kmeans.cluster_ids_, ids)]
        return np.square(self.X[rows][:, None] - centers).sum(axis=2)

    def follow(self, events) -> None:
        """Count rows where an update says that they went: before its own rows are added."""
        families: dict[int, list[int]] = {}
        joined = {event.id: self.ids == event.id for event in events if event.event == "joined"}
        for event in events:
            if event.event == "died":
                self.is_known = self.is_known and not (self.ids == event.id).any()
                self.exact = self.exact and self.is_known
            elif event.event == "split":
                families.setdefault(event.other, [event.other]).append(event.id)
        for parent, family in families.items():
            rows, members = self.ids == parent, np.sort(family)
            self.ids[rows] = members[self.d2(rows, members).argmin(axis=1)]
            self.exact = False
        for event in events:
            if event.event == "joined":
                self.ids[joined[event.id]] = event.other
        if self.is_waiting:
            rows, ids = self.ids == WAITING, self.kmeans.cluster_ids_
            self.ids[rows] = ids[self.d2(rows, ids).argmin(axis=1)]
            self.exact = False

    def check_ids(self) -> None:
        ids = self.kmeans.cluster_ids_
        assert (np.diff(ids) > 0).all()
        assert not self.gone & set(ids.tolist())
        before = {id_ for id_ in range(self.highest + 1) if id_ not in self.gone}
        self.gone |= before - set(ids.tolist())
        self.highest = max(self.highest, int(ids.max()))

    def check(self) -> None:
        kmeans = self.kmeans
        assert kmeans.n_samples_seen_ == len(self.X)
        followed = kmeans.stream_.followed
        n_gone = 0.0 if followed is None else followed.gone
        n_left = len(self.X) - kmeans.counts_.sum() - n_gone
        n_far = self.n_left + self.far(self.X[self.ids == WAITING]).sum()
        assert -1e-6 <= n_left <= n_far + 1e-6
        np.testing.assert_allclose(n_left, round(n_left), rtol=0, atol=1e-6)
        assert n_gone == 0 or any(event.event == "died" for event in kmeans.lineage_)
        if not self.is_followed or self.is_waiting:
            return
        self.check_ids()
        if not self.is_known:
            return
        where, k = np.searchsorted(kmeans.cluster_ids_, self.ids), len(kmeans.cluster_ids_)
        inertia = np.square(self.X - kmeans.model_.centers[where]).sum()
        if self.exact:
            counts, sums = np.bincount(where, minlength=k), np.zeros((k, D))
            np.add.at(sums, where, self.X)
            np.testing.assert_allclose(kmeans.counts_, counts, **EXACT)
            np.testing.assert_allclose(kmeans.counts_[:, None] * kmeans.cluster_means_, sums, rtol=1e-9, atol=1e-6)
            np.testing.assert_allclose(kmeans.inertia_, inertia, **EXACT)
            assert kmeans.inertia_error_ == 0
        else:
            assert abs(kmeans.inertia_ - inertia) <= 4 * kmeans.inertia_error_ + 1e-9 * inertia


class Updates(RuleBasedStateMachine):
    """Streams that are updated, merged, copied and labelled anew."""

    streams = Bundle("streams")

    def __init__(self):
        super().__init__()
        self.folder, self.n_streams = Path(tempfile.mkdtemp(prefix="streamkm-test-")), 0
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr("streamkm.fitting.streams.stream.default_size", lambda _: CORESET_ROWS)

    def teardown(self):
        self.patched.undo()
        shutil.rmtree(self.folder)

    @rule(target=streams, seed=seeds, n_rows=sizes, updates=st.booleans())
    def begin(self, seed, n_rows, updates):
        self.n_streams += 1
        options = {"first_row": self.n_streams * FIRST_ROWS, "executor": 1, "progress": False, "tol": 1e-2}
        stream = Rows(IncrementalKMeans((2, 6), random_state=0, **options))
        (self.update if updates else self.partial_fit)(stream, seed, n_rows)
        return stream

    @rule(stream=streams, seed=seeds, n_rows=sizes)
    def partial_fit(self, stream, seed, n_rows):
        X = rows_of(seed, n_rows)
        stream.kmeans.partial_fit(X)
        stream.take(X, np.full(n_rows, WAITING))
        stream.check()

    @rule(stream=streams, seed=seeds, n_rows=sizes)
    def update(self, stream, seed, n_rows):
        X = rows_of(seed, n_rows)
        is_first = not stream.is_followed
        limit = 0.0 if is_first else 10 * stream.kmeans.stream_.followed.clusters.reach.max()
        waits = stream.X[stream.ids == WAITING]
        far = stream.far(waits), stream.far(X)
        update = stream.kmeans.update(X)
        if not is_first:
            far = far[0], far[1] | stream.far(X, limit)
            stream.n_left += int(far[0].sum() + far[1].sum())
            if stream.n_left:
                stream.exact = stream.is_known = False
        labels = stream.kmeans.labels_
        np.testing.assert_array_equal(labels, stream.kmeans.predict(X))
        stream.follow(update.events)
        stream.take(X, labels)
        stream.highest = max(stream.highest, 0)
        stream.check()

    @rule(stream=streams)
    def relabel(self, stream):
        if not stream.is_followed or stream.is_waiting:
            return
        stream.ids = stream.kmeans.relabel(stream.X).astype(np.int64)
        stream.n_left = int(stream.far(stream.X, fewest=np.inf).sum())
        stream.exact = stream.is_known = stream.n_left == 0
        assert stream.kmeans.changed_share_ == 0
        stream.check()

    @rule(stream=streams, other=consumes(streams))
    def merge(self, stream, other):
        if stream is other:
            return
        events, n_before = stream.kmeans.lineage_, stream.highest
        both = zip(events, other.kmeans.lineage_, strict=False)
        n_common = next(
            (n for n, (one, two) in enumerate(both) if one != two), min(len(events), len(other.kmeans.lineage_))
        )
        n_told = len(events) + len(other.kmeans.lineage_) - n_common
        stream.kmeans.merge(other.kmeans)
        told = stream.kmeans.lineage_[n_told:]  # behind what was told of either before
        assert {each.event for each in told} <= {"renamed"}
        names = {each.other: each.id for each in told}
        assert all(each.id > n_before for each in told)
        stream.take(other.X, np.array([names.get(one, one) for one in other.ids.tolist()]))
        stream.exact, stream.is_known = stream.exact and other.exact, stream.is_known and other.is_known
        stream.n_left += other.n_left
        if not stream.is_followed:
            stream.gone = set(other.gone)
        stream.highest = max(stream.highest, other.highest if not n_before >= 0 else n_before)
        stream.check()

    @rule(target=streams, stream=streams, by_file=st.booleans())
    def copy(self, stream, by_file):
        path = self.folder / "model.npz"
        if by_file:
            stream.kmeans.save(path, overwrite=True)
            kmeans = IncrementalKMeans.load(path).set_params(executor=1, progress=False)
        else:
            kmeans = pickle.loads(pickle.dumps(stream.kmeans))
        np.testing.assert_array_equal(kmeans.predict(stream.X), stream.kmeans.predict(stream.X))
        np.testing.assert_array_equal(kmeans.cluster_ids_, stream.kmeans.cluster_ids_)
        assert kmeans.n_clusters == stream.kmeans.n_clusters
        np.testing.assert_array_equal(kmeans.cluster_centers_, stream.kmeans.cluster_centers_)
        kept = {name: getattr(stream, name) for name in ("exact", "is_known", "highest", "n_left")}
        arrays = {name: getattr(stream, name).copy() for name in ("X", "ids")}
        copied = Rows(kmeans, gone=set(stream.gone), **arrays, **kept)
        copied.check()
        return copied


@pytest.mark.parametrize("n_examples", [5, pytest.param(14, marks=pytest.mark.slow)])
def test_updates_in_any_order(n_examples):
    run_state_machine_as_test(Updates, settings=settings(max_examples=n_examples, stateful_step_count=12))


def test_rows_of_clusters_that_died_are_counted_in_none():
    streams = Updates()
    stream = streams.begin(161, 20, False)
    for _ in range(3):
        streams.update(stream, 0, 20)
    died = stream.kmeans.lineage_[-2]
    assert (died.event, died.id, died.update) == ("died", 0, 2)
    assert stream.kmeans.counts_.sum() == pytest.approx(len(stream.X) - (stream.ids == died.id).sum())
    streams.relabel(stream)
    assert stream.kmeans.counts_.sum() == len(stream.X)
    streams.teardown()


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


@pytest.mark.parametrize("k", [pytest.param(6, marks=(pytest.mark.slow, pytest.mark.full)), (3, 12)])
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


@pytest.mark.parametrize(("n_rows", "width", "limit"), slow_but([], [(300_000, 32, 300), (40_000, 784, 750)]))
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
