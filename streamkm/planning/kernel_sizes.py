"""Sizes of a kernel fit: columns of the kernel matrix, features, and what theory says of them for an `eps`.

Pure functions of the parameters and the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamkm.cluster.memory import SEARCH_COPIES
from streamkm.cluster.seeding.search_set import search_rows
from streamkm.engine.memory import MIB, PassMemory
from streamkm.passes.assign import LABEL_BYTES, Assign
from streamkm.passes.sizes import FitSizes
from streamkm.passes.sketch import FindSketch
from streamkm.passes.sketch_rows import SketchRows
from streamkm.planning.memory import CHECK_CENTERS, CHECK_COPIES, ROUND_COPIES
from streamkm.sketches import Nystroem
from streamkm.sketches.kernel_columns import BATCH_ROWS
from streamkm.sketches.kernel_map import gram_bytes
from streamkm.sketches.sizing import kernel_columns, nystroem_columns

VIEW_ROWS = 5000  # sampled rows kept for the 2-D picture, and for what they promise of the objective
SQUARES = 6  # of c x c numbers while the landmarks' matrix is inverted: it, its vectors, what LAPACK works with
LIBRARY_MORE = 28 * MIB  # what maps of kernels and LAPACK hold beside what a fit of `StreamKMeans` does; measured
COMBINED = 3  # of n x c numbers while kernel columns are combined: the combinations, twice, and the random matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class MapSizes:
    """Sizes of a map to features."""

    n_columns: int  # landmarks, random features, or combinations of kernel columns: c
    # rows that the map holds: landmarks, or all rows where kernel columns are combined; 0 for random features
    n_held: int
    rank: int  # features
    n_features: int  # of dense rows; 0 of sparse ones
    landmark_bytes: int  # of a row as a landmark, with what is laid out for kernels
    pool_rows: int  # rows that landmarks are the means of, as floats; 0 where they are sampled

    @property
    def map_bytes(self) -> int:
        """Of the map."""
        return self.n_held * (self.landmark_bytes + 4 * self.rank)

    @property
    def call_bytes(self) -> int:
        """Of a call that maps rows, beside these."""
        return BATCH_ROWS * (12 * self.n_columns + 4 * self.n_held + 16 * self.n_features)

    @property
    def finding_bytes(self) -> int:
        """While landmarks are chosen and their matrix is inverted, or kernel columns are combined."""
        combined = COMBINED * 4 * self.n_held * self.n_columns if self.n_held > self.n_columns else 0
        means = 32 * self.n_columns * self.n_features if self.pool_rows else 0
        return combined + SQUARES * 8 * self.n_columns**2 + self.pool_rows * 4 * self.n_features + means


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelMemoryModel:
    """Sizes that the projection is made of, and the projection."""

    read: FitSizes  # of rows as they are read
    features: FitSizes  # of rows as features
    map: MapSizes
    all_rows: bool  # whether projection and clustering see all rows

    def stages(self, base: int) -> dict[str, int]:
        """Resident bytes of each stage at its peak."""
        reading, sample, kept = self.read.reading, self.read.sample_bytes, self.read.kept_rows
        row, n_rows = 8 + 4 * self.map.rank, self.read.rows.n_rows
        batch = reading.n_threads * self.map.call_bytes
        mapped = self.map.map_bytes + batch
        blocks = n_rows * row if self.all_rows else 0
        centers = 8 * self.read.n_clusters * self.map.rank
        searched = min(kept, search_rows(self.read.n_clusters)) * 12 * self.map.rank + SEARCH_COPIES * centers
        looked_at = min(kept, VIEW_ROWS) * (self.read.rows.row_bytes + row) + sample * self.read.chosen.keeps_sample
        labels, drawn = LABEL_BYTES * n_rows, self.read.chosen.drawn_rows
        gram = FindSketch.memory(gram_bytes(self.map.n_columns), sample + mapped, reads=self.all_rows)
        streamed = PassMemory(kept=sample + mapped + 2 * kept * row + blocks, reads=self.all_rows)
        stages = {
            "sample": reading.peak(SketchRows.memory(self.read, "sample")),
            "landmarks": sample + mapped + self.map.finding_bytes,
            "gram": reading.peak(gram),
            "features": reading.peak(streamed),
            "cluster": sample + mapped - batch + kept * row + blocks + searched,
            "assign": reading.peak(Assign.memory(self.features, "sketch")) + mapped + looked_at,
        }
        if drawn:
            checked = drawn * CHECK_COPIES * 2 * row + CHECK_CENTERS * centers
            stages["check"] = mapped - batch + looked_at + checked + labels
        if self.read.chosen.keeps_sample:
            both = ROUND_COPIES * (kept + drawn) * row
            stages["search"] = mapped + looked_at + both + labels + SEARCH_COPIES * centers
        return {name: base + LIBRARY_MORE + size for name, size in stages.items()}


COLUMN_SKETCHES = ("gaussian", "signs", "srht", "countsketch")
LANDMARK_SKETCHES = ("sampled-columns", "sub-gaussian", "sub-gaussian-entries", "ros")
"""Whose features are combinations of kernel values against drawn rows, without the root of the rows' own matrix."""
METHODS = ("nystroem", "two-step", *LANDMARK_SKETCHES, *COLUMN_SKETCHES, "fourier", "orthogonal-fourier")
LANDMARKS = ("uniform", "leverage", "rank-leverage", "kmeans")
LOSS, LARGEST_AUTO_RANK = 0.1, 256  # where no loss is given: k / LOSS features, at most so many
COLUMNS_PER_DIRECTION, FEWEST_PER_DIRECTION = 8, 2
LARGEST_AUTO_LANDMARKS = 2048  # but for FEWEST_PER_DIRECTION
NEIGHBOR_LANDMARKS = 1000  # of the width of neighbours: three rings need 700; a cluster 10 at least
DELTA = 0.1  # of the bound for Yin et al.'s sketches, which `eps` says nothing else to
MOST_EVALUATIONS = 1 << 32  # of the kernel, where all rows meet all rows: some minutes


@dataclass(frozen=True, slots=True)
class KernelSizes:
    """What is decided for a kernel fit."""

    n_landmarks: int  # columns of the sketch, c
    rank: int  # features, m
    # what `eps` asks for and does not get; empty where it gets it, or where none was given
    short: str = field(default="", compare=False)


def kernel_sizes(
    n_clusters: int,
    n_landmarks: int | str,
    rank: int | str,
    eps: float | None,
    n_rows: int | None,
    *,
    method: str = "nystroem",
) -> KernelSizes:
    """Sizes that "auto" means.

    The rank is k / eps (Wang, Gittens and Mahoney, JMLR 20, 2019, theorem 1, reconstructed: cost within 1 + eps + k / s
    for s features); without eps 10 k, at most 256, or, of c landmarks that were given, sqrt(k c), more than k and at
    most c / 2 (their remark 3, reconstructed: the terms k / s and s / c are then alike). Landmarks are 8 times as many
    as features, or the root of n, at most 2,048 or twice the features (Yin, Liu, Wang and Meng, NeurIPS 2022, claim in
    their introduction that Omega(sqrt(n)) keeps the rate of exact kernel k-means). Never more than rows. With eps they
    are as many as `nystroem_columns` asks for, up to the same 2,048; `short` says where that is too few.

    `LANDMARK_SKETCHES` have as many features as landmarks, whatever the rank: the root of n, where that is left open,
    at least k; for "ros" the next power of 2, at most n.
    """
    most = n_rows or np.iinfo(np.int64).max
    root = int(np.ceil(np.sqrt(n_rows or 0)))
    if method in LANDMARK_SKETCHES:
        columns = min(most, max(n_clusters, root) if n_landmarks == "auto" else int(n_landmarks))
        if method == "ros":
            power = 1 << (columns - 1).bit_length()
            columns = power if power <= most else power // 2
        short = "" if eps is None else _short_of_risk(columns, eps, n_rows)
        return KernelSizes(columns, columns, short)
    wanted = _rank(n_clusters, n_landmarks, rank, eps)
    asked = 0 if eps is None else _asked_columns(method, wanted, eps, n_rows)
    columns = int(n_landmarks) if n_landmarks != "auto" else 0
    if not columns:
        enough = min(LARGEST_AUTO_LANDMARKS, max(COLUMNS_PER_DIRECTION * wanted, root, asked))
        columns = max(FEWEST_PER_DIRECTION * wanted, enough)
    columns = min(columns, most)
    short = "" if eps is None else _short(n_clusters, method, columns, min(wanted, columns), eps, asked, n_rows)
    return KernelSizes(columns, min(wanted, columns), short)


def neighbor_landmarks(given: Any) -> int:
    """Landmarks at the width of neighbours, where an estimator's parameters ask for it or "auto" tries it; else 0."""
    most = max(NEIGHBOR_LANDMARKS, 10 * given.n_clusters)
    if given.gamma == "neighbors":
        return most if given.n_landmarks == "auto" else int(given.n_landmarks)
    left = (given.gamma, given.n_landmarks, given.rank, given.eps, given.fit_on, given.kernel.kernel, given.method)
    tried = left == ("auto", "auto", "auto", None, "sample", "rbf", Nystroem()) and str(given.init) == "k-means++"
    return NEIGHBOR_LANDMARKS if tried and given.n_clusters > 1 and most == NEIGHBOR_LANDMARKS else 0


def _asked_columns(method: str, rank: int, eps: float, n_rows: int | None) -> int:
    """Columns that theory asks for; 0 where no formula here covers the method, or nothing is promised from eps = 1."""
    if not 0 < eps < 1 or method == "two-step" or method.endswith("fourier"):
        return 0
    if method == "nystroem":
        return nystroem_columns("leverage", rank=rank, eps=eps)  # uniform draws of coherence 1, the least there is
    if method == "srht":
        return nystroem_columns("srht", rank=rank, eps=eps, n_rows=max(rank, n_rows or MOST_EVALUATIONS))
    return nystroem_columns("countsketch" if method == "countsketch" else "gaussian", rank=rank, eps=eps)


def _short(n_clusters: int, method: str, columns: int, rank: int, eps: float, asked: int, n_rows: int | None) -> str:
    """What too few features or columns leave of the promise that eps asks for."""
    if not 0 < eps < 1:
        return ""
    if method == "two-step" or method.endswith("fourier"):
        return f"no theorem here gives eps={eps} to method={method!r}"
    features = int(np.ceil(n_clusters / eps))
    if rank < min(features, n_rows or features):
        return f"eps={eps} asks for {features:,} features; there are {rank:,}"
    if columns >= asked or columns == n_rows:  # all rows are landmarks: nothing is approximated but by the rank
        return ""
    return f"eps={eps} asks for {asked:,} columns (coherence 1, constants 1); there are {columns:,}"


def _short_of_risk(columns: int, eps: float, n_rows: int | None) -> str:
    """What eps asks of Yin et al.'s sketches and does not get: it sets none of their sizes."""
    if n_rows is None or not 0 < eps < 1:
        return ""
    asked = kernel_columns(n_rows=n_rows, eps=eps, delta=DELTA)
    if min(asked, n_rows) <= columns:
        return ""
    return f"eps={eps} asks for {asked:,} landmarks (theorem 1 of Yin et al., constant 1); there are {columns:,}"


def _rank(n_clusters: int, n_landmarks: int | str, rank: int | str, eps: float | None) -> int:
    """Features wanted."""
    if rank != "auto":
        return int(rank)
    if eps is not None:
        return int(np.ceil(n_clusters / eps))
    if n_landmarks != "auto":
        middle = int(np.ceil(np.sqrt(n_clusters * int(n_landmarks))))
        return max(n_clusters + 1, min(middle, int(n_landmarks) // 2))
    return min(LARGEST_AUTO_RANK, int(np.ceil(n_clusters / LOSS)))
