"""Rows like SIFT: histograms of gradients of drawn scenes, 128 bytes each, as SIFT is stored.

A scene is made of dead leaves: discs and rectangles that hide each other, with sizes of a power law, each with a grey
and a texture of waves, seen with noise through a blur. A row has eight orientations in each of 4 x 4 cells around a
point with contrast. It is scaled to length 1, cut at 0.2, scaled to 512 and cut at 255. A part depends on the seed and
its number.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, uniform_filter

PART_ROWS = 1000  # of a scene
SIDE, MARGIN = 256, 16  # pixels
CELLS, CELL, ORIENTATIONS = 4, 4, 8  # cells a side, pixels a side of a cell
N_LEAVES = 250


@dataclass(frozen=True, slots=True)
class Gradients:
    """Where rows are drawn."""

    seed: int = 0
    n_dims: int = CELLS * CELLS * ORIENTATIONS

    def part(self, number: int, n_rows: int = PART_ROWS) -> NDArray[np.uint8]:
        """Rows of one scene (n_rows, 128)."""
        rng = np.random.default_rng([self.seed, number])
        scene = self._leaves(rng) + rng.normal(0, 0.02, (SIDE, SIDE))
        scene = gaussian_filter(scene, rng.uniform(0.7, 2.0))
        dy, dx = np.gradient(scene)
        strength, turn = np.hypot(dx, dy), np.arctan2(dy, dx) % (2 * np.pi) * ORIENTATIONS / (2 * np.pi)
        maps = np.stack([strength * _near(turn - each) for each in range(ORIENTATIONS)], axis=-1)
        cells = uniform_filter(maps, (CELL, CELL, 0))
        inside = uniform_filter(strength, CELL * CELLS)[MARGIN:-MARGIN, MARGIN:-MARGIN]
        share = (inside / inside.sum()).ravel()
        places = rng.choice(share.size, n_rows, p=share)
        y, x = (place[:, None, None] + MARGIN for place in np.unravel_index(places, inside.shape))
        offsets = CELL * np.arange(CELLS) - CELL * (CELLS - 1) // 2
        X = cells[y + offsets[:, None], x + offsets].reshape(n_rows, self.n_dims)
        X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-9)
        X = np.minimum(X, 0.2)
        X *= 512 / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-9)
        return np.minimum(X, 255).astype(np.uint8)

    def _leaves(self, rng: np.random.Generator) -> NDArray[np.float64]:
        scene = np.zeros((SIDE, SIDE))
        y, x = np.mgrid[:SIDE, :SIDE]
        for _ in range(N_LEAVES):
            size = min(4 * rng.pareto(1.2) + 4, SIDE / 2)
            top, left, turn, grey, depth = rng.random(5) * (SIDE, SIDE, np.pi, 1, 0.1)
            box = (
                slice(max(int(top - 1.5 * size), 0), int(top + 1.5 * size) + 1),
                slice(max(int(left - 1.5 * size), 0), int(left + 1.5 * size) + 1),
            )
            along = (y[box] - top) * np.sin(turn) + (x[box] - left) * np.cos(turn)
            across = (y[box] - top) * np.cos(turn) - (x[box] - left) * np.sin(turn)
            disc = rng.random() < 0.5
            leaf = np.hypot(along, across) < size if disc else np.maximum(abs(along), 2 * abs(across)) < size
            waves = grey + depth * np.sin(along * rng.uniform(0.3, 2.0))
            scene[box] = np.where(leaf, waves, scene[box])
        return scene


def _near(turn: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shares of an orientation: 1 at it, 0 at its neighbours."""
    return np.maximum(0, 1 - abs((turn + ORIENTATIONS / 2) % ORIENTATIONS - ORIENTATIONS / 2))


def write(path: Path, world: Gradients, n_rows: int) -> None:
    """Write rows as .npy in random order of scenes; the file appears when it is complete."""
    unfinished = path.with_suffix(".part")
    out = np.lib.format.open_memmap(unfinished, "w+", np.uint8, (n_rows, world.n_dims))
    for number, start in enumerate(range(0, n_rows, PART_ROWS)):
        out[start : start + PART_ROWS] = world.part(number, min(PART_ROWS, n_rows - start))
    np.random.default_rng(world.seed).shuffle(out)
    out.flush()
    unfinished.rename(path)
