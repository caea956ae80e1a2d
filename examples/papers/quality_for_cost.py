"""Objective against total time for every sketch and m: what the rule for sketch="auto" rests on.

    python quality_for_cost.py DATA OUT [--quick]

A run is a sketch, k-means in it, and one final pass that assigns every row to the nearest mean of the clusters found;
its time is all three. The objective is that of the final clusters among all features, over that of the best run on the
data. "auto" marks the whole fit of `StreamKMeans` with its defaults, "none" k-means on all features.

One plot and one table for each data set: COIL20; MNIST (first 5000 digits); 20 Newsgroups (150 training texts of each
group, tf-idf); topics as wide as RCV1 (4000 rows); 3000 cells of 10x Genomics (log counts), 20 clusters. Few rows, so
that all runs take minutes: what a sketch of rows costs grows with them, what finding it costs ("SVD", "PCA") grows
less, so these look dearer here than they are. One seed of each run: differences of a percent or two mean nothing.
"""

from functools import partial

import common
import numpy as np

from streamkm import StreamKMeans
from streamkm import sketches as S
from streamkm.scores import objective
from streamkm.sketches.subspace import fit_rows

SIZES, CELL_CLUSTERS, SEED = (16, 64, 256, 1024), 20, 1
FLOOR = 1e-3  # drawn for shares that are less


def streamed(first_round, d):
    """A sketch that is found by passes over all rows."""
    return lambda X, m: fit_rows(first_round(m, n_features=d, seed=SEED), X, np.empty(0)).apply(X)


def makers(X, k):
    """Name -> (sketch of m components applied to X, whether m may not exceed the columns)."""
    d = X.shape[1]
    padded = S.PreconditionedSampling(1.0, d, SEED).n_components

    def leverage(m, **given):
        return S.LeverageSampling(m, SEED).first_round(k, **given)

    made = {
        "CountSketch": lambda X, m: S.CountSketch(m, SEED).apply(X),
        "CountSketch, s=4": lambda X, m: S.CountSketch(m, SEED, 4).apply(X),
        "random signs": lambda X, m: S.SignProjection(m, SEED).apply(X),
        "Gaussian": lambda X, m: S.GaussianProjection(m, SEED).apply(X),
        "sparse, 1/3": lambda X, m: S.SparseProjection(m, SEED).apply(X),
        "sparse, 1/sqrt(d)": lambda X, m: S.SparseProjection(m, SEED, d**-0.5).apply(X),
        "Hadamard": lambda X, m: S.SubsampledHadamard(m, d, SEED).apply(X),
        "Hadamard, CountSketch": lambda X, m: S.HadamardCountSketch(m, d, SEED).apply(X),
        "preconditioned sampling": lambda X, m: S.PreconditionedSampling(m / padded, d, SEED).apply(X),
        "leverage sampling": streamed(leverage, d),
        "SVD": streamed(S.TruncatedSVDSketch.first_round, d),
        "Laplacian scores": lambda X, m: S.FeatureSelection.by_laplacian_scores(X[:2000], m).apply(X),
    }
    if isinstance(X, np.ndarray):
        made["PCA"] = lambda X, m: S.PCASketch.fit(X, m, random_state=SEED).apply(X)
    return made


def run(X, k, sketch, m):
    """Seconds and objectives of one run."""
    sketched, sketching = common.timed(sketch, X, m)
    labels, clustering = common.timed(common.cluster, sketched, k, SEED)
    final, assigning = common.timed(common.assigned, X, labels)
    times = {"sketch_seconds": sketching, "cluster_seconds": clustering, "seconds": sketching + clustering + assigning}
    return {**times, "sketch_objective": objective(X, labels), "objective": objective(X, final)}


def measure(X, k, sizes):
    """A row of the table for every run; objectives relative to the best."""
    rows = []
    for name, sketch in makers(X, k).items():
        for m in (16, 1024) if name.startswith("CountSketch") else (16,):
            sketch(X[:300], m)  # compiles
        most = 256 if name == "SVD" and X.shape[1] > 2048 else min(X.shape)  # more of wide rows would take minutes
        rows += [{"sketch": name, "m": m, **run(X, k, sketch, m)} for m in sizes if m <= most]
    rows.append({"sketch": "none", "m": X.shape[1], **run(X, k, lambda X, _: X, X.shape[1])})
    fit = StreamKMeans(k, executor=1, random_state=SEED)
    fitted, seconds = common.timed(fit.fit, X)
    plain = {"sketch_seconds": "", "cluster_seconds": "", "seconds": seconds, "sketch_objective": ""}
    chosen = f"auto: {fitted.plan_.sketch}"
    rows.append({"sketch": chosen, "m": fitted.n_components_, **plain, "objective": objective(X, fitted.labels_)})
    best = min(row["objective"] for row in rows)
    for row in rows:
        for value in ("sketch_objective", "objective"):
            row[value] = row[value] and row[value] / best
    return rows


def plot(path, title, rows):
    """A curve for each sketch through its sizes, of which the least and the most are written beside it."""
    figure, axes = common.panels(1, 1, f"{title}: objective against total time, least and most m at the ends of curves")
    figure.set_size_inches(10, 7.5)
    panel = axes[0, 0]
    for number, name in enumerate(dict.fromkeys(row["sketch"] for row in rows)):
        kept = [row for row in rows if row["sketch"] == name]
        seconds, losses = [row["seconds"] for row in kept], [max(row["objective"] - 1, FLOOR) for row in kept]
        if name == "none" or name.startswith("auto"):
            style = {"marker": "P", "color": "black"} if name == "none" else {"marker": "*", "color": "#e00000"}
            label = f"{name}, m = {kept[0]['m']}"
            panel.plot(seconds, losses, markersize=15, linestyle="none", label=label, zorder=3, **style)
            continue
        colour = common.COLOURS[number]
        panel.plot(seconds, losses, color=colour, marker=common.MARKERS[number], linewidth=1.2, label=name)
        for end in (0, -1):
            at = (seconds[end], losses[end])
            panel.annotate(kept[end]["m"], at, xytext=(5, 4), textcoords="offset points", fontsize=8, color=colour)
    panel.set(
        xlabel="seconds: sketch, k-means in it, final pass", ylabel="share by which the objective exceeds the best"
    )
    for axis in "xy":
        common.log_scale(panel, axis)
    common.finish(figure, axes, path, ncols=5)


def main():
    data, out, quick = common.arguments(__doc__)
    sets = {"topics": (partial(common.topics, 500 if quick else 4000), "")}
    for name, file, load in (
        ("COIL20", "coil20.mat", partial(common.coil20, data)),
        ("MNIST", "mnist.h5", partial(common.mnist, data, 500 if quick else 5000)),
        ("20 Newsgroups", "20news-bydate.tar.xz", partial(common.news_tfidf, data, 20 if quick else 150)),
        ("10x", "10x-10k-subset.zarr", lambda: (common.cells(data, 500 if quick else 3000), range(CELL_CLUSTERS))),
    ):
        sets |= {name: (load, file)} if (data / file).exists() else {}
    for name, (load, _) in sets.items():
        X, classes = load()
        k = len(np.unique(classes))
        rows = measure(X, k, SIZES[:2] if quick else SIZES)
        stem = f"quality_for_cost_{name.replace(' ', '_').lower()}"
        common.write_table(out / f"{stem}.csv", rows)
        plot(out / f"{stem}.png", f"{name}, {X.shape[0]:,} x {X.shape[1]:,}, k = {k}", rows)
        for limit in (1.01, 1.05):
            kept = sorted((row["seconds"], row["sketch"], row["m"]) for row in rows if row["objective"] <= limit)
            cheapest = "; ".join(f"{sketch}, m = {m}: {seconds:.2f} s" for seconds, sketch, m in kept[:4])
            print(f"{name}: within {limit:.2f} of the best, the cheapest: {cheapest}")
        auto = rows[-1]
        print(f"{name}: {auto['sketch']}, m = {auto['m']}: {auto['objective']:.3f} in {auto['seconds']:.2f} s")


if __name__ == "__main__":
    main()
