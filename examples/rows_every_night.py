"""Rows that come every night: go on from a fit without reading it again, in memory that stays flat, through a file.

python rows_every_night.py
"""

import tempfile
from pathlib import Path

import numpy as np

from streamkm import IncrementalKMeans, StreamKMeans

NIGHTS, ROWS_A_NIGHT, FEATURES = 14, 2_000, 12
MOVE_A_NIGHT = 0.5


def night(number: int) -> np.ndarray:
    """Make the rows of a night: five groups, of which the first moves."""
    centers = np.random.default_rng(0).normal(0, 3, (5, FEATURES))
    centers[0, 0] += MOVE_A_NIGHT * number
    rng = np.random.default_rng([1, number])
    return centers[rng.integers(0, 5, ROWS_A_NIGHT)] + rng.normal(0, 1, (ROWS_A_NIGHT, FEATURES))


def main() -> None:
    history = np.concatenate([night(number) for number in range(5)])
    fitted = StreamKMeans(5, random_state=0).fit(history)

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "clusters.npz"
        fitted.incremental(half_life=3 * ROWS_A_NIGHT).save(model)  # rows of three nights ago count half
        for number in range(5, NIGHTS):  # each night in a process of its own, if you like
            kmeans = IncrementalKMeans.load(model).partial_fit(night(number))
            kmeans.save(model, overwrite=True)

        kmeans = IncrementalKMeans.load(model)
        print(f"{kmeans.n_samples_seen_:,} rows, {kmeans.stream_.n_bytes / 2**20:.1f} MiB are kept")
        shifts = np.linalg.norm(kmeans.cluster_centers_ - fitted.cluster_centers_, axis=1)
        print("centers have moved by", " ".join(f"{shift:.1f}" for shift in shifts))
        last = night(NIGHTS - 1)
        print(
            f"objective of the last night: {kmeans.score(last) / fitted.score(last):.2f} of what the old centers give"
        )


if __name__ == "__main__":
    main()
