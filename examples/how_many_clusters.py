"""Find how many clusters data have: score every number of them from one reading.

python how_many_clusters.py

The same on the command line, with a picture: `streamkm sweep rows.npy -k 2:12`.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from streamkm import sweep


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, help="write a picture of the clusters there, .png or .svg")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    centers = rng.normal(0, 8, (6, 10))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, centers[rng.integers(0, 6, 5_000)] + rng.normal(0, 1, (5_000, 10)))
        found = sweep(path, range(2, 13), random_state=0)
    print(found)
    if args.picture:
        found.plot().savefig(args.picture, dpi=60)


if __name__ == "__main__":
    main()
