"""bfloat16: the upper halves of float32 values, which NumPy has no type for.

Responsible for telling arrays of such values from others and for reading 16-bit words as these values. Needs neither
ml_dtypes nor PyTorch. Knows no file format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.sources.base import ChunkedSource, Rows, RowSource
from streamkm.sources.chunks import Chunk, chunk_runs

BFLOAT16 = "bfloat16"
"""What `dtype=` says of 16-bit words that are such values, and what types of other packages are called."""


class Bfloat16Source(ChunkedSource):
    """Rows of 16-bit words as the float32 values that they are the upper halves of.

    `words`: dense, of uint16. Raises InvalidInputError for rows that are no such words.
    """

    def __init__(self, words: RowSource) -> None:
        if words.is_sparse or words.dtype != np.uint16 or not isinstance(words, ChunkedSource):
            kind = "sparse" if words.is_sparse else "dense"
            raise InvalidInputError(
                f"{words.name} holds {kind} rows of {words.dtype}; dtype={BFLOAT16!r} is for dense ones of 16-bit "
                f"words (uint16), which are read as such values; leave it out"
            )
        self._words = words
        # words and values are there together
        self.take_after(words, dtype=np.dtype(np.float32), stored_dtype=None, read_factor=words.read_factor / 2 + 1)

    def details(self) -> dict[str, str]:
        """Say how the rows are stored; see `RowSource.details`."""
        return {**self._words.details(), "values": f"16-bit words, read as {BFLOAT16}"}

    def describe(self, place: int) -> str:
        """Say where a row is; see `RowSource.describe`."""
        return self._words.describe(place)

    def chunks(self, target_bytes: int) -> Sequence[Chunk]:
        """Cut as the words are; see `ChunkedSource.chunks`."""
        return chunk_runs(self._words.chunks(max(1, target_bytes // 2))).resized(lambda n_bytes: 2 * n_bytes)

    def read(self, chunk: Chunk) -> Rows:
        """Read one chunk; see `ChunkedSource.read`."""
        rows = self._words.read(chunk)
        return Rows(as_float32(np.asarray(rows.X)), rows.places)


def as_float32(words: NDArray[Any]) -> NDArray[np.float32]:
    """Values of 16-bit words of bfloat16, exactly."""
    wide = words.astype(np.uint32)
    wide <<= np.uint32(16)
    return wide.view(np.float32)


def check_said(dtype: str | None, name: str) -> None:
    """Refuse a `dtype` of files that say themselves what they hold, unless it is what they cannot say.

    Raises InvalidParameterError.
    """
    if dtype not in (None, BFLOAT16):
        raise InvalidParameterError(
            f"dtype={dtype!r} does not apply to {name}, which is read in the type that it has; the only one that such "
            f"data cannot say themselves is {BFLOAT16!r}"
        )


def is_bfloat16(X: Any) -> bool:
    """Whether an array or tensor is of such values, by the name of its type; imports nothing."""
    return str(getattr(X, "dtype", "")) in (BFLOAT16, f"torch.{BFLOAT16}")


def words_of(X: Any) -> Any:
    """The 16-bit words of an array or tensor of such values, in the same memory."""
    if not hasattr(X, "detach"):  # of NumPy, or what becomes one of its arrays, such as JAX's
        return np.asarray(X).view(np.uint16)
    import torch

    return X.detach().cpu().view(torch.uint16).numpy()


def word_dtype(stored: np.dtype[Any], name: str) -> np.dtype[Any]:
    """How words of a stored type are read that was said to be bfloat16: two bytes, which NumPy calls V2, or uint16.

    Raises InvalidInputError for other types.
    """
    if stored.kind == "V" and stored.itemsize == 2 and stored.names is None:
        return np.dtype("<u2")
    if stored.kind == "u" and stored.itemsize == 2:
        return stored
    raise InvalidInputError(f"{name} holds {stored}, not {BFLOAT16} (V2 or uint16); leave dtype={BFLOAT16!r} out")
