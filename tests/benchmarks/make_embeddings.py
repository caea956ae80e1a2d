"""Unit vectors like the embeddings that models of text and images give, some of them near-duplicates of others.

A tree of themes, topics in each, and groups in each topic; sizes of groups fall off by Zipf's law; directions have a
spectrum that falls off by a power law, as principal values of real embeddings do; 2 % of the rows are near-duplicates
of a row at a random place of their part. A part of 20,000 rows depends on the seed and its number only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PART_ROWS = 20_000
N_THEMES = 64
COPIED = 0.02  # of the rows
NOISE = 0.1  # of near-duplicates, in parts of the spread of a group


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Where rows are drawn."""

    n_groups: int = 20_000
    n_dims: int = 256
    seed: int = 0

    def part(self, number: int, n_rows: int = PART_ROWS) -> NDArray[np.float32]:
        """Unit rows float32 (n_rows, n_dims)."""
        groups, spread, turn, share = self._tree()
        rng = np.random.default_rng([self.seed, number])
        drawn = rng.choice(len(groups), n_rows, p=share)
        X = groups[drawn] + rng.normal(size=(n_rows, self.n_dims)).astype(np.float32) * spread
        copies = np.flatnonzero(rng.random(n_rows) < COPIED)
        noise = NOISE * spread * rng.normal(size=(len(copies), self.n_dims))
        X[copies] = X[rng.integers(0, n_rows, len(copies))] + noise
        X = X @ turn
        return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)

    def _tree(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32], NDArray[np.float64]]:
        """Centers of groups, the spread within them, an orthogonal turn, and the share of rows of each group."""
        rng = np.random.default_rng([self.seed, 1 << 30])
        spectrum = (1 + np.arange(self.n_dims)) ** -0.6

        def around(points: NDArray[np.float64], n_points: int, width: float) -> NDArray[np.float64]:
            noise = width * rng.normal(size=(n_points, self.n_dims)) * spectrum
            return points[rng.integers(0, len(points), n_points)] + noise

        turn = np.linalg.qr(rng.normal(size=(self.n_dims, self.n_dims)))[0].astype(np.float32)
        themes = rng.normal(size=(N_THEMES, self.n_dims)) * spectrum
        topics = around(themes, max(N_THEMES, int(np.sqrt(N_THEMES * self.n_groups))), 0.8)
        groups = around(topics, self.n_groups, 0.7)
        share = (1 + rng.permutation(self.n_groups)) ** -0.7
        return groups.astype(np.float32), (1.3 * spectrum).astype(np.float32), turn, share / share.sum()


def write(path: Path, world: Embeddings, n_rows: int) -> None:
    """Write rows as .npy; the file appears when it is complete."""
    unfinished = path.with_suffix(".part")
    out = np.lib.format.open_memmap(unfinished, "w+", np.float32, (n_rows, world.n_dims))
    for number, start in enumerate(range(0, n_rows, PART_ROWS)):
        stop = min(start + PART_ROWS, n_rows)
        out[start:stop] = world.part(number, stop - start)
    out.flush()
    unfinished.rename(path)
