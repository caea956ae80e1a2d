"""Cluster a table as it is: a CSV file of trips with ids, missing values, text and features of different scales.

    python table.py                     # a small file made on the spot
    python table.py --data trips.csv    # yours: columns are told by their names

On the command line the same is one line, `streamkm fit trips.csv -k 3 --id-column trip_id --categories onehot
--preprocess standardize --invalid skip`. Parquet and Arrow files, folders of them, pandas and polars frames are read
likewise.
"""

import argparse
import csv
import tempfile
from pathlib import Path

import numpy as np

from streamkm import StreamKMeans


def make(path: Path) -> None:
    """Write 3,000 trips: short ones downtown by card, long ones to the airport, nights in cash; some lack a fare."""
    rng = np.random.default_rng(0)
    kinds = {"city": (2, 9, 13, "card"), "airport": (18, 52, 11, "card"), "night": (6, 20, 2, "cash")}
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["trip_id", "miles", "fare", "hour", "payment"])
        for i in range(3_000):
            miles, fare, hour, payment = list(kinds.values())[i % 3]
            noise = rng.normal(0, 1, 3)
            fare_text = "" if i % 500 == 7 else f"{fare + 2 * noise[1]:.2f}"
            writer.writerow([f"T{i:05}", f"{miles + noise[0] / 2:.2f}", fare_text, f"{hour + noise[2]:.1f}", payment])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("-k", type=int, default=3)
    parser.add_argument("--id-column", default="trip_id")
    parser.add_argument("--picture", type=Path, help="write a picture of the clusters there, .png or .svg")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.data or Path(folder) / "trips.csv"
        if args.data is None:
            make(path)
        trips = {"path": path, "id_column": args.id_column, "categories": "onehot"}
        kmeans = StreamKMeans(args.k, preprocess=["standardize"], invalid="skip", random_state=0).fit(trips)
        print(f"features: {', '.join(kmeans.feature_names_in_)}")
        print(f"{np.sum(kmeans.labels_ < 0)} rows with missing values have the label -1")
        print(kmeans.summary())
        if args.picture:
            kmeans.plot().savefig(args.picture, dpi=60)


if __name__ == "__main__":
    main()
