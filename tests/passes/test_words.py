"""The words behind hashed features: counted in bounded memory, found again, saved, and shown as names of clusters."""

from __future__ import annotations

import gzip
from collections import Counter
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkm import FeatureHashing, StreamKMeans, open_documents
from streamkm.core.progress import Progress
from streamkm.passes import excerpts as looking
from streamkm.sources import open_source
from streamkm.text import WordTable
from streamkm.text import words as module
from streamkm.text.words import joined_counts

TOPICS = {"space": "orbit rocket shuttle moon", "hockey": "goal puck league coach", "health": "doctor drug virus dose"}


def documents(n=300, seed=0):
    rng = np.random.default_rng(seed)
    topics = list(TOPICS)
    return [" ".join([*rng.choice(TOPICS[topics[i % 3]].split(), 6), "and", "the"]) for i in range(n)]


@given(parts=st.lists(st.lists(st.integers(0, 30), max_size=40), max_size=12), most=st.integers(3, 12))
def test_counts_of_frequent_words_are_never_lost(parts, most):
    exact = Counter(str(word) for part in parts for word in part)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "MOST_WORDS", most)
        counted = reduce(joined_counts, (Counter(map(str, part)) for part in parts), {})
    assert len(counted) <= most
    lost = exact.total() / (most + 1)
    for word, count in exact.items():
        assert count - lost <= counted.get(word, 0) <= count


@pytest.mark.parametrize(
    ("hashing", "rows", "words"),
    [
        (FeatureHashing(n_features=1 << 16, ngram_range=(1, 2)), ["red fish", "blue fish"], {"fish", "red fish"}),
        (FeatureHashing(n_features=1 << 16, input="tokens"), [["a b"], ["a b", "__\n", "\u2603"]], {"a b", "\u2603"}),
        (FeatureHashing(n_features=1 << 16, input="counts"), [{"x": 2, "kind": "new"}, {"x": 1}], {"x", "kind=new"}),
        (FeatureHashing(n_features=1 << 16, analyzer="char", ngram_range=(2, 2)), ["abc", "bcd"], {"bc"}),
    ],
    ids=["n-grams", "tokens", "counts", "characters"],
)
def test_words_are_found_at_their_features(hashing, rows, words):
    X, table = hashing.apply(rows), WordTable.of(hashing.count_words(rows), hashing)
    assert words <= set(table.words)
    assert "__\n" not in table.words
    stored = set(X.indices.tolist())
    for word, feature in zip(table.words, hashing.features_of(table.words), strict=True):
        assert feature in stored
        assert word == table.name(int(feature))
    assert table.name(next(j for j in range(1 << 16) if j not in stored)) is None


def test_words_of_some_documents_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(looking, "PIECE_BYTES", 800)
    text = "\n".join(sorted(documents(1200), key=lambda each: [each.split()[0] in words for words in TOPICS.values()]))
    (tmp_path / "x.txt").write_text(text)
    (tmp_path / "x.txt.gz").write_bytes(gzip.compress("\n".join(documents(1200)).encode()))  # its beginning is read
    lines = text.splitlines()
    given = [(tmp_path / "x.txt", ["unit"], False), (lines, None, True), (tmp_path / "x.txt.gz", None, False)]
    for data, steps, tfidf in given:
        source = open_documents(data, tfidf=tfidf)
        model = StreamKMeans(3, preprocess=steps, random_state=0, progress=False).fit(source)
        assert words_of(model) == {frozenset(words.split()) for words in TOPICS.values()}
        (look,) = [stage for stage in model.stages_ if stage.name == "words"]  # beside the two passes, and told
        assert model.n_passes_ == 2 + tfidf
        assert 0 < look.rows <= 1200
        assert 0 <= look.read_bytes <= len(text) + 1200
        assert (look.read_bytes > 0) == (data is not lines)
    read_once = open_documents(iter(lines), tfidf=False)
    assert StreamKMeans(3, random_state=0, progress=False).fit(read_once).feature_words_ is None
    assert looking.look_at_words(open_source(np.eye(3)), Progress(show=False)) is None


def words_of(model):
    """The words of each cluster."""
    return {frozenset(trait.feature for trait in row.traits) for row in model.summary(4).rows}


def test_clusters_are_named_by_their_words(tmp_path):
    model = StreamKMeans(3, random_state=0, progress=False).fit(open_documents(documents()))
    assert model.summary(4).by_words
    assert "words" in str(model.summary(4)).splitlines()[0]
    model.save(tmp_path / "m.npz")
    assert words_of(StreamKMeans.load(tmp_path / "m.npz")) == words_of(model)


def test_damaged_tables_are_refused():
    table = WordTable.of({"red": 2, "blue": 1}, FeatureHashing())
    good = table.arrays()
    assert WordTable.from_arrays(good).words == table.words
    bad = [
        {"word_features": good["word_features"][::-1]},
        {"word_features": good["word_features"][:1]},
        {"word_list": good["word_list"][:-1]},
        {"word_list": np.full(7, 0xFF, np.uint8)},
        {"word_list": good["word_list"].astype(np.int64)},
    ]
    for change in bad:
        with pytest.raises(ValueError, match=r"words|utf-8|Expecting|Invalid|Extra data"):
            WordTable.from_arrays(good | change)
