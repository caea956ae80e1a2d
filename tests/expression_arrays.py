"""Fits and predictions of arrays of expressions, for a process of its own: Dask decides which class once a process.

What Dask itself cannot do yet with such arrays (compute one whose heights are unknown, choose rows by another) is left
out.
"""

from __future__ import annotations

import sys

import dask

dask.config.set({"array.query-planning": sys.argv[2] == "True"})

import dask.array as da  # noqa: E402
import numpy as np  # noqa: E402
import scipy.sparse as sp  # noqa: E402
from distributed import Client, LocalCluster  # noqa: E402

from streamkm import StreamKernelKMeans, StreamKMeans  # noqa: E402

COMMON = {"random_state": 0, "progress": False}


def arrays():
    """Dask arrays by name: of blocks in two columns, and of CSR blocks."""
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(300, 8)) + 4 * (np.arange(300) % 3)[:, None]).astype(np.float32)
    dense = da.from_array(X, chunks=((50, 120, 130), (3, 5)))
    return {
        "dense": dense,
        "centered": dense - dense.mean(axis=0),
        "sparse": da.from_array(X * (rng.random(X.shape) < 0.5), chunks=(70, 8)).map_blocks(sp.csr_array),
    }


def same_but_unknown(X):
    """The array without the heights of its blocks."""
    return X.map_blocks(lambda block: block, chunks=((np.nan,) * X.numblocks[0], X.chunks[1]), meta=X._meta)


def fitted(X, name, executor):
    """What a fit and its predictions give, by name."""
    kmeans = StreamKMeans(3, executor=executor, **COMMON).fit(X)
    lazy = {"predicted": kmeans.predict(X), "distances": kmeans.transform(X), "lazy": kmeans.dask_labels_}
    assert all(type(value) is type(X) and value.chunks[0] == X.chunks[0] for value in lazy.values())
    unknown = StreamKMeans(3, executor=executor, **COMMON).fit(same_but_unknown(X))
    assert np.isnan(unknown.dask_labels_.chunks[0]).all()
    kernel = StreamKernelKMeans(3, executor=executor, n_landmarks=20, rank=5, **COMMON).fit(X)
    # labels that workers hold are computed by the client of the fit
    scheduler = executor if hasattr(executor, "submit") else "threads"
    found = {key: value.compute(scheduler=scheduler) for key, value in lazy.items()}
    found |= {"labels": kmeans.labels_, "centers": kmeans.cluster_centers_, "kernel": kernel.labels_}
    return {f"{name} {key}": value for key, value in {**found, "unknown": unknown.labels_}.items()}


def main(path: str) -> None:
    """Write all that fits give to an NPZ file."""
    found = {}
    for name, X in arrays().items():
        found |= fitted(X, name, 1)
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        for name, X in arrays().items():
            found |= fitted(X, f"cluster {name}", client)
            predicted = StreamKMeans(3, executor=client, **COMMON).fit(X).predict(X)
            found[f"cluster {name} there"] = client.compute(predicted).result()
    found["expressions"] = da.array_expr_enabled()
    np.savez(path, **found)


if __name__ == "__main__":
    main(sys.argv[1])
