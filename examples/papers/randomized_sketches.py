"""Yin, Liu, Wang and Meng, "Randomized sketches for clustering: fast and optimal kernel k-means", NeurIPS 2022.

    python randomized_sketches.py DATA --out OUT [--seeds 3] [--quick]

The paper's table over eight data sets: accuracy and time of exact kernel k-means, and of k-means on sketches of the
kernel's columns: Gaussian, Nystroem, sub-Gaussian (hashed signs) and ROS (randomized Hadamard). Its claim is that a
sketch of the order of sqrt(n) columns does as well as the exact method; so the sizes are 1/2, 1 and 2 times sqrt(n),
and the pictures have the exact method as a line. The table of means is that of sqrt(n).

Data: dna.scale, segmentation.tsv.gz, mushrooms.svm, pendigits.scale, a8a, w8a, connect_4.tsv.gz (one-hot) and
cover.npz, those that are in DATA; features of segment and cover are scaled to [0, 1]. The kernel is Gaussian, its width
the root of the mean squared distance of two rows. All but Nystroem meet every pair of rows. Sets of more than 8,192
rows are therefore cut to that many, drawn uniformly; "Nystroem, all rows" has all of them. The column `rows` says
which.

Exact kernel k-means is that of `streamkm.fitting.kernel.exact`, the best of five starts by k-means++ in the kernel's
space. The sketches are methods of `StreamKernelKMeans`, started by k-means++ with local search (init="ls++"), and keep
all columns: no rank is cut. Objectives are exact ones, by the kernel matrix, over the mean of the exact method; below 1
where the search finds what its five starts do not.

What differs from the paper. Its table was not at hand, so that no column has its figures; neither are its kernel widths
known here, nor its constant before sqrt(n). covtype has 581,012 rows and seven classes; cover.npz has 286,048 rows
of two, of which one is a hundredth, so that accuracy there says little. Where one class prevails (w8a, cover,
connect-4, a8a), accuracy is below that of one cluster for everything, and the better objective need not have the better
accuracy.
"""

from functools import partial

import common
import numpy as np
from sklearn.metrics.pairwise import rbf_kernel

from streamkm import StreamKernelKMeans
from streamkm.fitting.kernel.exact import exact_kernel_kmeans, kernel_objective
from streamkm.metrics import clustering_accuracy, normalized_mutual_info

MOST_ROWS, EXACT_STARTS, SEEDS = 8192, 5, 3
FACTORS = (0.5, 1, 2)  # of sqrt(n)
EXACT, WHOLE = "kernel k-means", "Nystroem, all rows"
METHODS = {
    "Gaussian": {"method": "gaussian"},
    "Nystroem": {"method": "nystroem", "fit_on": "all"},
    "sub-Gaussian": {"method": "sub-gaussian"},
    "ROS": {"method": "ros"},
}
STEM = "randomized_sketches"


def table_of(path):
    """Columns of numbers of a tab-separated file, the last apart."""
    stored = np.loadtxt(path, skiprows=1, dtype=np.float32)
    return stored[:, :-1], stored[:, -1].astype(int)


def unit_range(X):
    low, high = X.min(axis=0), X.max(axis=0)
    return ((X - low) / np.where(high > low, high - low, 1)).astype(np.float32)


def segment(path):
    X, classes = table_of(path)
    return unit_range(X), classes


def connect4(path):
    X, classes = table_of(path)
    return (X[:, :, None] == np.arange(3)).reshape(len(X), -1).astype(np.float32), classes


def cover(path):
    with np.load(path, allow_pickle=False) as stored:
        return unit_range(stored["X"].astype(np.float32)), stored["y"].astype(int)


def sparse(path):
    X, classes = common.svmlight(path)
    return X.toarray(), classes


SETS = {
    "dna": ("dna.scale", sparse),
    "segment": ("segmentation.tsv.gz", segment),
    "mushrooms": ("mushrooms.svm", sparse),
    "pendigits": ("pendigits.scale", sparse),
    "a8a": ("a8a", sparse),
    "w8a": ("w8a", sparse),
    "connect-4": ("connect_4.tsv.gz", connect4),
    "cover": ("cover.npz", cover),
}


def seeded(K, k, rng):
    """Labels by the nearest of k rows that k-means++ draws in the kernel's space."""
    diagonal, d2 = np.diagonal(K), []
    chances = np.ones(len(K))
    for _ in range(k):
        row = rng.choice(len(K), p=chances / chances.sum())
        d2.append(np.maximum(diagonal - 2 * K[row] + K[row, row], 0).astype(float))
        chances = np.min(d2, axis=0)
        if not chances.any():
            break
    return np.argmin(d2, axis=0)


def exact(X, k, gamma, seed):
    """Labels of the best of a few starts; the kernel matrix is part of the work."""
    K, rng = rbf_kernel(X, gamma=gamma), np.random.default_rng(seed)
    runs = [exact_kernel_kmeans(K, seeded(K, k, rng)) for _ in range(EXACT_STARTS)]
    return min(runs, key=lambda run: run.inertia).labels


def sketched(X, k, gamma, seed, c, **how):
    """Labels by k-means on c features."""
    estimator = StreamKernelKMeans(
        k, gamma=gamma, n_landmarks=c, rank=c, init="ls++", random_state=seed, executor=1, progress=False, **how
    )
    return estimator.fit(X).labels_


def measure(name, X, classes, n_seeds, factors):
    """A row of the table for every method, m (the number of columns) and seed."""
    k, n = len(np.unique(classes)), len(X)
    rows = []
    picked = np.sort(np.random.default_rng(0).choice(n, min(n, MOST_ROWS), replace=False))
    part, part_classes = X[picked], classes[picked]
    gamma = 1 / (4 * part.var(axis=0, dtype=np.float64).sum())
    K = rbf_kernel(part, gamma=gamma)

    def add(method, factor, m, seed, labels, seconds):
        whole = method == WHOLE
        true = classes if whole else part_classes
        rows.append(
            {
                "data": name,
                "rows": len(true),
                "method": method,
                "of_root": factor,
                "m": m,
                "seed": seed,
                "seconds": seconds,
                "accuracy": clustering_accuracy(true, labels),
                "nmi": normalized_mutual_info(true, labels),
                "objective": "" if whole else kernel_objective(K, labels),
                "over_exact": "",
            }
        )

    for how in METHODS.values():
        sketched(part[:300], k, gamma, 0, 20, **how)  # compiles
    for seed in range(n_seeds):
        add(EXACT, "", "", seed, *common.timed(exact, part, k, gamma, seed))
        for factor in factors:
            c = int(np.ceil(factor * np.sqrt(len(part))))
            for method, how in METHODS.items():
                add(method, factor, c, seed, *common.timed(partial(sketched, part, k, gamma, seed, c, **how)))
        if len(part) < n:
            c = int(np.ceil(np.sqrt(n)))
            add(WHOLE, 1, c, seed, *common.timed(partial(sketched, X, k, gamma, seed, c, **METHODS["Nystroem"])))
    best = np.mean([row["objective"] for row in rows if row["method"] == EXACT])
    for row in rows:
        if row["method"] != WHOLE:
            row["over_exact"] = row["objective"] / best
    return rows


def means(rows):
    """A line of the paper's table for every data set: accuracy in percent, its deviation over seeds, and seconds."""
    lines = []
    for name in dict.fromkeys(row["data"] for row in rows):
        for method in (EXACT, *METHODS, WHOLE):
            kept = [
                row for row in rows if row["data"] == name and row["method"] == method and row["of_root"] in ("", 1)
            ]
            if kept:
                accuracy = [100 * row["accuracy"] for row in kept]
                line = {"data": name, "rows": kept[0]["rows"], "method": method, "columns": kept[0]["m"]}
                line |= {"accuracy": f"{np.mean(accuracy):.2f}", "deviation": f"{np.std(accuracy):.2f}"}
                line["seconds"] = f"{np.mean([row['seconds'] for row in kept]):.3f}"
                if method != WHOLE:
                    line["over_exact"] = f"{np.mean([row['over_exact'] for row in kept]):.4f}"
                lines.append(line)
    return lines


def check(lines):
    """Say how far a sketch of sqrt(n) columns is from the exact method, and how much faster it is."""
    for method in METHODS:
        pairs = []
        for exactly in (line for line in lines if line["method"] == EXACT):
            ours = next(line for line in lines if line["data"] == exactly["data"] and line["method"] == method)
            pairs.append([float(line[value]) for value in ("accuracy", "seconds") for line in (ours, exactly)])
        ours, theirs, took, exact_took = np.array(pairs).T
        worst = max(float(line["over_exact"]) for line in lines if line["method"] == method)
        print(
            f"{method}: accuracy less that of exact kernel k-means {np.mean(ours - theirs):+.2f} "
            f"({np.min(ours - theirs):+.2f} to {np.max(ours - theirs):+.2f}); objective at most {worst:.4f} of it; "
            f"{np.min(exact_took / took):.1f} to {np.max(exact_took / took):.1f} times as fast"
        )


def plot(path, rows, value):
    """A panel for each data set."""
    titles = {
        "accuracy": "Accuracy",
        "seconds": "Processor seconds",
        "over_exact": "Kernel objective over the exact one's",
    }
    names = {row["data"]: row["rows"] for row in rows if row["method"] == EXACT}
    figure, axes = common.panels(
        -(-len(names) // 4), min(4, len(names)), f"{titles[value]}: means and ranges over seeds"
    )
    for (name, n_rows), panel in zip(names.items(), axes.flat, strict=False):
        for number, method in enumerate(METHODS):
            common.draw(panel, method, number, common.mean_by(rows, value, data=name, method=method))
        full = np.mean([row[value] for row in rows if row["data"] == name and row["method"] == EXACT])
        panel.axhline(full, color="#222222", linestyle="--", linewidth=1.4, label=EXACT)
        panel.set(xlabel="columns", title=f"{name}, {n_rows:,} rows")
        sizes = sorted({row["m"] for row in rows if row["data"] == name and row["method"] in METHODS})
        common.size_scale(panel, sizes)
        if value == "seconds":
            common.log_scale(panel, "y")
        else:
            common.span_at_least(panel, 0.1 if value == "accuracy" else 0.02)
    for panel in axes.flat[len(names) :]:
        panel.set_axis_off()
    common.finish(figure, axes, path)


def main():
    data, out, quick, n_seeds = common.arguments(__doc__, seeds=(int, SEEDS, "fits of every method and size"))
    rows = []
    for name, (file, load) in SETS.items():
        if (data / file).exists():
            X, classes = load(data / file)
            few = slice(None, None, -(-len(X) // 200) if quick else 1)
            rows += measure(name, X[few], classes[few], 1 if quick else n_seeds, FACTORS[1:2] if quick else FACTORS)
            common.write_table(out / f"{STEM}.csv", rows, say=False)
            print(f"{name}: done", flush=True)
    print(out / f"{STEM}.csv")
    lines = means(rows)
    common.write_table(out / f"{STEM}_table.csv", lines)
    check(lines)
    for value in ("accuracy", "seconds", "over_exact"):
        plot(out / f"{STEM}_{value}.png", rows, value)


if __name__ == "__main__":
    main()
