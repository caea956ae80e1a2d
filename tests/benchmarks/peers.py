"""The peers, each in its usual setting, from data to labels.

A peer is a function ``(data, k, seed, ...) -> Run``. Clocks start where the data are ready: CSR in memory for .npz,
the opened path for Zarr and svmlight. Packages are imported before that. BLAS and OpenMP keep their threads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

CHUNK_ROWS = 8192
TEXT_BYTES = 16 << 20
SAMPLE_ROWS = 30_000


@dataclass(frozen=True, slots=True)
class Run:
    """What a method gives.

    Attributes
    ----------
    seconds : float
        From data ready to labels.
    labels : ndarray (n,)
    inertia : float or None
        As the method itself reports it, with its own centers.
    n_iter : int or None
    """

    seconds: float
    labels: Any
    inertia: float | None = None
    n_iter: int | None = None


def load(data: Path) -> Any:
    """CSR of .npz and rows of .npy, as they are; Zarr in memory as float32."""
    if data.suffix == ".npz":
        return sp.csr_matrix(sp.load_npz(data))
    if data.suffix == ".npy":
        return np.load(data)
    import zarr

    return zarr.open_array(data, mode="r")[:].astype(np.float32)


def _ready(data: Path) -> tuple[Any, float]:
    """The rows, and when the clock started: reading an array file counts, loading CSR does not."""
    started = time.perf_counter()
    X = load(data)
    return X, time.perf_counter() if data.suffix == ".npz" else started


def kmeans(data: Path, k: int, seed: int) -> Run:
    """scikit-learn KMeans, one start."""
    from sklearn.cluster import KMeans

    X, started = _ready(data)
    fitted = KMeans(k, n_init=1, random_state=seed).fit(X)
    return Run(time.perf_counter() - started, fitted.labels_, fitted.inertia_, fitted.n_iter_)


def minibatch(data: Path, k: int, seed: int) -> Run:
    """scikit-learn MiniBatchKMeans in memory."""
    from sklearn.cluster import MiniBatchKMeans

    X, started = _ready(data)
    fitted = MiniBatchKMeans(k, n_init=3, random_state=seed).fit(X)
    return Run(time.perf_counter() - started, fitted.labels_, fitted.inertia_, fitted.n_iter_)


def minibatch_stream(data: Path, k: int, seed: int, n_features: int = 0, out: str | None = None) -> Run:
    """scikit-learn MiniBatchKMeans over chunks: partial_fit in one reader, predict in another."""
    from sklearn.cluster import MiniBatchKMeans

    started = time.perf_counter()
    fitted = MiniBatchKMeans(k, n_init=3, random_state=seed)
    for X in _reader(data, n_features):
        fitted.partial_fit(X)
    labels = np.concatenate([fitted.predict(X) for X in _reader(data, n_features)])
    if out:
        np.save(out, labels)
    return Run(time.perf_counter() - started, labels)


def _reader(data: Path, n_features: int) -> Iterator[Any]:
    if data.suffix == ".zarr":
        import zarr

        array = zarr.open_array(data, mode="r")
        for start in range(0, array.shape[0], CHUNK_ROWS):
            yield array[start : start + CHUNK_ROWS].astype(np.float32)
        return
    from sklearn.datasets import load_svmlight_file

    for offset in range(0, data.stat().st_size, TEXT_BYTES):
        X, _ = load_svmlight_file(str(data), n_features=n_features, zero_based=False, offset=offset, length=TEXT_BYTES)
        if X.shape[0]:
            # the loader gives 64-bit indices, of which partial_fit wants none
            indices, indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
            yield sp.csr_matrix((X.data, indices, indptr), shape=X.shape)


def sample_assign(data: Path, k: int, seed: int) -> Run:
    """A uniform sample of 30,000 rows, scikit-learn KMeans, one assignment of all rows."""
    from sklearn.cluster import KMeans

    X, started = _ready(data)
    n_rows = X.shape[0]
    rows = np.random.default_rng(seed).choice(n_rows, min(SAMPLE_ROWS, n_rows), replace=False)
    fitted = KMeans(k, n_init=1, random_state=seed).fit(X[np.sort(rows)])
    labels = fitted.predict(X)
    return Run(time.perf_counter() - started, labels, None, fitted.n_iter_)


def faiss(data: Path, k: int, seed: int) -> Run:
    """faiss Kmeans, 25 iterations on all rows."""
    import faiss as package

    X, started = _ready(data)
    clusters = package.Kmeans(X.shape[1], k, niter=25, max_points_per_centroid=len(X), seed=seed)
    clusters.train(X)
    d2, labels = clusters.index.search(X, 1)
    return Run(time.perf_counter() - started, labels[:, 0], float(d2.sum(dtype=np.float64)), 25)


def sparsekmeans(data: Path, k: int, seed: int, variant: str = "LloydKmeans") -> Run:
    """sparsekmeans, Lloyd or Elkan, on all processors."""
    import sparsekmeans as package

    X, started = _ready(data)
    X = sp.csr_matrix((X.data, X.indices, X.indptr), shape=X.shape)
    fitted = getattr(package, variant)(n_clusters=k, n_threads=os.cpu_count(), random_state=seed)
    labels = fitted.fit(X)
    return Run(time.perf_counter() - started, np.asarray(labels))


def dask_ml(data: Path, k: int, seed: int, oversampling: int = 2) -> Run:
    """dask-ml KMeans on a Dask array over the Zarr array."""
    import dask.array as da
    from dask_ml.cluster import KMeans

    started = time.perf_counter()
    X = da.from_zarr(str(data)).astype(np.float32)
    fitted = KMeans(n_clusters=k, oversampling_factor=oversampling, random_state=seed).fit(X)
    labels = np.asarray(fitted.labels_)
    return Run(time.perf_counter() - started, labels, float(fitted.inertia_), fitted.n_iter_)


PEERS = {
    "kmeans": kmeans,
    "minibatch": minibatch,
    "minibatch_stream": minibatch_stream,
    "sample_assign": sample_assign,
    "faiss": faiss,
    "sparsekmeans": sparsekmeans,
    "dask_ml": dask_ml,
}
