"""Rows that come every night: update clusters through a file, see what changed, and keep the ids of the clusters.

python rows_every_night.py

The rows are handwritten digits in the order of their writers. The digit 6 first comes on night 4, and 0 stays away from
night 6 on. `--picture` draws the shares of the clusters over the nights, with births, deaths, splits and joins.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sklearn.datasets import load_svmlight_file

from streamkm import IncrementalKMeans

NIGHTS = 10
LATE, FIRST_NIGHT = 6, 4
GONE, LAST_NIGHT = 0, 5
OTHERS = {"split": "from", "joined": "to"}


def nights() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Read the rows of each night, and the digit of each row."""
    X, classes = load_svmlight_file(str(Path(__file__).parent / "data" / "pendigits.svm"))
    digits = classes.astype(int) - 1
    for night, rows in enumerate(np.array_split(np.arange(len(digits)), NIGHTS)):
        late = (digits[rows] == LATE) & (night < FIRST_NIGHT)
        gone = (digits[rows] == GONE) & (night > LAST_NIGHT)
        came = rows[~late & ~gone]
        yield X[came].toarray(), digits[came]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, help="write a picture of the clusters over time there, .png or .svg")
    args = parser.parse_args()
    mostly: dict[int, int] = {}  # the digit of most rows of a cluster, on the last night that gave it rows
    kmeans = IncrementalKMeans((4, 30), tol=2e-2, half_life=700, random_state=0)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "clusters.npz"
        for night, (X, digits) in enumerate(nights()):
            update = kmeans.update(X)
            for cluster in np.unique(kmeans.labels_):
                mostly[cluster] = np.bincount(digits[kmeans.labels_ == cluster]).argmax()
            verdict = "the first rows" if update.drift is None else update.drift.verdict
            print(f"night {night}: {update.n_rows} rows, {len(kmeans.cluster_ids_)} clusters, {verdict}")
            for event in update.events if night else ():
                other = "" if event.other is None else f" {OTHERS[event.event]} {event.other}"
                print(f"  {event.id} {event.event}{other}: mostly the digit {mostly[event.id]}")
            kmeans.save(model, overwrite=True)
            kmeans = IncrementalKMeans.load(model)  # each night in a process of its own, if you like

        print(f"{kmeans.n_samples_seen_:,} rows, {kmeans.stream_.n_bytes / 2**20:.1f} MiB are kept")
        print(f"about {kmeans.changed_share_:.0%} of them, by weight, are nearest to another center now")
        labels = kmeans.relabel(np.concatenate([X for X, _ in nights()]))
        print(f"{len(labels):,} rows have new labels, {kmeans.changed_share_:.0%} are nearest to another center")
        if args.picture:
            kmeans.plot_updates().savefig(args.picture, dpi=60)


if __name__ == "__main__":
    main()
