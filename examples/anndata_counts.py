"""Cluster the cells of an AnnData file without loading it: sparse counts, cosine distance.

    python anndata_counts.py                    # a small file made on the spot
    python anndata_counts.py --data cells.h5ad  # yours; .zarr too

Writes the clusters back as a column of `obs`.
"""

import argparse
import tempfile
from pathlib import Path

import anndata
import numpy as np
import scipy.sparse as sp

from streamkm import StreamKMeans


def make(path: Path) -> None:
    """Counts of 1,500 cells of three types over 800 genes."""
    rng = np.random.default_rng(0)
    rates = rng.gamma(0.3, 1.0, (3, 800))
    counts = rng.poisson(rates[np.arange(1500) % 3])
    anndata.AnnData(sp.csr_matrix(counts.astype(np.float32))).write_h5ad(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("-k", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.data
        if path is None:
            path = Path(folder) / "cells.h5ad"
            make(path)
        kmeans = StreamKMeans(args.k, metric="cosine", random_state=0).fit(path)  # X, read from disk in chunks
        cells = anndata.read_h5ad(path, backed="r") if path.suffix == ".h5ad" else anndata.read_zarr(path)
        obs = cells.obs.assign(cluster=kmeans.labels_)
        print(obs["cluster"].value_counts().sort_index().to_string())


if __name__ == "__main__":
    main()
