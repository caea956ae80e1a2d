"""Sparse topics data like TF-IDF text, of any number of rows.

    python -m tests.benchmarks.make_topics OUT --rows 200000 --features 47236 --topics 50
        [--format svmlight|npz|h5|zarr] [--sorted] [--seed 0]

A row belongs to one topic. Of its words, 75 on average (Poisson), 60 % come from a background that all topics share,
where word j has probability proportional to (j + 1)^-1.1, and 40 % from the topic's own 400 words, of which the first
few are frequent (a Pareto tail). Counts become 1 + log(count), weighted by inverse document frequency, scaled to unit
length: about 57 stored values a row. A part of 10,000 rows depends on (seed, part) only, so a data set of fewer rows is
the beginning of one of more. `--sorted` puts the rows of a part in order of topic.

svmlight has the topic as its target; every format also gets ``OUT.labels.npy``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from tests.benchmarks.storage import write_csr, write_npz, write_svmlight

PART_ROWS = 10_000
MEAN_WORDS = 75
MIN_WORDS = 5
TOPIC_SHARE = 0.4
TOPIC_WORDS = 400
BACKGROUND_EXPONENT = 1.1
PARETO_SHAPE, PARETO_SCALE = 1.2, 20


@dataclass(frozen=True)
class Topics:
    """The world that rows are drawn from.

    Attributes
    ----------
    n_features, n_topics : int
    seed : int
        Rows and words depend on it alone.
    """

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
        """Draw one part.

        Returns
        -------
        X : csr_array of shape (PART_ROWS, n_features), float32 with int32 indices
            Rows of unit length, indices ascending.
        y : int64 ndarray of shape (PART_ROWS,)
            Topics.
        """
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

    def parts(self, n_rows: int, *, sort: bool = False) -> Iterator[tuple[sp.csr_array, np.ndarray]]:
        """Yield the first `n_rows` rows part by part; `sort` orders each part by topic."""
        for part, start in enumerate(range(0, n_rows, PART_ROWS)):
            X, y = self.part(part)
            X, y = X[: n_rows - start], y[: n_rows - start]
            if sort:
                order = np.argsort(y, kind="stable")
                X, y = X[order], y[order]
            yield X, y

    def matrix(self, n_rows: int, *, sort: bool = False) -> tuple[sp.csr_array, np.ndarray]:
        """Return the first `n_rows` rows at once."""
        matrices, labels = zip(*self.parts(n_rows, sort=sort), strict=True)
        return sp.vstack(matrices, format="csr"), np.concatenate(labels)


def write(path: str, topics: Topics, n_rows: int, *, kind: str = "svmlight", sort: bool = False) -> np.ndarray:
    """Write `n_rows` rows to `path` and their topics to ``path.labels.npy``; return the topics."""
    parts = topics.parts(n_rows, sort=sort)
    if kind == "svmlight":
        labels = write_svmlight(path, parts)
    elif kind == "npz":
        labels = write_npz(path, parts)
    else:
        labels = write_csr(path, parts, topics.n_features, kind=kind)
    np.save(f"{path}.labels.npy", labels)
    return labels


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--features", type=int, default=Topics.n_features)
    parser.add_argument("--topics", type=int, default=Topics.n_topics)
    parser.add_argument("--format", choices=("svmlight", "npz", "h5", "zarr"), default="svmlight")
    parser.add_argument("--sorted", action="store_true", help="order the rows of each part by topic")
    parser.add_argument("--seed", type=int, default=Topics.seed)
    args = parser.parse_args(argv)
    topics = Topics(args.features, args.topics, args.seed)
    write(args.out, topics, args.rows, kind=args.format, sort=args.sorted)


if __name__ == "__main__":
    main()
