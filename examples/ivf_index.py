"""Give centers to faiss as an inverted-file index, and compare its recall with that of faiss' own training.

python ivf_index.py [--rows 40000] [--lists 200]

An inverted file keeps the vectors of each cluster together and searches a few clusters only. The better the clusters,
the more of the true neighbours lie in those that are searched. MemoryModel faiss: pip install faiss-cpu
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from streamkm import StreamKMeans

N_NEIGHBORS = 10
N_QUERIES = 500
PROBES = (1, 4, 16)  # clusters that are searched


def make_vectors(n_rows: int, n_dims: int = 64) -> np.ndarray:
    """Unit vectors around directions of unequal weight, as embeddings are."""
    rng = np.random.default_rng(0)
    spread = (1 + np.arange(n_dims)) ** -0.6
    groups = rng.normal(size=(400, n_dims)) * spread
    share = (1 + rng.permutation(len(groups))) ** -0.7
    X = groups[rng.choice(len(groups), n_rows, p=share / share.sum())] + rng.normal(size=(n_rows, n_dims)) * spread
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)


def recalls(index, queries: np.ndarray, nearest: np.ndarray) -> list[float]:
    """Share of the nearest neighbours that are found, for each number of clusters that are searched."""
    found = []
    for index.nprobe in PROBES:
        neighbors = index.search(queries, N_NEIGHBORS)[1]
        found.append(
            float(np.mean([len(set(a) & set(b)) / N_NEIGHBORS for a, b in zip(neighbors, nearest, strict=True)]))
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--lists", type=int, default=200)
    args = parser.parse_args()
    try:
        import faiss
    except ImportError:
        raise SystemExit("this example compares with faiss, which is not installed: pip install faiss-cpu") from None

    vectors = make_vectors(args.rows + N_QUERIES)
    queries, vectors = vectors[:N_QUERIES], vectors[N_QUERIES:]
    n_dims = vectors.shape[1]
    exact = faiss.IndexFlatIP(n_dims)
    exact.add(vectors)
    nearest = exact.search(queries, N_NEIGHBORS)[1]

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors.npy"
        np.save(path, vectors)
        # from the file, in chunks
        kmeans = StreamKMeans(args.lists, metric="spherical", random_state=0).fit(path)
    centers = np.ascontiguousarray(kmeans.cluster_centers_, np.float32)
    quantizer = faiss.IndexFlatIP(n_dims)
    quantizer.add(centers)
    ours = faiss.IndexIVFFlat(
        quantizer, n_dims, len(centers), faiss.METRIC_INNER_PRODUCT
    )  # trained: it has its centers
    ours.add(vectors)

    # as many lists, by training that sees all vectors, too
    theirs = faiss.IndexIVFFlat(faiss.IndexFlatIP(n_dims), n_dims, len(centers), faiss.METRIC_INNER_PRODUCT)
    theirs.cp.max_points_per_centroid = args.rows
    theirs.cp.spherical = True
    theirs.train(vectors)
    theirs.add(vectors)

    print(f"{len(centers)} lists, {kmeans.counts_.max():,.0f} vectors in the longest")
    for name, index in (("streamkm", ours), ("faiss", theirs)):
        text = ", ".join(f"{found:.3f}" for found in recalls(index, queries, nearest))
        print(f"{name:<8} recall of {N_NEIGHBORS} neighbours in {', '.join(map(str, PROBES))} lists: {text}")
        sizes = np.array([index.invlists.list_size(number) for number in range(index.nlist)])
        print(f"{'':<8} vectors that a search of one list looks at: {np.square(sizes).sum() / sizes.sum():,.0f}")


if __name__ == "__main__":
    main()
