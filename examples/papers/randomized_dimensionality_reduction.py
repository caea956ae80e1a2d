"""Boutsidis, Zouzias, Mahoney and Drineas, "Randomized dimensionality reduction for k-means clustering", 2015.

    python examples/papers/randomized_dimensionality_reduction.py DATA --out OUT [--quick]

Five Gaussian centers drawn from [0, 2000]^d, 200 points around each, d = 20, 200 and 2000; DATA is not read. For m up
to d: random signs (the paper's random projection), SVD (exact, uncentered), features drawn by their leverage scores in
the leading 5 singular vectors (its feature selection) and, as the plain baseline, features drawn evenly. Seven minutes.

Drawn are the objective of the sketch's clusters, among all features, over that of k-means there; the misclassified
share; and the time of sketch and k-means. Means over five seeds:

- Standard deviation 1, as in the paper: centers lie some 800 sqrt(d) apart, and every method makes the clusters of all
  features from m = 2. With m = 1 two centers may fall together: once in five seeds for random signs with d = 200 and
  2000, where a fifth of the points is then wrong. Such points show that nothing is lost, not which method is best.
- Standard deviation 500 tells them apart. SVD is exact from m = k = 5. Random signs are 38 % above with d = 2000 and
  m = 5, 9 % with m = 10, 0.4 % with m = 20; leverage scores 22 %, 4 % and 0.2 %; features drawn evenly as random signs,
  for all matter alike here. The first m that is within 1 % does not grow with d: 20 for d = 200 and 2000.
- Finding directions or scores costs more than it saves: with d = 2000, SVD and leverage scores take 0.7 to 1.1 s up to
  m = 100 where k-means on all features takes 0.6 to 0.7 s, for all 1000 rows are read several times. Random signs take
  0.1 to 0.3 s.

What differs from the paper. Its promise (m of order k / eps^2 keeps the optimum within 2 + eps) is far above what is
measured: a bound, not an estimate. Its plots were not read off point by point, and its other data sets are left out.
Leverage scores draw with replacement, so m = d = 20 features hold some twice and others never: 3 % above. k-means here
searches for better centers after its start; where m = 1 leaves no clear clusters, that takes twice as long as m = 2.
"""

from functools import partial

import common
import numpy as np

from streamkm.metrics import clustering_accuracy, objective_ratio
from streamkm.sketches import FeatureSelection, LeverageSampling, SignProjection, TruncatedSVDSketch
from streamkm.sketches.subspace import fit_rows

K, N_ROWS, SIDE = 5, 1000, 2000
WIDTHS, SPREADS, N_SEEDS = (20, 200, 2000), (1, 500), 5
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def points(d, spread, seed):
    """Rows (n, d) around five centers, and which."""
    rng = np.random.default_rng(seed)
    centers, classes = rng.random((K, d)) * SIDE, np.arange(N_ROWS) % K
    return (centers[classes] + spread * rng.standard_normal((N_ROWS, d))).astype(np.float32), classes


def signs(X, m, seed):
    return SignProjection(m, seed).apply(X)


def svd(X, m, seed):
    fit = TruncatedSVDSketch.first_round(m, n_features=X.shape[1], seed=seed)
    return fit_rows(fit, X, np.empty(0)).apply(X)


def leverage(X, m, seed):
    fit = LeverageSampling(m, seed).first_round(K, n_features=X.shape[1], seed=seed)
    return fit_rows(fit, X, np.empty(0)).apply(X)


def evenly(X, m, seed):
    drawn = np.random.default_rng(seed).permutation(X.shape[1])[:m]
    return FeatureSelection(np.sort(drawn).astype(np.int64), np.ones(m)).apply(X)


METHODS = {"random signs": signs, "SVD": svd, "leverage sampling": leverage, "even sampling": evenly}


def measure(d, spread, sizes, n_seeds):
    """A row of the table for each method, m and seed."""
    rows = []
    for seed in range(n_seeds):
        X, classes = points(d, spread, seed)
        whole, seconds = common.timed(common.cluster, X, K, seed)
        described = {"d": d, "spread": spread, "seed": seed}
        full = {"objective": 1.0, "misclassified": 1 - clustering_accuracy(classes, whole), "seconds": seconds}
        rows += [{**described, "method": "all features", "m": m, **full} for m in sizes]
        for method, work in METHODS.items():
            for m in sizes:
                sketched, sketching = common.timed(partial(work, seed=seed), X, m)
                labels, clustering = common.timed(common.cluster, sketched, K, seed)
                found = {"objective": objective_ratio(X, labels, whole)}
                found["misclassified"] = 1 - clustering_accuracy(classes, labels)
                rows.append({**described, "method": method, "m": m, **found, "seconds": sketching + clustering})
    return rows


def plot(path, rows, value, name, log=SPREADS):
    """A line of panels for each spread, a column for each d; logarithmic for the spreads of `log`."""
    widths = sorted({row["d"] for row in rows})
    figure, axes = common.panels(len(SPREADS), len(widths), f"{name}: means and ranges over seeds")
    for spread, line in zip(SPREADS, axes, strict=True):
        for d, panel in zip(widths, line, strict=True):
            for number, method in enumerate(("all features", *METHODS)):
                common.draw(panel, method, number, common.mean_by(rows, value, method=method, d=d, spread=spread))
            panel.set(xlabel="components, m", title=f"d = {d:,}, standard deviation {spread}")
            common.log_scale(panel, "x")
            if spread in log:
                common.log_scale(panel, "y")
    common.finish(figure, axes, path)


def main():
    _, out, quick = common.arguments(__doc__)
    widths, n_seeds, rows = (WIDTHS[:2], 2, []) if quick else (WIDTHS, N_SEEDS, [])
    common.cluster(signs(points(20, 1, 0)[0], 5, 0), K, 0)  # compiles
    for spread in SPREADS:
        for d in widths:
            rows += measure(d, spread, [m for m in SIZES if m <= d][:: 3 if quick else 1], n_seeds)
    common.write_table(out / "randomized_dimensionality_reduction.csv", rows)
    stem = "randomized_dimensionality_reduction"
    plot(out / f"{stem}_objective.png", rows, "objective", "Objective, over that of all features", SPREADS[:1])
    plot(out / f"{stem}_misclassified.png", rows, "misclassified", "Misclassified share", ())
    plot(out / f"{stem}_seconds.png", rows, "seconds", "Seconds for sketch and k-means")
    for spread in SPREADS:
        for method in METHODS:
            sizes, mean, _, _ = common.mean_by(rows, "objective", method=method, d=widths[-1], spread=spread)
            reached = next((m for m, ratio in zip(sizes, mean, strict=True) if ratio <= 1.01), None)
            print(
                f"d = {widths[-1]}, standard deviation {spread}, {method}: within 1 % of all features at m = {reached}"
            )


if __name__ == "__main__":
    main()
