"""The words behind hashed features: a bounded table of frequent words, counted while documents are hashed.

Counting knows nothing of features; `WordTable` finds them once, at the end. Opens no file.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.text.feature_hashing import FeatureHashing

MOST_WORDS = 1 << 16  # that are counted at a time
WORDS_A_FEATURE = 2
LONGEST_WORD = 64  # characters; longer ones name nothing,
NO_LETTERS = string.punctuation + string.whitespace  # nor do those of nothing else
BOTH_SHARE = 0.5  # of the first word's count that the second must have for a feature to be called by both
ARRAYS = ("word_features", "word_counts", "word_list")


def joined_counts(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    """Document frequencies of words in two sets of documents, at most `MOST_WORDS`: frequent words are never lost.

    Counts are too low by at most ``documents * words a document / MOST_WORDS``, and depend on the order of joins alone.

    References
    ----------
    Misra and Gries, "Finding repeated elements", Sci. Comput. Program. 2 (1982). Agarwal, Cormode, Huang, Phillips, Wei
    and Yi, "Mergeable summaries", PODS 2012, section 3.1: joining two of them.
    """
    counts = dict(first)
    for word, count in second.items():
        counts[word] = counts.get(word, 0) + count
    if len(counts) <= MOST_WORDS:
        return counts
    cut = sorted(counts.values())[-MOST_WORDS - 1]
    return {word: count - cut for word, count in counts.items() if count > cut}


@dataclass(frozen=True, eq=False)
class WordTable:
    """The most frequent words of hashed features, at most two of each.

    Attributes
    ----------
    features : int64 (v,)
        Ascending; of equal ones the more frequent word stands first.
    counts : int64 (v,)
        Documents that have the word, about, of those that were looked at.
    words : tuple of str
    """

    features: NDArray[np.int64]
    counts: NDArray[np.int64]
    words: tuple[str, ...]

    @classmethod
    def of(cls, counted: Mapping[str, int], hashing: FeatureHashing) -> WordTable:
        """Find the features of counted words. O(v log v)."""
        words = sorted(word for word in counted if len(word) <= LONGEST_WORD and word.strip(NO_LETTERS))
        counts = np.array([counted[word] for word in words], np.int64)
        features = hashing.features_of(words)
        order = np.lexsort((-counts, features))  # stable: of equal counts the first of the alphabet
        features, counts = features[order], counts[order]
        first = np.flatnonzero(np.diff(features, prepend=-1))
        rank = np.arange(len(features)) - np.repeat(first, np.diff(np.append(first, len(features))))
        kept = np.flatnonzero(rank < WORDS_A_FEATURE)
        return cls(features[kept], counts[kept], tuple(words[i] for i in order[kept]))

    def __len__(self) -> int:
        return len(self.words)

    def name(self, feature: int) -> str | None:
        """The word, or both words, behind a feature; None where none is known. O(log v)."""
        at, stop = np.searchsorted(self.features, [feature, feature + 1])
        if at == stop:
            return None
        if stop - at > 1 and self.counts[at + 1] >= BOTH_SHARE * self.counts[at]:
            return f"{self.words[at]}|{self.words[at + 1]}"
        return self.words[at]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As plain arrays, named as `ARRAYS`."""
        text = np.frombuffer(json.dumps(self.words).encode(), np.uint8)
        return dict(zip(ARRAYS, (self.features, self.counts, text), strict=True))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> WordTable:
        """The inverse of `arrays`.

        Raises
        ------
        ValueError, KeyError, TypeError
            For arrays that are none of a table.
        """
        features, counts, text = (arrays[name] for name in ARRAYS)
        words = tuple(map(str, json.loads(text.tobytes())))
        if any(each.dtype != np.int64 or each.shape != (len(words),) for each in (features, counts)):
            raise ValueError("words: needed are int64 arrays of one length")
        if len(features) and (features[0] < 0 or (np.diff(features) < 0).any()):
            raise ValueError("words: features must ascend")
        return cls(features, counts, words)
