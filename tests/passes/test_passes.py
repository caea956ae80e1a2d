"""Everything that walks a source: how often rows are read, sources that change, rows that are invalid, streams."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.metrics import normalized_mutual_info_score

from streamkm import SketchOptions, StreamKMeans
from streamkm.core.exceptions import InvalidInputError
from streamkm.sources.chunks import Access, ChunkRuns
from streamkm.sources.row_source import Rows, RowSource
from tests.tables import cases


class CountingSource(RowSource):
    """Rows in memory that count how often each is read."""

    name = "counted"
    n_bytes = 1000

    def __init__(self, *versions, n_chunks=7, n_features="told", estimated=None):
        self.versions = versions
        self.n_pieces = n_chunks
        X = versions[0]
        self.is_sparse = sp.issparse(X)
        self.dtype = X.dtype
        self.n_rows = None
        self.n_features = X.shape[1] if n_features == "told" else n_features
        self.estimated = estimated
        self.read_rows = Counter()
        self.passes = 0
        self.lock = threading.Lock()

    @property
    def estimated_rows(self):
        return self.estimated

    def current(self):
        return self.versions[min(max(self.passes - 1, 0), len(self.versions) - 1)]

    def chunks(self, target_bytes):
        self.passes += 1
        n_rows = self.current().shape[0]
        cuts = np.unique(np.linspace(0, n_rows, self.n_pieces + 1).astype(int)).tolist()
        return ChunkRuns.of((0, start, stop, 100) for start, stop in pairwise(cuts))

    def read(self, chunk):
        with self.lock:
            self.read_rows.update(range(chunk.start, chunk.stop))
        return Rows(self.current()[chunk.start : chunk.stop], np.arange(chunk.start, chunk.stop))


class Planned(CountingSource):
    """Counts passes that read rows: not the cuttings into chunks that a plan asks for."""

    def chunks(self, target_bytes):
        self.passes = self.read_rows[0]
        return super().chunks(target_bytes)


class StreamedSource(RowSource):
    """Rows in order only; counts the walks and how far each went."""

    name = "streamed"
    access = Access(streams=True)
    n_rows = n_bytes = None

    def __init__(self, X, piece=10):
        self.X, self.piece = X, piece
        self.is_sparse, self.dtype, self.n_features = sp.issparse(X), X.dtype, X.shape[1]
        self.walked = []

    def stream(self, target_bytes):
        self.walked.append(0)
        for start in range(0, self.X.shape[0], self.piece):
            rows = self.X[start : start + self.piece]
            self.walked[-1] += rows.shape[0]
            yield Rows(rows, np.arange(start, start + rows.shape[0]))


def groups(n=210, d=5, seed=0, dtype=np.float64):
    """Three far groups."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    X = 20.0 * np.eye(3, d)[y] + rng.normal(size=(n, d))
    return X.astype(dtype), y


def kmeans(**parameters):
    return StreamKMeans(3, **{"random_state": 0, "executor": 2, "progress": False, **parameters})


@cases(
    "sparse, refine, options",
    [
        (False, 0, {}),
        (True, 3, {"sketch": SketchOptions(n_components=3)}),
        (False, 1, {"sketch": "countsketch"}),
        (True, 0, {"sketch": SketchOptions(n_components=4, assign_space="sketch")}),
        (False, 3, {"metric": "cosine"}),
        (True, 1, {}),
    ],
)
def test_every_row_is_read_twice_and_once_more_for_each_refinement(sparse, refine, options):
    X, _ = groups()
    source = CountingSource(sp.csr_array(X) if sparse else X)
    fitted = kmeans(refine=refine, **options).fit(source)
    assert set(source.read_rows.values()) == {2 + refine}
    assert len(source.read_rows) == len(X)
    assert fitted.n_passes_ == 2 + refine
    walks = [stage for stage in fitted.stages_ if stage.read_bytes]
    assert [stage.rows for stage in walks] == [len(X)] * (2 + refine)
    assert [stage.read_bytes for stage in walks] == [1000] * (2 + refine)


@pytest.mark.parametrize("told", [True, False])
def test_weights_take_a_further_pass_only_where_rows_must_be_counted(told):
    X, _ = groups()
    X[[3, 100]] = np.nan
    source = CountingSource(X)
    if told:
        source.n_rows = len(X)
    fitted = kmeans(invalid="skip").fit(source, sample_weight=np.linspace(1, 2, len(X)))
    assert set(source.read_rows.values()) == {2 if told else 3}
    assert fitted.n_passes_ == (2 if told else 3)
    np.testing.assert_allclose(fitted.counts_.sum(), np.delete(np.linspace(1, 2, len(X)), [3, 100]).sum())


@cases("sparse, refine", [(False, 2), (True, 0)])
def test_a_stream_is_walked_twice(sparse, refine):
    X, _ = groups()
    source = StreamedSource(sp.csr_array(X) if sparse else X)
    fitted = kmeans(refine=refine).fit(source)
    assert source.walked == [len(X)] * (2 + refine)
    whole = kmeans(refine=refine).fit(sp.csr_array(X) if sparse else X)
    np.testing.assert_array_equal(fitted.labels_, whole.labels_)
    np.testing.assert_allclose(fitted.inertia_, whole.inertia_, rtol=1e-9)
    np.testing.assert_array_equal(fitted.predict(StreamedSource(source.X, 7)), fitted.labels_)


# ---- sources that change between passes

CHANGES = {
    "fewer rows": lambda X: X[:200],
    "one row more": lambda X: np.concatenate([X, X[:1]]),
    "twice the rows": lambda X: np.concatenate([X, X]),
    "wider": lambda X: np.hstack([X, X[:, :1]]),
}


@cases("change, weighted", itertools.product(CHANGES, [False, True]))
def test_a_source_that_changes_is_an_error(change, weighted):
    X, _ = groups()
    sparse, changing_pass = (True, 3) if weighted else (False, 2)
    changed = CHANGES[change](X)
    wrap = sp.csr_array if sparse else np.asarray
    versions = [wrap(X)] * (changing_pass - 1) + [wrap(changed)]
    source = Planned(*versions)
    weights = np.linspace(1, 2, len(X)) if weighted else None
    with pytest.raises(InvalidInputError, match=r"counted|6 features"):
        kmeans(refine=1).fit(source, sample_weight=weights)


@cases("more_chunks", [6, 30])
def test_a_source_that_is_cut_otherwise_is_an_error(more_chunks):
    X, _ = groups()

    class Recut(Planned):
        def chunks(self, target_bytes):
            if self.read_rows[0] == 1:
                self.n_pieces = more_chunks
            return super().chunks(target_bytes)

    with pytest.raises(InvalidInputError, match="counted gave other rows than in the pass before"):
        kmeans().fit(Recut(X))


@cases("n_later, weighted", [(0, False), (180, True), (209, False), (211, False), (240, False), (240, True)])
def test_a_callable_that_gives_other_chunks_is_an_error(n_later, weighted):
    """Also between two chunks, where every chunk that comes is as long as before."""
    X, _ = groups()
    calls = []

    def chunks():
        calls.append(1)
        # the first call is a look at the first chunk, and is used for the first pass
        n = len(X) if len(calls) == 1 else n_later
        rows = np.resize(X, (n, X.shape[1]))
        return (rows[start : start + 30] for start in range(0, n, 30))

    weights = np.arange(len(X)) + 1.0 if weighted else None
    with pytest.raises(InvalidInputError, match=r"other rows|no rows in this pass"):
        kmeans().fit(chunks, sample_weight=weights)


@cases("sparse, weighted", [(False, False), (True, True)])
def test_an_iterator_is_clustered_in_one_pass(sparse, weighted):
    X, y = groups(dtype=np.float32)
    X = sp.csr_array(X) if sparse else X
    weights = np.linspace(0.5, 2, X.shape[0]) if weighted else None
    once = kmeans().fit((X[i : i + 30] for i in range(0, X.shape[0], 30)), sample_weight=weights)
    twice = kmeans().fit(X, sample_weight=weights)
    assert (once.n_passes_, twice.n_passes_) == (1, 2)
    assert normalized_mutual_info_score(y, once.labels_) == 1
    np.testing.assert_allclose(once.inertia_, twice.inertia_, rtol=1e-6)
    np.testing.assert_array_equal(once.labels_, once.predict(X))


@pytest.mark.parametrize("sparse", [False, True])
def test_wide_rows_that_are_seen_once_get_the_sketchs_labels(sparse):
    X, _ = groups(dtype=np.float32)
    X = np.pad(X, ((0, 0), (0, 5000)))
    X[7, 3] = np.nan
    X = sp.csr_array(X) if sparse else X
    chunks = (X[i : i + 30] for i in range(0, X.shape[0], 30))
    once = kmeans(invalid="skip", sketch=SketchOptions(n_components=64)).fit(chunks)
    assert (once.n_passes_, once.assign_space_, once.cluster_centers_.shape[1]) == (1, "sketch", 64)
    assert once.labels_[7] == -1
    np.testing.assert_array_equal(once.labels_, once.predict(X))
    valid = np.arange(X.shape[0]) != 7
    sketched = once.sketch_.apply(X[valid])
    sketched = sketched.toarray() if sparse and sp.issparse(sketched) else sketched
    d2 = ((sketched - once.cluster_centers_[once.labels_[valid]]) ** 2).sum()
    np.testing.assert_allclose(once.inertia_, d2, rtol=1e-5)


# ---- invalid rows


@cases("sparse, value, word, row", [(False, np.nan, "NaN", 0), (True, np.inf, "infinity", 123)])
def test_invalid_rows_are_named(sparse, value, word, row):
    X, _ = groups(dtype=np.float32)
    X[row, 2] = value
    source = CountingSource(sp.csr_array(X) if sparse else X)
    with pytest.raises(InvalidInputError, match=rf'{word} in row {row} of counted.*invalid="skip"'):
        kmeans().fit(source)
    assert max(source.read_rows.values()) == 1  # found in the first pass
    X[[50, 60, 200]] = value
    for n_threads in (1, 4):
        with pytest.raises(InvalidInputError, match=f"row {min(row, 50)} of"):
            kmeans(executor=n_threads).fit(CountingSource(X))


@cases(
    "dtype, value, message",
    [
        (np.float64, 1e200, r"a squared norm that float64 does not hold, above 1e\+300, .* double precision"),
        (np.float64, 2e150, r"a squared norm of 4e\+300, above 1e\+300, .* double precision"),
        (np.float32, 1e18, r"a squared norm of 1e\+36, above 1e\+34, .* single precision"),
    ],
)
@cases("skip", [False, True])
def test_rows_whose_squared_norms_are_too_large_are_told(dtype, value, message, skip):
    X, _ = groups()
    X = X.astype(dtype)
    X[5, 1] = value
    if skip:
        fitted = kmeans(invalid="skip").fit(X)
        assert np.flatnonzero(fitted.labels_ == -1).tolist() == [5]
        return
    with pytest.raises(InvalidInputError, match=f"{message} have room for, in row 5 of .*; divide all values by a"):
        kmeans().fit(X)


@cases("sparse, weighted, n_components", [(False, True, "auto"), (True, False, "auto"), (True, True, 4)])
def test_skipped_rows_change_nothing_for_the_others(sparse, weighted, n_components):
    X, _ = groups()
    bad = np.zeros(len(X), bool)
    bad[[0, 17, 209]] = True
    bad[60:90] = True  # a whole chunk of seven
    weights = np.linspace(1, 3, len(X)) if weighted else None
    dirty = X.copy()
    dirty[bad, 1] = np.nan
    wrap = sp.csr_array if sparse else np.asarray
    init = X[[1, 2, 4]]
    skipping = kmeans(init=init, invalid="skip", sketch=SketchOptions(n_components=n_components))
    got = skipping.fit(CountingSource(wrap(dirty)), sample_weight=weights)
    kept = None if weights is None else weights[~bad]
    wanted = kmeans(init=init, sketch=SketchOptions(n_components=n_components)).fit(wrap(X[~bad]), None, kept)
    np.testing.assert_array_equal(got.labels_[bad], -1)
    np.testing.assert_array_equal(got.labels_[~bad], wanted.labels_)
    np.testing.assert_allclose(got.cluster_centers_, wanted.cluster_centers_, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(got.inertia_, wanted.inertia_, rtol=1e-9)
    np.testing.assert_allclose(got.counts_, wanted.counts_)
    np.testing.assert_allclose(got.distortion_, wanted.distortion_, rtol=1e-6)
    assert got.n_samples_ == len(X)
    np.testing.assert_array_equal(got.predict(wrap(dirty)), got.labels_)
    assert np.isnan(got.transform(wrap(dirty))[bad]).all()
    with pytest.raises(InvalidInputError, match="no valid rows"):
        skipping.fit(wrap(dirty[60:90]))
    np.testing.assert_allclose(-got.score(wrap(dirty), sample_weight=weights), got.inertia_, rtol=1e-9)


# ---- weights


# ---- sizes that turn out otherwise


def test_sparse_chunks_as_wide_as_their_largest_index():
    X, _ = groups(d=9)
    X[:60, 5:] = 0
    source = NarrowSource(sp.csr_array(X))
    fitted = kmeans().fit(source)
    assert fitted.n_features_in_ == 9
    wanted = kmeans(sketch=SketchOptions("countsketch", fitted.n_components_)).fit(sp.csr_array(X))
    np.testing.assert_array_equal(fitted.labels_, wanted.labels_)
    np.testing.assert_array_equal(fitted.predict(NarrowSource(sp.csr_array(X))), fitted.labels_)
    with pytest.raises(InvalidInputError, match="features"):
        fitted.predict(NarrowSource(sp.csr_array(np.ones((4, 10)))))


class NarrowSource(CountingSource):
    """Chunks as text gives them: of no more columns than they use."""

    def __init__(self, X):
        super().__init__(X, n_features=None)

    def read(self, chunk):
        rows = super().read(chunk)
        width = int(rows.X.indices.max(initial=0)) + 1
        X = sp.csr_array((rows.X.data, rows.X.indices, rows.X.indptr), shape=(rows.X.shape[0], width))
        return Rows(X, rows.row_ids)
