"""What is in each cluster: size, neighbour, and the features that set it apart from all rows."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.matrix import Matrix

if TYPE_CHECKING:
    from pandas import DataFrame

BATCH_ENTRIES = 1 << 17  # of rows that are in float64 at a time
BATCH = 256  # clusters that are compared with all at a time
HEAD = ("cluster", "size", "share", "nearest", "distance", "set apart by")


@dataclass(frozen=True, slots=True)
class Trait:
    """A feature that sets a cluster apart.

    Attributes
    ----------
    feature : str
        Its name, or its number.
    mean, mean_of_all : float
        Of the cluster's rows, and of all rows.
    deviations : float
        The difference of both in standard deviations of all rows.
    """

    feature: str
    mean: float
    mean_of_all: float
    deviations: float

    def __str__(self) -> str:
        return f"{self.feature} {self.mean:.4g} ({self.deviations:+.1f} sd)"


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """One cluster.

    Attributes
    ----------
    cluster : int
        Its label.
    size : float
        Rows, or their weight.
    share : float
        Of all rows.
    nearest : int
        The cluster whose mean lies nearest; -1 where there is no other.
    distance : float
        Between the two means.
    traits : tuple of Trait
        Those that set it apart most, first.
    """

    cluster: int
    size: float
    share: float
    nearest: int
    distance: float
    traits: tuple[Trait, ...]


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """All clusters, the largest first. Prints as a table; notebooks show it as one.

    Attributes
    ----------
    rows : tuple of ClusterRow
    """

    rows: tuple[ClusterRow, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        cells = [HEAD, *map(_cells, self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join(
            "  ".join(
                [text.rjust(width) for text, width in zip(line[:-1], widths[:-1], strict=True)] + [line[-1]]
            ).rstrip()
            for line in cells
        )

    def _repr_html_(self) -> str:
        lines = [
            f"<tr>{''.join(f'<{tag}>{html.escape(text)}</{tag}>' for text in line)}</tr>"
            for tag, line in [("th", HEAD), *(("td", _cells(row)) for row in self.rows)]
        ]
        return f"<table>{''.join(lines)}</table>"

    def to_dicts(self) -> list[dict[str, Any]]:
        """JSON values, a mapping for each cluster."""
        return [asdict(row) for row in self.rows]

    def to_pandas(self) -> DataFrame:
        """A data frame with a row for each cluster; ``traits`` as text. Needs pandas."""
        import pandas as pd

        rows = [{**each, "traits": _traits_text(row)} for each, row in zip(self.to_dicts(), self.rows, strict=True)]
        return pd.DataFrame(rows).set_index("cluster")


def describe_clusters(
    means: NDArray[np.float64],
    counts: NDArray[np.float64],
    deviations: NDArray[np.float64],
    name: Callable[[int], str],
    n_traits: int,
) -> ClusterSummary:
    """Say what is in each cluster. O(k^2 * d).

    Parameters
    ----------
    means : float64 (k, d)
    counts : float64 (k,)
    deviations : float64 (d,)
        Standard deviations of the features; those of 0 set nothing apart.
    name : callable
        Of a feature's number.
    n_traits : int
        Features for each cluster, at most.
    """
    total, (others, far) = float(counts.sum()), nearest_means(means)
    everywhere = counts @ means / total
    rows = [
        ClusterRow(
            int(cluster),
            float(counts[cluster]),
            float(counts[cluster] / total),
            int(others[cluster]),
            float(far[cluster]),
            _traits(means[cluster], everywhere, deviations, name, n_traits) if counts[cluster] > 0 else (),
        )
        for cluster in np.argsort(-counts, kind="stable")
    ]
    return ClusterSummary(tuple(rows))


def feature_deviations(X: Matrix) -> NDArray[np.float64]:
    """Standard deviations of features over rows (d,), in float64. O(n * d), or O(nnz + d).

    Parameters
    ----------
    X : ndarray or csr_array (n, d)
    """
    n_rows, width = X.shape
    if isinstance(X, np.ndarray):
        mean, squares = X.mean(axis=0, dtype=np.float64), np.zeros(width)
        step = max(1, BATCH_ENTRIES // max(1, width))
        for start in range(0, n_rows, step):
            squares += np.square(X[start : start + step] - mean).sum(axis=0)
        return np.asarray(np.sqrt(squares / n_rows), np.float64)
    rows = sp.csr_array((X.data.astype(np.float64), X.indices, X.indptr), shape=X.shape)
    mean = np.bincount(rows.indices, rows.data, minlength=width) / n_rows
    away = np.bincount(rows.indices, (rows.data - mean[rows.indices]) ** 2, minlength=width)
    stored = np.bincount(rows.indices, minlength=width)
    return np.asarray(np.sqrt((away + (n_rows - stored) * mean**2) / n_rows), np.float64)


def nearest_means(means: NDArray[np.float64]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """For each of k means the nearest other one, -1 for none, and how far it is (k,). O(k^2 * d)."""
    from sklearn.metrics.pairwise import euclidean_distances

    others, far = np.full(len(means), -1, np.int32), np.zeros(len(means))
    for start in range(0, len(means) if len(means) > 1 else 0, BATCH):
        found = np.asarray(euclidean_distances(means[start : start + BATCH], means), np.float64)
        rows = np.arange(len(found))
        found[rows, start + rows] = np.inf
        others[start : start + BATCH] = found.argmin(axis=1)
        far[start : start + BATCH] = found.min(axis=1)
    return others, far


def _traits(
    mean: NDArray[np.float64],
    everywhere: NDArray[np.float64],
    deviations: NDArray[np.float64],
    name: Callable[[int], str],
    n_traits: int,
) -> tuple[Trait, ...]:
    """What sets one cluster apart, the most first."""
    apart = np.divide(mean - everywhere, deviations, out=np.zeros(len(mean)), where=deviations > 0)
    most = np.argsort(-np.abs(apart), kind="stable")[:n_traits]
    return tuple(
        Trait(name(int(j)), float(mean[j]), float(everywhere[j]), float(apart[j])) for j in most if apart[j] != 0
    )


def _cells(row: ClusterRow) -> Sequence[str]:
    other = "-" if row.nearest < 0 else str(row.nearest)
    distance = "-" if row.nearest < 0 else f"{row.distance:.4g}"
    return str(row.cluster), f"{row.size:,.6g}", f"{row.share:.1%}", other, distance, _traits_text(row)


def _traits_text(row: ClusterRow) -> str:
    return ", ".join(map(str, row.traits))
