"""What sources say of themselves survives every source that wraps them, whatever is added to it later."""

from __future__ import annotations

from dataclasses import fields, replace

import h5py
import numpy as np
import pytest
import scipy.sparse as sp

from streamkm import StreamKMeans, open_documents
from streamkm.preparation import Preparation
from streamkm.preparation.preparation import Scaling
from streamkm.sources import open_source
from streamkm.sources.chosen_columns import ChosenColumns
from streamkm.sources.chunks import Access, ChunkRuns, Origin
from streamkm.sources.concat import PartsSource
from streamkm.sources.documents.hashed import TfIdfRows, hashed_text
from streamkm.sources.memory.arrays import ArraySource
from streamkm.sources.prepared import PreparedRows, cached_rows
from streamkm.sources.row_source import RemoteView, Rows, RowSource
from streamkm.text import TfIdf
from streamkm.text.tfidf import Frequencies
from tests.contracts import Opened, RowSourceContract, SourceContract
from tests.tables import cases

# nothing that a class says by default
ACCESS = Access(
    streams=True, replayable=False, sequential=True, decodes=True, in_process=True, read_factor=3.25,
    producer_bytes=77, resident_bytes=88, unloaded_bytes=66, shared_bytes=99, libraries=("h5py",),
)  # fmt: skip
ORIGIN = Origin(
    files=("a.svm", "b.svm"), stored_dtype=np.dtype(np.float16), has_long_integers=True, is_sketched=True,
    missing_chunks="1 of 4 chunks", made_with={"hashing": 1}, id_column="name", stages_before=("idf",),
    prepared_by="steps",
)  # fmt: skip
TOLD = {
    "name": "odd", "n_rows": 30, "n_features": 7, "dtype": np.dtype(np.float32), "is_sparse": True, "n_bytes": 1234,
    "access": ACCESS, "origin": ORIGIN, "feature_names": tuple("abcdefg"), "tfidf": "weights",
}  # fmt: skip
GROUPS = {"access": ACCESS, "origin": ORIGIN}


def every(values):
    """The attributes of a source and the fields of its groups, by name."""
    told = {name: value for name, value in values.items() if name not in GROUPS}
    return told | {field.name: getattr(values[name], field.name) for name in GROUPS for field in fields(GROUPS[name])}


class OddSource(RowSource):
    """Says of itself what no other source says."""

    computed = "graphs"

    def __init__(self, **changed):
        for name, value in (TOLD | changed).items():
            setattr(self, name, value)

    def chunks(self, target_bytes):
        return ChunkRuns.of([(0, 0, 30, 960)])

    def read(self, chunk):
        return Rows(sp.csr_array((30, 7), dtype=np.float32), np.arange(30))


TFIDF = TfIdf(Frequencies(30, np.array([0, 3]), np.array([1, 2])))
WRAPPERS = {
    "parts": (lambda source: PartsSource([source]), set()),
    # they are another process's
    "sent": (RemoteView, {"resident_bytes", "unloaded_bytes", "producer_bytes"}),
    "weighted": (lambda source: TfIdfRows(source, TFIDF), {"dtype", "made_with", "tfidf"}),
    "prepared": (
        lambda source: PreparedRows(source, Preparation(("unit",))),
        {"made_with", "read_factor", "prepared_by"},
    ),
    "kept": (lambda source: cached_rows(source, 1 << 20, 1 << 20), set()),
    "chosen": (
        lambda source: ChosenColumns(source, [1, 5]),
        {"n_features", "feature_names", "made_with", "read_factor"},
    ),
}


def test_the_odd_source_leaves_nothing_out():
    assert set(TOLD) == set(RowSource.__annotations__)
    wanted, default = every(TOLD), every({name: getattr(RowSource, name, None) for name in TOLD})
    assert all(value != default[name] for name, value in wanted.items())


@cases("wrapper", WRAPPERS)
def test_a_wrapper_says_what_it_wraps_says(wrapper):
    wrap, own = WRAPPERS[wrapper]
    wrapped = wrap(OddSource())
    got, wanted = every({name: getattr(wrapped, name) for name in TOLD}), every(TOLD)
    for name in set(wanted) - own:
        assert got[name] == wanted[name], name
    assert wrapped.computed == (None if wrapper in ("parts", "sent") else "graphs")


def test_parts_say_the_most_of_any():
    access = replace(ACCESS, in_process=False, read_factor=5.0, shared_bytes=500, libraries=("zarr", "h5py"))
    odd, other = OddSource(), OddSource(name="other", access=access, origin=replace(ORIGIN, files=("b.svm", "c.svm")))
    both = PartsSource([odd, other])
    assert (both.access.read_factor, both.origin.files, both.access.in_process) == (
        5.0,
        ("a.svm", "b.svm", "c.svm"),
        True,
    )
    assert both.access.shared_bytes == 500
    assert both.access.libraries == ("h5py", "zarr")
    assert (both.n_rows, both.n_bytes, both.access.resident_bytes, both.access.producer_bytes) == (60, 2468, 176, 77)
    assert both.access.unloaded_bytes == 132


def test_a_glob_is_planned_as_one_file_is(tmp_path):
    """Their decoders take the same memory."""
    X = np.random.default_rng(0).random((4000, 300)).astype(np.float32)
    for name in "ab":
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("X", data=X, chunks=(1000, 300), compression="gzip", compression_opts=1)
    one, both = open_source(tmp_path / "a.h5"), open_source(tmp_path / "*.h5")
    assert both.access.read_factor == one.access.read_factor > 2
    kmeans = StreamKMeans(3, chunk_bytes=1 << 20, executor=2)
    assert kmeans.plan(both).memory["sketch"] >= kmeans.plan(one).memory["sketch"]


SHIFT, FACTOR = np.arange(7.0), np.linspace(0.5, 2, 7)
STANDARDIZED = Preparation(("standardize",), (Scaling(SHIFT, FACTOR),))
SCALED = Preparation(("standardize",), (Scaling(np.empty(0), FACTOR),))


def small(kind=np.float32):
    return np.random.default_rng(0).integers(0, 9, (40, 7)).astype(kind)


class TestBytes(SourceContract):
    """Prepared rows take four times the memory of those that are read."""

    @pytest.fixture
    def opened(self, tmp_path):
        X = small(np.uint8)
        np.save(tmp_path / "x.npy", X)
        wanted = ((X - SHIFT) * FACTOR).astype(np.float32)
        return Opened(PreparedRows(open_source(tmp_path / "x.npy"), STANDARDIZED), wanted)

    def test_chunks_count_what_they_become(self, opened):
        for target in (100, 560, 1 << 20):
            chunks = opened.source.chunks(target)
            assert sum(chunk.n_bytes for chunk in chunks) == opened.X.nbytes
            assert max(chunk.n_bytes for chunk in chunks) <= max(target, 7 * 4)


class TestSparse(SourceContract):
    @pytest.fixture
    def opened(self, tmp_path):
        lines = [" ".join(["1", *(f"{j + 1}:{v}" for j, v in enumerate(row) if v)]) for row in small()]
        (tmp_path / "x.svm").write_text("\n".join(lines) + "\n")
        return Opened(PreparedRows(open_source(tmp_path / "x.svm"), SCALED), small(np.float64) * FACTOR)


class TestInMemory(SourceContract):
    @pytest.fixture
    def opened(self):
        X = sp.csr_array(small(np.float64))
        return Opened(PreparedRows(open_source(X), SCALED), X.toarray() * FACTOR)


class TestStream(RowSourceContract):
    @pytest.fixture
    def opened(self):
        X = small()
        source = open_source(lambda: iter([X[:11], X[11:]]))
        return Opened(PreparedRows(source, STANDARDIZED), ((X - SHIFT) * FACTOR).astype(np.float32))


def test_rows_are_not_written_to():
    X = small(np.float64)
    before = X.copy()
    for steps in (("unit",), ("log1p", "total"), ("total", "log1p", "unit")):
        for each in (X, sp.csr_array(X)):
            Preparation(steps).apply(each)
    np.testing.assert_array_equal(X, before)


def test_prepared_rows_tell_what_they_are_made_of():
    source, preparation = ArraySource(np.ones((9, 4), np.float32)), Preparation(("unit",))
    rows = PreparedRows(source, preparation)
    assert rows.origin.prepared_by is preparation
    assert rows.original is source
    assert hashed_text(rows) is None
    text = open_documents(["a b", "b c"], tfidf=False)
    assert hashed_text(text) is text
    assert hashed_text(PreparedRows(text, preparation)) is text
    assert hashed_text(cached_rows(text, 1 << 20, 1 << 20)) is text
    assert hashed_text(TfIdfRows(text, TfIdf(Frequencies(2, np.array([1]), np.array([2]))))) is text
