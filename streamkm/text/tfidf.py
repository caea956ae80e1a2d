"""tf-idf without a vocabulary: document frequencies of features, and the weights that follow.

Only features that occur are counted, so memory grows with the data, not with `n_features`. Reads no source.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.atomic_io import replace_file
from streamkm.core.exceptions import InvalidParameterError, ModelFileError
from streamkm.core.matrix import raw, working_dtype

_NORMS: tuple[Literal["l1", "l2"] | None, ...] = (None, "l1", "l2")


@dataclass(frozen=True, slots=True)
class Frequencies:
    """Document frequencies of features: whole numbers, which do not depend on chunks or workers."""

    n_rows: int
    features: NDArray[np.int64]  # (v,), rising: those that occur
    counts: NDArray[np.int64]  # (v,): rows that store each; at least 1

    @classmethod
    def of(cls, X: Any) -> Frequencies:
        """Counts of CSR rows, whose features are distinct within a row; stored zeros count. O(nnz log nnz)."""
        features, counts = np.unique(X.indices, return_counts=True)
        return cls(X.shape[0], features.astype(np.int64), counts.astype(np.int64))

    @classmethod
    def joined(cls, states: Sequence[Frequencies]) -> Frequencies:
        """Counts of the rows of all states, which stay unchanged. O(v log v)."""
        features, at = np.unique(np.concatenate([state.features for state in states]), return_inverse=True)
        counts = np.zeros(len(features), np.int64)
        np.add.at(counts, at, np.concatenate([state.counts for state in states]))
        return cls(sum(state.n_rows for state in states), features, counts)


@dataclass(frozen=True, eq=False)
class TfIdf:
    """Scale the entries of sparse rows by how rare their features are, then the rows to unit norm.

    ``idf(j) = log(n / df(j)) + 1``, with n and df(j) one larger if `smooth_idf`, as in scikit-learn's
    `TfidfTransformer`. A feature that no row had gets the weight of df 0 if `smooth_idf`, else of df 1.

    Parameters
    ----------
    frequencies : Frequencies
    smooth_idf, norm
        As in scikit-learn's `TfidfTransformer`.
    sublinear_tf : bool
        Put ``sign(x) * (1 + log|x|)`` in place of x; a stored 0 stays. For rows of counts, not of fractions.
    """

    frequencies: Frequencies
    smooth_idf: bool = True
    sublinear_tf: bool = False
    norm: Literal["l1", "l2"] | None = "l2"

    def __post_init__(self) -> None:
        if self.norm not in _NORMS:
            raise InvalidParameterError(f'norm={self.norm!r}; needed: "l1", "l2" or None')

    def idf(self, features: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
        """Weights of features, O(log v) each.

        Parameters
        ----------
        features : int (any,)

        Returns
        -------
        float64 (any,)
        """
        known = self.frequencies.features
        at = np.searchsorted(known, features.astype(np.int64, copy=False))
        # one entry more than there are features, for those that are not known
        at[np.append(known, -1)[at] != features] = len(known)
        df = np.append(self.frequencies.counts, 0 if self.smooth_idf else 1)[at]
        return np.log((self.frequencies.n_rows + self.smooth_idf) / (df + self.smooth_idf)) + 1.0

    def apply(self, X: Any) -> sp.csr_array:
        """Weight rows; X is not changed.

        Parameters
        ----------
        X : csr_array (v, d)

        Returns
        -------
        csr_array (v, d)
            float32 where that holds the values of X exactly, else float64.
        """
        from sklearn.preprocessing import normalize

        data = X.data.astype(np.float64)
        if self.sublinear_tf:
            size = np.abs(data)
            data = np.sign(data) * (1.0 + np.log(size, out=np.zeros_like(size), where=size > 0))
        data *= self.idf(X.indices)
        out = sp.csr_array(X.shape, dtype=np.float64)
        out.data, out.indices, out.indptr = data, X.indices, X.indptr
        if self.norm is not None and out.nnz:  # scikit-learn refuses rows that are none
            out = sp.csr_array(normalize(out, norm=self.norm, copy=False))
        return out.astype(working_dtype(X.dtype), copy=False)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write an .npz file, without pickle; readers see the old file or the whole new one.

        Parameters
        ----------
        path : path
        overwrite : bool
            Replace a file that is there, whatever it is.

        Raises
        ------
        DiskFullError, OutputError
            It exists, or cannot be written; the old file is as it was.
        """
        arrays = self.arrays()
        n_bytes = sum(array.nbytes for array in arrays.values())
        replace_file(path, lambda file: np.savez(file, **arrays), n_bytes, overwrite=overwrite)  # type: ignore[arg-type]

    def digest(self) -> str:
        """Hash of these weights."""
        found = hashlib.blake2b(digest_size=16)
        for array in self.arrays().values():
            found.update(raw(array))
        return found.hexdigest()

    def arrays(self) -> dict[str, NDArray[np.int64]]:
        """The weights as plain arrays, from which `restored` makes them again."""
        known, options = self.frequencies, [self.smooth_idf, self.sublinear_tf, _NORMS.index(self.norm)]
        arrays = {"n_rows": np.array(known.n_rows, np.int64), "features": known.features, "counts": known.counts}
        return {**arrays, "options": np.array(options, np.int64)}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TfIdf:
        """Read what `save` wrote.

        Raises
        ------
        ModelFileError
            If the file is damaged or something else.
        """
        try:
            with open(path, "rb") as stored, np.load(stored, allow_pickle=False) as file:
                return cls.restored(file)
        except FileNotFoundError:
            raise
        except (OSError, ValueError, KeyError, TypeError, IndexError, EOFError, zipfile.BadZipFile) as error:
            raise ModelFileError(f"{path}: no saved document frequencies: {error}") from error

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]]) -> TfIdf:
        """Restore weights from `arrays` of any content. Raises ValueError, KeyError, TypeError, IndexError."""
        n_rows, options = int(arrays["n_rows"]), arrays["options"]
        features, counts = (arrays[name].astype(np.int64, casting="safe") for name in ("features", "counts"))
        (smooth, logs), norm = map(bool, options[:2]), _NORMS[int(options[2])]
        fits = features.ndim == 1 and features.shape == counts.shape and (np.diff(features, prepend=-1) > 0).all()
        if not fits or (counts < 1).any() or (counts > n_rows).any():
            raise ValueError("features must rise, with a count of 1 to n_rows each")
        return cls(Frequencies(n_rows, features, counts), smooth_idf=smooth, sublinear_tf=logs, norm=norm)
