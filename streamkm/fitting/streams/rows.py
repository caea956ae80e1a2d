"""Rows of a stream that wait for their part to be complete, sums over all rows, and how arrays of a file hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.cluster.sampling.row_sample import stacked
from streamkm.core.matrix import Matrix

CSR_ARRAYS = ("data", "indices", "indptr")


@dataclass(frozen=True, slots=True)
class Totals:
    """Exact sums over all rows of a stream."""

    n_rows: int  # rows, those without weight included
    weight: float  # their weight; as of the newest row where weights decay
    sums: NDArray[np.float64]  # (d,): weighted sum of the rows
    last_place: int  # place of the newest row

    def plus(self, other: Totals, half_life: float) -> Totals:
        """Both together; sums may differ in width."""
        last = max(self.last_place, other.last_place)
        sums = np.zeros(max(len(self.sums), len(other.sums)))
        weight = 0.0
        for each in (self, other):
            fade = float(np.exp2((each.last_place - last) / half_life))
            sums[: len(each.sums)] += fade * each.sums
            weight += fade * each.weight
        return Totals(self.n_rows + other.n_rows, weight, sums, last)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows that wait for their part to be complete."""

    X: Matrix
    places: NDArray[np.int64]
    weights: NDArray[np.float64]


def together(pieces: list[Piece]) -> Piece:
    """Rows of several pieces in the order of their places."""
    if len(pieces) == 1:
        return pieces[0]
    places = np.concatenate([piece.places for piece in pieces])
    weights = np.concatenate([piece.weights for piece in pieces])
    X = stacked([piece.X for piece in pieces])
    if pieces[0].places[-1] < pieces[-1].places[0]:
        return Piece(X, places, weights)
    order = np.argsort(places, kind="stable")
    return Piece(X[order], places[order], weights[order])


def pack_piece(
    arrays: dict[str, NDArray[Any]], prefix: str, piece: Piece, keys: NDArray[np.float64] | None = None
) -> None:
    """Put rows among the arrays."""
    arrays[prefix + "places"], arrays[prefix + "weights"] = piece.places, piece.weights
    if keys is not None:
        arrays[prefix + "keys"] = keys
    if isinstance(piece.X, np.ndarray):
        arrays[prefix + "X"] = piece.X
    else:
        for name in CSR_ARRAYS:
            arrays[prefix + name] = getattr(piece.X, name)


def unpack_piece(arrays: dict[str, NDArray[Any]], prefix: str, width: int) -> Piece:
    """Rows out of the arrays; any bytes may stand there, and kernels trust shapes and indices."""
    places, weights = arrays[prefix + "places"], arrays[prefix + "weights"]
    n_rows = len(places)
    if places.dtype != np.int64 or weights.dtype != np.float64 or places.shape != weights.shape or places.ndim != 1:
        raise ValueError(f"places of {places.dtype} {places.shape}, weights of {weights.dtype} {weights.shape}")
    if prefix + "X" in arrays:
        X = arrays[prefix + "X"]
        if X.shape != (n_rows, width) or not np.issubdtype(X.dtype, np.number):
            raise ValueError(f"rows of {X.dtype} {X.shape}; needed: numbers ({n_rows}, {width})")
        return Piece(X, places, weights)
    data, indices, indptr = (arrays[prefix + name] for name in CSR_ARRAYS)
    X = sp.csr_array((data, indices, indptr), shape=(n_rows, width))
    X.check_format(full_check=True)
    return Piece(X, places, weights)
