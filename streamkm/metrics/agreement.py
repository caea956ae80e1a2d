"""How well a clustering agrees with known classes, or with another clustering.

All but the ratio of objectives follow from the contingency table of both labellings, gathered chunk by chunk in int64,
so labels need not fit in memory. Knows nothing of estimators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.metrics.internal import objective

CHUNK_ROWS = 1 << 20  # labels looked at together
CELLS_PER_ROW = 4  # of the table of one chunk, counted in place; labels of a wider span are sorted
INVALID = -1  # what streamkm labels rows with that were skipped


@dataclass(frozen=True, slots=True)
class Contingency:
    """How many rows of each class lie in each cluster.

    Attributes
    ----------
    table : int64 csr_array (classes, clusters)
        Exact counts.
    classes, clusters : int64 (classes,), (clusters,)
        The labels, ascending.
    n_left_out : int
        Rows without a cluster, which are in no count.
    """

    table: sp.csr_array
    classes: NDArray[np.int64]
    clusters: NDArray[np.int64]
    n_left_out: int

    @property
    def n_rows(self) -> int:
        """Rows counted."""
        return int(self.table.data.sum())

    def pairs(self) -> tuple[int, int, int, int]:
        """Pairs of rows, exactly: (together in both, in the clusters alone, in the classes alone, in neither)."""
        both = _pairs_within(self.table.data)
        in_classes = _pairs_within(self.table.sum(axis=1))
        in_clusters = _pairs_within(self.table.sum(axis=0))
        every = self.n_rows * (self.n_rows - 1) // 2
        return both, in_clusters - both, in_classes - both, every - in_clusters - in_classes + both


def contingency(labels_true: Any, labels_pred: Any = None, *, invalid: int | None = INVALID) -> Contingency:
    """Count classes in clusters, chunk by chunk.

    Parameters
    ----------
    labels_true : int array-like (n,), memory map or Zarr array; or an iterable of pairs of such
        Classes. Any integers.
    labels_pred : the same (n,), or None
        Clusters. None: `labels_true` yields pairs (classes, clusters) of chunks.
    invalid : int or None, default=-1
        Rows whose *cluster* has this label take no part: it is what streamkm gives to rows that it skipped. None: every
        row counts. Classes may be any number, -1 among them.

    Returns
    -------
    Contingency

    Raises
    ------
    InvalidInputError
        Labels that are no integers, not one-dimensional, or of two lengths; nothing left to count.

    Notes
    -----
    O(n) where the labels of a chunk span few numbers, else O(n log n). Memory for one chunk and the distinct pairs.
    """
    gathered: list[NDArray[np.int64]] = []
    waiting, limit, n_left_out = 0, CHUNK_ROWS, 0
    for true, pred in _label_chunks(labels_true, labels_pred):
        if invalid is not None:
            kept = pred != invalid
            n_left_out += len(pred) - int(np.count_nonzero(kept))
            true, pred = true[kept], pred[kept]  # noqa: PLW2901
        if not len(true):
            continue
        gathered.append(_counted(true, pred))
        waiting += gathered[-1].shape[1]
        if waiting > limit:
            gathered = [_joined(gathered)]
            waiting = gathered[0].shape[1]
            limit = max(CHUNK_ROWS, 2 * waiting)
    if not gathered:
        left = f" ({n_left_out:,} rows are labelled {invalid})" if n_left_out else ""
        raise InvalidInputError(f"no labels to compare{left}; needed: at least 1 row with a cluster")
    true, pred, counts = _joined(gathered)
    classes, rows = np.unique(true, return_inverse=True)
    clusters, columns = np.unique(pred, return_inverse=True)
    table = sp.csr_array((counts, (rows, columns)), shape=(len(classes), len(clusters)))
    return Contingency(table, classes, clusters, n_left_out)


def clustering_accuracy(labels_true: Any, labels_pred: Any = None, *, invalid: int | None = INVALID) -> float:
    """Share of rows in the right cluster when clusters are matched with classes, one to one, as well as can be.

    Parameters
    ----------
    labels_true, labels_pred, invalid
        As of `contingency`; or a `Contingency` alone.

    Returns
    -------
    float
        In (0, 1]. Rows of clusters that are left without a class count as wrong.

    Notes
    -----
    The matching takes O(min(c, k)^2 max(c, k)) time and 8 c k bytes for c classes and k clusters.

    References
    ----------
    Kuhn, "The Hungarian method for the assignment problem", Naval Research Logistics Quarterly 2 (1955).
    """
    from scipy.optimize import linear_sum_assignment

    counted = _as_contingency(labels_true, labels_pred, invalid)
    dense = counted.table.toarray()
    rows, columns = linear_sum_assignment(dense, maximize=True)
    return int(dense[rows, columns].sum()) / counted.n_rows


def normalized_mutual_info(
    labels_true: Any,
    labels_pred: Any = None,
    *,
    average_method: Literal["arithmetic", "geometric"] = "arithmetic",
    invalid: int | None = INVALID,
) -> float:
    """Mutual information over a mean of both entropies, in [0, 1]; 1 where both have one label only.

    Parameters
    ----------
    labels_true, labels_pred, invalid
        As of `contingency`; or a `Contingency` alone.
    average_method : {"arithmetic", "geometric"}, default="arithmetic"
        Which mean. Strehl and Ghosh, and with them Wang, Gittens and Mahoney, take the geometric one: never less.

    References
    ----------
    Strehl and Ghosh, "Cluster ensembles", JMLR 3 (2002), equation 3.
    """
    from scipy.special import entr

    if average_method not in ("arithmetic", "geometric"):
        raise InvalidParameterError(f"average_method={average_method!r}; needed: 'arithmetic' or 'geometric'")
    counted = _as_contingency(labels_true, labels_pred, invalid)
    if counted.table.shape == (1, 1):
        return 1.0
    of_classes, of_clusters = counted.table.sum(axis=1), counted.table.sum(axis=0)
    cells, n = counted.table.tocoo(), counted.n_rows
    rows, columns = cells.coords
    logs = np.log(cells.data) - np.log(of_classes[rows]) - np.log(of_clusters[columns]) + np.log(n)
    shared = float((cells.data / n) @ logs)
    if shared <= np.finfo(float).eps:
        return 0.0
    entropies = [float(entr(sizes / n).sum()) for sizes in (of_classes, of_clusters)]
    mean = sum(entropies) / 2 if average_method == "arithmetic" else np.sqrt(np.prod(entropies))
    return float(min(1.0, shared / mean))


def adjusted_rand(labels_true: Any, labels_pred: Any = None, *, invalid: int | None = INVALID) -> float:
    """Agreement over pairs of rows, adjusted for chance: 1 for equal partitions, about 0 for unrelated ones.

    Parameters
    ----------
    labels_true, labels_pred, invalid
        As of `contingency`; or a `Contingency` alone.

    References
    ----------
    Hubert and Arabie, "Comparing partitions", Journal of Classification 2 (1985).
    """
    both, clusters, classes, neither = _as_contingency(labels_true, labels_pred, invalid).pairs()
    if clusters == classes == 0:
        return 1.0
    expected = (both + classes) * (classes + neither) + (both + clusters) * (clusters + neither)
    return 2 * (both * neither - classes * clusters) / expected


def pairwise_f_beta(
    labels_true: Any, labels_pred: Any = None, *, beta: float = 5.0, invalid: int | None = INVALID
) -> float:
    """F measure over pairs of rows: ``(1 + b^2) P R / (b^2 P + R)``.

    A pair is found if its rows share a cluster, and right if they share a class; P is the share of right pairs among
    those found, R the share of found ones among those that are right. With b > 1, separating alike rows costs more.

    Parameters
    ----------
    labels_true, labels_pred, invalid
        As of `contingency`; or a `Contingency` alone.
    beta : float, default=5
        b. Senuma uses 5.

    Returns
    -------
    float
        In [0, 1]; 1 where no two rows are together in either.

    References
    ----------
    Manning, Raghavan and Schuetze, "Introduction to information retrieval" (2008), section 16.3; Senuma, "K-means
    clustering with feature hashing", ACL student session (2011).
    """
    if not beta > 0:
        raise InvalidParameterError(f"beta={beta!r}; needed: a number above 0")
    both, clusters, classes, _ = _as_contingency(labels_true, labels_pred, invalid).pairs()
    weighed = (1 + beta**2) * both
    total = weighed + beta**2 * classes + clusters
    return weighed / total if total else 1.0


def objective_ratio(X: Any, labels: Any, reference: Any) -> float:
    """Objective of a clustering over that of another one of the same rows, at their own means; X is walked four times.

    Above 1 where `labels` is the worse one; 1 where both objectives are 0, infinity where only the reference's is.

    Parameters
    ----------
    X, labels, reference
        As of `spread`; both labellings leave out the same rows.
    """
    ours, theirs = objective(X, labels), objective(X, reference)
    if theirs == 0:
        return 1.0 if ours == 0 else float("inf")
    return ours / theirs


def _as_contingency(labels_true: Any, labels_pred: Any, invalid: int | None) -> Contingency:
    if isinstance(labels_true, Contingency):
        return labels_true
    return contingency(labels_true, labels_pred, invalid=invalid)


def _label_chunks(labels_true: Any, labels_pred: Any) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Both labels, a chunk at a time, as int64."""
    if labels_pred is None:
        pairs: Iterable[Any] = labels_true
    else:
        true, pred = (
            labels if hasattr(labels, "shape") else np.asarray(labels) for labels in (labels_true, labels_pred)
        )
        if true.shape != pred.shape:
            raise InvalidInputError(f"labels have shapes {true.shape} and {pred.shape}; needed: one length")
        stored = max(1, *(getattr(labels, "chunks", (1,))[0] for labels in (true, pred)))
        step = -(-CHUNK_ROWS // stored) * stored  # whole chunks of storage
        pairs = ((true[i : i + step], pred[i : i + step]) for i in range(0, true.shape[0], step))
    for number, (part_true, part_pred) in enumerate(pairs):
        both = _as_int64(part_true, number), _as_int64(part_pred, number)
        if len(both[0]) != len(both[1]):
            raise InvalidInputError(f"chunk {number} has {len(both[0]):,} classes and {len(both[1]):,} clusters")
        yield both


def _as_int64(labels: Any, number: int) -> NDArray[np.int64]:
    values = np.asarray(labels)
    if values.ndim != 1 or values.dtype.kind not in "iub":
        raise InvalidInputError(
            f"labels of chunk {number} are {values.dtype} of shape {values.shape}; needed: integers (n,)"
        )
    if values.dtype == np.uint64 and len(values) and values.max() > np.iinfo(np.int64).max:
        raise InvalidInputError(f"label {values.max()} in chunk {number} does not fit 64 bits with a sign; number anew")
    return values.astype(np.int64)


def _counted(true: NDArray[np.int64], pred: NDArray[np.int64]) -> NDArray[np.int64]:
    """Distinct pairs and how often each occurs: (3, p), ordered."""
    first_true, first_pred = int(true.min()), int(pred.min())
    n_true, n_pred = int(true.max()) - first_true + 1, int(pred.max()) - first_pred + 1
    if n_true * n_pred <= CELLS_PER_ROW * len(true):
        counts = np.bincount((true - first_true) * n_pred + (pred - first_pred))
        codes = np.flatnonzero(counts)
        return np.stack([codes // n_pred + first_true, codes % n_pred + first_pred, counts[codes]])
    return _joined([np.stack([true, pred, np.ones_like(true)])])


def _joined(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Pairs of several chunks with their counts added up, exactly: (3, p), ordered."""
    true, pred, counts = np.concatenate(parts, axis=1)
    order = np.lexsort((pred, true))
    true, pred, counts = true[order], pred[order], counts[order]
    fresh = np.concatenate([[True], (true[1:] != true[:-1]) | (pred[1:] != pred[:-1])])
    starts = np.flatnonzero(fresh)
    return np.stack([true[starts], pred[starts], np.add.reduceat(counts, starts)])


def _pairs_within(counts: Any) -> int:
    """Unordered pairs within groups of these sizes; Python's integers where int64 would not hold them."""
    sizes = np.asarray(counts, np.int64)
    if sizes.sum() < 1 << 31:
        return int((sizes * (sizes - 1) // 2).sum())
    return sum(size * (size - 1) // 2 for size in sizes.tolist())
