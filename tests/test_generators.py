"""The generators of benchmark data: what they draw, that parts stand alone, and that every format says the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from sklearn.datasets import load_svmlight_file

from streamkm.cluster.tracking.events import Event
from tests.benchmarks import make_digits, make_topics
from tests.benchmarks.found_changes import VISIBLE_ROWS, judge
from tests.benchmarks.make_digits import Digits
from tests.benchmarks.make_topics import Topics
from tests.benchmarks.moving_groups import NOISE, MovingGroups
from tests.benchmarks.update_methods import Answer, Matched
from tests.tables import slow_but

ROWS = 12_345  # two parts, the second cut


@pytest.fixture(scope="module")
def topics() -> Topics:
    return Topics(n_features=2_000, n_topics=7, seed=3)


@pytest.fixture(scope="module")
def digits() -> Digits:
    rng = np.random.default_rng(0)
    images = np.zeros((20, 28, 28), np.uint8)
    images[:, 7:21, 10:18] = rng.integers(100, 256, (20, 14, 8))
    return Digits(images.reshape(20, 784), np.arange(20) % 10, seed=3)


def read_csr(root) -> sp.csr_array:
    assert root.attrs["encoding-type"] == "csr_matrix"
    shape = tuple(int(length) for length in root.attrs["shape"])
    return sp.csr_array(tuple(root[name][:] for name in ("data", "indices", "indptr")), shape=shape)


def assert_same(X: sp.csr_array, expected: sp.csr_array) -> None:
    np.testing.assert_array_equal(X.indptr, expected.indptr)
    np.testing.assert_array_equal(X.indices, expected.indices)
    np.testing.assert_array_equal(X.data, expected.data)
    assert X.shape == expected.shape


def test_topics_have_the_statistics_of_tf_idf_text():
    topics = Topics()
    X, y = topics.part(0)
    stored = np.diff(X.indptr)
    assert 56 < stored.mean() < 58
    assert stored.min() >= 1
    assert X.has_canonical_format
    assert X.dtype == np.float32
    assert X.indices.dtype == np.int32
    np.testing.assert_allclose(np.sqrt((X * X).sum(axis=1)), 1, rtol=1e-6)
    counts = np.bincount(y, minlength=50)
    assert len(counts) == 50
    assert counts.min() > 120
    # Rows have length 1, so the objective of the true partition is 1 less the weighted squared lengths of its means.
    member = sp.csr_array((np.ones(len(y)), (y, np.arange(len(y)))), shape=(50, len(y)))
    sums = member @ X.astype(np.float64)
    objective = 1 - ((sums * sums).sum(axis=1) / counts).sum() / len(y)
    assert 0.72 < objective < 0.75


def test_topics_part_depends_on_seed_and_part_alone(topics):
    X, y = topics.matrix(ROWS)
    again, y_again = Topics(2_000, 7, seed=3).part(1)
    assert_same(X[10_000:], again[: ROWS - 10_000])
    np.testing.assert_array_equal(y[10_000:], y_again[: ROWS - 10_000])
    other, _ = Topics(2_000, 7, seed=4).part(1)
    assert (other != again).nnz


def test_sorted_topics_are_the_same_rows_in_order_of_topic(topics):
    X, y = next(topics.parts(3_000))
    X_sorted, y_sorted = next(topics.parts(3_000, sort=True))
    assert (np.diff(y_sorted) >= 0).all()
    assert_same(X_sorted, X[np.argsort(y, kind="stable")])


@pytest.mark.parametrize("kind", slow_but(["npz", "h5"], ["svmlight", "npz", "h5", "zarr"]))
def test_topics_formats_hold_the_same_rows(tmp_path, topics, kind):
    path = str(tmp_path / f"topics.{kind}")
    arguments = [path, "--rows", str(ROWS), "--features", "2000", "--topics", "7", "--format", kind, "--seed", "3"]
    make_topics.main(arguments)
    X, y = topics.matrix(ROWS)
    np.testing.assert_array_equal(np.load(f"{path}.labels.npy"), y)
    if kind == "svmlight":
        written, target = load_svmlight_file(path, n_features=2_000, dtype=np.float64)
        np.testing.assert_array_equal(target, y)
        np.testing.assert_array_equal(written.indices, X.indices)
        np.testing.assert_allclose(written.data, X.data, rtol=1e-5)  # six digits
    elif kind == "npz":
        assert_same(sp.load_npz(path), X)
    elif kind == "h5":
        with h5py.File(path) as root:
            assert_same(read_csr(root), X)
    else:
        assert_same(read_csr(zarr.open_group(path, mode="r")), X)


def test_deformation_is_a_bilinear_mean():
    matrix = make_digits.deformation(np.random.default_rng(0))
    assert matrix.shape == (784, 784)
    assert matrix.data.min() >= 0
    inner = np.asarray(matrix.sum(axis=0)).reshape(28, 28)[8:20, 8:20]
    np.testing.assert_allclose(inner, 1, rtol=1e-5)
    assert matrix.count_nonzero() <= 4 * 784


def test_digits_part_depends_on_images_seed_and_part_alone(digits):
    parts = list(digits.parts(ROWS))
    assert [len(X) for X, _ in parts] == [10_000, ROWS - 10_000]
    X, y = Digits(digits.images, digits.digits, seed=3).part(1)
    np.testing.assert_array_equal(parts[1][0], X[: ROWS - 10_000])
    np.testing.assert_array_equal(parts[1][1], y[: ROWS - 10_000])
    assert not np.array_equal(parts[0][0][:1_000], X[:1_000])
    ink = digits.images.mean()
    assert 0.9 * ink < X.mean() < 1.1 * ink


@pytest.mark.parametrize("kind", slow_but(["svmlight", "zarr"], ["svmlight", "h5", "zarr"]))
def test_digits_formats_hold_the_same_rows(tmp_path, digits, kind):
    mnist, path = str(tmp_path / "mnist.h5"), str(tmp_path / f"digits.{kind}")
    with h5py.File(mnist, "w") as file:
        file["X"], file["y"] = digits.images, digits.digits
    make_digits.main([mnist, path, "--rows", "600", "--format", kind, "--chunk", "256", "--seed", "3"])
    X, y = next(digits.parts(600))
    np.testing.assert_array_equal(np.load(f"{path}.labels.npy"), y)
    if kind == "svmlight":
        written, target = load_svmlight_file(path, n_features=784, dtype=np.float64)
        np.testing.assert_array_equal(target, y)
        np.testing.assert_allclose(written.toarray() * 255, X, rtol=1e-5)
    elif kind == "h5":
        with h5py.File(path) as root:
            assert root["X"].chunks == (256, 784)
            np.testing.assert_array_equal(root["X"][:], X)
    else:
        stored = zarr.open_array(path, mode="r")
        assert stored.chunks == (256, 784)
        np.testing.assert_array_equal(stored[:], X)


def answers_of(steps):
    """What a method says that knows the groups."""
    for number, step in enumerate(steps):
        events = tuple(
            Event(number, change.kind, change.group, change.other, rows=1.0, gain=0.0) for change in step.changes
        )
        yield Answer(step.groups, np.zeros((1, step.X.shape[1])), events)


def test_groups_that_move_change_as_told():
    steps = list(MovingGroups(n_steps=6, n_rows=4000, n_features=5, n_groups=12, seed=3).steps())
    assert [len(step.changes) for step in steps] == [0, 0, 8, 8, 8, 8]
    for before, now in pairwise(steps):
        gone = {change.group for change in now.changes if change.kind in ("died", "joined")}
        came = {change.group for change in now.changes if change.kind in ("born", "split")}
        assert not gone & set(now.groups.tolist())
        assert not came & set(before.groups.tolist())
        assert set(now.groups.tolist()) <= set(before.groups.tolist()) | came
    noise = np.mean([(step.groups == NOISE).mean() for step in steps])
    assert 0.0005 < noise < 0.005
    again = list(MovingGroups(n_steps=6, n_rows=4000, n_features=5, n_groups=12, seed=3).steps())
    assert all(np.array_equal(one.X, other.X) for one, other in zip(steps, again, strict=True))


def test_one_who_knows_the_groups_finds_all_changes():
    steps = list(MovingGroups(n_steps=6, n_rows=4000, n_features=5, n_groups=12, seed=3).steps())
    answers = list(answers_of(steps))
    found = judge(steps, answers)
    assert found["visible"] == +found["found"]
    assert found["visible"].total() > 10
    assert found["told"] == 32
    visible = next(
        change
        for step in steps
        for change in step.changes
        if change.kind == "born" and Counter(step.groups.tolist())[change.group] >= VISIBLE_ROWS
    )
    told = (visible.kind, visible.group)
    fewer = [
        replace(answer, events=tuple(event for event in answer.events if (event.event, event.id) != told))
        for answer in answers
    ]
    missed = judge(steps, fewer)
    assert missed["found"].total() == found["found"].total() - 1
    wrong = replace(answers[-1], events=(*answers[-1].events, Event(5, "died", 999, None, rows=1.0, gain=0.0)))
    assert judge(steps, [*answers[:-1], wrong])["false"] == found["false"] + 1


def test_clusters_of_fits_are_matched_by_their_centers():
    rng = np.random.default_rng(0)
    centers, matched = rng.normal(size=(6, 3)), Matched()
    assert matched.match(centers).tolist() == [0, 1, 2, 3, 4, 5]
    order = rng.permutation(6)
    moved = centers[order] + 0.01 * rng.normal(size=(6, 3))
    assert matched.match(moved).tolist() == order.tolist()
    assert matched.match(np.vstack([moved, 50 + moved[:1]])).tolist() == [*order.tolist(), 6]
    assert matched.match(moved).tolist() == order.tolist()
