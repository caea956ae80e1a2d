"""Second implementations to compare with: loops, Python integers, explicit matrices, as near to the formulas as can be.

Nothing here is fast, and nothing here imports streamkm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

BITS_64 = (1 << 64) - 1


def dense(X: Any) -> NDArray[np.float64]:
    """Rows as a float64 array; CSR entries that repeat an index are added up."""
    return (X.toarray() if sp.issparse(X) else np.asarray(X)).astype(np.float64)


def splitmix64(seed: int, counter: int) -> int:
    """Output number `counter` of the generator that starts at `seed`, counted from 0."""
    z = (seed + (counter + 1) * 0x9E3779B97F4A7C15) & BITS_64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & BITS_64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & BITS_64
    return z ^ (z >> 31)


def murmurhash3(data: bytes) -> int:
    """MurmurHash3 (x86, 32 bits, seed 0), as a signed number; from Appleby's description."""

    def turned(word: int, bits: int) -> int:
        return (word << bits | word >> (32 - bits)) & 0xFFFFFFFF

    h = 0
    for start in range(0, len(data), 4):
        block = data[start : start + 4]
        k = int.from_bytes(block, "little") * 0xCC9E2D51 & 0xFFFFFFFF
        h ^= turned(k, 15) * 0x1B873593 & 0xFFFFFFFF
        if len(block) == 4:
            h = (turned(h, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    h ^= h >> 16
    return h - (h >> 31 << 32)


def bucket_and_sign(seed: int, feature: int, n_components: int) -> tuple[int, int]:
    """Bucket from the upper 32 bits, sign from the lowest."""
    bits = splitmix64(seed, feature)
    return ((bits >> 32) * n_components) >> 32, 1 if bits & 1 else -1


def countsketch_matrix(seed: int, n_features: int, n_components: int) -> NDArray[np.float64]:
    """The map as a matrix (d, m): one entry of +1 or -1 in each row."""
    S = np.zeros((n_features, n_components))
    for j in range(n_features):
        bucket, sign = bucket_and_sign(seed, j, n_components)
        S[j, bucket] = sign
    return S


def block_matrix(seed: int, n_features: int, n_components: int, n_blocks: int) -> NDArray[np.float64]:
    """CountSketch with a bucket in each block as a matrix (d, m): s entries of +-1 / sqrt(s) in each row."""
    bounds = [r * n_components // n_blocks for r in range(n_blocks + 1)]
    seeds = [stream_seed(seed, r) for r in range(n_blocks)]
    parts = [countsketch_matrix(seeds[r], n_features, bounds[r + 1] - bounds[r]) for r in range(n_blocks)]
    return np.hstack(parts) / math.sqrt(n_blocks)


def stream_seed(seed: int, stream: int) -> int:
    """Seed of a further stream of hashes: the outputs from the last on backward."""
    return splitmix64(seed, BITS_64 - stream) if stream else seed


def sign_matrix(seed: int, features: Sequence[int], n_components: int) -> NDArray[np.float64]:
    """Random signs (d, m): bit c % 64 of word c // 64 of each feature."""
    S = np.empty((len(features), n_components))
    for row, j in enumerate(features):
        for c in range(n_components):
            word = splitmix64(splitmix64(seed, j), c // 64)
            S[row, c] = 1 if (word >> (c % 64)) & 1 else -1
    return S


def _halves(seed: int, feature: int, pair: int) -> tuple[int, int]:
    """Lower and upper half of the word of two components."""
    word = splitmix64(splitmix64(seed, feature), pair)
    return word & 0xFFFFFFFF, word >> 32


def normal_matrix(seed: int, features: Sequence[int], n_components: int) -> NDArray[np.float64]:
    """Standard normal entries (d, m) by Box and Muller's method, in float64."""
    G = np.empty((len(features), n_components))
    for row, j in enumerate(features):
        for c in range(n_components):
            lower, upper = _halves(seed, j, c // 2)
            angle = 2 * math.pi * lower / 2**32
            G[row, c] = math.sqrt(-2 * math.log((upper + 0.5) / 2**32)) * (math.sin if c % 2 else math.cos)(angle)
    return G


def sparse_matrix(seed: int, features: Sequence[int], n_components: int, density: float) -> NDArray[np.float64]:
    """Entries -1, 0 and +1 (d, m)."""
    S = np.zeros((len(features), n_components))
    for row, j in enumerate(features):
        for c in range(n_components):
            half = _halves(seed, j, c // 2)[c % 2]
            if half < 2 * round(density * 2**31):
                S[row, c] = 1 if half & 1 else -1
    return S


def hadamard_matrix(n: int) -> NDArray[np.float64]:
    """Walsh-Hadamard matrix (n, n), entry (c, j) by the number of bits that c and j share."""
    return np.array([[(-1.0) ** (c & j).bit_count() for j in range(n)] for c in range(n)])


def rotation_matrix(seed: int, n_features: int, n_padded: int) -> NDArray[np.float64]:
    """The randomized Hadamard transform (d, p): rows are orthonormal."""
    signs = [1 if splitmix64(seed, j) & 1 else -1 for j in range(n_features)]
    return np.array(signs)[:, None] * hadamard_matrix(n_padded)[:n_features] / math.sqrt(n_padded)


def d2(x: ArrayLike, y: ArrayLike) -> float:
    """Squared distance of two rows."""
    return float(sum((float(a) - float(b)) ** 2 for a, b in zip(x, y, strict=True)))


def d2_matrix(X: Any, centers: ArrayLike) -> NDArray[np.float64]:
    """Squared distances of all rows to all centers, by differences."""
    X, centers = dense(X), dense(centers)
    return np.stack([((X - center) ** 2).sum(axis=1) for center in centers], axis=1)


def nearest(X: Any, centers: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Label of the nearest center, the lowest of equals, and the squared distance to it."""
    distances = d2_matrix(X, centers)
    labels = distances.argmin(axis=1)
    return labels, distances[np.arange(len(labels)), labels]


def sums_and_counts(
    X: Any, labels: ArrayLike, n_clusters: int, weights: ArrayLike | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weighted sums (k, d) and total weights (k,) of the clusters; label -1 is left out."""
    X = dense(X)
    weights = np.ones(len(X)) if weights is None else np.asarray(weights, float)
    sums, counts = np.zeros((n_clusters, X.shape[1])), np.zeros(n_clusters)
    for x, label, weight in zip(X, labels, weights, strict=True):
        if label >= 0:
            sums[label] += weight * x
            counts[label] += weight
    return sums, counts


def inertia(X: Any, centers: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Weighted sum of squared distances to the centers of the labels; label -1 counts nothing."""
    X, centers, labels = dense(X), dense(centers), np.asarray(labels)
    weights = np.ones(len(X)) if weights is None else np.asarray(weights, float)
    kept = labels >= 0
    return float(weights[kept] @ ((X[kept] - centers[labels[kept]]) ** 2).sum(axis=1))


def within(X: Any, labels: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Weighted sum of squared distances to the means of the clusters."""
    sums, counts = sums_and_counts(X, labels, int(np.max(labels)) + 1, weights)
    return inertia(X, sums / np.where(counts > 0, counts, 1)[:, None], labels, weights)


def lloyd(
    X: Any, centers: ArrayLike, *, max_iter: int, weights: ArrayLike | None = None
) -> tuple[NDArray[np.float64], list[float]]:
    """Centers after at most `max_iter` steps, fewer at the fixed point, and the inertia before each update."""
    centers, history = dense(centers).copy(), []
    for _ in range(max_iter):
        labels, _ = nearest(X, centers)
        history.append(inertia(X, centers, labels, weights))
        sums, counts = sums_and_counts(X, labels, len(centers), weights)
        assert counts.all(), "a cluster is empty"
        updated = sums / counts[:, None]
        if np.array_equal(updated, centers):
            break
        centers = updated
    return centers, history


def split(
    X: Any, first: int, second: int, n_steps: int, weights: ArrayLike | None = None
) -> tuple[float, NDArray[np.float64]]:
    """Two-means from two rows: by how much two means lower the sum of squared distances against one, and the means."""
    X = dense(X)
    weights = np.ones(len(X)) if weights is None else np.asarray(weights, float)
    halves = X[[first, second]]
    for _ in range(n_steps):
        labels, _ = nearest(X, halves)
        sums, counts = sums_and_counts(X, labels, 2, weights)
        if not counts.all():
            return 0.0, halves
        halves = sums / counts[:, None]
    return within(X, np.zeros(len(X), int), weights) - inertia(X, halves, labels, weights), halves


def gaussians(seed: int, feature: int, n_columns: int) -> NDArray[np.float64]:
    """Standard normal numbers of a feature, by Box and Muller's transform of two hashes for a pair of columns."""
    stream, numbers = splitmix64(seed, feature), []
    for pair in range(0, n_columns, 2):
        first = ((splitmix64(stream, pair) >> 11) + 1) / 2**53
        second = (splitmix64(stream, pair + 1) >> 11) / 2**53
        radius = math.sqrt(-2 * math.log(first))
        numbers += [radius * math.cos(2 * math.pi * second), radius * math.sin(2 * math.pi * second)]
    return np.array(numbers)


def gram(X: Any, weights: ArrayLike | None = None) -> NDArray[np.float64]:
    """``sum_i w_i x_i x_i.T``, row by row."""
    X = dense(X)
    weights = np.ones(len(X)) if weights is None else np.asarray(weights, float)
    out = np.zeros((X.shape[1], X.shape[1]))
    for x, weight in zip(X, weights, strict=True):
        out += weight * np.outer(x, x)
    return out


def partitions(n_rows: int, n_clusters: int) -> list[NDArray[np.int64]]:
    """Labels of every way to put rows into exactly so many clusters: each cluster's number is its first row's rank."""
    found: list[list[int]] = [[]]
    for _ in range(n_rows):
        found = [[*labels, label] for labels in found for label in range(min(max(labels, default=-1) + 2, n_clusters))]
    return [np.array(labels) for labels in found if max(labels) == n_clusters - 1]


def folded(fit, parts, *, joins):
    """What steps of a preparation find in parts of the rows: one state over all, or one of each that are joined."""
    nothing = np.empty(0)
    if joins:
        return fit.finish(fit.join([fit.step(None, part, nothing) for part in parts]))
    state = None
    for part in parts:
        state = fit.step(state, part, nothing)
    return fit.finish(state)
