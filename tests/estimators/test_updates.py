"""Clusters that keep their ids while rows come; updates by workers, and updates that are killed and go on."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file

from streamkm import IncrementalKMeans, StreamKMeans, open_source
from streamkm.core.exceptions import CheckpointError, InvalidInputError, InvalidParameterError
from streamkm.passes.assign import Observe
from tests.children import update_of, update_outcome
from tests.dask_processes import cluster_of
from tests.programs import forking

EXACT = {"rtol": 1e-9}


def groups(rng, centers, n_rows, spread=0.3, shares=None):
    which = rng.choice(len(centers), n_rows, p=shares)
    return (centers[which] + spread * rng.normal(size=(n_rows, centers.shape[1]))).astype(np.float32), which


def stream_of(seed=0, steps=4, n_rows=1500, move=0.05, dims=6, k=7):
    """Steps of rows whose groups move."""
    rng = np.random.default_rng(seed)
    centers = 4 * rng.normal(size=(k, dims))
    for _ in range(steps):
        yield groups(rng, centers, n_rows)[0]
        centers = centers + move * rng.normal(size=centers.shape)


def naive(estimator, X, ids, half_life=None, weights=None):
    """Counts, means and objective of all rows, each in the cluster of its id."""
    ages = np.arange(len(X))[::-1]
    w = np.ones(len(X)) if weights is None else weights
    w = w if half_life is None else w * np.exp2(-ages / half_life)
    X, where = X.astype(np.float64), np.searchsorted(estimator.cluster_ids_, ids)
    d2 = np.square(X - estimator.model_.centers[where]).sum(axis=1)
    counts = np.bincount(where, w, minlength=len(estimator.cluster_ids_))
    sums = np.zeros(estimator.model_.centers.shape)
    np.add.at(sums, where, w[:, None] * X)
    return counts, sums / counts[:, None], float(w @ d2)


@pytest.mark.parametrize(("half_life", "weighted"), [(None, False), (2000.0, True)])
def test_what_is_told_of_all_rows_is_what_reading_them_gives(half_life, weighted):
    rng = np.random.default_rng(1)
    kmeans = IncrementalKMeans(7, half_life=half_life, random_state=0, invalid="skip")
    seen, ids, weights = [], [], []
    for X in stream_of():
        w = rng.uniform(0.5, 2, len(X)) if weighted else np.ones(len(X))
        update = kmeans.update(X, sample_weight=w if weighted else None)
        assert not any(event.event in ("split", "died") for event in update.events)
        np.testing.assert_array_equal(kmeans.labels_, kmeans.predict(X))
        seen, ids, weights = [*seen, X], [*ids, kmeans.labels_], [*weights, w]
    told = naive(kmeans, np.concatenate(seen), np.concatenate(ids), half_life, np.concatenate(weights))
    np.testing.assert_allclose(kmeans.counts_, told[0], **EXACT)
    np.testing.assert_allclose(kmeans.cluster_means_, told[1], rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(kmeans.inertia_, told[2], **EXACT)
    assert kmeans.inertia_error_ == 0


def test_ids_are_given_once_and_told():
    rng = np.random.default_rng(3)
    centers = 8 * rng.normal(size=(6, 8))
    kmeans = IncrementalKMeans((3, 12), half_life=1000, tol=1e-3, random_state=0)
    kmeans.update(groups(rng, centers[:4], 3000)[0])
    assert kmeans.cluster_ids_.tolist() == [0, 1, 2, 3]
    assert kmeans.cluster_ids_.dtype == np.int64
    kept = kmeans.cluster_centers_[kmeans.predict(centers[1:2].astype(np.float32))]
    update = kmeans.update(groups(rng, centers[1:5], 3000)[0])
    born = [event for event in update.events if event.event == "born"]
    assert [event.id for event in born] == [4]
    assert kmeans.predict(centers[4:5].astype(np.float32)) == [4]
    assert [each.id for each in update.new] == [4]
    of_all = kmeans.counts_ @ kmeans.cluster_means_ / kmeans.counts_.sum()
    trait = int(np.abs(kmeans.cluster_means_[4] - of_all).argmax())
    assert update.new[0].traits[0].feature == f"x{trait}"
    assert f"cluster 4 was born: 3,000 new rows (x{trait} " in re.sub("[0-9,]+ new rows", "3,000 new rows", str(update))
    for _ in range(12):
        kmeans.update(groups(rng, centers[1:5], 3000)[0])
    died = [event.id for event in kmeans.lineage_ if event.event in ("died", "joined")]
    assert len(died) == 1
    assert sorted([*kmeans.cluster_ids_, *died]) == [0, 1, 2, 3, 4]
    assert kept.shape == (1, 8)
    kmeans.update(groups(rng, centers[[0, 1, 2, 3, 4]], 3000)[0])
    assert kmeans.cluster_ids_.max() == 5  # the group is back: another cluster
    assert [event.event for event in kmeans.lineage_ if event.id == died[0]] == ["born", "died"]


@pytest.mark.parametrize("kind", [pytest.param("float32", marks=pytest.mark.slow), "csr", "cosine"])
def test_threads_chunks_and_files_change_nothing(tmp_path, kind):
    metric = "cosine" if kind == "cosine" else "euclidean"
    given = [sp.csr_array(X) if kind == "csr" else X.astype("float32") for X in stream_of()]
    told = []
    for case in range(3):
        options = {"executor": 1 + case, "chunk_bytes": (1 << 24, 20_000, 7_000)[case]}
        kmeans = IncrementalKMeans(7, half_life=3000, random_state=0, metric=metric, **options)
        for number, X in enumerate(given):
            kmeans.update(X)
            if case == 2:
                kmeans.save(tmp_path / f"{number}.npz")
                kmeans = IncrementalKMeans.load(tmp_path / f"{number}.npz").set_params(**options)
        told.append([kmeans.cluster_ids_, kmeans.counts_, kmeans.cluster_centers_, kmeans.inertia_, kmeans.predict(X)])
    for other in told[1:]:
        for one, two in zip(told[0], other, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-12 if kind != "csr" else 1e-9)


def test_a_fit_goes_on():
    first, second, *_ = stream_of()
    fitted = StreamKMeans(7, random_state=0).fit(first)
    kmeans = fitted.incremental()
    np.testing.assert_array_equal(kmeans.predict(first), fitted.labels_)
    kmeans.update(second)
    ids = np.concatenate([fitted.labels_, kmeans.labels_])
    counts, _, inertia = naive(kmeans, np.concatenate([first, second]), ids)
    np.testing.assert_allclose(kmeans.counts_, counts, **EXACT)
    np.testing.assert_allclose(kmeans.inertia_, inertia, rtol=1e-9)


def test_refusals():
    first, *_ = stream_of()
    for given in [(3, 2), (1.5, 2), (1, 2, 3), 0]:
        with pytest.raises(InvalidParameterError, match="n_clusters"):
            IncrementalKMeans(given).update(first)
    with pytest.raises(InvalidInputError, match="read only once"):
        IncrementalKMeans(7).update(iter([first]))
    with pytest.raises(InvalidInputError, match="call update first"):
        IncrementalKMeans(7).partial_fit(first).relabel(first)


def test_relabel_makes_all_exact():
    first, second, third, _ = stream_of(move=0.8)
    kmeans = IncrementalKMeans(7, half_life=4000, random_state=0)
    for X in (first, second, third):
        kmeans.update(X)
    everything = np.concatenate([first, second, third])
    with pytest.raises(InvalidInputError, match="3,000 valid rows; 4,500 were counted"):
        kmeans.relabel(everything[:3000])
    labels = kmeans.relabel(everything)
    np.testing.assert_array_equal(labels, kmeans.predict(everything))
    counts, means, inertia = naive(kmeans, everything, labels, 4000)
    np.testing.assert_allclose(kmeans.counts_, counts, **EXACT)
    np.testing.assert_allclose(kmeans.cluster_means_, means, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(kmeans.inertia_, inertia, **EXACT)
    assert kmeans.inertia_error_ == 0


def test_the_share_of_changed_labels_is_about_that_of_all_rows():
    rng = np.random.default_rng(5)
    for n_clusters in (7, (4, 12)):
        kmeans = IncrementalKMeans(n_clusters, random_state=0, tol=1e-3)
        seen, ids = [], []
        for rows in stream_of(seed=2, steps=6, move=0.15):
            X = np.concatenate([rows, groups(rng, 6 * rng.normal(size=(1, 6)), 200)[0]])
            update = kmeans.update(X, relabel_above=0.02)
            seen, ids = [*seen, X], [*ids, kmeans.labels_]
            changed = np.mean(kmeans.predict(np.concatenate(seen)) != np.concatenate(ids))
            assert abs(kmeans.changed_share_ - changed) <= 0.005 + 0.2 * changed
            assert update.relabel == (kmeans.changed_share_ > 0.02)
        kmeans.relabel(np.concatenate(seen))
        assert kmeans.changed_share_ == 0


@pytest.mark.parametrize(("stray", "n_clusters"), [(0, (3, 8)), (1, 5)])
def test_a_cluster_dies_after_three_updates_with_hardly_any_row(n_clusters, stray):
    rng, centers = np.random.default_rng(9), 8 * np.random.default_rng(7).normal(size=(5, 4))
    kmeans = IncrementalKMeans(n_clusters, random_state=0, tol=1e-3)
    seen, given = [], []
    for night in range(6):
        X = groups(rng, centers if night < 3 else centers[:4], 1000, 1.0)[0]
        X[:stray] = centers[4]
        update = kmeans.update(X)
        seen, given = [*seen, X], [*given, kmeans.labels_]
        assert [each.event for each in update.events if each.event == "died"] == ["died"] * (night == 5)
    changed = np.mean(kmeans.predict(np.concatenate(seen)) != np.concatenate(given))
    assert update.changed_share == pytest.approx(changed, abs=0.02)
    assert len(kmeans.relabel(np.concatenate(seen))) == 6000
    assert kmeans.changed_share_ == 0


def test_ids_are_what_reports_and_databases_tell(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    rng = np.random.default_rng(0)
    centers = 8 * rng.normal(size=(5, 4))
    kmeans = IncrementalKMeans((2, 8), random_state=0, tol=1e-3, half_life=500)
    kmeans.update(groups(rng, centers[:3], 2000)[0])
    for _ in range(3):
        kmeans.update(groups(rng, centers[1:], 2000)[0])
    assert kmeans.cluster_ids_.tolist() == [1, 2, 3, 4]
    X = groups(rng, centers[1:], 50)[0]
    rows = pd.DataFrame(X, columns=list("abcd"))
    query = kmeans.to_sql(table="rows", columns=list("abcd"))
    found = duckdb.sql(query).df()["cluster"].to_numpy()
    np.testing.assert_array_equal(found, kmeans.predict(rows.to_numpy()))
    kmeans.report(tmp_path / "report.html")
    chips = re.findall(r'class="chip"[^>]*>(\d+)<', (tmp_path / "report.html").read_text())
    assert sorted(chips[:4]) == ["1", "2", "3", "4"]  # of the table of clusters


def copies(kmeans, folder, n):
    kmeans.save(folder / "common.npz", overwrite=True)
    return [IncrementalKMeans.load(folder / "common.npz") for _ in range(n)]


def test_merged_clusters_that_both_gave_ids_alone_get_other_ids(tmp_path):
    rng = np.random.default_rng(0)
    centers = 10 * rng.normal(size=(6, 5))
    begun = IncrementalKMeans((2, 9), tol=1e-3, random_state=0)
    begun.update(groups(rng, centers[:3], 2000)[0])
    one, other = copies(begun, tmp_path, 2)
    one.update(groups(rng, centers[:4], 2000)[0])
    other.update(groups(rng, centers[[0, 1, 2, 4, 5]], 2000)[0])
    assert one.cluster_ids_.tolist() == [0, 1, 2, 3]
    assert other.cluster_ids_.tolist() == [0, 1, 2, 3, 4]
    rows = dict(zip(other.cluster_ids_.tolist(), other.counts_, strict=True))
    both = one.merge(other)
    assert both.cluster_ids_.tolist() == [0, 1, 2, 3, 4, 5]
    assert [(each.event, each.id, each.other) for each in both.lineage_[3:]] == [
        ("born", 3, None),
        ("born", 4, None),
        ("born", 5, None),
        ("renamed", 4, 3),
        ("renamed", 5, 4),
    ]
    np.testing.assert_allclose(both.counts_[4:], [rows[3], rows[4]])
    np.testing.assert_array_equal(both.predict(centers[4:]), [4, 5] if rows[3] else [5, 4])
    both.save(tmp_path / "both.npz")
    loaded = IncrementalKMeans.load(tmp_path / "both.npz")
    loaded.update(groups(rng, centers, 3000)[0])
    assert set(loaded.cluster_ids_) == set(range(6))
    np.testing.assert_allclose(loaded.counts_.sum(), 2 * 4000 + 3000, **EXACT)


def test_drift_after_a_fit_rests_on_rows():
    """The means that stand for the rows of a fit say nothing of distances."""
    rng = np.random.default_rng(0)
    centers = 2.5 * rng.normal(size=(20, 8))
    kmeans = StreamKMeans(20, random_state=0).fit(groups(rng, centers, 5000, spread=1.0)[0]).incremental()
    for _ in range(3):
        drift = kmeans.update(groups(rng, centers, 5000, spread=1.0)[0]).drift
        assert drift.verdict == "too few updates"
    assert drift.novelty.value < 0.03
    assert abs(drift.shares.units) < 4


def test_drawn_rows_have_places_of_their_own(tmp_path):
    """Places in a file of text are bytes; two rows at one place would be kept or left out together."""
    rng = np.random.default_rng(0)
    kmeans = IncrementalKMeans(5, random_state=0)
    for night in range(2):
        X, _ = groups(rng, 6 * np.random.default_rng(1).normal(size=(5, 6)), 3000)
        dump_svmlight_file(X, np.zeros(3000), str(tmp_path / f"{night}.svm"))
        kmeans.update(tmp_path / f"{night}.svm")
    places = kmeans.stream_.followed.part.row_ids
    assert len(np.unique(places)) == len(places) > 5000
    assert 5900 < places.max() < kmeans.stream_.next_row == 6000


def test_rows_of_no_weight_left_are_no_longer_kept():
    """A half-life of 5 rows: beyond some 5,000 rows weights are 0 in float64."""
    rng = np.random.default_rng(0)
    kmeans = IncrementalKMeans(3, half_life=5, random_state=0)
    for _ in range(2):
        kmeans.update(groups(rng, 6 * rng.normal(size=(3, 4)), 8000)[0])
        part = kmeans.stream_.followed.part
        assert part.X.shape[0] == len(part.row_ids) == len(part.weights)
        assert (part.weights >= 0).all()
    np.testing.assert_allclose(kmeans.counts_.sum(), 1 / (1 - 2 ** (-1 / 5)))


D, K, N_ROWS = 8, 5, 12_000
OPTIONS = {"chunk_bytes": 4 * D * 1000, "progress": False}


def rows(seed):
    """Groups of normal rows, which lie a little elsewhere for each seed."""
    rng = np.random.default_rng(seed)
    centers = 4 * np.random.default_rng(0).normal(size=(K, D)) + 0.1 * rng.normal(size=(K, D))
    return (centers[rng.integers(K, size=N_ROWS)] + rng.normal(size=(N_ROWS, D))).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Rows in files, and models that were updated by the first of them."""
    place = tmp_path_factory.mktemp("rows")
    for number in range(2):
        X = rows(number)
        np.save(place / f"{number}.npy", X)
        dump_svmlight_file(np.where(np.abs(X) > 1, X, 0), np.zeros(N_ROWS), str(place / f"{number}.svm"))
    for kind in ("npy", "svm"):
        kmeans = IncrementalKMeans((K, K + 2), random_state=0, half_life=20_000, executor=2, **OPTIONS)
        kmeans.update(place / f"0.{kind}")
        kmeans.save(place / f"{kind}.npz")
    return place


def loaded(folder, kind, executor):
    return IncrementalKMeans.load(folder / f"{kind}.npz").set_params(executor=executor, progress=False)


def given(folder, kind):
    return da.from_array(np.load(folder / "1.npy"), chunks=(1700, D)) if kind == "dask" else folder / f"1.{kind}"


def assert_same(got, wanted):
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


@pytest.mark.parametrize("kind", [pytest.param("svm", marks=pytest.mark.slow), "dask"])
def test_workers_find_the_bits_of_threads(folder, client, tmp_path, kind):
    model = "svm" if kind == "svm" else "npy"
    found = []
    for number, (executor, labels_to) in enumerate([(1, False), (2, True), (client, False), (client, True)]):
        kmeans = loaded(folder, model, executor)
        kmeans.update(given(folder, kind), labels_to=tmp_path / f"{number}.zarr" if labels_to else None)
        found.append(update_outcome(kmeans))
        found[-1]["labels"] = np.asarray(found[-1]["labels"][:])
        kmeans.update(given(folder, kind))
        found[-1]["again"] = kmeans.cluster_means_
    for other in found[1:]:
        assert_same(other, found[0])


def end_in(marker):
    """Have the worker that is first to observe rows end as the kernel would end it."""
    step = Observe.step

    def step_or_die(self, state, valid):
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return step(self, state, valid)
        return os.kill(os.getpid(), signal.SIGKILL)

    Observe.step = step_or_die


@pytest.mark.slow
def test_a_worker_that_is_killed_changes_no_bit(folder, tmp_path):
    wanted = loaded(folder, "npy", 2)
    wanted.update(folder / "1.npy")
    with cluster_of(tmp_path, 2) as (started, client):
        client.run(end_in, str(tmp_path / "marker"))
        kmeans = loaded(folder, "npy", client)
        kmeans.update(folder / "1.npy", labels_to=tmp_path / "labels.zarr")
        got = update_outcome(kmeans)
        got["labels"] = np.asarray(got["labels"][:])
        assert len(started.living()) == 1
    assert_same(got, update_outcome(wanted))


def ended(folder, place, dies, kind="npy", *, call="update", number=1):
    arguments = (folder / f"{kind}.npz", folder / f"{number}.{kind}", place / "state", place / "out.npz", dies, call)
    child = forking().Process(target=update_of, args=arguments)
    child.start()
    child.join(120)
    return child.exitcode


def test_updates_killed_in_either_pass_go_on_to_the_same_bits(folder, tmp_path):
    wanted = loaded(folder, "svm", 2)
    wanted.update(folder / "1.svm")
    for name, n_chunks in (("observe", 5), ("assign", 8), ("assign", 1)):
        assert ended(folder, tmp_path, (name, n_chunks), "svm") == -signal.SIGKILL
        assert (tmp_path / "state").exists()
    assert ended(folder, tmp_path, None, "svm") == 0
    assert not (tmp_path / "state").exists()
    with np.load(tmp_path / "out.npz") as got:
        found = dict(got)
    n_observed, n_assigned = found.pop("n_read")
    assert n_observed == 0
    n_chunks = len(list(open_source(folder / "1.svm").chunks(OPTIONS["chunk_bytes"])))
    assert 0 < n_assigned < n_chunks
    assert_same(found, update_outcome(wanted))


def test_relabelling_that_is_killed_goes_on_to_the_same_bits(folder, tmp_path):
    wanted = loaded(folder, "npy", 2)
    wanted.relabel(folder / "0.npy")
    options = {"call": "relabel", "number": 0}
    assert ended(folder, tmp_path, ("assign", 7), **options) == -signal.SIGKILL
    assert ended(folder, tmp_path, None, **options) == 0
    with np.load(tmp_path / "out.npz") as got:
        found = {name: got[name] for name in got.files}
    assert 0 < found.pop("n_read")[1] < N_ROWS // 1000
    assert_same(found, update_outcome(wanted))


def test_the_first_update_goes_on_too(tmp_path):
    X = rows(0)
    np.save(tmp_path / "1.npy", X)
    IncrementalKMeans(K, random_state=0, **OPTIONS).partial_fit(X[:3000]).save(tmp_path / "npy.npz")
    wanted = loaded(tmp_path, "npy", 2)
    wanted.update(tmp_path / "1.npy")
    assert ended(tmp_path, tmp_path, ("assign", 4)) == -signal.SIGKILL
    assert ended(tmp_path, tmp_path, None) == 0
    with np.load(tmp_path / "out.npz") as got:
        assert_same({name: got[name] for name in got.files if name != "n_read"}, update_outcome(wanted))


def test_a_directory_of_another_update_is_refused(folder, tmp_path):
    assert ended(folder, tmp_path, ("assign", 3)) == -signal.SIGKILL
    kmeans = loaded(folder, "npy", 2)
    with pytest.raises(CheckpointError, match="source"):
        kmeans.update(folder / "0.npy", checkpoint=tmp_path / "state")
    for changed in ({"tol": 0.5}, {"n_clusters": 9}):
        with pytest.raises(CheckpointError, match=next(iter(changed))):
            loaded(folder, "npy", 2).set_params(**changed).update(folder / "1.npy", checkpoint=tmp_path / "state")
    with pytest.raises(CheckpointError, match="weights"):
        kmeans.update(folder / "1.npy", checkpoint=tmp_path / "state", sample_weight=np.linspace(1, 2, N_ROWS))
    kmeans.partial_fit(np.load(folder / "0.npy"))
    with pytest.raises(CheckpointError, match="next row"):
        kmeans.update(folder / "1.npy", checkpoint=tmp_path / "state")
    kmeans = loaded(folder, "npy", 2)
    kmeans.relabel(folder / "0.npy", np.linspace(1, 2, N_ROWS))
    with pytest.raises(CheckpointError, match="clusters"):  # the same centers, but other rows are counted
        kmeans.update(folder / "1.npy", checkpoint=tmp_path / "state")
    assert Path(tmp_path / "state").exists()
