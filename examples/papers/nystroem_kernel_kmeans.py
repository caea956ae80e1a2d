"""Wang, Gittens and Mahoney, "Scalable kernel k-means clustering with Nystroem approximation", JMLR 20 (2019).

    python nystroem_kernel_kmeans.py DATA --out OUT [--quick]

Four comparisons, each a picture and a table:

- shapes: clusters that k-means cannot see and kernel k-means can, as in the paper's figure 1.
- spectral: NMI and time of kernel k-means by rank-restricted Nystroem features (rank 2 k) against spectral clustering
  with the Nystroem method (Fowlkes et al., 2004) over the number of landmarks.
- ranks: NMI of Nystroem features, random Fourier features and two-step kernel k-means (Chitta et al., KDD 2011: k-means
  on the landmarks alone, whatever the rank) at ranks k, 2 k and 5 k.
- objective: the exact kernel objective of the same fits, for the sets whose kernel matrix fits in memory, over the
  lowest that any method and exact kernel k-means after it find. The power method (the paper's algorithm 1), which sees
  that matrix, is the reference.

Data: MNIST (`mnist.h5`, the first 60,000), Mushrooms (`mushrooms.svm`), PenDigits (`pendigits.scale`), where they are
in DATA. The kernel is Gaussian; its width is the root of the mean squared distance of two rows. MNIST's kernel matrix
would be 14 GB: for it the table has the bounds between which the exact objective lies.

Two-step and random features are methods of `StreamKernelKMeans`, since people choose between them on data of any size.
The power method, exact kernel k-means and spectral features are functions of arrays in `streamkm.fitting.kernel.exact`:
they need all rows or all columns at once and serve comparisons such as these and the tests, so no estimator has them.

What differs from the paper. All methods here share this project's k-means, which starts several times and searches. The
paper's curves were not read off point by point. "On a sample" is this project's default, where SVD and k-means see
10,000 rows; all other curves see all rows, as the paper's do. Not all of it favours kernels: with this width kernel
k-means has the NMI of k-means on MNIST and PenDigits, and the moons need features cut to rank 2 (at rank 10 about 0.8
of the rows are right). Features of all rows are made three times, so that Nystroem takes as long as spectral clustering
there; on a sample it is faster.
"""

from functools import partial

import common
import numpy as np
from sklearn.datasets import make_blobs, make_circles, make_moons
from sklearn.metrics.pairwise import rbf_kernel

from streamkm import StreamKernelKMeans
from streamkm.fitting.kernel.exact import exact_kernel_kmeans, kernel_objective, power_features, spectral_features
from streamkm.metrics import clustering_accuracy, normalized_mutual_info
from streamkm.sketches.kernel_columns import Kernel, KernelColumns, working_landmarks

SIZES, FACTORS, SEEDS = (50, 100, 200, 400, 800), (1, 2, 5), 3
OURS, SAMPLED, SPECTRAL = "Nystroem", "Nystroem, on a sample", "spectral, Nystroem"
FOURIER, TWO_STEP, POWER, EXACT, LINEAR = "random Fourier", "two-step", "power method", "exact", "k-means"
KERNEL_METHODS = {
    OURS: {"fit_on": "all"},
    SAMPLED: {"fit_on": "sample"},
    FOURIER: {"method": "fourier", "fit_on": "all"},
    TWO_STEP: {"method": "two-step"},
}
STEM = "nystroem_kernel_kmeans"
MOST_EXACT = 10_000  # rows whose kernel matrix is held


def gamma_of(X):
    """1 / (2 s^2), s^2 the mean squared distance of two rows."""
    return 1 / (4 * X.var(axis=0, dtype=np.float64).sum())


def kernel_fit(X, k, gamma, seed, c, rank, **how):
    return StreamKernelKMeans(
        k, gamma=gamma, n_landmarks=c, rank=rank, random_state=seed, executor=1, progress=False, **how
    ).fit(X)


def spectral(X, k, gamma, seed, c):
    """Labels by k-means on spectral features of uniform landmarks."""
    drawn = np.sort(np.random.default_rng(seed).choice(len(X), c, replace=False))
    columns = KernelColumns(Kernel("rbf", gamma), working_landmarks(X[drawn], dense=True))
    C = columns.values(X)
    return common.cluster(spectral_features(C, C[drawn], k).astype(np.float32), k, seed)


def power(K, k, rank, seed):
    features = power_features(K, rank, rng=np.random.default_rng(seed))
    return common.cluster(features.astype(np.float32), k, seed)


def measure(name, X, classes, sizes, n_seeds):
    """A row of the table for every method, rank, m (the number of landmarks or features) and seed."""
    k, gamma, rows = len(np.unique(classes)), gamma_of(X), []
    ranks = [factor * k for factor in FACTORS]
    K = rbf_kernel(X, gamma=gamma) if len(X) <= MOST_EXACT else None
    lowest = []  # objective and labels

    def add(method, rank, m, seed, labels, seconds, bounds=("", "")):
        low, high = bounds if K is None else 2 * (kernel_objective(K, labels),)
        if K is not None and (not lowest or low < lowest[0]):
            lowest[:] = low, labels
        rows.append(
            {
                "data": name,
                "rows": len(X),
                "method": method,
                "rank": rank,
                "m": m,
                "seed": seed,
                "seconds": seconds,
                "nmi": normalized_mutual_info(classes, labels),
                "accuracy": clustering_accuracy(classes, labels),
                "objective_least": low,
                "objective_most": high,
                "over_exact": "",
            }
        )

    spectral(X[:300], k, gamma, 0, 20)  # compiles, as the next ones do
    for how in KERNEL_METHODS.values():
        kernel_fit(X[:300], k, gamma, 0, 20, k, **how)
    for seed in range(n_seeds):
        add(LINEAR, "", "", seed, *common.timed(common.cluster, X, k, seed))
        for m in sizes:
            add(SPECTRAL, k, m, seed, *common.timed(spectral, X, k, gamma, seed, m))
            for method, how in KERNEL_METHODS.items():
                for rank in ranks if method in (OURS, FOURIER) else ranks[1:2]:
                    fit, seconds = common.timed(partial(kernel_fit, X, k, gamma, seed, m, rank, **how))
                    residual = fit.trace_residual_
                    bounds = ("", "") if residual is None else (fit.inertia_, fit.inertia_ + residual)
                    add(method, "" if method == TWO_STEP else rank, m, seed, fit.labels_, seconds, bounds)
        if K is not None:
            for rank in ranks:
                labels, seconds = common.timed(power, K, k, rank, seed)
                add(POWER, rank, "", seed, labels, seconds)
            exact, seconds = common.timed(exact_kernel_kmeans, K, lowest[1])
            add(EXACT, "", "", seed, exact.labels, seconds)
    if K is not None:
        for row in rows:
            row["over_exact"] = row["objective_least"] / lowest[0]
    return rows


def level(panel, rows, value, number, **where):
    """A horizontal line at the mean of a method that has no m."""
    found = [row[value] for row in rows if all(row[name] == wanted for name, wanted in where.items())]
    colour = common.COLOURS[number]
    panel.axhline(np.mean(found), color=colour, linestyle="--", linewidth=1.4, label=where["method"])


def plot_spectral(path, rows, names):
    """A line for each data set: NMI, seconds."""
    figure, axes = common.panels(len(names), 2, "Kernel k-means and spectral clustering: means and ranges over seeds")
    for (name, k), line in zip(names.items(), axes, strict=True):
        for panel, value in zip(line, ("nmi", "seconds"), strict=True):
            for number, (method, rank) in enumerate(((OURS, 2 * k), (SAMPLED, 2 * k), (SPECTRAL, k))):
                common.draw(panel, method, number, common.mean_by(rows, value, data=name, method=method, rank=rank))
            level(panel, rows, value, 7, data=name, method=LINEAR)
            panel.set(xlabel="landmarks", title=f"{name}: {'NMI' if value == 'nmi' else 'processor seconds'}")
            common.size_scale(panel, SIZES)
        common.span_at_least(line[0], 0.05)
        common.log_scale(line[1], "y")
    common.finish(figure, axes, path)


def plot_ranks(path, rows, names, value):
    """A line for each data set, a column for each rank."""
    title = {"nmi": "NMI", "over_exact": "Exact kernel objective over the lowest"}[value]
    figure, axes = common.panels(len(names), len(FACTORS), f"{title}: means and ranges over seeds")
    for (name, k), line in zip(names.items(), axes, strict=True):
        for panel, factor in zip(line, FACTORS, strict=True):
            for number, (method, rank) in enumerate(((OURS, factor * k), (FOURIER, factor * k), (TWO_STEP, ""))):
                common.draw(panel, method, number, common.mean_by(rows, value, data=name, method=method, rank=rank))
            if value == "over_exact":
                level(panel, rows, value, 7, data=name, method=POWER, rank=factor * k)
            else:
                level(panel, rows, value, 9, data=name, method=LINEAR)
            panel.set(xlabel="landmarks or random features", title=f"{name}, rank {factor * k}")
            common.size_scale(panel, SIZES)
        low, high = (pick(panel.get_ylim()[side] for panel in line) for side, pick in ((0, min), (1, max)))
        for panel in line:
            panel.set_ylim(low, high)
            common.span_at_least(panel, 0.05)
    common.finish(figure, axes, path)


def shapes(out, n):
    """Blobs, rings and moons by k-means and by kernel k-means, drawn; the table has kernel objectives too."""
    sets = {
        "blobs": (*make_blobs(n, centers=[[0, 0], [4, 0], [2, 4]], cluster_std=0.7, random_state=0), 0.2, 6),
        "rings": (*make_circles(n, noise=0.03, factor=0.3, random_state=0), 4.0, 4),
        "moons": (*make_moons(n, noise=0.04, random_state=0), 20.0, 2),
    }
    figure, axes = common.panels(2, len(sets), "Clusters that k-means cannot see, and some that it can")
    rows = []
    for (name, (X, classes, gamma, rank)), panels in zip(sets.items(), axes.T, strict=True):
        k, K = len(np.unique(classes)), rbf_kernel(X, gamma=gamma)
        kernel = kernel_fit(X, k, gamma, 0, min(n, 400), rank)
        found = {LINEAR: common.cluster(X, k, 0), f"kernel {LINEAR}": kernel.labels_}
        for panel, (method, labels) in zip(panels, found.items(), strict=True):
            accuracy = clustering_accuracy(classes, labels)
            objectives = {"objective": kernel_objective(K, labels), "of_classes": kernel_objective(K, classes)}
            rows.append(
                {"data": name, "method": method, "gamma": gamma, "rank": rank, "accuracy": accuracy, **objectives}
            )
            panel.scatter(*X.T, s=6, c=[common.COLOURS[label] for label in labels], linewidths=0)
            panel.set_aspect("equal", adjustable="datalim")
            panel.set_axis_off()
            panel.set_title(f"{name}, {method}: accuracy {accuracy:.3f}", fontsize=11)
    common.write_table(out / f"{STEM}_shapes.csv", rows)
    path = out / f"{STEM}_shapes.png"
    figure.savefig(path)
    print(path)


def check(name, k, rows):
    """Say which claims hold."""
    curves = {}
    for method, rank in ((OURS, 2 * k), (SAMPLED, 2 * k), (SPECTRAL, k)):
        for value in ("nmi", "seconds"):
            curves[method, value] = common.mean_by(rows, value, method=method, rank=rank)[1]
    for method in (OURS, SAMPLED):
        better = curves[method, "nmi"] - curves[SPECTRAL, "nmi"]
        faster = curves[SPECTRAL, "seconds"] / curves[method, "seconds"]
        print(
            f"{name}: {method} less {SPECTRAL}: NMI {better.mean():+.3f} ({better.min():+.3f} to {better.max():+.3f}); "
            f"{faster.min():.2f} to {faster.max():.2f} times as fast"
        )
    if rows[0]["over_exact"]:
        for rank in (factor * k for factor in FACTORS):
            ours = common.mean_by(rows, "over_exact", method=OURS, rank=rank)[1][-1]
            reference = np.mean([row["over_exact"] for row in rows if row["method"] == POWER and row["rank"] == rank])
            print(f"{name}: objective over the lowest at rank {rank}: {OURS} {ours:.4f}, {POWER} {reference:.4f}")


def main():
    data, out, quick = common.arguments(__doc__)
    shapes(out, 300 if quick else 1500)
    sizes, n_seeds, most = (SIZES[:1], 1, 300) if quick else (SIZES, SEEDS, 60_000)
    loads = {
        "Mushrooms": ("mushrooms.svm", common.svmlight),
        "PenDigits": ("pendigits.scale", common.svmlight),
        "MNIST": ("mnist.h5", lambda _: common.mnist(data, most)),
    }
    rows, names = [], {}
    for name, (file, load) in loads.items():
        if (data / file).exists():
            X, classes = load(data / file)
            X, classes = (X if isinstance(X, np.ndarray) else X.toarray())[:most], classes[:most]
            rows += measure(name, X, classes, sizes, n_seeds)
            names[name] = len(np.unique(classes))
            check(name, names[name], [row for row in rows if row["data"] == name])
            common.write_table(out / f"{STEM}.csv", rows, say=False)
    print(out / f"{STEM}.csv")
    plot_spectral(out / f"{STEM}_spectral.png", rows, names)
    plot_ranks(out / f"{STEM}_ranks.png", rows, names, "nmi")
    held = {name: k for name, k in names.items() if any(row["over_exact"] for row in rows if row["data"] == name)}
    if held:
        plot_ranks(out / f"{STEM}_objective.png", rows, held, "over_exact")


if __name__ == "__main__":
    main()
