"""An index of many centers: bounds that exclude most centers for a row, with the labels of a full search to the bit.

It holds principal directions of the centers, the centers in these coordinates, and groups of them for a first guess.
Sees arrays only; `blocks` decides when it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.core.matrix import aligned_empty
from streamkm.kernels.centers import pruned, reduced
from streamkm.kernels.centers.nearby import balanced_groups
from streamkm.kernels.intrinsics.panels import Panels
from streamkm.kernels.intrinsics.products import BLOCK_ROWS, DEPTH
from streamkm.kernels.intrinsics.sieve import DEPTH as DEPTH_BYTES
from streamkm.kernels.intrinsics.sieve import HEADS, OFFSET, PANEL_COLUMNS, STEP

FEWEST_CENTERS = 512  # that are many
FEWEST_FEATURES = 32
FEWEST_ENTRIES = 3 << 16  # of centers, that an index is worth; half of them where the nearest ones are guessed already
LOOKED_UP_ROWS = 5760  # that are looked up at a time
DIRECTION_CENTERS = 1024  # that directions are found on
ROUNDS = 3  # of finding them
SPARE = 8  # directions beyond those that are wanted, while they are found
GROUPS = 2  # times the square root of the centers: so many groups
PROBES = 5  # groups that the nearest center is guessed from
LOST = 8  # times what a projection loses: twice for squares, once for products, of both sides

IndexParts: TypeAlias = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]
"""Directions (m, u), the centers in groups (k,) and starts of these (g + 1,), which serve centers that have moved."""


@dataclass(frozen=True, slots=True)
class CenterIndex:
    """Columns of a table of centers, arranged so that a few numbers exclude most of them."""

    # directions are orthonormal, but for rounding: `reduced.COORDINATES`, or m if that is less
    parts: IndexParts
    projection: Panels  # the directions, and columns of zeros
    means: Panels  # of the groups, in these coordinates
    mean_bias: NDArray[np.float32]  # (g,): half of what is added to the products of the groups' means
    # (int64 (g + 1,): float32 (k, WIDE), float32 (k,)), where each group starts, coordinates of centers, and what is
    # added to products with them
    members: tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]
    places: NDArray[np.int32]  # (k,): where each center is among `centers`
    # centers as `pruned.nearest_pruned` takes them: in groups, and groups in the order of a tree
    centers: tuple[NDArray[Any], ...]
    lost: float  # float64, as of `reduced.reduce_rows`

    @classmethod
    def of(
        cls, columns: NDArray[np.float32], bias: NDArray[np.float32], known: IndexParts | None = None
    ) -> CenterIndex:
        """Build the index. O(k * m * WIDE + k^1.5 * WIDE).

        `columns`: float32 (k, m), of the table: scores of rows z are ``z @ columns.T + bias``. `known`: parts of the
        index of other centers.
        """
        n_clusters, n_features = columns.shape
        directions = principal_directions(columns) if known is None else known[0]
        filled = np.zeros((n_features, reduced.FINE), np.float32)
        filled[:, : directions.shape[1]] = directions
        projection = Panels.of(filled)
        lost = lost_by_projection(n_features)
        wide, lengths, fine, fine_lengths, _ = _reduced(columns, projection.product(columns), lost)
        order, starts = _grouped(wide, max(1, int(GROUPS * np.sqrt(n_clusters)))) if known is None else known[1:]
        places = np.empty(n_clusters, np.int32)
        places[order] = np.arange(n_clusters)
        sums = np.add.reduceat(wide[order].astype(np.float64), starts[:-1])
        means = (sums / np.diff(starts)[:, None]).astype(np.float32)
        wide, fine_columns = wide[order], _fine(fine[order], fine_lengths[order], -1)
        # a score is -2 x @ c + |c|^2, and a column -2 c
        mean_bias = (0.25 * np.einsum("ij,ij->i", means, means, dtype=np.float64)).astype(np.float32)
        head_bias = (0.25 * np.einsum("ij,ij->i", wide, wide, dtype=np.float64)).astype(np.float32)
        table, units = byte_panels(wide, lengths[order])
        filled_bias = np.full(len(units), np.inf, np.float32)
        filled_bias[:n_clusters] = bias[order]
        centers = (columns[order], *fine_columns, table, units, filled_bias, order.astype(np.int32))
        parts, members = (directions, order, starts), (starts, wide, head_bias)
        return cls(parts, projection, Panels.of(means.T.copy()), mean_bias, members, places, centers, lost)

    def nearest(
        self,
        X: NDArray[np.float32],
        slopes: tuple[float, float],
        slack: float,
        found: tuple[NDArray[Any], ...],
        likely: NDArray[np.int32] | None = None,
        *,
        seconds: bool = False,
    ) -> NDArray[np.bool_]:
        """Label rows; return which are left to a search of all centers, bool (n,).

        `X`: float32 (n, m), C-contiguous, moved and scaled. `slopes`, `slack`: as of `pruned.nearest_pruned`. `found`:
        labels, scores, second scores and doubt (n,), written except for rows left. `likely`: int32 (n,), likely nearest
        centers; None if `seconds`, without which second scores hold anything.
        """
        n_rows = len(X)
        wide, lengths, fine, fine_lengths, norms = _reduced(X, self.projection.product(X), self.lost)
        padded = -(-n_rows // BLOCK_ROWS) * BLOCK_ROWS
        row_bytes, units = aligned_empty((padded, reduced.WIDE), np.uint8), np.zeros(padded, np.float32)
        row_bytes[n_rows:] = 0
        given = _fine(fine, fine_lengths, 1)
        guessed = self._guessed(wide)[:, : 1 + seconds] if likely is None else self.places[likely][:, None]
        order = np.argsort(guessed[:, 0], kind="stable")
        reduced.to_bytes(wide[order], lengths[order], 1, OFFSET, reduced.ROW_LIMITS, row_bytes, units)
        left, begin = np.empty(n_rows, np.bool_), np.ascontiguousarray(guessed)
        rows = order, row_bytes, units, *given
        pruned.nearest_pruned(X, rows, norms, begin, self.centers, slopes, slack, found, left)
        return left

    def _guessed(self, wide: NDArray[np.float32]) -> NDArray[np.int32]:
        """Places (n, 2) of two centers that are likely the nearest, by the groups nearest to each row."""
        n_rows = len(wide)
        groups, out = np.empty((n_rows, min(PROBES, len(self.mean_bias))), np.int32), np.empty((n_rows, 2), np.int32)
        reduced.lowest_columns(self.means.product(wide), self.mean_bias, groups)
        reduced.likely_columns(wide, groups, *self.members, out)
        return out


def byte_panels(
    wide: NDArray[np.float32], lengths: NDArray[np.float32]
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Coordinates of columns as bytes, in panels as `sieve.mark_columns` takes them, and units (p,).

    `wide`, `lengths`: float32 (k, WIDE), (k,), as `reduced.reduce_rows` writes them.
    """
    padded = -(-len(wide) // PANEL_COLUMNS) * PANEL_COLUMNS
    whole, units = np.zeros((padded, DEPTH_BYTES), np.int8), np.ones(padded, np.float32)
    reduced.to_bytes(wide, lengths, -1, 0, reduced.COLUMN_LIMITS, whole, units)
    panels = whole.reshape(-1, PANEL_COLUMNS, DEPTH_BYTES // STEP, STEP)
    shares = panels.astype(np.int64)
    shares[..., -1, -1] = 0  # lengths are multiplied without the offset
    halves = -OFFSET * shares.reshape(*shares.shape[:3], 2, STEP // 2).sum(axis=(2, 4))
    table = aligned_empty((len(panels), HEADS + DEPTH_BYTES // STEP, PANEL_COLUMNS, STEP), np.int8)
    table[:, 0] = halves.sum(axis=2, dtype=np.int32)[..., None].view(np.int8)
    table[:, 1] = halves.astype(np.int16).view(np.int8)
    table[:, HEADS:] = panels.transpose(0, 2, 1, 3)
    return table.reshape(-1), units


def is_worth(n_clusters: int, n_features: int, *, guessed: bool = False) -> bool:
    """Whether an index is faster than a search of all centers: from about 800 of 256 features, measured."""
    many = n_clusters >= FEWEST_CENTERS and n_features >= FEWEST_FEATURES
    return many and n_clusters * n_features * (1 + guessed) >= FEWEST_ENTRIES


def index_bytes(n_clusters: int, width: int, n_threads: int) -> int:
    """Memory of an index under construction, with each thread's lookups; 0 where there is none."""
    if n_clusters < FEWEST_CENTERS or width < FEWEST_FEATURES:
        return 0
    n_groups = int(GROUPS * np.sqrt(n_clusters))
    coordinates = 4 * (2 * reduced.WIDE + 3 * reduced.FINE)
    looked_up = LOOKED_UP_ROWS * (4 * (width + n_groups) + coordinates)
    # columns in two orders, while it is made
    return n_clusters * (8 * width + coordinates) + n_threads * looked_up


def held_index_bytes(n_clusters: int, width: int, n_threads: int) -> int:
    """Memory of a built index, with each thread's lookups; 0 where there is none."""
    if n_clusters < FEWEST_CENTERS or width < FEWEST_FEATURES:
        return 0
    made = n_clusters * (4 * width + 12 * reduced.WIDE + 12 * reduced.FINE)
    return index_bytes(n_clusters, width, n_threads) - made


def lost_by_projection(n_features: int) -> float:
    """Bound on the error of products of coordinates and lengths, relative to the product of the rows' lengths."""
    roundings = min(DEPTH, n_features) + n_features / DEPTH + 5
    rounding = float(np.finfo(np.float32).eps) / 2
    return LOST * (np.sqrt(reduced.COORDINATES) * roundings + reduced.FINE) * rounding


def principal_directions(columns: NDArray[np.float32]) -> NDArray[np.float32]:
    """Approximate principal directions of the columns, orthonormal (m, u), by subspace iteration.

    Their last bits may differ between processors: they decide what is excluded first, never a label.
    """
    step = -(-len(columns) // DIRECTION_CENTERS)
    some = columns[::step].astype(np.float64)
    rng = np.random.default_rng(0)
    found = rng.normal(size=(columns.shape[1], reduced.COORDINATES + SPARE))
    for _ in range(ROUNDS):
        found = np.linalg.qr(some.T @ (some @ found))[0]
    values, turn = np.linalg.eigh(found.T @ (some.T @ (some @ found)))
    found = found @ turn[:, np.argsort(-values)]
    return np.ascontiguousarray(np.linalg.qr(found)[0][:, : reduced.COORDINATES], np.float32)


def _reduced(
    X: NDArray[np.float32], coordinates: NDArray[np.float32], lost: float
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32], NDArray[np.float32], NDArray[np.float64]]:
    """Rows as `reduced.reduce_rows` leaves them: `wide`, `lengths`, `fine`, `fine_lengths` and `norms`."""
    n_rows = len(X)
    wide, lengths = aligned_empty((n_rows, reduced.WIDE), np.float32), np.empty(n_rows, np.float32)
    fine, fine_lengths = aligned_empty((n_rows, reduced.FINE), np.float32), np.empty(n_rows, np.float32)
    norms = np.empty(n_rows)
    reduced.reduce_rows(X, coordinates, lost, wide, lengths, fine, fine_lengths, norms)
    return wide, lengths, fine, fine_lengths, norms


def _fine(
    fine: NDArray[np.float32], lengths: NDArray[np.float32], sign: int
) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
    """Whole numbers and units, as of `reduced.to_bytes`."""
    out, units = aligned_empty(fine.shape, np.int16), np.empty(len(fine), np.float32)
    reduced.to_bytes(fine, lengths, sign, 0, reduced.FINE_LIMITS, out, units)
    return out, units


def _grouped(wide: NDArray[np.float32], n_groups: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Centers in groups near each other (k,), near groups in a row, and the start of each (g + 1,)."""
    order, starts = np.empty(len(wide), np.int64), np.empty(n_groups + 1, np.int64)
    balanced_groups(wide.astype(np.float64), n_groups, order, starts)
    return order, starts
