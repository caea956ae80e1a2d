"""How many components sketches need for a promise, in 100 seeds, beside what theorems ask for.

Rows are k + 1, so that two of them together are a partition into k clusters, and all such partitions are looked at.
Three sets are hard for one sketch or another: rows of ones in few features of their own, rows of one feature each, and
Gaussian rows. A number of components is enough if, on each of them, at most 10 of 100 seeds change the cost of some
partition by more than eps. Tried are the numbers of the theorem divided by powers of 2^(1/2).

    python -m tests.benchmarks.sketch_sizes

writes ``results/sketch_sizes.csv``: about a minute of one processor. Seconds are those that sketch 2,000 sparse rows
of 75 entries at the theorem's components, the median of three.
"""

from __future__ import annotations

import csv
import math
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.sketches.registry import make_sketch
from streamkm.sketches.theory.bounds import nnz_per_feature, sizing

DELTA, N_SEEDS, N_FEATURES = 0.1, 100, 2048
CASES = ((3, 0.3), (5, 0.3), (10, 0.3), (20, 0.4))
KINDS = ("countsketch", "sparse-jl", "signs", "gaussian", "sparse", "hadamard")
MOST_HALVINGS = 24  # of the square root of two
TIMED_ROWS, TIMED_ENTRIES, TIMED_FEATURES = 2000, 75, 47_236
RESULTS = Path(__file__).parent / "results" / "sketch_sizes.csv"


def hard_rows(k: int, eps: float) -> list[Any]:
    """Sets of rows (k + 1, d), CSR."""
    rng = np.random.default_rng(0)
    n_own = math.ceil(1 / eps) - 1
    sets = []
    for size in (n_own, 1):
        features = rng.choice(N_FEATURES, (k + 1) * size, replace=False)
        starts = np.arange(0, len(features) + 1, size)
        sets.append(sp.csr_array((np.ones(len(features)), features, starts), shape=(k + 1, N_FEATURES)))
    return [*sets, sp.csr_array(rng.normal(size=(k + 1, N_FEATURES)))]


def pair_costs(X: Any) -> NDArray[np.float64]:
    """Squared distances of all pairs of rows."""
    products = X @ X.T
    products = products.toarray() if sp.issparse(products) else products
    d2 = np.diag(products)[:, None] + np.diag(products) - 2 * products
    return np.asarray(d2[np.triu_indices(len(d2), 1)])


def is_enough(kind: str, m: int, k: int, eps: float) -> bool:
    """Whether at most a share delta of the seeds fails on each set."""
    per_feature = min(m, nnz_per_feature(n_clusters=k, eps=eps, delta=DELTA)) if kind == "sparse-jl" else None
    for X in hard_rows(k, eps):
        wanted, n_failed = pair_costs(X), 0
        for seed in range(N_SEEDS):
            got = pair_costs(make_sketch(kind, m, seed, N_FEATURES, per_feature).apply(X).astype(np.float64))
            n_failed += bool((np.abs(got / wanted - 1) > eps * (1 + 1e-6)).any())
            if n_failed > DELTA * N_SEEDS:
                return False
    return True


def needed(kind: str, asked: int, k: int, eps: float) -> int:
    """The smallest number tried from which on all larger ones are enough."""
    found = asked
    for step in range(1, MOST_HALVINGS):
        m = math.ceil(asked / 2 ** (step / 2))
        if kind == "hadamard" and m > N_FEATURES:
            continue  # there are no more components than features: all of them change no distance
        if m < 1 or not is_enough(kind, m, k, eps):
            break
        found = m
    return found


def seconds_of(kind: str, m: int, k: int, eps: float) -> float:
    """Processor seconds for sparse rows."""
    rng = np.random.default_rng(0)
    indices = np.sort(rng.integers(0, TIMED_FEATURES, (TIMED_ROWS, TIMED_ENTRIES)), axis=1).ravel()
    starts = np.arange(0, len(indices) + 1, TIMED_ENTRIES)
    X = sp.csr_array((rng.random(len(indices), np.float32), indices, starts), shape=(TIMED_ROWS, TIMED_FEATURES))
    per_feature = nnz_per_feature(n_clusters=k, eps=eps, delta=DELTA) if kind == "sparse-jl" else None
    sketch, times = make_sketch(kind, m, 0, TIMED_FEATURES, per_feature), []
    sketch.apply(X[:100])
    for _ in range(3):
        start = time.process_time()
        sketch.apply(X)
        times.append(time.process_time() - start)
    return median(times)


def main() -> None:
    """Measure, and write the table."""
    lines = []
    for k, eps in CASES:
        for kind in KINDS:
            given = {"n_clusters": k, "eps": eps, "delta": DELTA}
            asked = sizing(kind, n_features=1 << 40, **given) if kind != "hadamard" else None
            n_asked = asked.n_components if asked else _hadamard(given)
            seconds = seconds_of(kind, min(n_asked, 65_536 if kind == "hadamard" else n_asked), k, eps)
            least = needed(kind, n_asked, k, eps)
            lines.append((kind, k, eps, DELTA, n_asked, least, round(n_asked / least, 1), round(seconds, 4)))
            print(*lines[-1], flush=True)
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("sketch", "k", "eps", "delta", "theorem_asks", "seeds_needed", "ratio", "seconds"))
        writer.writerows(lines)


def _hadamard(given: dict[str, Any]) -> int:
    """Components that its theorem asks for, beyond the features there are."""
    from streamkm.sketches.theory.records import Case
    from streamkm.sketches.theory.theorems import FORMULAS

    case = Case(given["n_clusters"], given["eps"], given["delta"], None, N_FEATURES)
    return FORMULAS["hadamard"](case)[0].n_components


if __name__ == "__main__":
    main()
