"""False alarms of drift on shuffled streams, and changes that it finds.

    python -m tests.benchmarks.bench_drift FOLDER [--seeds 20] [--first 0]

FOLDER has pendigits.scale, pendigits.scale.t and smtp.npz. A stream has nine updates before a change, and 20 without.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from sklearn.datasets import load_svmlight_file

from streamkm import IncrementalKMeans

N_ROWS, BEFORE, SHUFFLED = 1000, 9, 20
CHANGES = ("class doubled", "class gone", "new class of 10 %", "feature shifted")
Rows = Callable[[np.random.Generator, np.ndarray], tuple[np.ndarray, np.ndarray]]


def digits(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pendigits and their classes."""
    parts = [load_svmlight_file(str(folder / name), n_features=16) for name in ("pendigits.scale", "pendigits.scale.t")]
    return np.vstack([X.toarray() for X, _ in parts]), np.concatenate([y for _, y in parts]).astype(int)


def shuffled(folder: Path, seed: int) -> dict[str, tuple[int, Callable[[], np.ndarray]]]:
    """Clusters and rows of an update, of five kinds."""
    r = np.random.default_rng([5, seed])
    X, _ = digits(folder)
    smtp = np.load(folder / "smtp.npz")["X"]
    return {
        "log-normal": (10, lambda: np.exp(r.normal(0, 1.5, (N_ROWS, 3)))),
        "t, 2 degrees": (10, lambda: r.standard_t(2, (N_ROWS, 5))),
        "normal": (10, lambda: r.normal(size=(N_ROWS, 5))),
        "digits": (26, lambda: X[r.integers(0, len(X), N_ROWS)]),
        "smtp": (10, lambda: smtp[r.integers(0, len(smtp), N_ROWS)]),
    }


def mixture(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of ten normal groups that overlap somewhat, and these."""
    r = np.random.default_rng([6, seed])
    centers, y = 3 * r.normal(size=(10, 8)), r.integers(0, 10, 20_000)
    return centers[y] + r.normal(size=(len(y), 8)), y


def changed(X: np.ndarray, y: np.ndarray, change: str, seed: int) -> Iterator[np.ndarray]:
    """Updates of rows X of classes y, the last of which has a change."""
    r = np.random.default_rng([7, seed])
    one = r.permutation(np.unique(y))[0]
    usual = np.flatnonzero(y != one) if change == "new class of 10 %" else np.arange(len(y))
    for _ in range(BEFORE):
        yield X[r.choice(usual, N_ROWS)]
    p, is_one = np.ones(len(y)), y == one
    weight = {"class doubled": 2.0, "class gone": 0.0, "new class of 10 %": (~is_one).sum() / is_one.sum() / 9}
    p[is_one] = weight.get(change, 1.0)
    rows = X[r.choice(len(y), N_ROWS, p=p / p.sum())].copy()
    if change == "feature shifted":
        rows[:, r.integers(X.shape[1])] += X.std(axis=0).mean()
    yield rows


def judged(k: int, seed: int, updates: Iterator[np.ndarray]) -> list[tuple[str, list[float]]]:
    """Verdict and scores of each update that there is a verdict of."""
    kmeans, found = IncrementalKMeans(k, random_state=seed), []
    for rows in updates:
        drift = kmeans.update(rows).drift
        if drift is not None and drift.verdict != "too few updates":
            figures = (drift.shares, drift.distances, drift.novelty, drift.shift)
            found.append((drift.verdict, [each.score for each in figures]))
    return found


def main() -> None:
    """Print alarms and what was found, with the largest score of each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.seeds)
    for kind in shuffled(given.folder, 0):
        told = []
        for seed in seeds:
            k, draw = shuffled(given.folder, seed)[kind]
            told += judged(k, seed, (draw() for _ in range(SHUFFLED)))
        show(f"{kind}, shuffled", told)
    for change in CHANGES:
        for name in ("mixture", "digits"):
            told = []
            for seed in seeds:
                X, y = mixture(seed) if name == "mixture" else digits(given.folder)
                told += judged(10 if name == "mixture" else 26, seed, changed(X, y, change, seed))[-1:]
            show(f"{change}, {name}", told)


def show(name: str, told: list[tuple[str, list[float]]]) -> None:
    """Print how many of these are told as a change."""
    scores = np.round(np.quantile([scores for _, scores in told], [0.1, 0.5, 0.99], axis=0), 1).tolist()
    print(f"{name:30} {sum(verdict != 'stable' for verdict, _ in told):4} of {len(told):4}  {scores}", flush=True)


if __name__ == "__main__":
    main()
