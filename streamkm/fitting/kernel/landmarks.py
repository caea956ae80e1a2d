"""The choice of landmarks for the kernel matrix: uniform rows, rows of high leverage, or means of k-means."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.cluster.in_memory import LocalBlocks
from streamkm.cluster.lloyd import lloyd
from streamkm.cluster.rows import NO_WEIGHTS, Block
from streamkm.cluster.sampling.row_sample import Sample, as_block_matrix, sketched_d2norms
from streamkm.cluster.seeding.kmeans_plusplus import random_rows
from streamkm.core.exceptions import InvalidParameterError
from streamkm.core.matrix import Matrix
from streamkm.engine import Executor
from streamkm.kernels.cluster.totals import row_products
from streamkm.kernels.intrinsics.panels import Panels
from streamkm.planning.memory_model import POOL_ROWS
from streamkm.sketches.kernel_columns import Kernel, KernelColumns, working_landmarks
from streamkm.sketches.kernel_map import inverse_root, projected

LEAST_SCORE = 1e-6  # of the largest
KMEANS_STEPS = 5  # landmarks need no convergence: Zhang, Tsang and Kwok stop early too
DENSE_SHARE = 16  # sparse landmarks are kept densely if a DENSE_SHARE-th of them is stored,
NARROW = 512  # or if there are few features,
DENSE_ENTRIES = 1 << 24  # unless that takes too much memory


@dataclass(frozen=True, slots=True)
class MapRule:
    """The rule by which rows become features."""

    method: str
    how: str  # landmarks are chosen: "uniform", "leverage", "rank-leverage" or "kmeans"
    n_landmarks: int  # or as many random features
    rank: int  # directions that the features will have, also for the ridge of leverage scores
    root_rank: int | None = None  # rank to which W's pseudo-inverse is cut; None: as many as float32 values determine
    n_neighbors: int = 0  # landmarks of `neighbor_mapping`, if it is tried or asked for


def choose_landmarks(here: Executor, sample: Sample, kernel: Kernel, rule: MapRule, rng: np.random.Generator) -> Matrix:
    """Choose landmarks (c, d) from a sample, as `working_landmarks` keeps them; fewer if it has fewer rows.

    "uniform": O(1). "leverage" and "rank-leverage": kernel values of the pool of up to 20,000 rows against c of them,
    O(20,000 c (d + c)). "kmeans": 5 Lloyd steps on the pool, O(20,000 c d).
    References: Musco and Musco, "Recursive sampling for the Nystroem method", NIPS 2017, in two steps. Leverage of a
    rank: Wang, Gittens and Mahoney, JMLR 20 (2019), table 2; Gittens and Mahoney, JMLR 17 (2016). K-means: Zhang, Tsang
    and Kwok, "Improved Nystroem low-rank approximation and error analysis", ICML 2008.
    """
    n_landmarks = min(rule.n_landmarks, len(sample.rows))
    X = sample.X[: max(POOL_ROWS, n_landmarks)]
    if rule.how == "kmeans" and n_landmarks < X.shape[0]:
        return _means(here, X, sample.weights[: X.shape[0]], n_landmarks, rng)
    rows = np.arange(n_landmarks)
    if rule.how in SCORES and n_landmarks < X.shape[0]:
        columns = KernelColumns(kernel, kept(X[:n_landmarks]))
        scores = SCORES[rule.how](columns, X, rule.rank)
        scores = np.maximum(scores, scores.max() * LEAST_SCORE)  # as many rows as are drawn can be
        rows = np.sort(rng.choice(X.shape[0], n_landmarks, replace=False, p=scores / scores.sum()))
    return kept(X[rows])


def precomputed_landmarks(sample: Sample, n_landmarks: int) -> tuple[sp.csr_array, Matrix]:
    """Landmarks for rows of kernel values: the choice of their values (c, n), and their own rows (c, n)."""
    numbers = sample.rows[:n_landmarks]
    ones = np.ones(len(numbers), np.float32)
    picked = sp.csr_array((ones, numbers, np.arange(len(numbers) + 1)), shape=(len(numbers), sample.X.shape[1]))
    return picked, sample.X[: len(numbers)]


def kept(X: Matrix) -> Matrix:
    """Rows as landmarks: dense if they are, or if sparse ones have few features or are hardly sparse."""
    if isinstance(X, np.ndarray):
        return working_landmarks(X, dense=True)
    size = X.shape[0] * X.shape[1]
    dense = size <= DENSE_ENTRIES and (X.shape[1] <= NARROW or X.nnz * DENSE_SHARE >= size)
    return working_landmarks(X, dense=dense)


def ridge_leverage_scores(columns: KernelColumns, X: Matrix, rank: int) -> NDArray[np.float64]:
    """Approximate ridge leverage scores of rows (n,), positive, by landmarks drawn uniformly from them.

    With p the share of rows that are landmarks S, score i is ``(k_ii - k_iS (K_SS + p l I)^-1 k_Si) / l``, at most 1,
    where the ridge l is the mean that eigenvalues after the `rank` largest sum to, estimated from ``K_SS / p``. Musco
    and Musco, NIPS 2017, definition 2 and lemma 6; the ridge as in their algorithm 3.
    """
    share = columns.n_columns / X.shape[0]
    W = columns.values(columns.landmarks).astype(np.float64)
    values, vectors = np.linalg.eigh((W + W.T) / 2)
    values = np.maximum(values, 0.0)
    resolution = float(np.finfo(np.float32).eps) * values[-1]  # float32 values say nothing of less
    ridge = max(values[: max(0, len(values) - rank)].sum() / share / rank, resolution / share, 1e-30)
    root = vectors / np.sqrt(values + share * ridge)
    diagonal = columns.kernel.diagonal(X)
    scores, panels = np.empty(X.shape[0]), Panels.of(root)
    for start, found in columns.batches(X):
        rows = panels.product(found[: len(scores) - start])
        squares = np.empty(len(rows))
        row_products(rows, rows, squares)
        scores[start : start + len(rows)] = diagonal[start : start + len(rows)] - squares
    return np.clip(scores / ridge, 1e-6, 1.0)


def rank_leverage_scores(columns: KernelColumns, X: Matrix, rank: int) -> NDArray[np.float64]:
    """Approximate leverage scores of rows (n,) in the kernel matrix's leading directions, by landmarks among them.

    With B the Nystroem features of the rows, score i is the squared length of row i of B's `rank` leading left singular
    vectors: ``|(B V)_i / sigma|^2``. The sum is `rank`, or the rank of B. Rows unlike all landmarks score 0; ridge
    leverage sees them. Gittens and Mahoney, "Revisiting the Nystroem method for improved large-scale machine learning",
    JMLR 17 (2016), section 2.3.
    """
    root = inverse_root(columns.values(columns.landmarks))
    features = projected(columns.batches(X), X.shape[0], root)
    values, vectors = np.linalg.eigh(features.T @ features)
    kept_values = values[::-1][:rank]
    significant = kept_values > float(np.finfo(np.float32).eps) * max(kept_values[0], 1e-30)
    leading = features @ (vectors[:, ::-1][:, :rank][:, significant] / np.sqrt(kept_values[significant]))
    return np.square(leading).sum(axis=1)


SCORES = {"leverage": ridge_leverage_scores, "rank-leverage": rank_leverage_scores}


def _means(
    here: Executor, X: Matrix, weights: NDArray[np.float64], n_landmarks: int, rng: np.random.Generator
) -> Matrix:
    """Means of a few Lloyd steps from drawn rows."""
    if n_landmarks * X.shape[1] > DENSE_ENTRIES:
        raise InvalidParameterError(
            f'landmarks="kmeans" keeps {n_landmarks:,} means of {X.shape[1]:,} features; needed: at most '
            f'{DENSE_ENTRIES:,} numbers: use "uniform" or "leverage"'
        )
    rows = as_block_matrix(X)
    block = Block(rows, sketched_d2norms(rows), weights if len(weights) else NO_WEIGHTS)
    pieces = LocalBlocks.of(here, block)
    result = lloyd(pieces, random_rows(block, n_landmarks, rng=rng), max_iter=KMEANS_STEPS, tol=0)
    if sp.issparse(X):
        return kept(sp.csr_array(result.centers.astype(np.float32)))
    return result.centers.astype(rows.dtype)
