"""Wang, Gittens and Mahoney, "Scalable kernel k-means clustering with Nystroem approximation", JMLR 20 (2019).

    python nystroem_kernel_kmeans.py DATA --out OUT [--seeds 3] [--quick]

- Section 4.3: NMI of kernel k-means by rank-restricted Nystroem features against spectral clustering with the Nystroem
  method (Fowlkes et al., 2004), with the same drawn landmarks and features of the same dimension k, and of kernel
  k-means without a cut (s = c), over the number of landmarks c, at three widths; and seconds without k-means.
- Section 5.2: random Fourier features and two-step kernel k-means (Chitta et al., KDD 2011) beside them, NMI and, where
  the kernel matrix fits, the exact kernel objective, and dimensions k, 2 k and 5 k.
- Section 3: the trace error of s features over that of the best rank s for every sampling and sketch of theirs, and for
  the power method (algorithm 1) of c columns and t products.
- The width: the authors' published script has sigma = 1840 for MNIST's pixels.
- "ours" is `StreamKernelKMeans` as it comes.

Data: Mushrooms (`mushrooms.svm`), PenDigits (`pendigits.scale`, the training part) and 20,000 rows of MNIST's training
part (`mnist.h5`), where they are in DATA. Widths are sigma = 0.3, 0.71 and 1 times the root of the mean squared
distance; 0.71 is the authors' for MNIST. NMI is over the geometric mean of entropies, as theirs. Times are of making
features, in processor seconds.

The copy of the paper that figures were taken from has no numbers but the sizes of the sets, so claims are compared:
`wang2019.csv` has each beside what is found here, with where it fails: at the narrow width spectral clustering is often
better. Half an hour; `--quick` takes 3,000 rows, two sizes and one seed.
"""

import common
import numpy as np
from scipy.linalg import eigvalsh
from sklearn.datasets import make_circles, make_moons
from sklearn.metrics.pairwise import rbf_kernel

from streamkm import StreamKernelKMeans
from streamkm.fitting.kernel.exact import exact_objective, leading_features, power_features, spectral_features
from streamkm.metrics import clustering_accuracy, normalized_mutual_info
from streamkm.sketches import Kernel
from streamkm.sketches.bounds import nystroem_columns
from streamkm.sketches.kernel_columns import KernelColumns, working_landmarks
from streamkm.sketches.kernel_map import inverse_root

SIZES, SEEDS, ROWS, QUICK_ROWS = (50, 100, 200, 400, 800), 3, 20_000, 3000
WIDTHS, MIDDLE = (0.3, 0.71, 1.0), 0.71
MOST_EXACT, TRACE_ROWS, TRACE_COLUMNS = 10_000, 2000, 160
CUT, WHOLE, SPECTRAL = "kernel k-means, s = k", "kernel k-means, s = c", "spectral, s = k"
FOURIER, TWO_STEP, OURS, LINEAR = "random Fourier", "two-step", "ours", "k-means"
SAMPLINGS = {
    "uniform": {"landmarks": "uniform"},
    "leverage": {"landmarks": "rank-leverage"},
    "ridge leverage": {"landmarks": "leverage"},
    "gaussian": {"method": "gaussian"},
    "srht": {"method": "srht"},
    "countsketch": {"method": "countsketch"},
}
PIXELS_SIGMA = 1840
STEM = "nystroem_kernel_kmeans"


def mean_d2(X):
    return 2 * X.var(axis=0, dtype=np.float64).sum()


def nystroem(C, W, s):
    """Algorithm 2: features of the s leading directions of B = C R, with R R' the pseudo-inverse of W; s = c: B."""
    B = C.astype(np.float64) @ inverse_root(W)
    if s >= B.shape[1]:
        return B
    vectors = np.linalg.eigh(B.T @ B)[1]
    return B @ vectors[:, ::-1][:, :s]


def kernel_fit(X, k, gamma, seed, **how):
    return StreamKernelKMeans(k, gamma=gamma, random_state=seed, refine=0, executor=1, progress=False, **how).fit(X)


def measure(name, X, classes, sizes, n_seeds):
    """A row of the table for every method, width, dimension, number of landmarks and seed."""
    k, rows = len(np.unique(classes)), []

    def add(method, width, s, m, seed, labels, seconds):
        gamma = 1 / (2 * width**2 * mean_d2(X)) if width else None
        exact = gamma is not None and len(X) <= MOST_EXACT
        rows.append(
            {
                "data": name,
                "rows": len(X),
                "method": method,
                "width": width or "",
                "s": s,
                "m": m,
                "seed": seed,
                "feature_seconds": seconds,
                "nmi": normalized_mutual_info(classes, labels, average_method="geometric"),
                "accuracy": clustering_accuracy(classes, labels),
                "objective": exact_objective(Kernel("rbf", gamma), X, np.asarray(labels)) if exact else "",
            }
        )

    for seed in range(n_seeds):
        add(LINEAR, "", "", "", seed, common.cluster(X, k, seed), "")
        for width in WIDTHS:
            gamma = 1 / (2 * width**2 * mean_d2(X))
            fit = kernel_fit(X, k, gamma, seed)
            add(OURS, width, fit.n_components_, "", seed, fit.labels_, "")
            for m in sizes:
                drawn = np.sort(np.random.default_rng(seed).choice(len(X), m, replace=False))
                columns = KernelColumns(Kernel("rbf", gamma), working_landmarks(X[drawn], dense=True))
                C, values_seconds = common.timed(columns.values, X)
                dimensions = (k, 2 * k, 5 * k, m) if width == MIDDLE else (k, m)
                for s in sorted({s for s in dimensions if s <= m}):
                    features, seconds = common.timed(nystroem, C, C[drawn], s)
                    labels = common.cluster(features.astype(np.float32), k, seed)
                    add(method_of(s, k, m), width, s, m, seed, labels, values_seconds + seconds)
                features, seconds = common.timed(spectral_features, C, C[drawn], k)
                labels = common.cluster(features.astype(np.float32), k, seed)
                add(SPECTRAL, width, k, m, seed, labels, values_seconds + seconds)
                if width == MIDDLE:
                    for method, how in ((FOURIER, {"method": "fourier", "fit_on": "all"}), (TWO_STEP, {})):
                        how = how or {"method": "two-step"}  # noqa: PLW2901
                        fit = kernel_fit(X, k, gamma, seed, n_landmarks=m, rank=min(m, 2 * k), **how)
                        add(method, width, fit.n_components_, m, seed, fit.labels_, "")
    return rows


def method_of(s, k, m):
    return WHOLE if s == m else f"kernel k-means, s = {'' if s == k else f'{s // k} '}k"


def mean_of(rows, value, **where):
    kept = [row[value] for row in rows if all(row[name] == wanted for name, wanted in where.items())]
    return np.mean([v for v in kept if v != ""]) if kept else np.nan


def section_4_and_5(name, rows):
    """Claims about one data set, a line for each."""
    lines, sizes = [], sorted({row["m"] for row in rows if row["m"] != ""})

    def add(setting, measure_, paper, here, holds, difference=""):
        lines.append({"dataset": name, "setting": setting, "measure": measure_, "paper": paper, "here": here})
        lines[-1] |= {"holds": holds, "difference": difference}

    for width in WIDTHS:
        ours, theirs, whole = (
            np.array([mean_of(rows, "nmi", method=method, width=width, m=m) for m in sizes])
            for method in (CUT, SPECTRAL, WHOLE)
        )
        seconds = [mean_of(rows, "feature_seconds", method=method, width=width) for method in (CUT, SPECTRAL)]
        setting = f"sigma = {width} s, equal c, equal dimension"
        holds, reason = bool(ours.mean() >= theirs.mean()), ""
        if not holds and width == min(WIDTHS):
            reason = "narrow kernel: rows resemble few others, and row sums mend that"
        elif not holds:
            reason = f"by {theirs.mean() - ours.mean():.3f}"
            reason += "; without a cut it is above" if whole.mean() >= theirs.mean() else ""
        add(
            setting,
            "NMI",
            "kernel k-means above spectral",
            f"{ours.mean():.3f} and {theirs.mean():.3f} over all c; without a cut {whole.mean():.3f}",
            holds,
            reason,
        )
        add(
            setting,
            "seconds without k-means",
            "kernel k-means no slower",
            f"{seconds[0]:.3f} and {seconds[1]:.3f}",
            bool(seconds[0] <= 1.05 * seconds[1]),
        )
    at = {"width": MIDDLE}
    dimension = {s: mean_of(rows, "nmi", method=s, **at) for s in (CUT, "kernel k-means, s = 2 k", WHOLE)}
    fourier, two_step = (mean_of(rows, "nmi", method=method, **at) for method in (FOURIER, TWO_STEP))
    told = f"Nystroem {dimension['kernel k-means, s = 2 k']:.3f}, Fourier {fourier:.3f}, two-step {two_step:.3f}"
    best = dimension["kernel k-means, s = 2 k"]
    add(
        "s = 2 k, all c",
        "NMI",
        "Nystroem above Fourier mostly",
        told,
        bool(best >= fourier - 0.005),
        "within 0.005 counts",
    )
    add("s = 2 k, all c", "NMI", "both above two-step", told, bool(min(best, fourier) >= two_step - 0.005))
    spread = max(dimension.values()) - min(dimension.values())
    told = ", ".join(f"{method.split(', ')[1]} {value:.3f}" for method, value in dimension.items())
    add("all c", "NMI", "the dimension hardly matters", told, bool(spread < 0.05))
    if rows[0]["rows"] <= MOST_EXACT:
        objective = {
            method: [mean_of(rows, "objective", method=method, m=m, **at) for m in sizes]
            for method in ("kernel k-means, s = 2 k", FOURIER, TWO_STEP)
        }
        ours = mean_of(rows, "objective", method=OURS, **at)
        told = "; ".join(f"{method} {v[0] / ours:.4f} to {v[-1] / ours:.4f}" for method, v in objective.items())
        falls = all(v[-1] <= v[0] * 1.0005 for v in objective.values())
        add(f"c = {sizes[0]} to {sizes[-1]}", "kernel objective over ours", "all fall with c", told, bool(falls))
        lowest = min(objective, key=lambda method: np.mean(objective[method]))
        add("all c", "kernel objective", "Nystroem lowest mostly", lowest, lowest.startswith("kernel"))
        best = min(v for method in (CUT, WHOLE) for v in [mean_of(rows, "objective", method=method, m=sizes[-1], **at)])
        add("", "kernel objective", "", f"ours over the best of theirs: {ours / best:.4f}", bool(ours <= best * 1.0005))
    return lines


def section_3(name, X, k, quick):
    """Trace errors of features of 2 k dimensions over the best, by sampling and by the power method."""
    X = X[np.random.default_rng(0).permutation(len(X))[: 800 if quick else TRACE_ROWS]]
    s, gamma = 2 * k, 1 / (2 * MIDDLE**2 * mean_d2(X))
    K = rbf_kernel(X.astype(np.float64), gamma=gamma)
    values, coherence = eigvalsh(K)[::-1], None
    least = values[s:].sum()
    coherence = len(X) / s * np.square(np.linalg.qr(leading_features(K, np.eye(len(K)), s))[0]).sum(axis=1).max()
    lines = []

    def add(setting, here, holds, difference=""):
        lines.append({"dataset": name, "setting": setting, "measure": f"trace error over the best of rank {s}"})
        lines[-1] |= {"paper": "1 + eps", "here": here, "holds": holds, "difference": difference}

    for sampling, how in SAMPLINGS.items():
        errors = []
        for seed in range(1 if quick else SEEDS):
            fit = kernel_fit(X, k, gamma, seed, n_landmarks=TRACE_COLUMNS, rank=s, fit_on="all", **how)
            features = fit.sketch_.apply(X).astype(np.float64)
            errors.append((np.trace(K) - np.square(features).sum()) / least)
        size = ""
        if sampling != "ridge leverage":
            given = {"rank": s, "eps": 0.5, "n_rows": len(X), "coherence": coherence}
            size = f"eps = 0.5 asks for {nystroem_columns(sampling, **given):,} (reconstructed)"
        add(f"{sampling}, c = {TRACE_COLUMNS}", f"{np.mean(errors):.4f}", bool(np.mean(errors) <= 1.5), size)
    for c, t in ((s, 1), (s, 4), (2 * s, 1), (2 * s, 2), (4 * s, 4)):
        features = power_features(K, s, n_columns=c, n_steps=t, rng=np.random.default_rng(0))
        error = (np.trace(K) - np.square(features).sum()) / least
        add(f"power method, c = {c}, t = {t}", f"{error:.4f}", bool(error <= 1.5), "all of K is multiplied t times")
    return lines


def widths(data, quick):
    """Our rule of the width beside the authors' for MNIST."""
    X, classes = common.mnist(data, 2000 if quick else ROWS)
    s = np.sqrt(mean_d2(255 * X))
    found = {}
    for factor in (1, 2):
        fit = StreamKernelKMeans(10, gamma_factor=factor, random_state=0, executor=1, progress=False).fit(X)
        found[factor] = normalized_mutual_info(classes, fit.labels_, average_method="geometric")
    sigma = {factor: s / np.sqrt(factor) for factor in found}
    told = "; ".join(f"gamma_factor={f}: sigma {sigma[f]:.0f}, NMI {found[f]:.3f}" for f in found)
    line = {
        "dataset": "MNIST",
        "setting": "pixels of 0 to 255",
        "measure": "sigma",
        "paper": PIXELS_SIGMA,
        "here": told,
    }
    return [line | {"holds": bool(abs(sigma[2] / PIXELS_SIGMA - 1) < 0.02), "difference": "gamma_factor=2 is theirs"}]


def shapes():
    """Rings and moons, which k-means cannot tell apart."""
    lines = []
    for name, (X, classes), gamma, rank in (
        ("rings", make_circles(1000, noise=0.03, factor=0.3, random_state=0), 4.0, 4),
        ("moons", make_moons(1000, noise=0.04, random_state=0), 20.0, 2),
    ):
        kernel = clustering_accuracy(classes, kernel_fit(X, 2, gamma, 0, n_landmarks=300, rank=rank).labels_)
        plain = clustering_accuracy(classes, common.cluster(X, 2, 0))
        line = {"dataset": name, "setting": f"gamma = {gamma}, s = {rank}", "measure": "accuracy"}
        line |= {"paper": "kernel k-means finds what k-means cannot", "here": f"{kernel:.3f}; k-means {plain:.3f}"}
        lines.append(line | {"holds": bool(kernel > 0.98 > plain), "difference": ""})
    return lines


def plot(path, rows):
    """A line for each data set, a column for each width: NMI over landmarks."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    figure, axes = common.panels(len(names), len(WIDTHS), "NMI (geometric): means and ranges over seeds")
    for name, line in zip(names, axes, strict=True):
        kept = [row for row in rows if row["data"] == name]
        for width, panel in zip(WIDTHS, line, strict=True):
            for number, method in enumerate((CUT, WHOLE, SPECTRAL, FOURIER, TWO_STEP)):
                if width == MIDDLE or method not in (FOURIER, TWO_STEP):
                    common.draw(panel, method, number, common.mean_by(kept, "nmi", method=method, width=width))
            panel.axhline(
                mean_of(kept, "nmi", method=OURS, width=width), color="#7A5195", linestyle=":", linewidth=2, label=OURS
            )
            panel.axhline(mean_of(kept, "nmi", method=LINEAR), color="#222222", linestyle="--", label=LINEAR)
            panel.set(xlabel="landmarks or random features, c", title=f"{name}, sigma = {width} s")
            common.size_scale(panel, sorted({row["m"] for row in kept if row["m"] != ""}))
        low, high = (pick(panel.get_ylim()[side] for panel in line) for side, pick in ((0, min), (1, max)))
        for panel in line:
            panel.set_ylim(low, high)
    common.finish(figure, axes, path)


def main():
    data, out, quick, n_seeds = common.arguments(__doc__, seeds=(int, SEEDS, "of every fit"))
    sizes, n_seeds, most = (SIZES[1:3], 1, QUICK_ROWS) if quick else (SIZES, n_seeds, ROWS)
    loads = {
        "Mushrooms": ("mushrooms.svm", common.svmlight),
        "PenDigits": ("pendigits.scale", common.svmlight),
        "MNIST": ("mnist.h5", lambda _: common.mnist(data, most)),
    }
    rows, lines = [], shapes()
    for name, (file, load) in loads.items():
        if (data / file).exists():
            X, classes = load(data / file)
            order = np.random.default_rng(0).permutation(X.shape[0])[:most]
            X, classes = np.ascontiguousarray((X if isinstance(X, np.ndarray) else X.toarray())[order]), classes[order]
            few = [size for size in sizes if size < len(X)]
            found = measure(name, X, classes, few, n_seeds)
            rows += found
            lines += section_4_and_5(name, found)
            if len(X) <= MOST_EXACT:
                lines += section_3(name, X, len(np.unique(classes)), quick)
            common.write_table(out / f"{STEM}.csv", rows, say=False)
    if (data / "mnist.h5").exists():
        lines += widths(data, quick)
    print(out / f"{STEM}.csv")
    common.write_table(out / "wang2019.csv", lines)
    plot(out / f"{STEM}.png", rows)
    for line in lines:
        print(f"{line['dataset']}, {line['setting']}: {line['measure']}: {line['here']}; holds: {line['holds']}")


if __name__ == "__main__":
    main()
