"""Documents that cannot be hashed: which one, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streamkm.core.exceptions import InvalidInputError

KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "text": ((str,), "a text"),
    "tokens": ((list, tuple), "a list of tokens"),
    "counts": ((Mapping,), "a mapping of names to numbers"),
}
"""Types of a document, by the `input` of `FeatureHashing`, and what they are called."""


class BadDocumentError(InvalidInputError):
    """A document that cannot be hashed.

    Attributes
    ----------
    row : int
        Which of those given, from 0.
    problem : str
    """

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(f"document {row:,}: {problem}")
        self.row, self.problem = row, problem


def check_kinds(documents: Sequence[Any], kind: str) -> None:
    """Refuse documents of another kind.

    Raises
    ------
    BadDocumentError
        Naming the first one.
    """
    kinds, wanted = KINDS[kind]
    for row, document in enumerate(documents):
        if not isinstance(document, kinds):
            fitting = next((name for name, (others, _) in KINDS.items() if isinstance(document, others)), None)
            remedy = f'; pass FeatureHashing(input="{fitting}")' if fitting else "; leave such documents out"
            raise BadDocumentError(row, f'{type(document).__name__} where input="{kind}" needs {wanted}{remedy}')


def first_bad(documents: Sequence[Any], transform: Callable[[Sequence[Any]], Any]) -> BadDocumentError:
    """Find which of some documents cannot be hashed; one at a time, for messages only."""
    for row, document in enumerate(documents):
        try:
            transform([document])
        except (TypeError, ValueError, AttributeError) as error:
            return BadDocumentError(row, f"it cannot be hashed: {error}")
    raise AssertionError("documents that can be hashed one by one can be hashed together")
