"""Feature hashing: documents, lists of tokens and dicts to sparse rows, without a vocabulary.

Tokens, n-grams and hashes are those of scikit-learn's `HashingVectorizer` and `FeatureHasher`; a seed is a prefix of
every word, so each seed gives another hash. Opens no file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError

Input = Literal["text", "tokens", "counts"]
# by `input` of `FeatureHashing`: types of a document, and what errors call it
KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "text": ((str,), "a text"),
    "tokens": ((list, tuple), "a list of tokens"),
    "counts": ((Mapping,), "a mapping of names to numbers"),
}
_KNOWN = {"input": tuple(KINDS), "dtype": ("float32", "float64"), "analyzer": ("word", "char", "char_wb")}


class BadDocumentError(InvalidInputError):
    """A document that cannot be hashed: its number among the given ones (`row`, from 0), and the `problem`."""

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(f"document {row:,}: {problem}")
        self.row, self.problem = row, problem


def kind_remedy(document: Any, otherwise: str) -> str:
    """The `input` that fits a document, as the end of a message; `otherwise` if none fits."""
    fitting = next((name for name, (types, _) in KINDS.items() if isinstance(document, types)), None)
    return f'; pass FeatureHashing(input="{fitting}")' if fitting else f"; {otherwise}"


@dataclass(frozen=True, kw_only=True)
class FeatureHashing:
    r"""Map documents to sparse rows: feature ``hash(token) % n_features``, value the token's signed count.

    A row depends only on its document, so documents can be hashed in any order, on any machine, and new ones later.
    With ``alternate_sign`` squared distances are unbiased, and their relative standard deviation is at most ``sqrt(2 /
    n_features)`` [1]_; the objective of a partition inherits both: hashing distorts it by an additive term that shrinks
    as `n_features` grows [2]_.

    Parameters
    ----------
    n_features : int, default=2**20
        Columns, below ``2**31 - 1``. Rows do not need memory for all of them, but centers do: for many clusters
        2**18 takes a quarter of the memory and time.
    input : {"text", "tokens", "counts"}, default="text"
        The kind of document: a str; a list of str; a mapping of str to numbers, where a str in place of a number
        stands for the feature ``name=value`` once.
    alternate_sign : bool, default=True
        Whether half of the tokens count negative, so that collisions cancel on average.
    binary : bool, default=False
        Whether every stored value becomes 1.
    norm : {"l2", "l1", None}, default="l2"
        Norm to which rows are scaled.
    analyzer, ngram_range, lowercase, strip_accents, stop_words
        For texts, as in scikit-learn's `HashingVectorizer`. `analyzer` is a name; `stop_words` "english", a tuple, or
        None. Words have at least two letters or digits.
    dtype : {"float32", "float64"}, default="float32"
    seed : int, default=0
        Chooses the hash, from 0 to ``2**64 - 1``. 0 is scikit-learn's; for others every word is hashed behind the
        seed's digits. The bounds hold for all but a share of hashes.

    Raises
    ------
    InvalidParameterError
        For a value that is not accepted.

    References
    ----------
    .. [1] Weinberger, Dasgupta, Langford, Smola and Attenberg, "Feature Hashing for Large Scale Multitask Learning",
       ICML 2009, Lemma 2.
    .. [2] Senuma, "K-means Clustering with Feature Hashing", ACL Student Session 2011.

    Examples
    --------
    >>> from streamkm.text import FeatureHashing
    >>> FeatureHashing(n_features=8, norm=None).apply(["red fish blue fish"]).toarray().tolist()
    [[0.0, 0.0, 0.0, -1.0, 0.0, -1.0, 0.0, 2.0]]
    """

    n_features: int = 1 << 20
    input: Input = "text"
    alternate_sign: bool = True
    binary: bool = False
    norm: Literal["l1", "l2"] | None = "l2"
    analyzer: Literal["word", "char", "char_wb"] = "word"
    ngram_range: tuple[int, int] = (1, 1)
    lowercase: bool = True
    strip_accents: Literal["ascii", "unicode"] | None = None
    stop_words: Literal["english"] | tuple[str, ...] | None = None
    dtype: Literal["float32", "float64"] = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        from sklearn.utils._param_validation import InvalidParameterError as Refused

        for name, known in _KNOWN.items():
            if (value := getattr(self, name)) not in known:
                raise InvalidParameterError(f"{name}={value!r}; needed: {' or '.join(map(repr, known))}")
        if type(self.seed) is not int or not 0 <= self.seed < 1 << 64:
            raise InvalidParameterError(f"seed={self.seed!r}; needed: an integer from 0 to 2^64 - 1")
        try:
            self._analyzer()
        except (Refused, ValueError, TypeError) as error:
            raise InvalidParameterError(str(error)) from None

    def apply(self, documents: Sequence[Any]) -> sp.csr_array:
        """Hash documents, in one thread: scikit-learn tokenizes in Python. O(characters).

        Parameters
        ----------
        documents : sequence of str, of lists of str, or of mappings, as `input` says

        Returns
        -------
        csr_array of shape (documents, n_features)
            32-bit indices, rising and distinct in a row. Tokens that cancel each other leave a stored 0.

        Raises
        ------
        BadDocumentError
            Naming the first document of another kind.
        """
        types, wanted = KINDS[self.input]
        for row, document in enumerate(documents):
            if not isinstance(document, types):
                problem = f'{type(document).__name__} where input="{self.input}" needs {wanted}'
                raise BadDocumentError(row, problem + kind_remedy(document, "leave such documents out"))
        try:
            return self._hashed(documents)
        except (TypeError, ValueError, AttributeError):
            for row, document in enumerate(documents):
                try:
                    self._hashed([document])
                except (TypeError, ValueError, AttributeError) as error:
                    raise BadDocumentError(row, f"it cannot be hashed: {error}") from None
            raise

    def features_of(self, words: Sequence[str]) -> NDArray[np.int64]:
        """The features of words, n-grams, tokens or names, hashed as they stand (words,)."""
        if not len(words):
            return np.empty(0, np.int64)
        rows = self._hasher("string", False).transform((word,) for word in self._behind_seed(words))
        return np.asarray(rows.indices, np.int64)

    def count_words(self, documents: Iterable[Any]) -> Counter[str]:
        """Document frequencies of words, n-grams, tokens or names."""
        words_of: Any = {"text": self._analyzer(), "tokens": tuple, "counts": _names}[self.input]
        return Counter(chain.from_iterable(set(words_of(document)) for document in documents))

    def _hashed(self, documents: Sequence[Any]) -> sp.csr_array:
        from sklearn.preprocessing import normalize

        if not len(documents):
            return sp.csr_array((0, self.n_features), dtype=self.dtype)
        words_of, is_map = self._analyzer() if self.input == "text" else None, self.input == "counts"

        def hashable() -> Iterator[Any]:
            for document in documents:
                words = self._behind_seed(document if words_of is None else words_of(document))
                yield dict(zip(words, document.values(), strict=True)) if is_map and self.seed else words

        X = self._hasher("dict" if is_map else "string", self.alternate_sign).transform(hashable())
        if self.binary:
            X.data.fill(1)
        if self.norm is not None:
            X = normalize(X, norm=self.norm, copy=False)
        return sp.csr_array(X)

    def _behind_seed(self, words: Iterable[Any]) -> Iterable[Any]:
        """Words, texts or bytes, behind the seed's digits and a zero byte; unchanged for seed 0."""
        if not self.seed:
            return words
        text = f"{self.seed}\0"
        return [text.encode() + word if isinstance(word, bytes) else text + word for word in words]

    def _hasher(self, input_type: str, alternate_sign: bool) -> Any:
        """scikit-learn's hasher of lists of words or of mappings."""
        from sklearn.feature_extraction import FeatureHasher

        return FeatureHasher(
            self.n_features, input_type=input_type, dtype=np.dtype(self.dtype), alternate_sign=alternate_sign
        )

    def _analyzer(self) -> Callable[[str], list[str]]:
        """scikit-learn's function that cuts a text into words, n-grams or characters; its errors for bad parameters."""
        from sklearn.feature_extraction.text import HashingVectorizer

        names = "n_features norm alternate_sign binary strip_accents lowercase stop_words ngram_range analyzer"
        options = {name: getattr(self, name) for name in names.split()}
        words = list(self.stop_words) if isinstance(self.stop_words, tuple) else self.stop_words
        vectorizer = HashingVectorizer(**options | {"stop_words": words, "ngram_range": tuple(self.ngram_range)})
        analyzer: Callable[[str], list[str]] = vectorizer.fit([]).build_analyzer()
        return analyzer


def _names(document: Mapping[str, Any]) -> Iterable[str]:
    """Names of a mapping's features: ``name=value`` for a value that is text."""
    return (f"{name}={value}" if isinstance(value, str) else name for name, value in document.items())
