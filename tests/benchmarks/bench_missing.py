"""Missing values, filled with means, against scikit-learn's imputers in front of its KMeans.

``python -m tests.benchmarks.bench_missing --data FOLDER --out FILE.csv``. Entries of complete tables are removed at
random. Clusters are compared with those of the complete rows: by the adjusted Rand index, and by the objective of the
complete rows about the means of their clusters, over that of the clusters found without missing values.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks import real_data

SHARES = (0.05, 0.2, 0.4)
SEEDS = 3
MOST_ROWS = 20_000
KNN_ENTRIES = 200_000  # of a table: KNNImputer takes time by the square of its rows
FIELDS = ("table", "rows", "features", "clusters", "share", "method", "rand_index", "objective", "seconds")


def tables(folder: Path, *, quick: bool = False) -> Iterator[tuple[str, int, NDArray[np.float64]]]:
    """Name, number of clusters and complete rows (n, d) of each table."""
    if quick:
        rng = np.random.default_rng(0)
        yield "groups", 3, rng.normal(size=(300, 4)) + 6 * rng.integers(0, 3, (300, 1))
        return
    fields = np.genfromtxt(folder / "segmentation.tsv.gz", delimiter="\t", skip_header=1)[:, :-1]
    known = {each.name: each for each in real_data.SETS if each.k == 64}
    yield "segmentation", 7, _standardized(fields)
    for name, k, scale in (("pendigits", 10, False), ("USPS", 10, False), ("shuttle", 7, True), ("smtp", 5, True)):
        X = known[name].rows(folder)[:MOST_ROWS].astype(np.float64)
        yield name, k, _standardized(X) if scale else X


def _standardized(X: NDArray[Any]) -> NDArray[np.float64]:
    deviations = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(deviations > 0, deviations, 1)


def with_holes(X: NDArray[np.float64], share: float, seed: int) -> NDArray[np.float64]:
    """Rows without a share of their entries; each row keeps one."""
    rng = np.random.default_rng(seed)
    holes = rng.random(X.shape) < share
    holes[np.arange(len(X)), rng.integers(0, X.shape[1], len(X))] = False
    return np.where(holes, np.nan, X)


def objective(X: NDArray[np.float64], labels: NDArray[Any]) -> float:
    """Sum of squared distances of rows to the means of their clusters."""
    return sum(float(np.square(X[labels == c] - X[labels == c].mean(axis=0)).sum()) for c in np.unique(labels))


def methods(k: int, n_entries: int) -> dict[str, Callable[[NDArray[Any], int], NDArray[Any]]]:
    """Labels of rows with holes and a seed, by name."""
    from sklearn.cluster import KMeans
    from sklearn.impute import KNNImputer, SimpleImputer

    from streamkm import StreamKMeans

    def mean_filled(X: NDArray[Any], seed: int) -> NDArray[Any]:
        labels: NDArray[Any] = StreamKMeans(k, invalid="mean", random_state=seed, progress=False).fit(X).labels_
        return labels

    def theirs(imputer: Any) -> Callable[[NDArray[Any], int], NDArray[Any]]:
        return lambda X, seed: KMeans(k, n_init=10, random_state=seed).fit(imputer.fit_transform(X)).labels_

    found = {"mean": mean_filled, "SimpleImputer": theirs(SimpleImputer())}
    return found | ({"KNNImputer": theirs(KNNImputer())} if n_entries <= KNN_ENTRIES else {})


def measured(folder: Path, *, quick: bool = False) -> Iterator[dict[str, Any]]:
    """A line for each table, share and method: medians over seeds."""
    from sklearn.metrics import adjusted_rand_score

    from streamkm import StreamKMeans

    for name, k, X in tables(folder, quick=quick):
        whole = StreamKMeans(k, random_state=0, progress=False).fit(X).labels_
        least = objective(X, whole)
        for share in SHARES:
            for method, labels_of in methods(k, X.size).items():
                seen = []
                for seed in range(1 if quick or method == "KNNImputer" else SEEDS):
                    holed, started = with_holes(X, share, seed), time.process_time()
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", UserWarning)  # of a possible gain
                        labels = labels_of(holed, seed)
                    seconds = time.process_time() - started
                    seen.append((adjusted_rand_score(whole, labels), objective(X, labels) / least, seconds))
                rand, ratio, seconds = map(median, zip(*seen, strict=True))
                figures = (f"{rand:.3f}", f"{ratio:.3f}", f"{seconds:.2f}")
                yield dict(zip(FIELDS, (name, *X.shape, k, share, method, *figures), strict=True))


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data; needed unless --quick")
    parser.add_argument("--quick", action="store_true", help="a small generated table")
    parser.add_argument("--out", type=Path, required=True, help="CSV to write")
    args = parser.parse_args(argv)
    if args.data is None and not args.quick:
        parser.error("--data FOLDER is needed, or --quick")
    with args.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for line in measured(args.data, quick=args.quick):
            writer.writerow(line)
            file.flush()


if __name__ == "__main__":
    main()
