"""Cluster rows that a program makes: any function that returns a fresh iterator of chunks will do.

python stream_of_chunks.py
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from streamkm import StreamKMeans

DAYS, ROWS_A_DAY, FEATURES = 30, 1_000, 12


def days() -> Iterator[np.ndarray]:
    """Yield one chunk a day; chunks may have any number of rows."""
    centers = np.random.default_rng(0).normal(0, 3, (5, FEATURES))
    for day in range(DAYS):
        rng = np.random.default_rng([1, day])
        yield centers[rng.integers(0, 5, ROWS_A_DAY)] + rng.normal(0, 1, (ROWS_A_DAY, FEATURES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, help="write a picture of the clusters there, .png or .svg")
    args = parser.parse_args()
    kmeans = StreamKMeans(5, random_state=0).fit(days)  # called once for each pass
    print(f"{kmeans.n_samples_:,} rows in {kmeans.n_passes_} passes, objective {kmeans.inertia_:,.1f}")

    for day, labels in zip(range(3), (kmeans.predict(chunk) for chunk in days()), strict=False):
        print(f"day {day}: {np.bincount(labels, minlength=5).tolist()} rows in clusters 0 to 4")
    if args.picture:
        kmeans.plot().savefig(args.picture, dpi=60)


if __name__ == "__main__":
    main()
