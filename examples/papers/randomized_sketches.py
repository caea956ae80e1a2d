"""Yin, Liu, Wang and Meng, "Randomized sketches for clustering: fast and optimal kernel k-means", NeurIPS 2022.

    python randomized_sketches.py DATA --out OUT [--seeds 5] [--quick]

The poster's table 1 with our figures beside it: accuracy on held-out rows and seconds of training. Their sketches are
S Q K: m drawn rows of the kernel matrix, combined by S; k-means with local search (LS++) runs on the columns as they
are. They are methods of `StreamKernelKMeans`: "sub-gaussian", "ros" and, for S = I, "sampled-columns". m is the root of
n, the next power of 2 for ROS. "Gaussian sketch" and exact kernel k-means meet every pair of rows and get 16,384 rows
at most, drawn evenly, and the exact method one split where that is more than 4,096; kernel objectives are of 4,096
rows. "ours" is `StreamKernelKMeans` as it comes: rank-restricted Nystroem features of 8 landmarks a feature, k-means++
with split-and-merge search.

A fifth of the rows is held out. Clusters get classes one to one, as well as they can on the training rows (the poster
does not say how; a majority in each cluster cannot be meant, for it hardly falls below the share of the largest class,
as the poster's figures do). The width is the root of the mean squared distance of two rows, times the root of a half.

Data: dna.scale, segmentation.tsv.gz, mushrooms.svm, pendigits.scale with pendigits.scale.t (10,992 rows), a8a, w8a
(w7a's 49,749 rows), connect_4.tsv.gz (67,557, one-hot), protein (17,766, or .bz2) and covtype, those that are in DATA.
covtype is the poster's 581,012 rows of seven classes where `covtype.data` of UCI (.gz too) or `covtype.scale` of the
LIBSVM collection is there, and else cover.npz, 286,048 rows of two of the classes. `landmarks_and_width.py` has the
poster's figure 1 and a sweep of widths. `yin2022.csv` has a line for each figure, `randomized_sketches.png` shows
accuracy. Eight minutes; `--quick` takes 2,000 rows of each and one seed.
"""

from functools import partial
from pathlib import Path

import common
import numpy as np
from exact import exact_kernel_kmeans, exact_objective
from scipy.optimize import linear_sum_assignment
from sklearn.metrics.cluster import contingency_matrix
from sklearn.metrics.pairwise import rbf_kernel

from streamkm import StreamKernelKMeans
from streamkm.sketches.kernel_columns import Kernel

MOST_PAIRS, MOST_JUDGED, EXACT_STARTS, SEEDS, QUICK_ROWS = 16_384, 4096, 5, 5, 2000
FEW_BASELINES = 1  # runs of the exact method on more than MOST_JUDGED rows, where one takes minutes
EXACT, GAUSSIAN, OURS = "exact kernel k-means", "Gaussian sketch (baseline)", "ours"
COLUMNS = {"init": "ls++", "fit_on": "all"}
METHODS = {
    "sub-Gaussian sketch (proposed)": {"method": "sub-gaussian", **COLUMNS},
    "ROS sketch (proposed)": {"method": "ros", **COLUMNS},
    "Nystroem (proposed)": {"method": "sampled-columns", **COLUMNS},
    OURS: {},
}
PRINTED = Path(__file__).with_name("yin2022_table1.csv")


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


def pendigits(path):
    parts = [sparse(part) for part in (path, path.with_name(path.name + ".t")) if part.exists()]
    return np.concatenate([X for X, _ in parts]), np.concatenate([classes for _, classes in parts])


def covtype(path):
    """All 54 columns of covtype, in the UCI file's layout or in that of its quantitative columns."""
    if path.suffix == ".npz":
        return cover(path)
    if path.name.startswith("covtype.data"):
        stored = np.loadtxt(path, delimiter=",", dtype=np.float32)
        return unit_range(stored[:, :-1]), stored[:, -1].astype(int)
    return sparse(path)


# Files of each set, the poster's own rows first; of several that are there, the first is taken.
SETS = {
    "dna": [("dna.scale", sparse)],
    "segment": [("segmentation.tsv.gz", segment)],
    "mushrooms": [("mushrooms.svm", sparse)],
    "pendigits": [("pendigits.scale", pendigits)],
    "protein": [(f"protein{kind}", sparse) for kind in ("", ".bz2")],
    "a8a": [("a8a", sparse)],
    "w7a": [("w8a", sparse)],
    "connect-4": [("connect_4.tsv.gz", connect4)],
    "covtype": [
        *((f"covtype{kind}", covtype) for kind in (".scale", ".scale.bz2", ".scale01.bz2", ".data", ".data.gz")),
        ("cover.npz", covtype),
    ],
}
PRINTED_ROWS = {"a8a": 32_561, "covtype": 581_012, "protein": 17_766, "pendigits": 10_992}


def stored(data, name):
    """Rows and classes of a set by the first of its files that is there; None where none is."""
    for file, load in SETS[name]:
        if (data / file).exists():
            return load(data / file)
    return None


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
    """Labels of the best of a few starts, and of other rows; the kernel matrix is part of the work."""
    K, rng = rbf_kernel(X, gamma=gamma), np.random.default_rng(seed)
    runs = [exact_kernel_kmeans(K, seeded(K, k, rng)) for _ in range(EXACT_STARTS)]
    labels = min(runs, key=lambda run: run.inertia).labels
    members = np.eye(k, dtype=np.float32)[labels] / np.maximum(1, np.bincount(labels, minlength=k))
    norms = np.einsum("ij,ij->j", members, K @ members)

    def predict(rows):
        return (norms - 2 * rbf_kernel(rows, X, gamma=gamma) @ members).argmin(axis=1)

    return labels, predict


def sketched(X, k, gamma, seed, **how):
    estimator = StreamKernelKMeans(k, gamma=gamma, random_state=seed, refine=0, executor=1, progress=False, **how).fit(
        X
    )
    return estimator.labels_, estimator.predict


def held_out_accuracy(classes, labels, test_classes, test_labels):
    """Share of held-out rows in the cluster that the training rows give their class, one to one."""
    rows, columns = linear_sum_assignment(contingency_matrix(classes, labels), maximize=True)
    class_of = dict(zip(np.unique(labels)[columns], np.unique(classes)[rows], strict=True))
    return float(np.mean([class_of.get(label) == true for label, true in zip(test_labels, test_classes, strict=True)]))


def measure(name, X, classes, n_seeds):
    """A row of the table for every method and seed."""
    k, rows = len(np.unique(classes)), []
    gamma = 1 / (2 * X.var(axis=0, dtype=np.float64).sum())
    for seed in range(n_seeds):
        order = np.random.default_rng(seed).permutation(len(X))
        train, test = order[: -len(X) // 5], order[-len(X) // 5 :]
        judged = train[:MOST_JUDGED]  # whose kernel objective is taken, by all pairs
        for method in (EXACT, GAUSSIAN, *METHODS):
            given = train[:MOST_PAIRS] if method in (EXACT, GAUSSIAN) else train
            if method == EXACT and len(given) > MOST_JUDGED and seed >= FEW_BASELINES:
                continue
            work = partial(sketched, **METHODS[method]) if method in METHODS else exact
            if method == GAUSSIAN:
                m = int(np.ceil(np.sqrt(len(given))))
                work = partial(sketched, method="gaussian", n_landmarks=m, rank=m, init="ls++")
            if seed == 0 and method != EXACT:
                work(X[given[:400]], k, gamma, seed)  # compiles
            (labels, predict), seconds = common.timed(work, X[given], k, gamma, seed)
            rows.append(
                {
                    "data": name,
                    "rows": len(given),
                    "given": len(X),
                    "classes": k,
                    "method": method,
                    "seed": seed,
                    "seconds": seconds,
                    "accuracy": held_out_accuracy(classes[given], labels, classes[test], predict(X[test])),
                    "objective": exact_objective(Kernel("rbf", gamma), X[judged], np.asarray(predict(X[judged]))),
                    "largest_class": np.bincount(np.unique(classes, return_inverse=True)[1]).max() / len(X),
                }
            )
    return rows


def why(name, method, rows, printed):
    """What may make our figure another one than the printed one."""
    n, reasons = rows[0]["given"], []
    if n != PRINTED_ROWS.get(name, n):
        reasons = [f"other rows: {n:,} of {rows[0]['classes']} classes are here, {PRINTED_ROWS[name]:,} in the poster"]
    if method in (EXACT, GAUSSIAN) and rows[0]["rows"] == MOST_PAIRS:
        reasons.append(f"{MOST_PAIRS:,} rows, of which all pairs meet")
    ours, share = np.mean([row["accuracy"] for row in rows]), rows[0]["largest_class"]
    if printed is not None and abs(printed - share) <= 0.05 < abs(ours - share):
        reasons.append("theirs is about the share of the largest class, which a very narrow kernel gives")
    if printed is None:
        return "no figure printed"
    near = "within 0.05" if abs(ours - printed) <= 0.05 else "better; the printed width is not known"
    return "; ".join(reasons) or (near if ours > printed - 0.05 else "not explained")


def beside(rows):
    """Our means beside the printed figures: a line for each set, method and measure."""
    printed = {(line["dataset"], line["method"]): line for line in common.read_table(PRINTED)}
    lines = []
    for name, method in dict.fromkeys((row["data"], row["method"]) for row in rows):
        kept = [row for row in rows if row["data"] == name and row["method"] == method]
        best = np.mean([row["objective"] for row in rows if row["data"] == name and row["method"] == OURS])
        theirs = printed.get((name, method), {})
        accuracy = float(theirs["accuracy"]) if theirs.get("accuracy") else None
        lines.append(
            {
                "dataset": name,
                "rows": kept[0]["rows"],
                "seeds": len(kept),
                "method": method,
                "paper_accuracy": theirs.get("accuracy", ""),
                "paper_deviation": theirs.get("deviation", ""),
                "accuracy": f"{np.mean([row['accuracy'] for row in kept]):.3f}",
                "deviation": f"{np.std([row['accuracy'] for row in kept]):.3f}",
                "largest_class": f"{kept[0]['largest_class']:.3f}",
                "paper_seconds": theirs.get("seconds", ""),
                "seconds": f"{np.mean([row['seconds'] for row in kept]):.3f}",
                "objective_over_ours": f"{np.mean([row['objective'] for row in kept]) / best:.4f}",
                "difference": why(name, method, kept, accuracy),
            }
        )
    return lines


def plot(path, lines):
    """A panel for each set: printed and our accuracy of every method, and the share of the largest class."""
    names = list(dict.fromkeys(line["dataset"] for line in lines))
    methods = list(dict.fromkeys(line["method"] for line in lines))
    figure, axes = common.panels(
        -(-len(names) // 4), min(4, len(names)), "Accuracy on held-out rows, and its deviation"
    )
    for name, panel in zip(names, axes.flat, strict=False):
        kept = [line for line in lines if line["dataset"] == name]
        for shift, colour, label, value, spread in (
            (-0.12, common.COLOURS[1], "printed", "paper_accuracy", "paper_deviation"),
            (0.12, common.COLOURS[0], "here", "accuracy", "deviation"),
        ):
            told = [(i, float(line[value]), float(line[spread] or 0)) for i, line in enumerate(kept) if line[value]]
            if told:
                places, values, spreads = zip(*told, strict=True)
                at = np.array(places) + shift
                panel.errorbar(at, values, spreads, fmt="o", color=colour, capsize=3, markersize=5, label=label)
        share = float(kept[0]["largest_class"])
        panel.axhline(share, color="#222222", linestyle="--", linewidth=1, label="share of the largest class")
        panel.set(title=f"{name}, {max(int(line['rows']) for line in kept):,} rows", ylim=(0, 1))
        short = [method.split(" (")[0].replace(" sketch", "").replace(" kernel k-means", "") for method in methods]
        panel.set_xticks(range(len(methods)), short, rotation=35, ha="right")
    for panel in axes.flat[len(names) :]:
        panel.set_axis_off()
    common.finish(figure, axes, path)


def check(lines):
    """Say whether our default is at least as good, by objective, as the poster's sketches."""
    for line in lines:
        if line["method"] not in (OURS, EXACT, GAUSSIAN) and float(line["objective_over_ours"]) < 0.999:
            print(f"{line['dataset']}: {line['method']} has {line['objective_over_ours']} of our objective")
    theirs = [float(line["objective_over_ours"]) for line in lines if "(proposed)" in line["method"]]
    print(f"objective of the proposed sketches over ours: {min(theirs):.4f} to {max(theirs):.4f}")


def main():
    data, out, quick, n_seeds = common.arguments(__doc__, seeds=(int, SEEDS, "splits and fits of every method"))
    rows = []
    for name in SETS:
        if given := stored(data, name):
            X, classes = given
            if quick:
                few = np.sort(np.random.default_rng(0).permutation(len(X))[:QUICK_ROWS])
                X, classes = X[few], classes[few]
            rows += measure(name, X, classes, 1 if quick else n_seeds)
            common.write_table(out / "randomized_sketches.csv", rows, say=False)
    print(out / "randomized_sketches.csv")
    lines = beside(rows)
    common.write_table(out / "yin2022.csv", lines)
    check(lines)
    plot(out / "randomized_sketches.png", lines)


if __name__ == "__main__":
    main()
