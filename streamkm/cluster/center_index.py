"""An index of many centers: what tells, for certain, that most of them are not a row's nearest one.

Principal directions of the centers, the centers in these coordinates, and groups of them to guess the nearest one from.
The labels are those that a look at all centers gives, to the bit. Sees arrays only; `blocks` says which and when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.core.matrix import aligned_empty
from streamkm.kernels.cluster import pruned
from streamkm.kernels.intrinsics.panels import Panels
from streamkm.kernels.intrinsics.products import BLOCK_ROWS, DEPTH
from streamkm.kernels.intrinsics.sieve import PANEL_COLUMNS

FEWEST_CENTERS = 512  # that are many
FEWEST_FEATURES = 64
FEWEST_ENTRIES = 1 << 18  # of centers, that an index is worth; half of them where the nearest ones are guessed already
LOOKED_UP_ROWS = 1920  # that are looked up at a time
DIRECTION_CENTERS = 1024  # that directions are found on
ROUNDS = 3  # of finding them
SPARE = 8  # directions beyond those that are wanted, while they are found
GROUPS = 4  # times the square root of the centers: so many groups
PROBES = 4  # groups that the nearest center is guessed from
GROUP_STEPS = 3
LOST = 8  # times what a projection loses: twice for squares, once for products, of both sides
NEARLY = 1e-6  # that products of directions may be from those of orthogonal ones of length 1

IndexParts: TypeAlias = tuple[NDArray[np.float32], NDArray[np.int32]]
"""Directions (m, u) and groups (k,) of an index: what finding it takes longest for."""


@dataclass(frozen=True, slots=True)
class CenterIndex:
    """Columns of a table of centers, so that most are excluded by a few numbers.

    Attributes
    ----------
    directions : float32 (m, pruned.COORDINATES)
        Orthonormal, but for rounding.
    groups : int32 (k,)
        Group of each center.
    projection : Panels
        The directions, and two columns of zeros.
    means : Panels
        Of the groups, in these coordinates, and
    mean_bias : float32 (g,)
        half of what is added to their products.
    members : (int32 (k,), int64 (g + 1,))
        Centers of each group, and where they start.
    head_bias : float32 (k,)
        What is added to products of their coordinates.
    centers : tuple of arrays
        As `pruned.nearest_pruned` takes them.
    lost : float64
        As of `pruned.reduce_rows`.
    """

    directions: NDArray[np.float32]
    groups: NDArray[np.int32]
    projection: Panels
    means: Panels
    mean_bias: NDArray[np.float32]
    members: tuple[NDArray[np.int32], NDArray[np.int64]]
    head_bias: NDArray[np.float32]
    centers: tuple[NDArray[np.float32], ...]
    lost: float

    @classmethod
    def of(
        cls,
        columns: NDArray[np.float32],
        bias: NDArray[np.float32],
        known: IndexParts | None = None,
    ) -> CenterIndex:
        """Build it. O(k * m * WIDE + k^1.5 * WIDE).

        Parameters
        ----------
        columns : float32 (k, m)
            Columns of the table: the scores of rows z are ``z @ columns.T + bias``.
        bias : float32 (k,)
        known : (float32 (m, u), int32 (k,)), optional
            Directions and groups, of an index that was saved.
        """
        n_clusters, n_features = columns.shape
        directions = principal_directions(columns) if known is None else known[0]
        filled = np.zeros((n_features, pruned.COORDINATES + 2), np.float32)
        filled[:, : pruned.COORDINATES] = directions
        projection = Panels.of(filled)
        coordinates = projection.product(columns)
        wide = coordinates[:, : pruned.WIDE].copy()
        wide[:, -1] = 0
        groups = grouped(wide, max(1, int(GROUPS * np.sqrt(n_clusters)))) if known is None else known[1]
        means, order, starts = _means(wide, groups)
        # a score is -2 x @ c + |c|^2, and a column -2 c
        mean_bias = (0.25 * np.einsum("ij,ij->i", means, means, dtype=np.float64)).astype(np.float32)
        head_bias = (0.25 * np.einsum("ij,ij->i", wide, wide, dtype=np.float64)).astype(np.float32)
        padded = -(-n_clusters // PANEL_COLUMNS) * PANEL_COLUMNS
        lost = lost_by_projection(n_features)
        (narrow, wide, wider), _ = _reduced(columns, coordinates, lost, -1.0, padded)
        table = aligned_empty((padded * pruned.NARROW,), np.float32)
        panels = narrow.reshape(-1, PANEL_COLUMNS, pruned.NARROW)
        table.reshape(-1, pruned.NARROW, PANEL_COLUMNS)[:] = panels.transpose(0, 2, 1)
        filled_bias = np.full(padded, np.inf, np.float32)
        filled_bias[:n_clusters] = bias
        return cls(
            directions, groups, projection, Panels.of(np.ascontiguousarray(means.T)), mean_bias, (order, starts),
            head_bias, (columns, wide, wider, table, filled_bias), lost,
        )  # fmt: skip

    def nearest(
        self,
        X: NDArray[np.float32],
        slopes: tuple[float, float],
        slack: float,
        found: tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.bool_]],
        likely: NDArray[np.int32] | None = None,
    ) -> NDArray[np.bool_]:
        """Label rows; say which are left to a look at all centers.

        Parameters
        ----------
        X : float32 (n, m), C-contiguous
            Moved and scaled.
        slopes, slack
            As of `pruned.nearest_pruned`.
        found : (int32 (n,), float32 (n,), bool (n,))
            Labels, scores and doubt: written, but for the rows that are left.
        likely : int32 (n,), optional
            Centers that are likely the nearest.

        Returns
        -------
        left : bool (n,)
        """
        n_rows = len(X)
        coordinates = self.projection.product(X)
        padded = -(-n_rows // BLOCK_ROWS) * BLOCK_ROWS
        reduced, norms = _reduced(X, coordinates, self.lost, 1.0, padded)
        if likely is None:
            likely = self._guessed(X, reduced[1])
        left = np.empty(n_rows, np.bool_)
        pruned.nearest_pruned(X, reduced, norms, likely, self.centers, slopes, slack, *found, left)
        return left

    def _guessed(self, X: NDArray[np.float32], wide: NDArray[np.float32]) -> NDArray[np.int32]:
        """Centers that are likely the nearest ones, by the groups that rows lie nearest to (n,)."""
        groups, out = np.empty((len(X), min(PROBES, len(self.mean_bias))), np.int32), np.empty(len(X), np.int32)
        # the means have nothing where rows have a length
        pruned.lowest_columns(self.means.product(wide), self.mean_bias, groups)
        rows, wide_rows, _, _, bias = self.centers
        pruned.likely_columns(X, wide, groups, *self.members, rows, wide_rows, bias, self.head_bias, out)
        return out


def is_worth(n_clusters: int, n_features: int, *, guessed: bool = False) -> bool:
    """Whether an index takes less time than a look at all centers: from about 1,000 of 256 features, measured."""
    many = n_clusters >= FEWEST_CENTERS and n_features >= FEWEST_FEATURES
    return many and n_clusters * n_features * (1 + guessed) >= FEWEST_ENTRIES


def index_bytes(n_clusters: int, width: int, n_threads: int) -> int:
    """Memory that an index takes, and each thread that looks rows up in it; 0 where there is none."""
    if n_clusters < FEWEST_CENTERS or width < FEWEST_FEATURES:
        return 0
    n_groups = int(GROUPS * np.sqrt(n_clusters))
    coordinates = 4 * (pruned.NARROW + 2 * pruned.WIDE)
    looked_up = LOOKED_UP_ROWS * (4 * (width + n_groups) + 2 * coordinates)
    return n_clusters * (4 * width + 2 * coordinates) + n_threads * looked_up


def lost_by_projection(n_features: int) -> float:
    """What products of coordinates and lengths may be wrong by, as a share of the product of the rows' lengths."""
    roundings = min(DEPTH, n_features) + n_features / DEPTH + 5
    return LOST * float(np.sqrt(pruned.COORDINATES) * roundings * np.finfo(np.float32).eps / 2)


def principal_directions(columns: NDArray[np.float32]) -> NDArray[np.float32]:
    """Directions that the columns reach farthest in, about, orthonormal: by subspace iteration (m, COORDINATES).

    They choose what is excluded first, and no label: their last bits may differ from processor to processor.
    """
    step = -(-len(columns) // DIRECTION_CENTERS)
    some = columns[::step].astype(np.float64)
    rng = np.random.default_rng(0)
    found = rng.normal(size=(columns.shape[1], pruned.COORDINATES + SPARE))
    for _ in range(ROUNDS):
        found = np.linalg.qr(some.T @ (some @ found))[0]
    values, turn = np.linalg.eigh(found.T @ (some.T @ (some @ found)))
    found = found @ turn[:, np.argsort(-values)]
    return np.ascontiguousarray(np.linalg.qr(found)[0][:, : pruned.COORDINATES], np.float32)


def _reduced(
    X: NDArray[np.float32], coordinates: NDArray[np.float32], lost: float, sign: float, padded: int
) -> tuple[tuple[NDArray[np.float32], ...], NDArray[np.float64]]:
    """Rows as `pruned.reduce_rows` leaves them, the first of them with rows of zeros up to `padded`; their lengths."""
    n_rows = len(X)
    narrow, norms = np.empty((padded, pruned.NARROW), np.float32), np.empty(n_rows)
    narrow[n_rows:] = 0
    wide, wider = np.empty((n_rows, pruned.WIDE), np.float32), np.empty((n_rows, pruned.WIDE), np.float32)
    pruned.reduce_rows(X, coordinates, lost, sign, narrow, wide, wider, norms)
    return (narrow, wide, wider), norms


def are_orthonormal(directions: NDArray[np.float32]) -> bool:
    """Whether the columns are as orthonormal as rounding leaves them; not of NaN."""
    exact = directions.astype(np.float64)
    wrong = np.abs(exact.T @ exact - np.eye(exact.shape[1]))
    return bool(wrong.max() <= NEARLY)


def grouped(wide: NDArray[np.float32], n_groups: int) -> NDArray[np.int32]:
    """Groups of centers that lie near each other, by a few steps of Lloyd's algorithm (k,)."""
    groups = np.empty((len(wide), 1), np.int32)
    means = wide[:: max(1, len(wide) // n_groups)][:n_groups]
    for _ in range(GROUP_STEPS):
        half = 0.5 * np.einsum("ij,ij->i", means, means, dtype=np.float64)
        pruned.lowest_columns(Panels.of(np.ascontiguousarray(-means.T)).product(wide), half.astype(np.float32), groups)
        means = _means(wide, groups[:, 0])[0]
    return groups[:, 0]


def _means(
    wide: NDArray[np.float32], groups: NDArray[np.int32]
) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.int64]]:
    """Means of the groups, the rows in the order of groups, and where each starts."""
    order = np.argsort(groups, kind="stable").astype(np.int32)
    starts = np.searchsorted(groups[order], np.arange(int(groups.max()) + 2)).astype(np.int64)
    filled = np.flatnonzero(np.diff(starts))
    sums = np.add.reduceat(wide[order].astype(np.float64), starts[filled])
    starts = np.append(starts[filled], len(groups)).astype(np.int64)
    return (sums / np.diff(starts)[:, None]).astype(np.float32), order, starts
