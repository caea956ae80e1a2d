"""Words behind a seed: another hash of the same words, by scikit-learn's hasher.

A theorem about hashing holds for all but a share of hashes. scikit-learn's hashers have one seed; a prefix of every
word makes another hash of theirs. Seed 0 leaves words as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from streamkm.core.exceptions import InvalidParameterError


def check_hash_seed(seed: Any) -> None:
    """Refuse what is no integer from 0 to 2^64 - 1."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 64:
        raise InvalidParameterError(f"seed={seed!r}; needed: an integer from 0 to 2^64 - 1")


def behind_seed(words: Iterable[Any], seed: int) -> Iterable[Any]:
    """Words, texts or bytes, behind the seed's digits and a zero byte; as they are for 0."""
    if not seed:
        return words
    text = f"{seed}\0"
    return [text.encode() + word if isinstance(word, bytes) else text + word for word in words]


def document_behind_seed(document: Any, seed: int) -> Any:
    """A list of tokens, or a mapping of names, whose words are behind the seed."""
    if not seed:
        return document
    words = behind_seed(document, seed)
    return dict(zip(words, document.values(), strict=True)) if hasattr(document, "values") else words


def analyzed_behind_seed(analyzer: Callable[[str], list[str]], seed: int, text: str) -> Iterable[str]:
    """The words that an analyzer cuts a text into, behind the seed."""
    return behind_seed(analyzer(text), seed)
