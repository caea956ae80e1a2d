"""Cluster an HDF5 file that is larger than the memory the process takes.

    python larger_than_memory.py --rows 400000     # a file of 3.2 GB

Writes rows around 20 centers in 1,000 features, clusters the file by its name, and compares the file's size with the
process's peak memory.
"""

import argparse
import resource
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

from streamkm import StreamKMeans

FEATURES, CLUSTERS, PART_ROWS = 1000, 20, 10_000


def write(path: Path, n_rows: int) -> None:
    """Write rows in parts; nothing larger than a part is in memory."""
    rng = np.random.default_rng(0)
    centers = rng.normal(0, 1, (CLUSTERS, FEATURES))
    with h5py.File(path, "w") as file:
        X = file.create_dataset("X", (n_rows, FEATURES), "f8", chunks=(1000, FEATURES))
        for start in range(0, n_rows, PART_ROWS):
            stop = min(start + PART_ROWS, n_rows)
            X[start:stop] = centers[rng.integers(0, CLUSTERS, stop - start)] + rng.normal(
                0, 1, (stop - start, FEATURES)
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.h5"
        write(path, args.rows)
        kmeans = StreamKMeans(CLUSTERS, n_components=128, random_state=0).fit(f"{path}:/X")
        file_mb = path.stat().st_size / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak_mb = peak / (1e6 if sys.platform == "darwin" else 1e3)
    print(f"file {file_mb:,.0f} MB, peak memory {peak_mb:,.0f} MB, read {kmeans.n_passes_} times")
    print(f"objective per row {kmeans.inertia_ / kmeans.n_samples_:.2f}")
    print(f"cluster sizes {sorted(kmeans.counts_.astype(int).tolist())}")


if __name__ == "__main__":
    main()
