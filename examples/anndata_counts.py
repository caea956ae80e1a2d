"""Cluster the cells of an AnnData file without loading it: sparse counts, to a common total and their logarithms.

    python anndata_counts.py                    # a small file made on the spot
    python anndata_counts.py --data cells.h5ad  # yours; .zarr too

Writes the clusters into the file, as the column `cluster` of `obs`; the matrix is not touched.
"""

import argparse
import tempfile
from pathlib import Path

import anndata
import h5py
import numpy as np
import pandas as pd
import scipy.sparse as sp
import zarr
from anndata.io import read_elem, write_elem

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
    parser.add_argument("--picture", type=Path, help="write a picture of the clusters there, .png or .svg")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.data
        if path is None:
            path = Path(folder) / "cells.h5ad"
            make(path)
        # X, read from disk in chunks; counts are prepared as they are read
        kmeans = StreamKMeans(args.k, preprocess=["total", "log1p"], metric="cosine", random_state=0).fit(path)
        store = h5py.File(path, "r+") if path.suffix == ".h5ad" else zarr.open_group(path, mode="r+")
        obs = read_elem(store["obs"])
        obs["cluster"] = pd.Categorical(kmeans.labels_)
        write_elem(store, "obs", obs)
        if path.suffix == ".h5ad":
            store.close()
        cells = anndata.read_h5ad(path, backed="r") if path.suffix == ".h5ad" else anndata.read_zarr(path)
        print(f"{path.name}: cells of each cluster, by the column that obs has now")
        print(cells.obs["cluster"].value_counts().sort_index().to_string())
        if args.picture:
            kmeans.plot().savefig(args.picture, dpi=60)


if __name__ == "__main__":
    main()
