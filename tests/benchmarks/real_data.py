"""Ten sets of dense rows that schedules are measured on: nine are read from files of a folder, one is generated.

Columns are centered, or standardized where their units differ; rows are shuffled, so that each prefix is a sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.make_embeddings import Embeddings

DIRECTIONS = 64  # of images of 784 pixels


@dataclass(frozen=True, slots=True)
class RealData:
    """A set of rows, and how many clusters are looked for.

    Attributes
    ----------
    name : str
    most_rows : int
        That are taken of it.
    k : int
    read : callable
        Gives the rows from the folder.
    """

    name: str
    most_rows: int
    k: int
    read: Callable[[Path], NDArray[Any]]

    def rows(self, folder: Path) -> NDArray[np.float32]:
        """The rows (n, d)."""
        X = self.read(folder).astype(np.float64)
        X = X[np.random.default_rng(0).permutation(len(X))[: self.most_rows]]
        return np.ascontiguousarray(X - X.mean(axis=0), np.float32)


def _mnist(folder: Path) -> NDArray[Any]:
    """Along principal directions, as a fit sees wide rows."""
    import h5py

    with h5py.File(folder / "mnist.h5") as file:
        X = file["X"][:40_000].reshape(-1, 784).astype(np.float64)
    X -= X.mean(axis=0)
    return X @ np.linalg.eigh(X.T @ X)[1][:, -DIRECTIONS:]


def _usps(folder: Path) -> NDArray[Any]:
    import h5py

    with h5py.File(folder / "usps.h5") as file:
        return np.concatenate([file[part]["data"][:] for part in ("train", "test")])


def _standardized(name: str) -> Callable[[Path], NDArray[Any]]:
    def read(folder: Path) -> NDArray[Any]:
        X = np.load(folder / f"{name}.npz")["X"].astype(np.float64)
        return X / X.std(axis=0)

    return read


def _svmlight(*names: str) -> Callable[[Path], NDArray[Any]]:
    def read(folder: Path) -> NDArray[Any]:
        from sklearn.datasets import load_svmlight_files

        parts = load_svmlight_files([str(folder / name) for name in names])[::2]
        return np.concatenate([part.toarray() for part in parts])

    return read


def _connect_4(folder: Path) -> NDArray[Any]:
    fields = np.loadtxt(folder / "connect_4.tsv.gz", np.int8, delimiter="\t", skiprows=1)[:, :-1]
    return np.concatenate([fields == value for value in range(3)], axis=1)


def _embeddings(folder: Path) -> NDArray[Any]:
    """Generated: the folder is not read."""
    world = Embeddings(n_groups=4000, n_dims=128)
    return np.concatenate([world.part(number) for number in range(4)])


SETS = (
    RealData("MNIST", 32_768, 128, _mnist),
    RealData("GloVe", 50_000, 256, lambda folder: np.load(folder / "glove50.npy")),
    RealData("covertype", 131_072, 256, _standardized("cover")),
    RealData("shuttle", 49_097, 64, _standardized("shuttle")),
    RealData("smtp", 95_156, 64, _standardized("smtp")),
    RealData("USPS", 9_298, 64, _usps),
    RealData("pendigits", 10_992, 64, _svmlight("pendigits.scale", "pendigits.scale.t")),
    RealData("connect-4", 67_557, 64, _connect_4),
    RealData("a8a", 22_696, 64, _svmlight("a8a")),
    RealData("embeddings", 65_536, 512, _embeddings),
    # three of them again, with many clusters
    RealData("MNIST", 32_768, 512, _mnist),
    RealData("GloVe", 50_000, 512, lambda folder: np.load(folder / "glove50.npy")),
    RealData("connect-4", 67_557, 512, _connect_4),
)
