"""Labels that calls write to Zarr arrays: those that are gathered otherwise, whatever the chunks; on threads here."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from streamkm import SketchOptions, StreamKMeans
from streamkm.core.exceptions import InvalidInputError, OutputError
from streamkm.core.progress import Stage
from streamkm.engine import open_executor
from streamkm.fitting import assign
from streamkm.passes import labels as labelling
from streamkm.passes.labels import HeldLabels, count_skipped, open_labels, write_labels
from tests.children import tree
from tests.sources.matrices import dense_matrix, sparse_matrix


def kmeans(**options):
    return StreamKMeans(3, random_state=0, executor=2, progress=False, chunk_bytes=200, n_init=2, **options)


def spoiled():
    X = dense_matrix().copy()
    X[[0, 7, 30]] = np.nan
    return X


MADE = {
    "dense": (dense_matrix, {}),
    "refined": (dense_matrix, {"refine": 2}),
    "skipped": (spoiled, {"invalid": "skip"}),
    "uint8": (lambda: dense_matrix().astype("u1"), {"sketch": SketchOptions("countsketch", 3)}),
    "csr": (sparse_matrix, {}),
    "sketch": (sparse_matrix, {"sketch": SketchOptions(n_components=9, assign_space="sketch")}),
}


@pytest.mark.parametrize(("kind", "rows_per_write"), [*((kind, 7) for kind in MADE), ("csr", 1)])
def test_equal_to_those_that_are_gathered(tmp_path, monkeypatch, kind, rows_per_write):
    monkeypatch.setattr(labelling, "ROWS_PER_WRITE", rows_per_write)
    make, options = MADE[kind]
    X = make()
    wanted = kmeans(**options).fit(X)
    got = kmeans(**options).fit(X, labels_to=tmp_path / "labels.zarr")
    np.testing.assert_array_equal(got.labels_[:], wanted.labels_)
    for name in ("cluster_centers_", "counts_", "sample_labels_", "inertia_", "distortion_", "n_samples_", "history_"):
        np.testing.assert_array_equal(getattr(got, name), getattr(wanted, name))
    assert got.labels_.dtype == np.int32
    assert count_skipped(got.labels_) == count_skipped(wanted.labels_)
    again = got.predict_to(X, tmp_path / "again.zarr")
    np.testing.assert_array_equal(again[:], wanted.labels_)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.zarr", "labels.zarr"]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 12))
def test_pieces_of_any_length(tmp_path_factory, lengths, rows_per_write):
    pieces = np.split(np.arange(sum(lengths), dtype=np.int32) - 3, np.cumsum(lengths)[:-1])
    target = tmp_path_factory.mktemp("pieces") / "labels.zarr"
    stage = Stage("labels")
    with pytest.MonkeyPatch.context() as patched, open_executor(1) as executor:
        patched.setattr(labelling, "ROWS_PER_WRITE", rows_per_write)
        write_labels(executor, HeldLabels(np.array(lengths), executor, list(pieces)), target, stage)
    np.testing.assert_array_equal(open_labels(target)[:], np.concatenate(pieces))
    assert count_skipped(open_labels(target)) == min(3, sum(lengths))


def test_each_storage_chunk_is_written_by_one_call(monkeypatch):
    """Two that wrote parts of one would lose rows."""
    monkeypatch.setattr(labelling, "ROWS_PER_WRITE", 10)
    lengths = np.array([3, 0, 20, 4, 6, 0])
    with open_executor(1) as executor:
        held = HeldLabels(lengths, executor, list(range(6)))
    items = list(labelling._storage_chunks(held, np.concatenate([[0], np.cumsum(lengths)])))
    assert [item[:2] for item in items] == [[0, 10], [10, 20], [20, 30], [30, 33]]
    assert [item[3:] for item in items] == [[0, 1, 2], [2], [2, 3, 4], [4]]
    assert labelling.n_writes(held) == 4


def test_what_cannot_be_written(tmp_path):
    X = dense_matrix()
    model = kmeans().fit(X)
    with pytest.raises(OutputError, match=r"labels are written as .zarr, .csv or .parquet, not as \S+labels.npy"):
        kmeans().fit(X, labels_to=tmp_path / "labels.npy")
    model.predict_to(X, tmp_path / "labels.zarr")
    with pytest.raises(OutputError, match=r"labels.zarr exists; pass overwrite to replace it"):
        model.predict_to(X, tmp_path / "labels.zarr")
    np.testing.assert_array_equal(
        model.predict_to(X[:5], tmp_path / "labels.zarr", overwrite=True)[:], model.labels_[:5]
    )
    (tmp_path / "mine.zarr").write_text("mine")
    zarr.create_group(str(tmp_path / "data.zarr")).create_array("X", shape=(3,), dtype="i4")[:] = 7
    shutil.copytree(tmp_path / "labels.zarr", tmp_path / "more.zarr")
    (tmp_path / "more.zarr" / "notes.txt").write_text("mine")
    (tmp_path / "link.zarr").symlink_to(tmp_path / "labels.zarr")
    before = tree(tmp_path)
    other = {"mine": "is no directory", "data": "holds other files (X)", "more": "holds other files (notes.txt)"}
    for name, message in {**other, "link": other["mine"]}.items():
        with pytest.raises(OutputError, match=re.escape(f"{name}.zarr exists and {message}")):
            model.predict_to(X, tmp_path / f"{name}.zarr", overwrite=True)
    assert tree(tmp_path) == before
    with pytest.raises(InvalidInputError, match=r"can be read only once, .* Leave out labels_to"):
        kmeans().fit(iter([X]), labels_to=tmp_path / "once.zarr")
    np.testing.assert_array_equal(model.predict_to(iter([X]), tmp_path / "once.zarr")[:], model.labels_)


def test_what_came_while_rows_were_read_stays(tmp_path, monkeypatch):
    original = labelling.n_writes

    def meanwhile(held):
        (tmp_path / "labels.zarr").mkdir()
        (tmp_path / "labels.zarr" / "mine").write_text("mine")
        return original(held)

    monkeypatch.setattr(assign, "n_writes", meanwhile)
    with pytest.raises(OutputError, match=r"labels.zarr exists"):
        kmeans().fit(dense_matrix(), labels_to=tmp_path / "labels.zarr")
    assert [path.name for path in tmp_path.rglob("*")] == ["labels.zarr", "mine"]


def test_nothing_is_left_of_what_failed(tmp_path):
    X = dense_matrix()
    model = kmeans().fit(X)
    X[40, 1] = np.inf
    with pytest.raises(InvalidInputError, match="infinity in row 40"):
        model.predict_to(X, tmp_path / "labels.zarr")
    with pytest.raises(InvalidInputError, match="infinity in row 40"):
        kmeans().fit(X, labels_to=tmp_path / "labels.zarr")
    assert not list(tmp_path.iterdir())
