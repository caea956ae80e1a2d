"""The data of the benchmarks: made by the project's own generators where they are missing.

Names and sizes only; the generators are `make_topics`, `make_digits` and `make_embeddings`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.benchmarks import make_digits, make_embeddings, make_topics
from tests.benchmarks.make_digits import SIDE, Digits
from tests.benchmarks.make_embeddings import Embeddings
from tests.benchmarks.make_topics import Topics
from tests.benchmarks.measure import Settings

FEATURES, QUICK_FEATURES = Topics.n_features, 5000


def topics(settings: Settings, n_topics: int = 50, *, kind: str = "npz", large: bool = False) -> Path:
    """Sparse rows like text: 200,000 in memory or as svmlight text, or 2,000,000 as text."""
    n_rows = 2_000_000 if large else 200_000
    if settings.quick:
        n_rows //= 50
    suffix = "" if n_topics == Topics.n_topics else f"_{n_topics}"
    amount = f"{n_rows // 1_000_000}m" if n_rows >= 1_000_000 else f"{n_rows // 1000}k"
    path = settings.folder / f"topics{amount}{suffix}.{'svm' if kind == 'svmlight' else kind}"
    if not path.exists():
        world = Topics(QUICK_FEATURES if settings.quick else FEATURES, n_topics)
        make_topics.write(str(path), world, n_rows, kind=kind)
    return path


def n_features(settings: Settings) -> int:
    """Features of the topics data; text does not say."""
    return QUICK_FEATURES if settings.quick else FEATURES


def true_labels(path: Path) -> np.ndarray:
    """The partition that rows were drawn from."""
    return np.load(f"{path}.labels.npy")


def digits(settings: Settings, n_rows: int = 300_000) -> Path:
    """Deformed images of digits, uint8, as a Zarr array."""
    n_rows = 10_000 if settings.quick else n_rows
    path = settings.folder / f"digits{n_rows // 1000}k.zarr"
    if not path.exists():
        make_digits.write(str(path), _images(settings), n_rows)
    return path


def images(settings: Settings) -> Path:
    """MNIST itself, or images like it in quick runs: float32, .npy."""
    path = settings.folder / "images.npy"
    if not path.exists():
        if settings.quick:
            rows = small_images().images
        elif settings.mnist is None:
            raise FileNotFoundError("MNIST is needed: pass --mnist with an HDF5 file of images X")
        else:
            import h5py

            with h5py.File(settings.mnist) as file:
                rows = file["X"][:]
        np.save(path, rows.astype(np.float32))
    return path


def embeddings(settings: Settings, n_rows: int = 300_000) -> Path:
    """Unit vectors like embeddings, float32, .npy."""
    n_rows = 6000 if settings.quick else n_rows
    path = settings.folder / f"embeddings-{n_rows}.npy"
    if not path.exists():
        make_embeddings.write(path, Embeddings(), n_rows)
    return path


def _images(settings: Settings) -> Digits:
    if settings.mnist is not None:
        return Digits.open(str(settings.mnist))
    if not settings.quick:
        raise FileNotFoundError("digits must be made: pass --mnist with an HDF5 file of images X and digits y")
    return small_images()


def small_images() -> Digits:
    """Images made from the digits that scikit-learn ships."""
    from sklearn.datasets import load_digits

    small = load_digits()
    images = np.zeros((len(small.data), SIDE, SIDE), np.uint8)
    images[:, 2:-2, 2:-2] = np.kron(small.images * 15, np.ones((3, 3))).astype(np.uint8)
    return Digits(images.reshape(len(images), -1), small.target)
