"""The words behind hashed features: a bounded table of frequent words, counted while documents are hashed.

Counting knows no features; `WordTable` finds them at the end. Opens no file.
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
LONGEST_WORD = 64  # characters; longer ones name nothing,
NO_LETTERS = string.punctuation + string.whitespace  # nor do those of nothing else
ARRAYS = ("word_features", "word_list")


def joined_counts(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    """Document frequencies of words in two sets of documents, at most `MOST_WORDS`: frequent words are never lost.

    Counts are too low by at most ``documents * words a document / MOST_WORDS``, and depend only on the order of joins.
    Misra and Gries, "Finding repeated elements", Sci. Comput. Program. 2 (1982); joins as in Agarwal, Cormode, Huang,
    Phillips, Wei and Yi, "Mergeable summaries", PODS 2012, section 3.1.
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
    """The most frequent word of each hashed feature."""

    features: NDArray[np.int64]  # (v,), ascending
    words: tuple[str, ...]

    @classmethod
    def of(cls, counted: Mapping[str, int], hashing: FeatureHashing) -> WordTable:
        """Find the features of counted words. O(v log v)."""
        words = sorted(word for word in counted if len(word) <= LONGEST_WORD and word.strip(NO_LETTERS))
        words.sort(key=counted.__getitem__, reverse=True)  # stable: of equal counts the first of the alphabet
        features, first = np.unique(hashing.features_of(words), return_index=True)
        return cls(features, tuple(words[i] for i in first))

    def __len__(self) -> int:
        return len(self.words)

    def name(self, feature: int) -> str | None:
        """The most frequent word behind a feature; None if none is known. O(log v)."""
        at = int(np.searchsorted(self.features, feature))
        return self.words[at] if at < len(self) and self.features[at] == feature else None

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Plain arrays, named as in `ARRAYS`."""
        text = np.frombuffer(json.dumps(self.words).encode(), np.uint8)
        return dict(zip(ARRAYS, (self.features, text), strict=True))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> WordTable:
        """Restore a table from `arrays`. Raises ValueError, KeyError or TypeError for other arrays."""
        features, text = (arrays[name] for name in ARRAYS)
        words = tuple(map(str, json.loads(text.tobytes())))
        if features.dtype != np.int64 or features.shape != (len(words),) or (np.diff(features, prepend=-1) < 1).any():
            raise ValueError("words: needed are int64 features that ascend, and a word for each")
        return cls(features, words)
