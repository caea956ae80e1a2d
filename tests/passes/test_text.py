"""Feature hashing and tf-idf: as scikit-learn's, whatever the chunks; and what hashing distorts."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import dump_svmlight_file
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
from sklearn.metrics import euclidean_distances
from sklearn.preprocessing import normalize

from streamkm import StreamKMeans, fit_idf, open_documents, open_source
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, ModelFileError, OutputError
from streamkm.passes.predict import nearest_labels
from streamkm.sources.documents.hashed import TfIdfRows
from streamkm.text import BadDocumentError, FeatureHashing, TfIdf
from streamkm.text.tfidf import Frequencies
from tests import naive
from tests.contracts import Opened, RowSourceContract, SourceContract
from tests.dask_processes import assert_same_bits
from tests.fresh import run_compiled
from tests.sources.matrices import sparse_matrices, sparse_matrix
from tests.tables import cases, row, slow_but

M = 128
TOPICS = (
    "orbit rocket shuttle moon launch nasa probe lunar payload telescope",
    "goal hockey team puck league season player coach ice playoff",
    "doctor patient disease drug symptom treatment virus clinic dose therapy",
)


def topic_texts(n: int = 300, seed: int = 0) -> tuple[list[str], np.ndarray]:
    """Documents of three topics, with words that all share."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    common = ["the", "a", "of", "and", "to", "in", "that", "with", "from", "by"]
    return [" ".join([*rng.choice(TOPICS[t].split(), 12), *rng.choice(common, 12)]) for t in y], y


def same(got, wanted) -> None:
    got, wanted = sp.csr_array(got), sp.csr_array(wanted)
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(got, name), getattr(wanted, name))


def rows_of(source, target_bytes: int = 1 << 30):
    return sp.vstack([rows.X for rows in source.stream(target_bytes)], format="csr")


# ---- hashing


@cases(
    "options",
    [
        {},
        {"alternate_sign": False},
        {"binary": True},
        {"norm": None},
        {"norm": "l1", "analyzer": "char", "ngram_range": (2, 4)},
        {"analyzer": "char_wb", "ngram_range": (3, 3)},
        {"lowercase": False},
        {"strip_accents": "unicode"},
        {"stop_words": "english"},
        {"stop_words": ("orbit", "goal")},
        {"n_features": 2**31 - 2},
        {"dtype": "float64"},
    ],
)
def test_texts_as_sklearn_hashes_them(options):
    documents = [*topic_texts(20)[0], "", "Größe ÄPFEL naïve", "the the THE"]
    given = {"n_features": M, "dtype": "float32", **options}
    if isinstance(given.get("stop_words"), tuple):
        given["stop_words"] = list(given["stop_words"])
    wanted = HashingVectorizer(**given).transform(documents)
    same(FeatureHashing(**{"n_features": M, **options}).apply(documents), wanted)


@pytest.mark.parametrize("alternate_sign", [True, False])
def test_tokens_and_counts_as_sklearn_hashes_them(alternate_sign):
    documents = [text.split() for text in topic_texts(20)[0]] + [[]]
    hasher = FeatureHasher(M, input_type="string", alternate_sign=alternate_sign, dtype=np.float32)
    options = {"n_features": M, "norm": None, "alternate_sign": alternate_sign}
    same(FeatureHashing(**options, input="tokens").apply(documents), hasher.transform(documents))
    mappings = [{"a": 2, "b": -1.5, "color": "red", "z": 0}, {}, {"color": "blue", "flag": True}]
    hasher = FeatureHasher(M, alternate_sign=alternate_sign, dtype=np.float32)
    same(FeatureHashing(**options, input="counts").apply(mappings), hasher.transform(mappings))


def test_golden_values():
    """MurmurHash3 of UTF-8 with seed 0: its size modulo the features, and its sign. Frozen: models rest on it."""

    def row(kind, document, **options):
        return FeatureHashing(**{"n_features": 8, "norm": None, **options}, input=kind).apply([document]).toarray()[0]

    assert row("text", "red fish blue fish").tolist() == [0, 0, 0, -1, 0, -1, 0, 2]
    assert row("tokens", ["red", "fish", "blue", "fish"]).tolist() == [0, 0, 0, -1, 0, -1, 0, 2]
    assert row("counts", {"red": 1, "fish": 2.0, "blue": 1}).tolist() == [0, 0, 0, -1, 0, -1, 0, 2]
    assert row("counts", {"fish": -0.5, "red": 3, "color=blue": 0}).tolist()[7] == -0.5
    assert row("text", "red fish blue fish", alternate_sign=False).tolist() == [0, 0, 0, 1, 0, 1, 0, 2]
    # a text is the string's own feature: {"color": "blue"} is color=blue, once
    np.testing.assert_array_equal(row("counts", {"color": "blue"}), row("counts", {"color=blue": 1}))
    hashes = {"red": -347068675, "fish": 326019215, "blue": -389811965, "größe": -472672705, "日本語": -1515949417}
    for token, wanted in hashes.items():
        assert naive.murmurhash3(token.encode()) == wanted
        X = FeatureHashing(n_features=2**31 - 2, input="tokens", norm=None).apply([[token]])
        assert (X.indices.tolist(), X.data.tolist()) == ([abs(wanted)], [np.sign(wanted)])


def test_seeds_are_hashes_of_their_own():
    documents = topic_texts(20)[0]
    rows = [FeatureHashing(n_features=M, seed=seed).apply(documents) for seed in (0, 1, 2**64 - 1)]
    same(rows[0], FeatureHashing(n_features=M).apply(documents))
    assert abs(rows[1] - rows[0]).max() > 0.1 < abs(rows[2] - rows[1]).max()
    assert rows[1].nnz == pytest.approx(rows[0].nnz, rel=0.05)
    for token in ("red", "größe"):  # the seed's digits, a zero byte and the word: models rest on it
        hashed = naive.murmurhash3(b"3\0" + token.encode())
        for kind, document in (("text", token), ("tokens", [token]), ("counts", {token: 1})):
            X = FeatureHashing(n_features=2**31 - 2, norm=None, seed=3, input=kind).apply([document])
            assert (X.indices.tolist(), X.data.tolist()) == ([abs(hashed)], [np.sign(hashed)])
    for kind, hashed in (
        ("text", documents),
        ("counts", [dict(Counter(text.split()), color="red") for text in documents]),
    ):
        hashing = pickle.loads(pickle.dumps(FeatureHashing(n_features=M, input=kind, seed=3)))
        X, words = hashing.apply(hashed), hashing.count_words(hashed)
        same(X, hashing.apply(hashed))
        assert set(hashing.features_of(list(words))) == set(X.indices)
        assert "3\0" not in "".join(words)
    for seed in (-1, 2**64, 1.5, True, "1"):
        with pytest.raises(InvalidParameterError, match="seed="):
            FeatureHashing(seed=seed)
    with pytest.raises(BadDocumentError, match="document 1"):
        FeatureHashing(input="tokens", seed=1).apply([["a"], [3]])


# what UTF-8 holds; by the name of the codec, that takes a second and a half
ANY = st.characters(exclude_categories=["Cs"])


@given(
    st.lists(st.dictionaries(st.text(ANY, max_size=6), st.integers(-9, 9), max_size=5), max_size=5),
    st.sampled_from([1, 7, 1024]),
    st.booleans(),
)
def test_is_the_naive_twin(mappings, n_features, alternate_sign):
    """Tokens and counts, whole numbers: exact whatever cancels."""
    wanted = np.zeros((len(mappings), n_features))
    for i, mapping in enumerate(mappings):
        for name, count in mapping.items():
            hashed = naive.murmurhash3(name.encode())
            wanted[i, abs(hashed) % n_features] += count * (np.sign(hashed + 0.5) if alternate_sign else 1)
    options = {"n_features": n_features, "norm": None, "alternate_sign": alternate_sign}
    np.testing.assert_array_equal(FeatureHashing(input="counts", **options).apply(mappings).toarray(), wanted)
    repeated = [[name for name, count in each.items() for _ in range(abs(count))] for each in mappings]
    positive = [{name: abs(count) for name, count in each.items()} for each in mappings]
    np.testing.assert_array_equal(
        FeatureHashing(input="tokens", **options).apply(repeated).toarray(),
        FeatureHashing(input="counts", **options).apply(positive).toarray(),
    )


@cases(
    "options, message",
    [
        ({"n_features": 0}, "n_features"),
        ({"n_features": 2**31}, "n_features"),
        ({"input": "words"}, "input='words'; needed"),
        ({"dtype": "int8"}, "dtype='int8'; needed"),
        ({"norm": "l3"}, "norm"),
        ({"analyzer": str.split}, "analyzer=.*; needed"),
        ({"ngram_range": (2, 1)}, "ngram_range"),
        ({"stop_words": "german"}, "stop_words"),
    ],
)
def test_parameters_that_are_not_accepted(options, message):
    with pytest.raises(InvalidParameterError, match=message):
        FeatureHashing(**options)


def test_a_document_that_is_none_is_named():
    with pytest.raises(BadDocumentError, match=r"document 2: NoneType where input=\"text\" needs a text") as caught:
        FeatureHashing().apply(["a", "b", None])
    assert caught.value.row == 2


# ---- document frequencies


@given(sparse_matrices(), st.lists(st.integers(0, 40), max_size=6))
def test_any_partition_gives_the_same_counts(X, cuts):
    X.data[::3] = 0  # stored zeros count, as scikit-learn counts them
    bounds = sorted({0, *(min(cut, X.shape[0]) for cut in cuts), X.shape[0]})
    chunks = [X[a:b] for a, b in pairwise(bounds)]
    carried = Frequencies.of(X[:0])
    for chunk in chunks:
        carried = Frequencies.joined([carried, Frequencies.of(chunk)])
    joined = Frequencies.joined([Frequencies.of(chunk) for chunk in chunks] or [carried])
    df = np.bincount(X.indices, minlength=X.shape[1])
    for state in (carried, joined):
        assert state.n_rows == X.shape[0]
        np.testing.assert_array_equal(state.features, np.flatnonzero(df))
        np.testing.assert_array_equal(state.counts, df[df > 0])
        assert state.features.dtype == state.counts.dtype == np.int64


@cases(
    "smooth_idf, norm, sublinear_tf, dtype",
    [
        (True, "l2", False, "float32"),
        (True, None, True, "float32"),
        (False, "l1", False, "float32"),
        (False, "l2", True, "float64"),
    ],
)
def test_same_as_sklearn(smooth_idf, norm, sublinear_tf, dtype):
    documents = [*topic_texts(80)[0], ""]
    # logarithms of negative counts are not defined in scikit-learn
    hashing = FeatureHashing(n_features=M, norm=None, alternate_sign=not sublinear_tf, dtype=dtype)
    base = open_documents(documents, hashing=hashing, tfidf=False)
    options = {"smooth_idf": smooth_idf, "norm": norm, "sublinear_tf": sublinear_tf}
    source = TfIdfRows(base, fit_idf(base, **options))
    counted = HashingVectorizer(n_features=M, norm=None, alternate_sign=not sublinear_tf, dtype=dtype)
    X = counted.transform(documents)
    if smooth_idf:
        wanted = TfidfTransformer(**options).fit_transform(X)
    else:
        with np.errstate(divide="ignore"):  # of features that do not occur
            wanted = TfidfTransformer(**options).fit_transform(X)
    got = rows_of(source, 2_000)
    np.testing.assert_array_equal(got.indices, wanted.indices)
    np.testing.assert_array_equal(got.indptr, wanted.indptr)
    assert got.dtype == wanted.dtype == source.dtype
    np.testing.assert_allclose(got.data, wanted.data, rtol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("smooth_idf", [True, False])
def test_a_feature_that_no_row_had(smooth_idf):
    tfidf = TfIdf(Frequencies.of(sp.csr_array(np.diag([0.0, 1, 1, 0]))), smooth_idf=smooth_idf)
    known = np.log((4 + smooth_idf) / (1 + smooth_idf)) + 1
    unseen = np.log(5 / 1) + 1 if smooth_idf else np.log(4) + 1
    np.testing.assert_allclose(tfidf.idf(np.array([0, 1, 2, 3, 99], np.int32)), [unseen, known, known, unseen, unseen])


def test_sublinear_counts_keep_their_signs():
    X = sp.csr_array(np.array([[-3.0, 2.0, 0.5]]))
    X.data[2] = 0.0  # what cancelled
    tfidf = TfIdf(Frequencies.of(X), sublinear_tf=True, norm=None)
    np.testing.assert_allclose(tfidf.apply(X).toarray(), [[-(1 + np.log(3)), 1 + np.log(2), 0]])
    np.testing.assert_array_equal(X.data, [-3, 2, 0])


def test_saved_frequencies(tmp_path):
    source = open_documents(topic_texts(50)[0], hashing=FeatureHashing(n_features=M))
    path = tmp_path / "idf.npz"
    for options in ({}, {"smooth_idf": False, "sublinear_tf": True, "norm": None}, {"norm": "l1"}):
        tfidf = TfIdf(source.tfidf.frequencies, **options)
        tfidf.save(path, overwrite=True)
        loaded = TfIdf.load(path)
        for name in ("smooth_idf", "sublinear_tf", "norm"):
            assert getattr(loaded, name) == getattr(tfidf, name)
        assert loaded.frequencies.n_rows == 50
        np.testing.assert_array_equal(loaded.idf(np.arange(M)), tfidf.idf(np.arange(M)))
    with pytest.raises(OutputError, match=r"idf\.npz exists; pass overwrite"):
        tfidf.save(path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ModelFileError, match="no saved document frequencies"):
        TfIdf.load(path)
    good = source.tfidf.frequencies
    for change in ({"counts": good.counts + 50}, {"features": good.features[::-1]}, {"options": np.array([1, 0, 7])}):
        values = {"n_rows": 50, "features": good.features, "counts": good.counts, "options": np.array([1, 0, 2])}
        np.savez(path, **{**values, **change})
        with pytest.raises(ModelFileError, match="no saved document frequencies"):
            TfIdf.load(path)


def test_what_cannot_be_weighted(tmp_path):
    with pytest.raises(InvalidInputError, match="array is dense; tf-idf needs sparse rows"):
        fit_idf(open_source(np.eye(3)))
    tfidf = open_documents(["a bc", "bc cd"]).tfidf
    with pytest.raises(InvalidInputError, match="array is dense"):
        TfIdfRows(open_source(np.eye(3)), tfidf)
    base = open_documents(["aa bb"], tfidf=False)
    with pytest.raises(InvalidParameterError, match=r"sublinear_tf takes .*norm='l2'\).*norm=None"):
        fit_idf(base, sublinear_tf=True)
    with pytest.raises(InvalidParameterError, match="sublinear_tf"):
        open_documents(["aa bb"], tfidf=TfIdf(tfidf.frequencies, sublinear_tf=True))
    with pytest.raises(InvalidParameterError, match="norm='max'; needed"):
        fit_idf(base, norm="max")
    X = sp.csr_array(np.array([[1.0, np.nan]]))
    with pytest.raises(InvalidInputError, match="NaN in row 0"):
        fit_idf(open_source(X))


# ---- weighted rows as a source


class TestWeighted(SourceContract):
    @pytest.fixture
    def opened(self):
        X = sparse_matrix(dtype="f8")
        base = open_source(X)
        source = TfIdfRows(base, fit_idf(base))
        got = rows_of(source).toarray()
        np.testing.assert_allclose(got, TfidfTransformer().fit_transform(X).toarray(), rtol=4 * np.finfo(got.dtype).eps)
        return Opened(source, got)


@cases("shape", [(0, 5), (2, 0), (3, 5)])
def test_rows_without_entries(shape):
    tfidf = open_documents(["aa bb"]).tfidf
    assert tfidf.apply(sp.csr_array(shape)).shape == shape
    assert Frequencies.of(sp.csr_array(shape)).n_rows == shape[0]


# ---- Dask bags


class TestBag(RowSourceContract):
    @pytest.fixture(params=["tokens", "tf-idf", "series"])
    def opened(self, request):
        db = pytest.importorskip("dask.bag")
        kind = "tokens" if request.param == "tokens" else "text"
        texts = topic_texts(23)[0]
        documents = [text.split() for text in texts] if kind == "tokens" else texts
        hashing = FeatureHashing(n_features=M, input=kind)
        bag = db.from_sequence(documents, npartitions=4)
        if request.param == "series":
            dd = pytest.importorskip("dask.dataframe")
            pd = pytest.importorskip("pandas")
            bag = dd.from_pandas(pd.Series(texts), npartitions=3)
        weighted = request.param == "tf-idf"
        wanted = rows_of(open_documents(documents, hashing=hashing, tfidf=weighted))
        return Opened(open_documents(bag, hashing=hashing, tfidf=weighted), wanted.toarray())


def test_rows_of_a_bag_are_weighted_on_a_cluster(client):
    db = pytest.importorskip("dask.bag")
    bag = db.from_sequence(topic_texts(60)[0], npartitions=2)
    given = {"random_state": 0, "progress": False}
    wanted = StreamKMeans(3, executor=1, **given).fit(open_documents(bag))
    got = StreamKMeans(3, executor=client, **given).fit(open_documents(bag, executor=client))
    assert_same_bits(got, wanted)


def test_what_is_no_bag():
    da = pytest.importorskip("dask.array")
    with pytest.raises(InvalidInputError, match="Array has no documents"):
        open_documents(da.zeros((3, 3)))
    db = pytest.importorskip("dask.bag")
    with pytest.raises(InvalidParameterError, match="field= is for files; X is documents of type Bag"):
        open_documents(db.from_sequence(["a"]), field="text")


# ---- clustering


N_FEATURES = 1 << 20  # of hashed words


def short_texts(n_rows, seed=0, n_words=1500, n_topics=8):
    """Hashed texts of five words: CSR rows of unit length, whose words are mostly those of a topic."""
    rng = np.random.default_rng(seed)
    words = np.sort(np.random.default_rng(1).choice(N_FEATURES, n_words, replace=False))
    by_topic = rng.integers(0, n_words // n_topics, (n_rows, 4)) * n_topics + rng.integers(0, n_topics, (n_rows, 1))
    indices = words[np.hstack([by_topic, rng.integers(0, n_words, (n_rows, 1))])]
    X = sp.csr_array((np.ones(5 * n_rows), indices.ravel(), np.arange(0, 5 * n_rows + 1, 5)), (n_rows, N_FEATURES))
    X.sum_duplicates()
    return sp.csr_array(normalize(X), dtype=np.float32)


FIT_SHORT_TEXTS = """
import json
import numpy as np
from streamkm import StreamKMeans
from tests.passes.test_text import short_texts

def peak():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmHWM"].split()[0]) * 1024

X = short_texts(6000)  # all in the row sample
StreamKMeans(8, random_state=0, progress=False).fit(X[:, np.unique(X.indices)])  # loads kernels
before = peak()
fitted = StreamKMeans(40, random_state=0, progress=False).fit(X)
fitted.predict(X), fitted.summary(), fitted.save("{path}", overwrite=True)
StreamKMeans.load("{path}").predict(X)
print(json.dumps([peak() - before, fitted.plan_.peak_bytes - fitted.plan_.base_bytes]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_documents_take_the_memory_of_their_words(tmp_path):
    # centers of all hashed features would take 320 MiB, each copy of them
    program = FIT_SHORT_TEXTS.replace("{path}", str(tmp_path / "model.npz"))
    taken, planned = run_compiled(program)
    assert taken < 100 << 20
    assert taken < planned < 3 * 40 * 8 * N_FEATURES


@pytest.fixture(scope="module")
def fitted():
    """A model of 3,000 short texts."""
    return StreamKMeans(8, random_state=0, progress=False).fit(short_texts(3000))


def test_documents_with_other_words_than_those_of_the_fit(tmp_path, fitted):
    known, others = short_texts(50, seed=1), short_texts(50, seed=2)
    others.indices = (others.indices + np.int32(1)) % np.int32(N_FEATURES)
    X = sp.csr_array(normalize(known + others))
    assert np.setdiff1d(X.indices, fitted.model_.columns.occurring).size
    fitted.save(tmp_path / "model.npz")
    loaded = StreamKMeans.load(tmp_path / "model.npz")
    pickled = pickle.loads(pickle.dumps(fitted))
    found = fitted.transform(X)
    for each in (loaded, pickled):
        np.testing.assert_array_equal(each.transform(X), found)
        np.testing.assert_array_equal(each.predict(X), found.argmin(axis=1))
    wanted = euclidean_distances(X.astype(np.float64), fitted.cluster_centers_.astype(np.float64))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert fitted.score(X) == pytest.approx(-np.square(wanted.min(axis=1)).sum(), rel=1e-5)
    np.testing.assert_allclose(fitted.transform(X[:3].toarray()), wanted[:3], rtol=1e-5)
    np.testing.assert_array_equal(loaded.cluster_centers_.astype(np.float32), fitted.cluster_centers_)


MANY_TEXTS = 12_000  # more than the row sample of `sample_of_10_000` holds
ONE_THREAD = {"executor": 1, "random_state": 0, "progress": False}


@pytest.mark.parametrize(
    "options", [pytest.param({"coreset": "sensitivity"}, marks=pytest.mark.slow), {"coreset": None, "refine": 2}]
)
@pytest.mark.usefixtures("sample_of_10_000")
def test_clusters_of_more_documents_than_the_sample_are_those_of_their_words(options):
    X = short_texts(MANY_TEXTS)
    fitted = StreamKMeans(8, tol=0, random_state=0, progress=False, **options).fit(X)
    labels, model, occurring = fitted.labels_, fitted.model_, np.unique(X.indices)
    assert fitted.plan_.sample_rows < MANY_TEXTS
    np.testing.assert_array_equal(model.columns.occurring, occurring)
    words, centers = X[:, occurring], np.ascontiguousarray(model.centers[:, :-1])
    alone = replace(model, centers=centers, n_features=len(occurring), columns=None, laid_out=None)
    np.testing.assert_array_equal(nearest_labels(words, alone.table()), labels)
    words = words.astype(np.float64).toarray()
    assert fitted.inertia_ == pytest.approx(np.square(words - centers[labels]).sum(), rel=1e-9)
    sums = sp.csr_array((np.ones(MANY_TEXTS), (labels, np.arange(MANY_TEXTS)))) @ words
    np.testing.assert_allclose(fitted.cluster_means_[:, occurring], sums / fitted.counts_[:, None], rtol=1e-12)


@pytest.mark.usefixtures("no_room", "sample_of_10_000")
def test_documents_of_which_a_part_is_read_whole_have_centers_of_all_features(tmp_path):
    """What clusters have in features that no pass has noted would be missing in their means."""
    X = short_texts(40_000)  # the sample takes less than half
    X.indices[X.indptr[1] - 1] = N_FEATURES - 1  # a row's last feature tells its width
    X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)  # as scikit-learn writes
    dump_svmlight_file(X, np.zeros(X.shape[0]), str(tmp_path / "x.svm"), zero_based=False)
    options = {"coreset": "uniform", "chunk_bytes": 400 << 10, **ONE_THREAD}
    fitted = StreamKMeans(4, **options).fit(str(tmp_path / "x.svm"))
    assert fitted.model_.columns is None
    occurring = np.unique(X.indices)
    members = sp.csr_array((np.ones(X.shape[0]), (fitted.labels_, np.arange(X.shape[0]))))
    sums = (members @ X[:, occurring].astype(np.float64)).toarray()
    np.testing.assert_allclose(fitted.cluster_means_[:, occurring], sums / fitted.counts_[:, None], rtol=1e-6)


@pytest.mark.parametrize(("record", "times"), slow_but([("sketch", 3)], [("sketch", 3), ("found", 1)], full=True))
@pytest.mark.usefixtures("sample_of_10_000")
def test_a_fit_of_more_documents_than_the_sample_goes_on_where_it_was(tmp_path, stop, record, times):
    X = short_texts(MANY_TEXTS)
    kmeans = StreamKMeans(8, coreset="uniform", refine=1, chunk_bytes=60_000, **ONE_THREAD)
    wanted = clone(kmeans).fit(X)
    assert wanted.plan_.n_chunks > 6
    stop(kmeans, X, tmp_path / "state", record, times)
    kmeans.fit(X, checkpoint=tmp_path / "state")
    np.testing.assert_array_equal(kmeans.model_.columns.occurring, wanted.model_.columns.occurring)
    assert_same_bits(kmeans, wanted)


@pytest.mark.usefixtures("sample_of_10_000")
@pytest.mark.slow
def test_a_cluster_of_workers_finds_the_words_that_threads_find(client):
    X = short_texts(MANY_TEXTS)
    given = {"coreset": "uniform", "chunk_bytes": 60_000, "random_state": 0, "progress": False}
    wanted = StreamKMeans(8, **given, executor=2).fit(X)
    got = StreamKMeans(8, **given, executor=client).fit(X)
    np.testing.assert_array_equal(got.model_.columns.occurring, wanted.model_.columns.occurring)
    assert_same_bits(got, wanted)


def test_documents_are_planned_by_the_words_that_a_few_of_them_have(tmp_path):
    words = np.random.default_rng(0).zipf(1.4, (20_000, 8)) % 30_000
    (tmp_path / "lines.txt").write_text("".join(" ".join(f"w{word}" for word in line) + "\n" for line in words))
    source = open_documents(str(tmp_path / "lines.txt"))
    occurring = len(np.unique(words))
    assert 0.9 * occurring < source.estimated_occurring < 1.5 * occurring
    planned = StreamKMeans(77).plan(source)
    assert planned.memory_model.rows.center_features == source.estimated_occurring
    assert planned.peak_bytes - planned.base_bytes < 77 * 8 * N_FEATURES  # one copy of centers of all features


def test_a_model_file_with_features_that_are_none(tmp_path, fitted):
    fitted.save(tmp_path / "model.npz")
    arrays = dict(np.load(tmp_path / "model.npz"))
    for features in ([2.0, 3.0], [3, 2], [-1, 2], [2, 9]):
        np.savez(tmp_path / "changed.npz", **arrays | {"center_features": np.array(features)})
        with row(features=features), pytest.raises(ModelFileError, match=r"center_features|entries of centers"):
            StreamKMeans.load(tmp_path / "changed.npz")
