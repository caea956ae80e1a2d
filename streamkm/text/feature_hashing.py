"""Feature hashing: documents, lists of tokens and dicts to sparse rows, with no vocabulary.

Tokens, n-grams and hashes are scikit-learn's (`HashingVectorizer`, `FeatureHasher`), for Dask bags dask-ml's around
them; this module says which of them a value needs, and what is wrong with a document. Opens no file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidParameterError, MissingDependencyError
from streamkm.text.bad_documents import KINDS, check_kinds, first_bad
from streamkm.text.seeds import analyzed_behind_seed, behind_seed, check_hash_seed, document_behind_seed

Input = Literal["text", "tokens", "counts"]


def _names(document: Mapping[str, Any]) -> Iterable[str]:
    """What a mapping is hashed by: names, or ``name=value`` for values that are text."""
    return (f"{name}={value}" if isinstance(value, str) else name for name, value in document.items())


_NAMES: dict[str, Callable[[Any], Iterable[str]]] = {"tokens": iter, "counts": _names}


@dataclass(frozen=True, kw_only=True)
class FeatureHashing:
    r"""Map documents to sparse rows: feature ``hash(token) % n_features``, value the token's signed count.

    A row depends on its document alone, so documents can be hashed in any order, on any machine, and new ones later.
    With ``alternate_sign`` squared distances are unbiased, and their relative standard deviation is at most
    ``sqrt(2 / n_features)`` [1]_; the objective of a partition, a sum of squared distances to means, inherits both:
    hashing distorts it by an additive term that shrinks as `n_features` grows [2]_.

    Parameters
    ----------
    n_features : int, default=2**20
        Columns, below ``2**31 - 1``. Nothing of that size is held here; centers are of that width, so for many
        clusters 2**18 takes a quarter of the memory and time.
    input : {"text", "tokens", "counts"}, default="text"
        What a document is: a str; a list of str; a mapping of str to numbers, where a str in place of a number stands
        for the feature ``name=value`` once.
    alternate_sign : bool, default=True
        Whether half of the tokens count negative, so that collisions cancel on average.
    binary : bool, default=False
        Whether every stored value becomes 1.
    norm : {"l2", "l1", None}, default="l2"
        To what norm rows are scaled.
    analyzer, ngram_range, lowercase, strip_accents, stop_words
        Of texts, as in scikit-learn's `HashingVectorizer`. `analyzer` is a name; `stop_words` "english", a tuple, or
        None. Words have two letters or digits and more, as there.
    dtype : {"float32", "float64"}, default="float32"
    seed : int, default=0
        From 0 to ``2**64 - 1``: which hash. Theorems hold for all but a share of hashes. 0 is scikit-learn's; for
        others every word is hashed behind the seed's digits.

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
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        from sklearn.utils._param_validation import InvalidParameterError as Refused

        if self.input not in KINDS:
            raise InvalidParameterError(f'input={self.input!r}; needed: "text", "tokens" or "counts"')
        check_hash_seed(self.seed)
        if self.dtype not in ("float32", "float64"):
            raise InvalidParameterError(f'dtype={self.dtype!r}; needed: "float32" or "float64"')
        if self.analyzer not in ("word", "char", "char_wb"):
            raise InvalidParameterError(f'analyzer={self.analyzer!r}; needed: "word", "char" or "char_wb"')
        try:
            self._vectorizer(_sklearn().HashingVectorizer).fit([]).build_analyzer()
        except (Refused, ValueError, TypeError) as error:
            raise InvalidParameterError(str(error)) from None

    def apply(self, documents: Sequence[Any]) -> sp.csr_array:
        """Hash documents.

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
            Naming the first document that is none.

        Notes
        -----
        O(characters), in one thread: scikit-learn tokenizes in Python, which holds the interpreter's lock.
        """
        return self._hashed(documents, self._transform)

    def apply_and_count(
        self, documents: Sequence[Any], looked_at: NDArray[np.bool_]
    ) -> tuple[sp.csr_array, dict[str, int]]:
        """As `apply`, and in how many of some documents each word occurs: word, n-gram, token, or name.

        Parameters
        ----------
        documents : as for `apply`
        looked_at : bool (documents,)
            Whose words are counted. Documents are cut into words once, counted or not.
        """
        counts: Counter[str] = Counter()
        words_of = self._analyzer() if self.input == "text" else _NAMES[self.input]
        strings = self._string_hasher("string")

        def transform(given: Sequence[Any]) -> Any:
            if self.input != "text":
                for document, counted in zip(given, looked_at, strict=False):
                    if counted:
                        counts.update(set(words_of(document)))
                return self._transform(given)

            def tokens() -> Iterator[Any]:
                for document, counted in zip(given, looked_at, strict=False):
                    words = words_of(document)
                    if counted:
                        counts.update(set(words))
                    yield behind_seed(words, self.seed)

            return self._scaled(strings.transform(tokens()))

        return self._hashed(documents, transform), dict(counts)

    def features_of(self, words: Sequence[str]) -> NDArray[np.int64]:
        """The features of words, n-grams, tokens or names, hashed as they stand (words,)."""
        if not len(words):
            return np.empty(0, np.int64)
        plain = _sklearn().FeatureHasher(self.n_features, input_type="string", alternate_sign=False)
        return np.asarray(plain.transform((word,) for word in behind_seed(words, self.seed)).indices, np.int64)

    def _hashed(self, documents: Sequence[Any], transform: Callable[[Sequence[Any]], Any]) -> sp.csr_array:
        """What `transform` makes of documents, which are checked; see `apply`."""
        check_kinds(documents, self.input)
        if not len(documents):
            return sp.csr_array((0, self.n_features), dtype=self.dtype)
        try:
            X = transform(documents)
        except (TypeError, ValueError, AttributeError):
            raise first_bad(documents, self._transform) from None
        return self.finish(X)

    def finish(self, X: Any) -> sp.csr_array:
        """Do to counts what hashing alone does not: `binary`, `norm` and dtype. X may be changed."""
        X = X.astype(self.dtype, copy=False)
        return sp.csr_array(X if self.input == "text" else self._scaled(X))  # the vectorizer of texts does it itself

    def _scaled(self, X: Any) -> Any:
        """Do `binary` and `norm` to counts; X may be changed."""
        from sklearn.preprocessing import normalize

        if self.binary:
            X.data.fill(1)
        return X if self.norm is None else normalize(X, norm=self.norm, copy=False)

    def apply_to_bag(self, bag: Any) -> Any:
        """Hash a Dask bag of documents through dask-ml, lazily.

        Parameters
        ----------
        bag : dask.bag.Bag

        Returns
        -------
        dask.array.Array of shape (unknown, n_features)
            Of csr_array blocks, one a partition.

        Raises
        ------
        MissingDependencyError
            If dask-ml is not installed.
        """
        try:
            from dask_ml.feature_extraction import text
        except ImportError as error:
            raise MissingDependencyError("hashing Dask bags needs dask-ml; install streamkm[text]") from error
        hashed = self._hasher(text).transform(bag if self.input == "text" else bag.map(document_behind_seed, self.seed))
        return hashed.map_blocks(self.finish, dtype=self.dtype, meta=sp.csr_array((0, 0), dtype=self.dtype))

    def _transform(self, documents: Sequence[Any]) -> Any:
        """Counts of documents, in scikit-learn's types."""
        given: Iterable[Any] = documents
        if self.seed and self.input != "text":
            given = (document_behind_seed(document, self.seed) for document in documents)
        return self._hasher(_sklearn()).transform(given)

    def _analyzer(self) -> Callable[[str], list[str]]:
        """What cuts a text into words, n-grams or characters."""
        analyzer: Callable[[str], list[str]] = self._plain(_sklearn().HashingVectorizer).build_analyzer()
        return analyzer

    def _hasher(self, module: Any) -> Any:
        """Make the hasher that `input` needs, of scikit-learn's module or dask-ml's."""
        if self.input == "text":
            return self._vectorizer(module.HashingVectorizer)
        return self._string_hasher("string" if self.input == "tokens" else "dict", module)

    def _string_hasher(self, input_type: str, module: Any = None) -> Any:
        """Make the hasher of lists of words or mappings; of scikit-learn's module unless given."""
        return (module or _sklearn()).FeatureHasher(
            self.n_features, input_type=input_type, dtype=np.dtype(self.dtype), alternate_sign=self.alternate_sign
        )

    def _vectorizer(self, vectorizer: Any) -> Any:
        if not self.seed:
            return self._plain(vectorizer, **self._counting())
        return vectorizer(analyzer=partial(analyzed_behind_seed, self._analyzer(), self.seed), **self._counting())

    def _counting(self) -> dict[str, Any]:
        """What a vectorizer does to words, whatever they are."""
        return {
            "n_features": self.n_features,
            "binary": self.binary,
            "norm": self.norm,
            "alternate_sign": self.alternate_sign,
            "dtype": np.dtype(self.dtype),
        }

    def _plain(self, vectorizer: Any, **counting: Any) -> Any:
        return vectorizer(
            strip_accents=self.strip_accents,
            lowercase=self.lowercase,
            stop_words=list(self.stop_words) if isinstance(self.stop_words, tuple) else self.stop_words,
            ngram_range=tuple(self.ngram_range),
            analyzer=self.analyzer,
            **counting,
        )


def _sklearn() -> Any:
    from sklearn.feature_extraction import text

    return text
