"""Cluster an HDF5 file that is larger than the memory that the process may take, and prove it.

    python larger_than_memory.py --rows 400000 --memory "500 MiB"     # a file of 3.2 GB

Another process writes rows around 20 centers in 1,000 features, and clusters them once: that compiles kernels, which
takes memory of its own. This one clusters the file by its name below a limit, and fails if its peak was above it.
"""

import argparse
import resource
import subprocess
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


def cluster(path: Path, memory: str) -> StreamKMeans:
    """Cluster the file."""
    return StreamKMeans(CLUSTERS, memory_limit=memory, random_state=0, progress=False).fit(f"{path}:/X")


def peak_bytes() -> int:
    """The most memory that this process has held; Linux' getrusage counts what started it, too."""
    status = Path("/proc/self/status")
    if status.exists():
        told = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(told["VmHWM"].split()[0]) << 10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--memory", default="500 MiB")
    parser.add_argument("--prepare", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.prepare is not None:
        write(args.prepare, args.rows)
        cluster(args.prepare, args.memory)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.h5"
        given = ["--rows", str(args.rows), "--memory", args.memory, "--prepare", str(path)]
        subprocess.run([sys.executable, "-W", "ignore", __file__, *given], check=True)
        kmeans = cluster(path, args.memory)
        file_mb = path.stat().st_size / (1 << 20)
    peak_mb, limit_mb = peak_bytes() / (1 << 20), kmeans.plan_.limit_bytes / (1 << 20)
    print(f"file {file_mb:,.0f} MiB, limit {limit_mb:,.0f} MiB, peak memory {peak_mb:,.0f} MiB")
    print(f"objective per row {kmeans.inertia_ / kmeans.n_samples_:.2f}, read {kmeans.n_passes_} times")
    print(f"cluster sizes {sorted(kmeans.counts_.astype(int).tolist())}")
    if peak_mb > limit_mb:
        sys.exit(f"{peak_mb:,.0f} MiB is above the limit")


if __name__ == "__main__":
    main()
