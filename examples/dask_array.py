"""Cluster a Dask array, first with the threads of this process, then on a cluster of two worker processes.

    python dask_array.py

Labels and centers are the same to the last bit.
"""

import argparse
from pathlib import Path

import dask.array as da
import numpy as np
from dask.distributed import Client, LocalCluster

from streamkm import StreamKMeans


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, help="write a picture of the clusters there, .png or .svg")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    centers = rng.normal(0, 4, (6, 30))
    rows = (centers[rng.integers(0, 6, 20_000)] + rng.normal(0, 1, (20_000, 30))).astype(np.float32)
    X = da.from_array(rows, chunks=(2_500, 10))  # several column chunks are fine

    here = StreamKMeans(6, random_state=0).fit(X)
    print(f"threads: objective {here.inertia_:,.1f}")

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster):
        there = StreamKMeans(6, random_state=0).fit(X)  # the active client is used
        print(f"cluster: objective {there.inertia_:,.1f}")
        labels = there.labels_  # workers keep them until they are asked for

    print(f"same labels: {np.array_equal(here.labels_, labels)}")
    print(f"same centers: {np.array_equal(here.cluster_centers_, there.cluster_centers_)}")
    if args.picture:
        there.plot().savefig(args.picture, dpi=60)


if __name__ == "__main__":
    main()
