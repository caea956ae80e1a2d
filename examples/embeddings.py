"""Cluster embeddings: vectors in a column of a Parquet file, by their directions.

    python embeddings.py                                        # a small file made on the spot
    python embeddings.py --data "vectors/*.parquet" --column vector -k 100

Text models, images and users give vectors whose lengths mean little: the cosine metric compares directions.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from streamkm import StreamKMeans


def make(path: Path) -> None:
    """Write 4,000 vectors of 64 numbers in five directions, of any length, beside an id."""
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(5, 64))
    vectors = directions[np.arange(4_000) % 5] + rng.normal(0, 0.4, (4_000, 64))
    vectors = (vectors * rng.uniform(0.5, 20, (4_000, 1))).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 64)
    parquet.write_table(pa.table({"id": pa.array(np.arange(4_000)), "vector": column}), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data")
    parser.add_argument("--column", default="vector")
    parser.add_argument("-k", type=int, default=5)
    parser.add_argument("--picture", type=Path, help="write a picture of the clusters there, .png or .svg")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.data or str(Path(folder) / "vectors.parquet")
        if args.data is None:
            make(Path(path))
        kmeans = StreamKMeans(args.k, metric="cosine", random_state=0).fit({"path": path, "columns": args.column})
        print(f"{kmeans.n_samples_:,} vectors of {kmeans.n_features_in_} numbers in {kmeans.n_passes_} passes")
        print(f"cluster sizes {sorted(kmeans.counts_.astype(int).tolist())}")
        closeness = 1 - kmeans.inertia_ / kmeans.n_samples_ / 2  # of unit vectors: half the squared distance
        print(f"mean cosine to the center, about {closeness:.2f}")
        if args.picture:
            kmeans.plot().savefig(args.picture, dpi=60)


if __name__ == "__main__":
    main()
