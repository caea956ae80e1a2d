"""Near-duplicates: the rows that a naive search within clusters keeps, wherever the rows are and whoever works."""

from __future__ import annotations

import tempfile
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

import streamkm
from streamkm import CountSketch, dedupe, open_source
from streamkm.core.exceptions import CheckpointError, InvalidInputError, InvalidParameterError
from streamkm.deduplication import compare
from streamkm.deduplication import search as duplicates
from streamkm.deduplication import shares as gather_plan
from streamkm.deduplication.compare import BLOCK_ROWS, PANEL_ROWS, count_compared, kept_rows, near
from streamkm.deduplication.shares import BorderRows
from streamkm.engine import checkpoint as saving
from streamkm.passes.reader import ValidRows
from streamkm.planning.memory_budget import MemoryBudget
from tests.children import StoppedError, stopped_after
from tests.cli.test_tables_commands import run
from tests.stores.test_storing import do, write_store
from tests.tables import cases, slow_but

SETTINGS = {"random_state": 0, "executor": 2, "progress": False}


def planted(n=1200, d=32, share=0.25, noise=0.1, seed=0):
    """Rows around directions, of any length; a quarter are others of them with noise, a few of them just longer."""
    rng = np.random.default_rng(seed)
    n_copies = int(share * n)
    X = rng.normal(size=(12, d))[rng.integers(0, 12, n)] + rng.normal(size=(n, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    X[-n_copies:] = X[rng.integers(0, n - n_copies, n_copies)] + rng.normal(size=(n_copies, d)) * noise / d**0.5
    X[-20:] = X[:20]
    # equal rows stay equal at unit length: else rounding would order them
    return (X * np.exp2(rng.integers(-2, 3, (n, 1))))[rng.permutation(n)].astype("f4")


def unit(X):
    X = X.toarray() if sp.issparse(X) else X
    return X.astype("f8") / np.linalg.norm(X.astype("f8"), axis=1, keepdims=True)


def naive_kept(X, threshold):
    kept = []
    for i, products in enumerate(X @ X.T):
        if (products[kept] < threshold).all():
            kept.append(i)
    return np.isin(np.arange(len(X)), kept)


def naive_guests(X, labels, centers, threshold):
    d2 = np.square(X[:, None] - centers).sum(axis=2)
    room, hosts = np.bincount(labels, minlength=len(centers)), np.full(len(X), -1)
    width = np.sqrt(2 - 2 * threshold) * min(1, 3 / X.shape[1] ** 0.5)
    for i, row in enumerate(d2):
        first, second = np.argsort(row, kind="stable")[:2] if len(row) > 1 else (0, 0)
        gap = row[second] - row[first]
        other = first if first != labels[i] else second
        behind = first != labels[i] or gap <= width * np.linalg.norm(centers[first] - centers[second])
        if other != labels[i] and behind and room[other]:
            hosts[i], room[other] = other, room[other] - 1
    return hosts


def naive_dedupe(X, labels, centers, threshold, *, farthest=False):
    """Numbers of the rows that stay, by what clustering found."""
    X, stay, needed = unit(X), set(), set()
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        d2 = np.square(X[rows] - centers[label]).sum(axis=1)
        order = rows[np.argsort(-d2 if farthest else d2, kind="stable")]
        kept = order[naive_kept(X[order], threshold)].tolist()
        stay |= set(kept)
        for row in set(order.tolist()) - set(kept):
            needed.add(next(other for other in kept if X[row] @ X[other] >= threshold))
    pairs, hosts = set(), naive_guests(X, labels, centers, threshold)
    for guest in sorted(stay):
        for host in np.flatnonzero(labels == hosts[guest]).tolist():
            if host in stay and X[guest] @ X[host] >= threshold:
                pairs |= {(guest, host), (host, guest)}
    for row in sorted(stay - needed):
        near_it = [other for one, other in pairs if one == row and other in stay]
        if any(other in needed or other < row for other in near_it):
            stay.remove(row)
    return np.sort(list(stay))


def clustered(monkeypatch):
    """What clustering gives to a search that follows."""
    found = []
    original = duplicates._Run._clustered
    monkeypatch.setattr(duplicates._Run, "_clustered", lambda self: found.append(original(self)) or found[-1])
    return found


@cases("kind", ["float32", "float64", "csr"])
@cases("threshold", [0.3, 0.8, 0.95, 1.0])
def test_rows_are_kept_as_the_naive_search_keeps_them(kind, threshold):
    X = planted(3 * BLOCK_ROWS + 17, 16)
    if kind == "csr":
        X = np.where(np.abs(X) > 0.4, X, 0) + 1e-3 * (np.arange(16) == 0)
    X = unit(X).astype("f8" if kind == "float64" else "f4")
    given = sp.csr_array(X) if kind == "csr" else X
    kept, nearby = kept_rows(given, threshold)
    if threshold < 1:  # at 1 it is rounding that decides
        np.testing.assert_array_equal(kept, naive_kept(unit(X), threshold))
        near_it = (unit(X) @ unit(X).T >= threshold) & kept
        np.fill_diagonal(near_it, kept)
        np.testing.assert_array_equal(nearby, np.where(kept, np.arange(len(X)), near_it.argmax(axis=1)))
    assert count_compared(kept) == sum(kept[:i].sum() for i in range(len(X)))


def test_more_rows_than_a_panel_holds():
    X = planted(PANEL_ROWS + 3 * BLOCK_ROWS, 8, share=0.1, noise=0.01)
    X = unit(X).astype("f4")
    (kept, nearby), products = kept_rows(X, 0.9999), X.astype("f8") @ X.T.astype("f8")
    assert kept[nearby].all()
    assert (products[np.arange(len(X)), nearby] >= 0.9999 - 1e-6).all()
    stays = np.zeros(len(X), bool)
    for i in range(len(X)):
        stays[i] = not (products[i, :i][stays[:i]] >= 0.9999).any()
    np.testing.assert_array_equal(kept, stays)
    assert kept.sum() > PANEL_ROWS


def test_what_products_leave_in_doubt_is_decided_in_float64():
    rng = np.random.default_rng(0)
    X, Y = (unit(rng.normal(size=(40, 300))).astype("f4") for _ in range(2))
    exact = unit(X) @ unit(Y).T
    for threshold in exact.ravel()[::37]:  # each at a cosine that occurs
        for gap in (-1e-12, 1e-12):
            np.testing.assert_array_equal(near(X, Y, threshold + gap), exact >= threshold + gap)


def test_rows_of_zeros_are_nobodys_duplicates():
    assert kept_rows(np.zeros((5, 3), np.float32), 0.5)[0].all()


@pytest.mark.parametrize(("keep", "threshold"), [("nearest", 0.7), ("farthest", 0.95)])
def test_within_clusters_it_is_the_naive_search(monkeypatch, keep, threshold):
    X, found = planted(), clustered(monkeypatch)
    got = dedupe(X, threshold, n_clusters=9, keep=keep, **SETTINGS)
    labels, centers = found[0].labels, found[0].centers
    wanted = naive_dedupe(X, labels, centers, threshold, farthest=keep == "farthest")
    np.testing.assert_array_equal(got.rows, wanted)
    assert got.rows.dtype == np.int64
    assert got.n_removed == len(X) - len(wanted) > 0
    assert (got.n_rows, got.n_skipped, got.n_clusters) == (len(X), 0, len(centers))
    assert got.largest_cluster == np.bincount(labels).max() <= 4 * len(X) / 9


def test_recall_is_that_of_brute_force(monkeypatch):
    monkeypatch.setattr(duplicates, "PROBES", 10_000)  # all rows
    X, found = planted(2000, noise=0.25), clustered(monkeypatch)
    got = dedupe(X, 0.95, n_clusters=60, **SETTINGS)
    cosines = unit(X) @ unit(X).T
    pairs = np.argwhere(np.triu(cosines >= 0.95, 1))
    labels, hosts = found[0].labels, naive_guests(unit(X), found[0].labels, found[0].centers, 0.95)
    one, other = pairs.T
    within = labels[one] == labels[other]
    together = within | (labels[one] == hosts[other]) | (hosts[one] == labels[other])
    assert within.mean() < together.mean()
    assert got.recall == pytest.approx(together.mean())
    assert got.recall_pairs == 2 * len(pairs)
    assert got.recall > 0.9
    brute = naive_dedupe(X, np.zeros(len(X), int), unit(X.mean(axis=0)[None]), 0.95)
    assert got.n_removed >= 0.9 * (len(X) - len(brute))
    # whoever goes leaves somebody near
    kept = np.zeros(len(X), bool)
    kept[got.rows] = True
    assert (cosines[~kept][:, kept].max(axis=1) >= 0.95 - 1e-6).all()
    left = cosines[kept][:, kept]
    assert np.triu(left >= 0.95, 1).sum() <= 0.1 * len(pairs)


def leave_least_room(monkeypatch):
    """Have rows that are compared find no room but the least."""

    class Full:
        @staticmethod
        def of(memory_limit, source):
            return replace(MemoryBudget.of(memory_limit, source), base_bytes=1 << 60)

    monkeypatch.setattr(gather_plan, "MemoryBudget", Full)


def test_workers_memory_and_the_disk_change_nothing(tmp_path, monkeypatch):
    X = planted(6000, 200)
    np.save(tmp_path / "x.npy", X)
    wanted = dedupe(tmp_path / "x.npy", 0.9, **{**SETTINGS, "executor": 1})
    files, mkdtemp = [], tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **given: files.append(mkdtemp(dir=tmp_path, **given)) or files[-1])
    leave_least_room(monkeypatch)
    monkeypatch.setattr(gather_plan, "LEAST_ROOM", 1 << 22)
    got = dedupe(tmp_path / "x.npy", 0.9, **{**SETTINGS, "executor": 3})
    assert len(files) == 1
    assert not (tmp_path / files[0]).exists()
    np.testing.assert_array_equal(got.rows, wanted.rows)
    names = ("n_compared", "recall", "recall_pairs", "largest_cluster")
    assert [getattr(got, name) for name in names] == [getattr(wanted, name) for name in names]


@pytest.mark.parametrize(
    ("keep", "sparse", "n_clusters"), slow_but([("nearest", False, 1)], [("nearest", False, 1), ("farthest", True, 2)])
)
def test_a_cluster_of_any_size_is_compared_piece_by_piece(monkeypatch, keep, sparse, n_clusters):
    """Equal rows, which no clustering parts, far above the room that there is: the same rows, pairs and counts."""
    X = planted(200, 50)
    X = np.concatenate([X, np.repeat(X[:5], 16, axis=0)])
    X = sp.csr_array(X) if sparse else X
    given = {**SETTINGS, "n_clusters": n_clusters, "keep": keep}
    wanted, pieces = dedupe(X, 0.9, **given), []
    leave_least_room(monkeypatch)
    monkeypatch.setattr(gather_plan, "LEAST_ROOM", 1 << 15)
    compared = compare._compared
    monkeypatch.setattr(compare, "_compared", lambda *args: pieces.append(len(args[1])) or compared(*args))
    got = dedupe(X, 0.9, **given)
    assert max(pieces) > 5
    np.testing.assert_array_equal(got.rows, wanted.rows)
    assert replace(got, rows=None, stages=()) == replace(wanted, rows=None, stages=())


@pytest.mark.parametrize("record", ["clustered", "compared"])
def test_runs_that_were_stopped_go_on(tmp_path, monkeypatch, record):
    X = planted(3000, 60)
    np.save(tmp_path / "x.npy", X)
    wanted = dedupe(tmp_path / "x.npy", 0.9, **SETTINGS)
    leave_least_room(monkeypatch)
    monkeypatch.setattr(gather_plan, "LEAST_ROOM", 1 << 20)
    monkeypatch.setattr(saving, "INTERVAL_S", 0.0)
    monkeypatch.setattr(saving, "SHARE", 1.0)
    given = {"checkpoint": tmp_path / "c", **SETTINGS}
    with monkeypatch.context() as patch:
        stopped_after(patch, record, 1 if record == "clustered" else 2)
        with pytest.raises(StoppedError):
            dedupe(tmp_path / "x.npy", 0.9, **given)
    with pytest.raises(CheckpointError, match=r"settings\.threshold is 0\.8, was 0\.9"):
        dedupe(tmp_path / "x.npy", 0.8, **given)
    monkeypatch.setattr(streamkm.StreamKMeans, "fit", None)  # no need of it
    buckets, compare = [], duplicates.compare_bucket
    monkeypatch.setattr(duplicates, "compare_bucket", lambda *given: buckets.append(given[0]) or compare(*given))
    got = dedupe(tmp_path / "x.npy", 0.9, **given)
    assert not buckets or (0 in buckets) == (record == "clustered")
    np.testing.assert_array_equal(got.rows, wanted.rows)
    assert (got.n_compared, got.recall) == (wanted.n_compared, wanted.recall)
    assert not (tmp_path / "c").exists()


def test_invalid_rows_are_not_kept(monkeypatch):
    X, found = planted(), clustered(monkeypatch)
    X[::50] = np.nan
    with pytest.raises(InvalidInputError, match='NaN in row 0 of array; pass invalid="skip"'):
        dedupe(X, n_clusters=5, **SETTINGS)
    got = dedupe(X, n_clusters=5, invalid="skip", **SETTINGS)
    assert got.n_skipped == 24
    assert not (got.rows % 50 == 0).any()
    valid = np.flatnonzero(found[-1].labels >= 0)
    wanted = naive_dedupe(X[valid], found[-1].labels[valid], found[-1].centers, 0.95)
    np.testing.assert_array_equal(got.rows, valid[wanted])
    assert got.n_removed == len(valid) - len(wanted)


@cases(
    "options, message",
    [
        ({"threshold": 0}, "threshold=0; needed: a cosine above 0"),
        ({"threshold": 1.1}, r"threshold=1\.1; needed"),
        ({"keep": "first"}, "keep='first'; needed: one of 'nearest', 'farthest'"),
    ],
)
def test_parameters_out_of_range_are_refused(options, message):
    with pytest.raises(InvalidParameterError, match=message):
        dedupe(planted(100), **{**SETTINGS, **options})


def test_rows_that_cannot_be_read_again_and_sketches_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="can be read only once; near-duplicates are looked for in original"):
        dedupe(iter([planted(100)]), **SETTINGS)
    store = do(write_store, tmp_path / "s", planted(100), CountSketch(8, 0))
    with pytest.raises(InvalidInputError, match="holds sketched rows; near-duplicates"):
        dedupe(store, **SETTINGS)
    with pytest.raises(InvalidInputError, match="does not say how many rows it has; pass n_clusters="):
        dedupe(lambda: iter([planted(100)]), **SETTINGS)
    assert dedupe(lambda: iter([planted(100)]), n_clusters=3, **SETTINGS).n_rows == 100


def test_centers_of_many_features_are_compared_a_few_at_a_time():
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(3, 1 << 18))
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    X = sp.random_array((400, centers.shape[1]), density=1e-4, format="csr", rng=rng, dtype=np.float64)
    borders = BorderRows.of(centers, 0.9)
    tracemalloc.start()
    *_, nearest, second = borders.output(ValidRows(X, np.arange(400), 400, None, None, np.empty(0), 0))
    assert tracemalloc.get_traced_memory()[1] < 64 << 20  # not a center for each row
    tracemalloc.stop()
    d2 = np.square(centers).sum(axis=1) - 2 * (X @ centers.T)
    first, other = np.argsort(d2, axis=1)[:, :2].T
    between = np.linalg.norm(centers[:, None] - centers, axis=2)[first, other]
    behind = np.take_along_axis(d2, other[:, None], 1)[:, 0] - d2.min(axis=1) <= 2 * borders.width * between
    np.testing.assert_array_equal(nearest, first)
    np.testing.assert_array_equal(second, np.where(behind, other, -1))
    assert 0 < behind.sum() < 400


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X = planted()
    np.save("x.npy", X)
    wanted = dedupe(X, 0.9, n_clusters=9, **SETTINGS)
    given = ("dedupe", "x.npy", "--threshold", 0.9, "-k", 9, "-o", "keep.npy")
    said = run(*given)
    np.testing.assert_array_equal(np.load("keep.npy"), wanted.rows)
    for label, text in wanted.lines()[:-1]:
        assert label in said
        assert text in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keep.npy", "x.npy"]
    assert "keep.npy exists; pass --overwrite" in run(*given, code=2)
    run(*given, "--overwrite", "--keep", "farthest", "--restart", "-q")
    assert len(np.load("keep.npy")) != 0
    assert "x.npy exists; pass --overwrite" in run(*given[:-1], "x.npy", code=2)
    run(*given, "--overwrite", "-q")
    np.testing.assert_array_equal(np.load("keep.npy"), wanted.rows)
    assert "row numbers are written as .npy" in run(*given[:-1], "keep.txt", code=2)
    assert "--threshold 1.5; needed: a cosine" in run("dedupe", "x.npy", "--threshold", 1.5, "-o", "k.npy", code=2)
    X[7] = np.inf
    np.save("x.npy", X)
    assert "row 7 of x.npy; pass --invalid skip" in run(*given[:-1], "k.npy", code=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keep.npy", "x.npy"]
    assert "1,200 (1 skipped)" in run(*given[:-1], "k.npy", "--invalid", "skip")
    assert open_source("x.npy").n_rows == 1200
