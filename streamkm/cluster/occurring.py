"""The features that occur in wide sparse rows, as the columns of narrower ones.

Hashed words have 2^20 features, of which short texts use a few thousand: centers hold those alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.cluster.normalization import Normalization
from streamkm.core.matrix import Matrix, as_working

FEWEST_FEATURES = 1 << 16  # of rows whose features are counted: for narrower ones that takes longer than it saves
MOST_OCCUR = 0.5  # share of the features that occur, from which all are kept
MOST_COUNTED = 1 << 26  # features of which those that occur are kept: users see one number for each of all of them
TABLE_SHARE = 16  # features for each stored entry, up to which a table of all of them is made


def occurring_bits(X: Matrix) -> NDArray[np.uint8] | None:
    """A bit for each feature, set if CSR rows have entries; None for dense rows and above `MOST_COUNTED` features."""
    if isinstance(X, np.ndarray) or X.shape[1] > MOST_COUNTED:
        return None
    return np.packbits(_seen(X))


def _seen(X: sp.csr_array) -> NDArray[np.bool_]:
    """Mask (d,) of the features that have entries."""
    seen = np.zeros(X.shape[1], np.bool_)
    seen[X.indices] = True
    return seen


@dataclass(slots=True, eq=False)
class Occurring:
    """The features that occur in the chunks of a pass; chunks may be narrower than others."""

    # uint8 or None, a bit for each feature. None: not known, as where a chunk was not read whole
    bits: NDArray[np.uint8] | None = field(default_factory=lambda: np.zeros(0, np.uint8))

    def add(self, bits: NDArray[np.uint8] | None) -> None:
        """Take note of a chunk."""
        if bits is None or self.bits is None:
            self.bits = None
            return
        if len(bits) > len(self.bits):
            self.bits = np.append(self.bits, np.zeros(len(bits) - len(self.bits), np.uint8))
        self.bits[: len(bits)] |= bits

    def columns(self, n_features: int) -> Columns | None:
        """The features that occur, if they are known and few of all."""
        if self.bits is None:
            return None
        return Columns.few(np.flatnonzero(np.unpackbits(self.bits)), n_features)


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The features that occur in rows, and a last column for the length of the rest of a row.

    Centers have 0 in the last column, so distances and labels stay the same.
    """

    occurring: NDArray[np.int64]  # (u,): features, ascending
    n_features: int  # d

    @classmethod
    def of(cls, X: Matrix) -> Columns | None:
        """The features with entries in CSR rows; None for dense or narrow rows, and if most features occur."""
        n_features = X.shape[1]
        if isinstance(X, np.ndarray) or n_features < FEWEST_FEATURES:
            return None
        if n_features > TABLE_SHARE * len(X.indices):
            return cls.few(np.unique(X.indices).astype(np.int64), n_features)
        return cls.few(np.flatnonzero(_seen(X)), n_features)

    @classmethod
    def few(cls, occurring: NDArray[np.int64], n_features: int) -> Columns | None:
        """These features, ascending; None if rows are narrow or too wide, and if most features occur."""
        counted = FEWEST_FEATURES <= n_features <= MOST_COUNTED
        if not counted or len(occurring) > MOST_OCCUR * n_features:
            return None
        return cls(occurring, n_features)

    @property
    def n_columns(self) -> int:
        """Columns of narrow rows: u + 1."""
        return len(self.occurring) + 1

    def narrow(self, X: Matrix) -> Matrix:
        """Rows (n, at most d) as rows (n, u + 1)."""
        if isinstance(X, np.ndarray):
            return self.narrow(sp.csr_array(as_working(X))).toarray()  # type: ignore[union-attr]
        places = self._places(X.indices)
        inside = places < len(self.occurring)
        if inside.all():
            return sp.csr_array((X.data, places, X.indptr), shape=(X.shape[0], self.n_columns))
        data = as_working(X.data)
        rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
        others = np.bincount(rows[~inside], np.square(data[~inside], dtype=np.float64), minlength=X.shape[0])
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[inside], minlength=X.shape[0]))])
        known = sp.csr_array((data[inside], places[inside], indptr), shape=(X.shape[0], len(self.occurring)))
        lengths = sp.csr_array(np.sqrt(others)[:, None].astype(data.dtype))
        return sp.csr_array(sp.hstack([known, lengths], format="csr"))

    def wide(self, points: NDArray[Any]) -> NDArray[Any]:
        """Points (k, u + 1), 0 in the last column, with all features (k, d)."""
        out = np.zeros((len(points), self.n_features), points.dtype)
        out[:, self.occurring] = points[:, :-1]
        return out

    def wide_rows(self, X: Matrix) -> sp.csr_array:
        """Rows or points (n, u + 1), 0 in the last column, as CSR rows of all features (n, d)."""
        X = sp.csr_array(X[:, :-1]) if isinstance(X, np.ndarray) else X
        index = np.int32 if self.n_features <= np.iinfo(np.int32).max else np.int64
        return sp.csr_array((X.data, self.occurring[X.indices].astype(index), X.indptr), (X.shape[0], self.n_features))

    def normalization(self, whole: Normalization) -> Normalization:
        """The normalization for narrow rows that matches one for rows with all features."""
        if not len(whole.origin):
            return whole
        return Normalization(np.append(whole.origin[self.occurring], 0.0), whole.scale)

    def _places(self, features: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
        """Columns of features (e,)."""
        n_occurring = len(self.occurring)
        if self.n_features > TABLE_SHARE * len(features):
            places = np.searchsorted(self.occurring, features).astype(np.int32)
            found = self.occurring[np.minimum(places, n_occurring - 1)] == features if n_occurring else False
            return np.where(found, places, np.int32(n_occurring))
        table = np.full(self.n_features, n_occurring, np.int32)
        table[self.occurring] = np.arange(n_occurring, dtype=np.int32)
        return table[features]
