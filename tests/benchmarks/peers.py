"""The peers, each in its usual setting, from data to labels.

A peer is a function ``(data, k, seed, ...) -> (seconds, labels)``. Clocks start where the data are ready: CSR in memory
for .npz, the opened path for Zarr and svmlight. Packages are imported before that. BLAS and OpenMP keep their threads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from tests.benchmarks import methods

CHUNK_ROWS = 8192
TEXT_BYTES = 16 << 20
SAMPLE_ROWS = 30_000


def load(data: Path) -> Any:
    """CSR of .npz and rows of .npy, as they are; Zarr in memory as float32."""
    if data.suffix == ".npz":
        return sp.csr_matrix(sp.load_npz(data))
    if data.suffix == ".npy":
        return np.load(data)
    import zarr

    return zarr.open_array(data, mode="r")[:].astype(np.float32)


def in_memory(
    method: Callable[..., Any], data: Path, k: int, seed: int, effort: dict[str, Any] | None = None
) -> tuple[float, Any]:
    """A method that takes rows in memory; reading an array file counts, loading CSR does not."""
    started = time.perf_counter()
    X = load(data)
    if data.suffix == ".npz":
        started = time.perf_counter()
    labels = method(X, k, seed, os.cpu_count() or 1, **(effort or {}))
    return time.perf_counter() - started, np.asarray(labels)


def minibatch(X: Any, k: int, seed: int, threads: int) -> Any:
    """scikit-learn MiniBatchKMeans."""
    from sklearn.cluster import MiniBatchKMeans

    return MiniBatchKMeans(k, n_init=3, random_state=seed).fit(X).labels_


def sample_assign(X: Any, k: int, seed: int, threads: int) -> Any:
    """A uniform sample of 30,000 rows, scikit-learn KMeans, one assignment of all rows."""
    from sklearn.cluster import KMeans

    rows = np.random.default_rng(seed).choice(X.shape[0], min(SAMPLE_ROWS, X.shape[0]), replace=False)
    return KMeans(k, n_init=1, random_state=seed).fit(X[np.sort(rows)]).predict(X)


def minibatch_stream(data: Path, k: int, seed: int, n_features: int = 0, out: str | None = None) -> tuple[float, Any]:
    """scikit-learn MiniBatchKMeans over chunks: partial_fit in one reader, predict in another."""
    from sklearn.cluster import MiniBatchKMeans

    started = time.perf_counter()
    fitted = MiniBatchKMeans(k, n_init=3, random_state=seed)
    for X in _reader(data, n_features):
        fitted.partial_fit(X)
    labels = np.concatenate([fitted.predict(X) for X in _reader(data, n_features)])
    if out:
        np.save(out, labels)
    return time.perf_counter() - started, labels


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


def dask_ml(data: Path, k: int, seed: int, oversampling: int = 2) -> tuple[float, Any]:
    """dask-ml KMeans on a Dask array over the Zarr array."""
    import dask.array as da
    from dask_ml.cluster import KMeans

    started = time.perf_counter()
    X = da.from_zarr(str(data)).astype(np.float32)
    fitted = KMeans(n_clusters=k, oversampling_factor=oversampling, random_state=seed).fit(X)
    labels = np.asarray(fitted.labels_)
    return time.perf_counter() - started, labels


PEERS: dict[str, Callable[..., tuple[float, Any]]] = {
    "kmeans": partial(in_memory, methods.sklearn_kmeans),
    "minibatch": partial(in_memory, minibatch),
    "minibatch_stream": minibatch_stream,
    "sample_assign": partial(in_memory, sample_assign),
    "faiss": partial(in_memory, methods.faiss_kmeans),
    "sparsekmeans": partial(in_memory, methods.sparsekmeans),
    "dask_ml": dask_ml,
}
