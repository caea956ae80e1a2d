"""From sampled rows to a feature map: landmarks and W's root, random frequencies, or sketches of all columns."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import eigh

from streamkm.cluster.sampling.row_sample import Sample
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.matrix import Matrix
from streamkm.engine import Executor
from streamkm.fitting.context import FoundKernel, KernelRule, Mapping
from streamkm.fitting.kernel.bandwidth import gamma_by_neighbors
from streamkm.fitting.kernel.landmarks import MapRule, choose_landmarks, kept, precomputed_landmarks
from streamkm.kernels.intrinsics.hashing import hash_features
from streamkm.kernels.intrinsics.panels import add_outer_products
from streamkm.kernels.sketch import kernel_values
from streamkm.planning.sketch_choice import COLUMN_SKETCHES, LANDMARK_SKETCHES
from streamkm.sketches.base_sketch import Sketch
from streamkm.sketches.fourier_map import FourierMap
from streamkm.sketches.kernel_columns import Kernel, KernelColumns
from streamkm.sketches.kernel_map import GramFit, KernelMap, inverse_root
from streamkm.sketches.subspace import oriented

GRAM_ROWS = 5_000  # of the sample, for the leading directions if all data are not read for them
GRAM_ROWS_PER_COLUMN = 6
GRAM_PIECE_ROWS = 1280  # four pieces of 5,000 rows, for two threads or four


def first_round(
    here: Executor, sample: Sample, kernel: Kernel, rule: MapRule, n_rows: int, rng: np.random.Generator
) -> Sketch | GramFit:
    """The map, or the round of sums over `n_rows` rows of data that finds its projection.

    Raises InvalidInputError: a sketch of all columns, if the sample does not hold all rows; InvalidParameterError:
    random Fourier features of another kernel than "rbf".
    """
    rank, X = rule.rank, sample.X
    if rule.method in COLUMN_SKETCHES:
        if not sample.complete:
            raise InvalidInputError(
                f"method={rule.method!r} needs all rows in memory; {len(sample.rows):,} of more are sampled: "
                'use method="nystroem"'
            )
        sketch = column_sketch(rule.method, len(sample.rows), rule.n_landmarks, int(rng.integers(2**63)))
        return sketched_columns_map(here, kernel, kept(sample.X), sketch, rank, rule.root_rank)
    if rule.method.endswith("fourier"):
        if kernel.name != "rbf":
            raise InvalidParameterError(f'method={rule.method!r} with kernel={kernel.name!r}; needed: kernel="rbf"')
        n_columns = max(2, rule.n_landmarks // 2 * 2)
        orthogonal = rule.method == "orthogonal-fourier"
        # zeros for sparse rows, which must stay sparse
        shift = np.zeros(X.shape[1]) if sp.issparse(X) else X.mean(axis=0, dtype=np.float64)
        drawn = FourierMap.draw(kernel.gamma, shift, n_columns, orthogonal=orthogonal, rng=rng)
        return GramFit(drawn, np.eye(n_columns), rank)
    if rule.method in LANDMARK_SKETCHES:
        landmarks = choose_landmarks(here, sample, kernel, rule, rng)
        n_columns = int(landmarks.shape[0])
        if rule.method == "ros":  # there may be fewer rows than were estimated
            n_columns = 1 << (n_columns.bit_length() - 1)
        mixing = landmark_sketch(rule.method, n_columns, n_rows, rng)
        return KernelMap.of(kernel, landmarks[:n_columns], mixing)
    if kernel.name == "precomputed":
        landmarks, rows = precomputed_landmarks(sample, rule.n_landmarks)
    else:
        rows = landmarks = choose_landmarks(here, sample, kernel, rule, rng)
    root = inverse_root(KernelColumns(kernel, landmarks).values(rows), rule.root_rank)
    whole = KernelMap.of(kernel, landmarks, root)
    return whole if rule.method == "two-step" else GramFit(whole, root, rank)


def landmark_sketch(method: str, n_columns: int, n_rows: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """The matrix S' (m, m) by which kernel values against m rows are multiplied.

    K-means runs on the products: without the inverse root of the rows' own matrix or a rank, a direction counts by its
    eigenvalue once more than in the Nystroem features of `kernel_map`.
    "sampled-columns": the identity. "sub-gaussian": entry (i, j) of S is s_i / sqrt(m) with probability 1 / sqrt(n),
    else 0, s_i the hashed sign of row i; with m about sqrt(n), rows of S have about one entry, and a third have none.
    This is the sketch as printed, and more landmarks make it worse: entries of a row share their sign, so they add up.
    Measured on blobs (500 rows, k = 8, mean of 8 seeds), exact objective over the least: 1.16 with 45 landmarks, 1.54
    with 90, 2.21 with 180; on digits (1,000 rows, k = 10) 1.11, 1.10, 1.15. "sub-gaussian-entries": the same places,
    with a hashed sign for each entry: 1.00, 1.00, 1.00 and 1.06, 1.03, 1.02. "ros": S = D A with random signs D and the
    Hadamard matrix A over sqrt(m). It is orthogonal, so distances and clusters are those of "sampled-columns", but for
    rounding and for later draws.
    Yin, Liu, Wang and Meng, "Randomized sketches for clustering: fast and optimal kernel k-means", NeurIPS 2022,
    equation 4 and examples 1 to 3.
    """
    if method == "sampled-columns":
        return np.eye(n_columns, dtype=np.float32)
    own = method == "sub-gaussian-entries"  # a sign for each entry, not for each row
    signs = np.empty((n_columns if own else 1, n_columns), np.float32)
    kernel_values.hashed_signs(np.uint64(rng.integers(2**63)), 0, signs)
    if method == "ros":
        hadamard = np.eye(n_columns, dtype=np.float32)
        kernel_values.walsh_hadamard(hadamard)
        return hadamard * (signs / np.float32(np.sqrt(n_columns)))
    drawn = rng.random((n_columns, n_columns)) < 1 / np.sqrt(n_rows)
    if not drawn.any():
        raise InvalidParameterError(
            f'method="{method}" with n_landmarks={n_columns} and {n_rows:,} rows: all {n_columns}^2 entries of the '
            f"sketch are zero; needed: about {np.sqrt(n_rows):,.0f} landmarks"
        )
    of_entries = signs if own else signs.T
    return np.ascontiguousarray((drawn * (of_entries / np.float32(np.sqrt(n_columns)))).T, np.float32)


def fit_on_sample(here: Executor, sample: Sample, round_: GramFit) -> Sketch:
    """Finish a round by sampled rows alone, 5,000 or 6 a column, which fix the leading directions.

    Pieces are added up in order, for any number of threads.
    """
    n_rows = min(len(sample.rows), max(GRAM_ROWS, GRAM_ROWS_PER_COLUMN * round_.map.n_columns))
    pieces = _pieces(n_rows, GRAM_PIECE_ROWS)
    found: Sketch = round_.finish(here.fold("gram", _add, _join, pieces, len(pieces), sample, round_, large="state"))
    return found


def _add(state: Any, piece: slice, sample: Sample, round_: GramFit) -> tuple[Any, None]:
    return round_.step(state, sample.X[piece], sample.weights[piece]), None


def _join(first: Any, second: Any, sample: Sample, round_: GramFit) -> Any:  # noqa: ARG001 - as for `_add`
    return round_.join([first, second])


def _pieces(n_rows: int, piece_rows: int) -> list[slice]:
    """Rows of consecutive pieces."""
    return [slice(start, stop) for start, stop in pairwise([*range(0, n_rows, piece_rows), n_rows])]


def neighbor_mapping(sample: Sample, rule: KernelRule, n_landmarks: int, rank: int) -> Mapping:
    """A kernel as wide as the distance of neighbours, and the leading directions of the landmarks' normalized cut.

    With D the row sums of the landmarks' kernel matrix W and U, L the leading eigenvectors and eigenvalues of ``D^-1/2
    W D^-1/2``, features are ``k(x, landmarks) D^-1/2 U L^-1``, at unit length. O(c^2 d + c^3). Ng, Jordan and Weiss,
    "On spectral clustering", NIPS 2001; Fowlkes, Belongie, Chung and Malik, "Spectral grouping using the Nystroem
    method", PAMI 26 (2004).
    """
    gamma, near = gamma_by_neighbors(sample.X[:n_landmarks], rule.factor)
    kernel, landmarks = rule.with_gamma(gamma), kept(sample.X[near])
    W = KernelColumns(kernel, landmarks).values(landmarks).astype(np.float64)
    root = 1 / np.sqrt(W.sum(axis=1))
    cut = root[:, None] * (W + W.T) * root / 2
    values, vectors = eigh(cut, subset_by_index=[max(0, len(cut) - rank), len(cut) - 1])
    projection = oriented(root[:, None] * vectors[:, ::-1] / np.maximum(values[::-1], np.finfo(np.float32).eps))
    return Mapping(FoundKernel(gamma), replace(KernelMap.of(kernel, landmarks, projection), unit=True))


PIECE_ROWS = 1024


def column_sketch(method: str, n_rows: int, n_columns: int, seed: int) -> Matrix:
    """A random matrix S (n, c), scaled so that its columns have about unit length: ``E[S S'] = I``.

    "gaussian" and "signs": independent entries. "countsketch": each column of K is added, with a hashed sign, to one of
    c. "srht": random signs times c columns of the Walsh-Hadamard matrix. Wang, Gittens and Mahoney, JMLR 20 (2019),
    table 2; Achlioptas, J. Comput. Syst. Sci. 66 (2003) (signs); Clarkson and Woodruff, STOC 2013, section 2; Tropp,
    Adv. Adapt. Data Anal. 3 (2011) (SRHT).
    """
    if method == "countsketch":
        buckets, signs = np.empty(n_rows, np.int32), np.empty(n_rows, np.float32)
        hash_features(np.uint64(seed), 0, n_rows, np.uint64(n_columns), buckets, signs)
        return sp.csr_array((signs, buckets, np.arange(n_rows + 1)), shape=(n_rows, n_columns))
    if method == "gaussian":
        S = np.random.default_rng(seed).standard_normal((n_rows, n_columns), np.float32)
    elif method == "signs":
        S = np.empty((n_rows, n_columns), np.float32)
        kernel_values.hashed_signs(np.uint64(seed), 0, S)
    else:
        width, row_signs = 1 << max(0, n_rows - 1).bit_length(), np.empty((1, n_rows), np.float32)
        kernel_values.hashed_signs(np.uint64(seed), 0, row_signs)
        picked = np.sort(np.random.default_rng(seed).choice(width, min(n_columns, width), replace=False))
        rows = np.zeros((len(picked), width), np.float32)
        rows[np.arange(len(picked)), picked] = 1
        kernel_values.walsh_hadamard(rows)
        S = np.ascontiguousarray((rows[:, :n_rows] * row_signs).T)
    S /= np.float32(np.sqrt(S.shape[1]))
    return S


def sketched_columns_map(
    here: Executor, kernel: Kernel, X: Matrix, S: Matrix, rank: int, root_rank: int | None = None
) -> KernelMap:
    """The rank-restricted map of ``K ~ C W^+ C'`` with ``C = K S`` and ``W = S' K S``; all rows are landmarks.

    `root_rank`: rank to which W's pseudo-inverse is cut. Wang, Gittens and Mahoney, JMLR 20 (2019), algorithm 2.
    """
    columns = KernelColumns(kernel, X)
    C = np.concatenate(here.each("columns", _combined, _pieces(X.shape[0], PIECE_ROWS), X, columns, S))
    W = np.ascontiguousarray(C.T) @ S
    root = inverse_root(W, root_rank)
    inner = root.T @ _gram(C) @ root
    rank = min(rank, len(inner))
    _, directions = eigh(inner, subset_by_index=[len(inner) - rank, len(inner) - 1])
    return KernelMap.of(kernel, X, S @ oriented(root @ directions[:, ::-1]).astype(np.float32))


def _combined(piece: slice, X: Matrix, columns: KernelColumns, S: Matrix) -> NDArray[np.float32]:
    rows = X[piece]
    return np.concatenate([values[: rows.shape[0] - start] @ S for start, values in columns.batches(rows)])


def _gram(C: NDArray[np.float32]) -> NDArray[Any]:
    """``C' C`` in float64, a few rows at a time."""
    total = np.zeros((C.shape[1], C.shape[1]))
    for start in range(0, len(C), PIECE_ROWS):
        rows = C[start : start + PIECE_ROWS].astype(np.float64)
        add_outer_products(rows, total)
    return np.tril(total) + np.tril(total, -1).T
