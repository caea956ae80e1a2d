"""Sparse topics data like TF-IDF text, of any number of rows.

A row belongs to one topic. Of its words, 75 on average (Poisson), 60 % come from a background that all topics share,
where word j has probability proportional to (j + 1)^-1.1, and 40 % from the topic's own 400 words, of which the first
few are frequent (a Pareto tail). Counts become 1 + log(count), weighted by inverse document frequency, scaled to unit
length: about 57 stored values a row. A part of 10,000 rows depends on (seed, part) only, so a data set of fewer rows is
the beginning of one of more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

PART_ROWS = 10_000
TEXT_ROWS = 2_000
MEAN_WORDS = 75
MIN_WORDS = 5
TOPIC_SHARE = 0.4
TOPIC_WORDS = 400
BACKGROUND_EXPONENT = 1.1
PARETO_SHAPE, PARETO_SCALE = 1.2, 20


@dataclass(frozen=True)
class Topics:
    """The world that rows are drawn from: a function of these values alone."""

    n_features: int = 47_236
    n_topics: int = 50
    seed: int = 0

    @cached_property
    def background_cdf(self) -> np.ndarray:
        """float64 (n_features,), ends in 1."""
        weights = np.arange(1, self.n_features + 1) ** -BACKGROUND_EXPONENT
        return np.cumsum(weights) / weights.sum()

    @cached_property
    def topic_words(self) -> np.ndarray:
        """int64 (n_topics, words of a topic), the most frequent first."""
        rng = np.random.default_rng(self.seed)
        n_words = min(TOPIC_WORDS, self.n_features)
        return np.stack([rng.permutation(self.n_features)[:n_words] for _ in range(self.n_topics)])

    @cached_property
    def idf(self) -> np.ndarray:
        """float32 (n_features,): log(1 + 1 / f), f the expected share of rows with the word.

        Expected, not counted, so that a part needs no other part. All words of a topic count alike in it.
        """
        n_words = self.topic_words.shape[1]
        expected = (1 - TOPIC_SHARE) * np.diff(self.background_cdf, prepend=0)
        in_topics = np.bincount(self.topic_words.ravel(), minlength=self.n_features)
        expected += TOPIC_SHARE * in_topics / (n_words * self.n_topics)
        share = -np.expm1(-MEAN_WORDS * expected)
        return np.log1p(1 / share).astype(np.float32)

    def part(self, part: int) -> tuple[sp.csr_array, np.ndarray]:
        """Draw one part: rows of unit length, float32 with ascending int32 indices, and their topics."""
        rng = np.random.default_rng([self.seed, part])
        y = rng.integers(self.n_topics, size=PART_ROWS)
        lengths = np.maximum(rng.poisson(MEAN_WORDS, PART_ROWS), MIN_WORDS)
        row = np.repeat(np.arange(PART_ROWS, dtype=np.int32), lengths)
        words = np.searchsorted(self.background_cdf, rng.random(len(row)), side="right").astype(np.int32)
        special = np.flatnonzero(rng.random(len(row)) < TOPIC_SHARE)
        rank = (PARETO_SCALE * rng.pareto(PARETO_SHAPE, len(special))).astype(np.int64)
        words[special] = self.topic_words[y[row[special]], rank % self.topic_words.shape[1]]
        counts = sp.coo_array((np.ones(len(row), np.float32), (row, words)), shape=(PART_ROWS, self.n_features))
        X = counts.tocsr()  # sums words that occur again
        X.sort_indices()
        X.data = (1 + np.log(X.data)) * self.idf[X.indices]
        norms = np.sqrt(np.add.reduceat(np.square(X.data, dtype=np.float64), X.indptr[:-1]))
        X.data = (X.data / np.repeat(norms, np.diff(X.indptr))).astype(np.float32)
        return X, y

    def parts(self, n_rows: int) -> Iterator[tuple[sp.csr_array, np.ndarray]]:
        """Yield the first `n_rows` rows part by part."""
        for part, start in enumerate(range(0, n_rows, PART_ROWS)):
            X, y = self.part(part)
            yield X[: n_rows - start], y[: n_rows - start]

    def matrix(self, n_rows: int) -> tuple[sp.csr_array, np.ndarray]:
        """Return the first `n_rows` rows at once."""
        matrices, labels = zip(*self.parts(n_rows), strict=True)
        return sp.vstack(matrices, format="csr"), np.concatenate(labels)


def write(path: str, topics: Topics, n_rows: int, *, kind: str) -> None:
    """Write `n_rows` rows to `path`, svmlight or npz, and their topics to ``path.labels.npy``."""
    if kind == "npz":
        X, labels = topics.matrix(n_rows)
        sp.save_npz(path, X, compressed=False)
    else:
        labels = _write_svmlight(path, topics.parts(n_rows))
    np.save(f"{path}.labels.npy", labels)


def _write_svmlight(path: str, parts: Iterable[tuple[sp.csr_array, np.ndarray]]) -> np.ndarray:
    """Write one-based text with six significant digits, with topics as targets; return the topics."""
    labels = []
    with open(path, "w", encoding="ascii") as file:
        for X, y in parts:
            labels.append(y)
            for start in range(0, X.shape[0], TEXT_ROWS):
                file.write(_svmlight_text(X[start : start + TEXT_ROWS], y[start : start + TEXT_ROWS]))
    return np.concatenate(labels)


def _svmlight_text(X: sp.csr_array, y: np.ndarray) -> str:
    """Return the lines of some rows."""
    cells = np.empty(2 * X.nnz, object)
    cells[0::2] = X.indices + 1
    cells[1::2] = X.data
    ends = 2 * X.indptr
    return "".join(
        f"{label}{' %d:%.6g' * ((stop - start) // 2) % tuple(cells[start:stop])}\n"
        for label, start, stop in zip(y, ends[:-1], ends[1:], strict=True)
    )
