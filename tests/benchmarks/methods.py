"""Methods of k-means by effort: from rows in memory to the labels of all rows.

A method is a function ``(X, k, seed, threads, **effort) -> labels``. `bench_curves` gives each of its efforts a process
of its own, and measures it. Faiss and superkmeans train on all rows here, as the others do; by default they sample.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

BETULA_LEAVES = 2000  # its default, for few clusters
BETULA_LEAVES_A_CLUSTER = 4
BATCH_A_CLUSTER = 4  # rows


def streamkm(X: Any, k: int, seed: int, threads: int, **effort: Any) -> Any:
    """Threads of this process, no progress bar."""
    from streamkm import StreamKMeans

    return StreamKMeans(k, random_state=seed, executor=threads, progress=False, **effort).fit(X).labels_


def sklearn_kmeans(X: Any, k: int, seed: int, threads: int, **effort: Any) -> Any:
    """Lloyd's algorithm after k-means++."""
    from sklearn.cluster import KMeans

    return KMeans(k, n_init=1, random_state=seed, **effort).fit(X).labels_


def sklearn_minibatch(X: Any, k: int, seed: int, threads: int, **effort: Any) -> Any:
    """Epochs of mini-batches that hold some rows a cluster, with no early end."""
    from sklearn.cluster import MiniBatchKMeans

    batch = max(1024, BATCH_A_CLUSTER * k)
    fitted = MiniBatchKMeans(k, n_init=1, batch_size=batch, max_no_improvement=None, random_state=seed, **effort)
    return fitted.fit(X).labels_


def faiss_kmeans(X: Any, k: int, seed: int, threads: int, kind: str = "Kmeans", **effort: Any) -> Any:
    """Iterations on all rows from rows drawn at random, then a search; "SuperKmeans" prunes (ADSampling and PDX)."""
    import faiss

    faiss.omp_set_num_threads(threads)
    found = getattr(faiss, kind)(X.shape[1], k, max_points_per_centroid=len(X), seed=seed + 1, **effort)
    found.train(X)
    return found.assign(X)[1]


def superkmeans(X: Any, k: int, seed: int, threads: int, **effort: Any) -> Any:
    """Flat iterations on all rows, or clusters of clusters; labels are exact on bytes (sq8), too."""
    from superkmeans import SuperKMeans

    given = {"sampling_fraction": 1.0, "max_points_per_cluster": len(X), **effort}
    found = SuperKMeans(k, X.shape[1], n_threads=threads, seed=seed + 1, **given)
    return found.assign(X, found.train(X))


def betula(X: Any, k: int, seed: int, threads: int, **effort: Any) -> Any:
    """BETULA: k-means of the leaves of a tree of cluster features, then steps over the rows."""
    import betula_cluster

    leaves = max(BETULA_LEAVES, BETULA_LEAVES_A_CLUSTER * k)
    return betula_cluster.fit_predict(
        X, n_clusters=k, feature="spherical", method="kmeans", max_leaves=leaves, seed=seed, **effort
    )


def betula_sparse(X: Any, k: int, seed: int, threads: int, **effort: Any) -> Any:
    """BETULA's flat summary of sparse rows, which has no steps over the rows: effort is its size."""
    import betula_cluster

    return betula_cluster.fit_predict_sparse(X, n_clusters=k, method="kmeans", seed=seed, **effort)


def clostera_dense(X: Any, k: int, seed: int, threads: int, **effort: Any) -> Any:
    """Lloyd's algorithm after k-means++."""
    from clostera import DenseKMeans

    return DenseKMeans(k=k, seed=seed, **effort).fit(X).labels_


def clostera_auto(X: Any, k: int, seed: int, threads: int, **effort: Any) -> Any:
    """The algorithm that clostera picks by the size of the data, product quantization among them."""
    from clostera import Clusterer

    return Clusterer(k=k, metric="sqeuclidean", algorithm="auto", seed=seed, **effort).fit(X).labels_


def sparsekmeans(X: Any, k: int, seed: int, threads: int, variant: str = "LloydKmeans", **effort: Any) -> Any:
    """Lloyd's or Elkan's algorithm by products of sparse matrices."""
    import scipy.sparse as sp
    import sparsekmeans as package

    X = sp.csr_matrix((X.data, X.indices, X.indptr), shape=X.shape)  # it knows no csr_array
    return getattr(package, variant)(n_clusters=k, n_threads=threads, random_state=seed, **effort).fit(X)


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the chart."""

    name: str  # for people
    package: str  # as it is installed
    run: Callable[..., Any]
    efforts: tuple[dict[str, Any], ...]  # arguments of `run`, cheapest first
    dense: bool = True  # rows that it takes
    sparse: bool = False

    @property
    def version(self) -> str | None:
        """None: the package is not installed."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None


def _steps(name: str, *numbers: int) -> tuple[dict[str, Any], ...]:
    return tuple({name: number} for number in numbers)


OURS = "streamkm"
FLAT = partial(superkmeans, hierarchical=False, early_termination=False)
METHODS = (
    Method(
        OURS, "streamkm", streamkm, sparse=True,
        efforts=({"max_iter": 2, "refine": 0}, {"max_iter": 5, "refine": 0}, {"max_iter": 20}, {}, {"refine": 3}),
    ),
    Method("scikit-learn KMeans", "scikit-learn", sklearn_kmeans, _steps("max_iter", 3, 10, 30, 100), sparse=True),
    Method(
        "scikit-learn MiniBatchKMeans", "scikit-learn", sklearn_minibatch, _steps("max_iter", 1, 3, 10, 30), sparse=True
    ),
    Method("faiss Kmeans", "faiss-cpu", faiss_kmeans, _steps("niter", 3, 10, 25, 60)),
    Method("faiss SuperKMeans", "faiss-cpu", partial(faiss_kmeans, kind="SuperKmeans"), _steps("niter", 3, 10, 25, 60)),
    Method("superkmeans flat", "superkmeans", FLAT, _steps("iters", 3, 10, 25, 60)),
    Method("superkmeans sq8", "superkmeans", partial(FLAT, quantizer="sq8"), _steps("iters", 3, 10, 25, 60)),
    Method(
        "superkmeans hierarchical", "superkmeans", partial(superkmeans, hierarchical=True),
        _steps("iters_refinement", 0, 3, 10, 25),
    ),
    Method("betula-cluster", "betula-cluster", betula, _steps("refine", 0, 3, 10, 25)),
    Method(
        "betula-cluster", "betula-cluster", betula_sparse, _steps("max_leaves", 512, 2048, 8192),
        dense=False, sparse=True,
    ),
    Method("clostera dense", "clostera", clostera_dense, _steps("iterations", 3, 10, 25, 60)),
    Method("clostera auto", "clostera", clostera_auto, _steps("iterations", 3, 10, 25)),
    Method(
        "sparsekmeans Lloyd", "sparsekmeans", sparsekmeans, _steps("max_iter", 3, 10, 30, 100),
        dense=False, sparse=True,
    ),
)  # fmt: skip
"""In the order of the legend; e-means has no package to install."""
