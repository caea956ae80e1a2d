"""Many digits from few: MNIST images, each turned, sheared, scaled, shifted and with noise on its strokes.

An HDF5 file has the images as ``X`` (rows of 28 x 28 uint8) and the digits as ``y``; the first 60,000, MNIST's training
set, are used. Rows are uint8 (784,). 8,100,000 rows are 6.35 GB before compression. A part of 10,000 rows depends on
the images and (seed, part) only, so a data set of fewer rows is the beginning of one of more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import h5py
import numpy as np
import scipy.sparse as sp
import zarr

PART_ROWS = 10_000
CHUNK_ROWS = 8192  # of a storage chunk
GROUP_ROWS = 50  # rows that share a deformation
TRAINING_ROWS = 60_000
SIDE = 28
N_PIXELS = SIDE * SIDE
TURN_SD = SHEAR_SD = 0.12
SCALE_SD = 0.06
SHIFT_SD = 1.0  # pixels
NOISE_SD = 8.0  # of 255


def deformation(rng: np.random.Generator, strength: float = 1.0) -> sp.csr_array:
    """Draw a random affine map of images as a matrix (784, 784); a smaller strength deforms less.

    ``images @ result`` are the deformed images: each new pixel is the bilinear mean of the four old pixels around the
    place where it comes from, and pixels from outside are 0.
    """
    angle, shear = rng.normal(0, strength * TURN_SD), rng.normal(0, strength * SHEAR_SD)
    scale = 1 + rng.normal(0, strength * SCALE_SD)
    turn = np.array([[np.cos(angle), shear - np.sin(angle)], [np.sin(angle), np.cos(angle)]]) / scale
    middle = (SIDE - 1) / 2
    pixels = np.indices((SIDE, SIDE)).reshape(2, N_PIXELS)
    places = turn @ (pixels - middle) + middle + rng.normal(0, strength * SHIFT_SD, (2, 1))
    corner = np.floor(places).astype(np.int64)
    fraction = places - corner
    source, weight = [], []
    for down in (0, 1):
        for right in (0, 1):
            i, j = corner[0] + down, corner[1] + right
            share = np.abs(1 - down - fraction[0]) * np.abs(1 - right - fraction[1])
            inside = (i >= 0) & (i < SIDE) & (j >= 0) & (j < SIDE)
            source.append(np.where(inside, i * SIDE + j, 0))
            weight.append(np.where(inside, share, 0))
    target = np.tile(np.arange(N_PIXELS), 4)
    entries = (np.concatenate(weight).astype(np.float32), (np.concatenate(source), target))
    return sp.coo_array(entries, shape=(N_PIXELS, N_PIXELS)).tocsr()


@dataclass(frozen=True)
class Digits:
    """The images that rows are made from."""

    images: np.ndarray  # uint8 (n, 784)
    digits: np.ndarray  # (n,)
    seed: int = 0
    strength: float = 1.0  # of deformations, beside the usual ones; noise stays as it is

    @classmethod
    def open(cls, path: str, seed: int = 0) -> Digits:
        """Read MNIST's training images from an HDF5 file."""
        with h5py.File(path) as file:
            return cls(file["X"][:TRAINING_ROWS], file["y"][:TRAINING_ROWS], seed)

    def part(self, part: int) -> tuple[np.ndarray, np.ndarray]:
        """Make one part: uint8 (PART_ROWS, 784) and the digits of its rows."""
        rng = np.random.default_rng([self.seed, part])
        picked = rng.integers(len(self.images), size=PART_ROWS)
        X = np.empty((PART_ROWS, N_PIXELS), np.uint8)
        for start in range(0, PART_ROWS, GROUP_ROWS):
            group = slice(start, start + GROUP_ROWS)
            deformed = self.images[picked[group]].astype(np.float32) @ deformation(rng, self.strength)
            noise = rng.normal(0, NOISE_SD, deformed.shape)
            X[group] = np.clip(deformed + noise * (deformed > 0), 0, 255)
        return X, self.digits[picked]

    def parts(self, n_rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the first `n_rows` rows part by part."""
        for part, start in enumerate(range(0, n_rows, PART_ROWS)):
            X, y = self.part(part)
            yield X[: n_rows - start], y[: n_rows - start]


def write(path: str, digits: Digits, n_rows: int) -> None:
    """Write `n_rows` rows to a Zarr array at `path` and their digits to ``path.labels.npy``."""
    chunks = (min(CHUNK_ROWS, n_rows), N_PIXELS)
    stored = zarr.create_array(path, overwrite=True, shape=(n_rows, N_PIXELS), dtype="u1", chunks=chunks)
    labels, start = [], 0
    for X, y in digits.parts(n_rows):
        labels.append(y)
        stored[start : start + len(X)] = X
        start += len(X)
    np.save(f"{path}.labels.npy", np.concatenate(labels))
