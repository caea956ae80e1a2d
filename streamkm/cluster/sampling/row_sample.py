"""The row sample: original rows, kept while the data are sketched.

The rows whose row ids hash lowest are a uniform sample that depends on the source and a seed alone, not on chunks,
workers or timing. In order of their hashes, every prefix of the sample is a uniform sample too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.cluster.rows import NO_WEIGHTS, Block, row_d2norms, rows_by_label
from streamkm.core.matrix import Matrix, rows_between, working_dtype
from streamkm.engine import Executor
from streamkm.kernels.cluster.label_order import place_rows
from streamkm.kernels.cluster.totals import weighted_sum
from streamkm.kernels.intrinsics.hashing import hash_integers
from streamkm.kernels.sketch.bucket_sums import merged_d2norms
from streamkm.sketches.base_sketch import Sketch

PIECE_ROWS = 8192  # of the sample, sketched by one call, at most
FEWEST_CANDIDATES = 64  # of a chunk
SPARE = 1.5  # candidates expected for each place in the sample


@dataclass(frozen=True, slots=True)
class SampleRule:
    """The choice of the rows with the lowest keys.

    With u the hash of a row's place in (0, 1), its key is u, or ``-log(1 - u) / w`` for weight w: rows are then drawn
    in proportion to weight, and never at weight 0.

    References: Efraimidis and Spirakis, "Weighted random sampling with a reservoir", Inf. Process. Lett. 97 (2006),
    section 3.
    """

    size: int  # rows at most
    seed: int  # of the hash of row ids
    limit: float  # only keys below it are candidates: that keeps them few where the number of rows is known

    @classmethod
    def of(cls, size: int, seed: int, estimated_rows: int | None, weights: NDArray[np.float64]) -> SampleRule:
        """Set the limit to expect 1.5 times `size` rows below it; infinite if nothing is known."""
        wanted = SPARE * size
        if len(weights):
            return cls(size, seed, _limit_of(weights[weights > 0], wanted))
        return cls(size, seed, np.inf if estimated_rows is None else wanted / max(1, estimated_rows))

    def candidates(
        self, X: Matrix, row_ids: NDArray[np.int64], rows: NDArray[np.int64], weights: NDArray[np.float64]
    ) -> Candidates:
        """Pick a chunk's candidates; `rows` are the rows' numbers from the chunk's first."""
        picked, keys = self.picks(row_ids, weights)
        if len(picked) == len(row_ids):
            return Candidates(X, keys, rows)
        return Candidates(_taken([X], picked, X.shape[1]), keys, rows[picked])

    def picks(
        self, row_ids: NDArray[np.int64], weights: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The candidates of a chunk, ascending, and their keys."""
        hashes = np.empty(len(row_ids), np.int64)
        hash_integers(np.uint64(self.seed), row_ids, hashes)
        keys = np.asarray((hashes + 0.5) / 2.0**63, np.float64)
        eligible = len(keys)
        if len(weights):
            with np.errstate(divide="ignore"):
                keys = -np.log1p(-keys) / weights
            eligible = int(np.count_nonzero(weights))
        most = min(self.size + bool(len(weights)), eligible)  # one more: its key says how likely the others were
        picked = np.flatnonzero(keys < self.limit)
        # never none: the estimate of the rows may be far too high
        n_picked = min(max(len(picked), FEWEST_CANDIDATES), most)
        if n_picked == len(keys):
            picked = np.arange(len(keys))
        elif n_picked != len(picked):
            picked = np.sort(np.argpartition(keys, n_picked)[:n_picked])
        return picked, keys[picked]


def _limit_of(weights: NDArray[np.float64], wanted: float, times: NDArray[np.float64] | None = None) -> float:
    """The t with ``sum(times * (1 - exp(-w t))) = wanted``, infinite for no more weights; `times`: 1 by default."""
    times = np.ones(len(weights)) if times is None else times
    if len(weights) <= wanted:
        return np.inf
    t = wanted / weights.sum()
    for _ in range(20):  # Newton's method on a concave increasing function, from below: no overshoot
        short = wanted + float(weighted_sum(times, np.expm1(-weights * t)))
        if short <= 1e-3 * wanted:
            break
        t += short / float(weighted_sum(times, weights * np.exp(-weights * t)))
    return float(t)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Rows that may come into the sample."""

    X: Matrix  # ndarray or csr_array (c, d), in the source's dtype
    keys: NDArray[np.float64]  # (c,): priorities, lowest first
    rows: NDArray[np.int64]  # (c,): row numbers


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of original rows, in the order of their keys: every prefix is a sample too."""

    X: Matrix  # ndarray or csr_array (s, d), in the source's dtype
    rows: NDArray[np.int64]  # (s,): row numbers in the source
    # (s,) or (0,), what each row stands for, up to a common factor: its weight over its probability to be here
    weights: NDArray[np.float64]
    complete: bool  # whether these are all rows that count: valid, and of positive weight

    def first(
        self, n_rows: int, own_weights: NDArray[np.float64], total_weight: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Weights of the first rows as a sample of their own, and their probabilities of being in it.

        Heavy rows come first, so the whole sample's `weights` would count them too much. `own_weights`: float64 (s,) or
        (0,), as given. `total_weight`: of all rows.
        """
        if not len(own_weights):
            n_all = len(self.rows) if self.complete else total_weight
            return np.ones(n_rows), np.full(n_rows, n_rows / n_all)
        own = own_weights[:n_rows]
        if n_rows == len(self.rows):
            return self.weights, own / self.weights
        chances = -np.expm1(-own * _limit_of(own_weights, n_rows, self.weights / own_weights))
        return own / chances, chances

    def block(self, executor: Executor, sketch: Sketch, n_rows: int | None = None) -> Block:
        """The first rows (all by default), sketched, by threads of this process."""
        stop = len(self.rows) if n_rows is None else min(n_rows, len(self.rows))
        rounds = -(-stop // (PIECE_ROWS * executor.n_workers))  # of pieces alike, one for each thread
        cuts = np.unique(np.linspace(0, stop, rounds * executor.n_workers + 1).astype(int)).tolist()
        pieces = [slice(start, end) for start, end in pairwise(cuts)]
        if sketch.is_one_copy(sparse=sp.issparse(self.X)):
            whole = as_block_matrix(sketch.apply(rows_between(self.X, 0, stop)))  # cheaper than to join pieces
            norms = executor.each("sketch-sample", _norms_of_slice, pieces, whole)
            return Block(whole, np.concatenate(norms), self.weights[:stop])
        parts = executor.each("sketch-sample", _sketch_slice, pieces, self.X, sketch)
        X = stacked([part for part, _ in parts])
        return Block(X, np.concatenate([d2norms for _, d2norms in parts]), self.weights[:stop])

    def original_block(self) -> Block:
        """The rows as floats in their original features."""
        X = as_block_matrix(self.X, sketched=False)
        return Block(X, row_d2norms(X), self.weights)


@dataclass
class SampleCollector:
    """Gathers candidates chunk by chunk, in order, and keeps the lowest `size` keys.

    Given the lowest key t left out, a row of weight w is in the sample with probability 1 - exp(-w t), independently:
    its weight over that has expectation w. (The highest key kept is no such t: sums over s rows would be too large by
    about 1 / s.) So one row more is kept until the end. It is pickled without rows that cannot come into the sample.

    References: Cohen and Kaplan, "Summarizing data using bottom-k sketches", PODC 2007, section 4 (rank conditioning).
    """

    size: int
    _kept: list[Candidates] = field(default_factory=list, init=False)
    _n_kept: int = field(default=0, init=False)

    def __getstate__(self) -> dict[str, Any]:
        if not self._kept:
            return self.__dict__
        lowest, _ = self._lowest(None, self.size + 1)  # not kept here: another thread may read this
        return {**self.__dict__, "_kept": [lowest], "_n_kept": len(lowest.rows)}

    def add(self, candidates: Candidates, first_row: int = 0) -> None:
        """Take the candidates of a chunk whose first row has the number `first_row`."""
        if not len(candidates.rows):
            return
        self._kept.append(Candidates(candidates.X, candidates.keys, candidates.rows + first_row))
        self._n_kept += len(candidates.rows)
        if self._n_kept > 2 * self.size:
            self.compact()

    def absorb(self, other: SampleCollector, first_row: int) -> None:
        """Take the candidates of another collector, whose rows begin at `first_row`."""
        for candidates in other._kept:
            self.add(candidates, first_row)

    def compact(self) -> Candidates | None:
        """Drop candidates that cannot come into the sample; return the others in the order of keys."""
        if not self._kept:
            return None
        self._kept = [self._lowest(None, self.size + 1)[0]]
        self._n_kept = len(self._kept[0].rows)
        return self._kept[0]

    def sample(self, n_features: int, n_rows: int, weights: NDArray[np.float64]) -> Sample:
        """The sample, `n_features` wide.

        `n_rows`: valid rows of positive weight in all. `weights`: float64 (n,) or (0,), of all rows of the source.
        """
        lowest, left_out = self._lowest(n_features, self.size)
        complete = len(lowest.rows) == n_rows
        picked = weights[lowest.rows] if len(weights) else NO_WEIGHTS
        if len(weights) and not complete:
            picked = picked / -np.expm1(-picked * (lowest.keys[-1] if left_out is None else left_out))
        return Sample(lowest.X, lowest.rows, picked, complete)

    def _lowest(self, n_features: int | None, n_rows: int) -> tuple[Candidates, float | None]:
        """The candidates of the lowest keys, in order, and the lowest key left out, if any."""
        keys = np.concatenate([candidates.keys for candidates in self._kept])
        rows = np.concatenate([candidates.rows for candidates in self._kept])
        order = np.argsort(keys, kind="stable")
        left_out = float(keys[order[n_rows]]) if len(order) > n_rows else None
        order = order[:n_rows]
        X = _taken([candidates.X for candidates in self._kept], order, n_features)
        return Candidates(X, keys[order], rows[order]), left_out


def _norms_of_slice(piece: slice, sketched: Matrix) -> NDArray[np.float64]:
    return sketched_d2norms(rows_between(sketched, piece.start, piece.stop))


def _sketch_slice(piece: slice, X: Matrix, sketch: Sketch) -> tuple[Matrix, NDArray[np.float64]]:
    sketched = as_block_matrix(sketch.apply(rows_between(X, piece.start, piece.stop)), sketched=not sketch.is_identity)
    return sketched, sketched_d2norms(sketched)


def stacked(parts: Sequence[Matrix]) -> Matrix:
    """Stack rows of parts that agree in kind and width, or mixed dense and CSR ones of one width."""
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return stacked_csr([part if not isinstance(part, np.ndarray) else sp.csr_array(part) for part in parts], None)


def first_rows(X: Matrix, n_rows: int) -> Matrix:
    """A copy of the first rows."""
    return rows_between(X, 0, n_rows).copy()


def _taken(parts: Sequence[Matrix], order: NDArray[np.intp], n_features: int | None) -> Matrix:
    """Rows `order` of the stacked parts, without stacking the others."""
    n_rows = [part.shape[0] for part in parts]
    home = np.repeat(np.arange(len(parts), dtype=np.int32), n_rows)
    by_part, cuts = rows_by_label(home[order], len(parts))
    taken = [by_part[start:stop] for start, stop in pairwise(cuts)]  # places in the result of each part's rows
    firsts = accumulate(n_rows, initial=0)
    homes: list[tuple[Any, NDArray[np.intp], NDArray[np.int64]]] = [
        (part, order[places] - first, places) for part, first, places in zip(parts, firsts, taken, strict=False)
    ]
    if isinstance(parts[0], np.ndarray):
        out = np.empty((len(order), parts[0].shape[1]), parts[0].dtype)
        for part, rows, places in homes:
            out[places] = part[rows]
        return out
    indptr = np.zeros(len(order) + 1, np.int64)
    for part, rows, places in homes:
        indptr[1:][places] = part.indptr[rows + 1] - part.indptr[rows]
    np.cumsum(indptr, out=indptr)
    # pointers are no wider than indices, unless there are so many entries
    indices = np.empty(indptr[-1], np.result_type(np.min_scalar_type(-indptr[-1]), *(one.indices for one, *_ in homes)))
    data = np.empty(indptr[-1], np.result_type(*{part.data.dtype for part, _, _ in homes}))
    for part, rows, places in homes:
        place_rows(part.indptr, part.indices, part.data, rows, places, indptr, indices, data)
    shape = len(order), n_features or max(part.shape[1] for part in parts)
    return sp.csr_array((data, indices, indptr.astype(indices.dtype)), shape=shape)


def stacked_csr(parts: Sequence[sp.csr_array], n_features: int | None) -> sp.csr_array:
    """Stack CSR rows of parts that may differ in width (None: as wide as the widest)."""
    width = n_features or max(part.shape[1] for part in parts)
    widened = [sp.csr_array((part.data, part.indices, part.indptr), shape=(part.shape[0], width)) for part in parts]
    return sp.csr_array(sp.vstack(widened, format="csr")) if len(widened) > 1 else widened[0]


def as_block_matrix(X: Matrix, *, sketched: bool = True) -> Matrix:
    """Rows in the floats of blocks: float64 if float32 is not exact, except for sketched CSR rows."""
    if isinstance(X, np.ndarray):
        return X.astype(working_dtype(X.dtype), copy=False)
    dtype = np.float32 if sketched else working_dtype(X.dtype)
    return sp.csr_array((X.data.astype(dtype, copy=False), X.indices, X.indptr), shape=X.shape)


def sketched_d2norms(X: Matrix) -> NDArray[np.float64]:
    """Squared norms of sketched rows, whose entries may repeat an index."""
    if isinstance(X, np.ndarray):
        return row_d2norms(X)
    out = np.empty(X.shape[0])
    merged_d2norms(X.shape[1], X.indptr, X.indices, X.data, out)
    return out
