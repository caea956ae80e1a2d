"""Wang, Gittens and Mahoney, "Scalable kernel k-means clustering with Nystroem approximation", JMLR 20 (2019).

    python nystroem_kernel_kmeans.py DATA --out OUT [--seeds 8] [--quick]

- Section 4.3: NMI of kernel k-means by rank-restricted Nystroem features against spectral clustering with the Nystroem
  method (Fowlkes et al., 2004), with the same drawn landmarks and features of the same dimension k, and of kernel
  k-means without a cut (s = c), over the number of landmarks c, at three widths; and seconds without k-means.
- Section 5.2: random Fourier features and two-step kernel k-means (Chitta et al., KDD 2011) beside them, NMI and, where
  the kernel matrix fits, the exact kernel objective, and dimensions k and 2 k.
- Section 3: the trace error of s features over that of the best rank s for every sampling and sketch of theirs, and for
  the power method (algorithm 1) of c columns and t products.
- The width: the authors' published script has sigma = 1840 for MNIST's pixels.
- "ours" is `StreamKernelKMeans` as it comes.

Data: Mushrooms (`mushrooms.svm`), PenDigits (`pendigits.scale`, the training part) and 12,000 rows of MNIST's training
part (`mnist.h5`), where they are in DATA; `landmarks_and_rank.py` has figure 2, on all 60,000 rows. Widths
are sigma = 0.3, 0.71 and 1 times the root of the mean squared distance; 0.71 is the authors' for MNIST. NMI is over the
geometric mean of entropies, as theirs. Times are of making features, in processor seconds.

The copy of the paper that figures were taken from has no numbers but the sizes of the sets, so claims are compared:
`wang2019.csv` has each beside what is found here, decided by all numbers of landmarks and eight seeds, and
`wang2019_cases.csv` the values. At the narrow width spectral clustering is often better. `--quick` takes 3,000 rows,
two sizes and one seed.
"""

import math
from functools import partial
from itertools import pairwise

import common
import numpy as np
from claims import Claims, by_seed, case, difference, paired, ratio
from exact import exact_objective, leading_features, power_features, spectral_features
from scipy.linalg import eigvalsh
from sklearn.datasets import make_circles, make_moons
from sklearn.metrics import normalized_mutual_info_score
from sklearn.metrics.pairwise import rbf_kernel

from streamkm import KernelOptions, Nystroem, StreamKernelKMeans
from streamkm.sketches.kernel_columns import Kernel, KernelColumns, working_landmarks
from streamkm.sketches.kernel_map import inverse_root
from streamkm.sketches.sizing import nystroem_columns

SIZES, SEEDS, ROWS, QUICK_ROWS = (50, 200, 800), 8, 12_000, 3000
WIDTHS, MIDDLE = (0.3, 0.71, 1.0), 0.71
MOST_EXACT, TRACE_ROWS, TRACE_COLUMNS = 10_000, 2000, 160
CUT, TWICE, WHOLE = "kernel k-means, s = k", "kernel k-means, s = 2 k", "kernel k-means, s = c"
SPECTRAL = "spectral, s = k"
FOURIER, TWO_STEP, OURS, LINEAR = "random Fourier", "two-step", "ours", "k-means"
SAMPLINGS = {
    "uniform": {"method": Nystroem("uniform")},
    "leverage": {"method": Nystroem("rank-leverage")},
    "ridge leverage": {"method": Nystroem("leverage")},
    "gaussian": {"method": "gaussian"},
    "srht": {"method": "srht"},
    "countsketch": {"method": "countsketch"},
}
PIXELS_SIGMA = 1840
STEM = "nystroem_kernel_kmeans"
WHY = {}


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
                "nmi": normalized_mutual_info_score(classes, labels, average_method="geometric"),
                "accuracy": common.accuracy(classes, labels),
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
                dimensions = (k, 2 * k, m) if width == MIDDLE else (k, m)
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


def section_4_and_5(name, rows, claims):
    """Claims about one data set, each decided by all numbers of landmarks and all seeds."""
    sizes = sorted({row["m"] for row in rows if row["m"] != ""})

    def each(value, first, second, combine, relation, bound, width=MIDDLE):
        """A case for every number of landmarks that both methods have; ours has none, and is beside all."""
        found = []
        for m in sizes:
            pair = [
                by_seed(rows, value, method=method, width=width, m="" if method == OURS else m)
                for method in (first, second)
            ]
            values = paired(*pair, combine)
            found += [case(f"{first} beside {second}, c = {m}", values, relation, bound)] if values else []
        return found

    for width in WIDTHS:
        of_width = f"{name}, sigma = {width} s"
        reason = "narrow kernel: rows resemble few others, and row sums mend that" if width == min(WIDTHS) else ""
        claims.add(
            of_width,
            "NMI of kernel k-means above spectral, equal c and dimension",
            each("nmi", CUT, SPECTRAL, difference, ">=", 0, width),
            difference=reason or WHY.get((name, width), ""),
        )
        claims.add(
            of_width,
            "NMI of kernel k-means without a cut above spectral",
            each("nmi", WHOLE, SPECTRAL, difference, ">=", 0, width),
            paper="not in the paper",
            difference=reason,
        )
        claims.add(
            of_width,
            "seconds without k-means: kernel k-means at most 1.05 of spectral's",
            each("feature_seconds", CUT, SPECTRAL, ratio, "<=", 1.05, width),
            paper="kernel k-means no slower",
        )
    claims.add(
        name,
        "NMI of Nystroem above Fourier, s = 2 k",
        each("nmi", TWICE, FOURIER, difference, ">=", 0),
        of="most",
        difference=WHY.get((name, FOURIER), ""),
    )
    claims.add(
        name,
        "NMI of Nystroem and of Fourier above two-step",
        [one for method in (TWICE, FOURIER) for one in each("nmi", method, TWO_STEP, difference, ">=", 0)],
        difference=WHY.get((name, TWO_STEP), ""),
    )
    claims.add(
        name,
        "NMI moves by less than 0.05 with the dimension",
        [
            one
            for method in (CUT, WHOLE)
            for relation, bound in ((">=", -0.05), ("<=", 0.05))
            for one in each("nmi", method, TWICE, difference, relation, bound)
        ],
        paper="the dimension hardly matters",
        difference=WHY.get((name, "dimension"), ""),
    )
    if rows[0]["rows"] > MOST_EXACT:
        return
    steps = [
        case(f"{method}, c = {m} beside {before}", paired(*pair, ratio), "<=", 1.0005)
        for method in (TWICE, FOURIER, TWO_STEP)
        for before, m in pairwise(sizes)
        if (pair := [by_seed(rows, "objective", method=method, width=MIDDLE, m=c) for c in (m, before)])
    ]
    claims.add(name, "kernel objectives fall with c", steps, difference=WHY.get((name, "falls"), ""))
    claims.add(
        name,
        "kernel objective of Nystroem is the lowest",
        [one for method in (FOURIER, TWO_STEP) for one in each("objective", method, TWICE, ratio, ">=", 1)],
        of="most",
    )
    claims.add(
        name,
        "ours: kernel objective over theirs",
        [one for method in (CUT, TWICE, WHOLE) for one in each("objective", OURS, method, ratio, "<=", 1.0005)],
        paper="not in the paper",
    )


def section_3(name, X, k, quick, claims):
    """Trace errors of features of 2 k dimensions over the best, by sampling and by the power method."""
    X = X[np.random.default_rng(0).permutation(len(X))[: 800 if quick else TRACE_ROWS]]
    s, gamma = 2 * k, 1 / (2 * MIDDLE**2 * mean_d2(X))
    K = rbf_kernel(X.astype(np.float64), gamma=gamma)
    values, coherence = eigvalsh(K)[::-1], None
    least = values[s:].sum()
    coherence = len(X) / s * np.square(np.linalg.qr(leading_features(K, np.eye(len(K)), s))[0]).sum(axis=1).max()
    n_seeds = 1 if quick else SEEDS
    sampled, power = [], []
    for sampling, how in SAMPLINGS.items():
        errors = []
        for seed in range(n_seeds):
            fit = kernel_fit(X, k, gamma, seed, n_landmarks=TRACE_COLUMNS, rank=s, fit_on="all", **how)
            features = fit.sketch_.apply(X).astype(np.float64)
            errors.append((np.trace(K) - np.square(features).sum()) / least)
        size = ""
        if sampling != "ridge leverage":
            if sampling == "uniform":
                asked = math.ceil(coherence * s * (1 / 0.5 + math.log(s)))
            else:
                asked = nystroem_columns(sampling, rank=s, eps=0.5, n_rows=len(X))
            size = f" (eps = 0.5 asks for {asked:,}, reconstructed)"
        sampled.append(case(f"{sampling}, c = {TRACE_COLUMNS}{size}", errors, "<=", 1.5))
    for c, t in ((s, 1), (s, 4), (2 * s, 1), (2 * s, 2), (4 * s, 4)):
        errors = []
        for seed in range(n_seeds):
            features = power_features(K, s, n_columns=c, n_steps=t, rng=np.random.default_rng(seed))
            errors.append((np.trace(K) - np.square(features).sum()) / least)
        power.append(case(f"c = {c}, t = {t}", errors, "<=", 1.5))
    told = "trace error over the best of rank 2 k, at most 1 + eps, eps = 0.5"
    claims.add(name, f"six samplings and sketches: {told}", sampled)
    claims.add(name, f"power method of c columns and t products: {told}", power)


def widths(data, quick, claims):
    """Our rule of the width beside the authors' for MNIST."""
    X, classes = common.mnist(data, 2000 if quick else ROWS)
    s = np.sqrt(mean_d2(255 * X))
    told = []
    for factor in (1, 2):
        fits = [
            StreamKernelKMeans(
                10, kernel=KernelOptions(gamma_factor=factor), random_state=seed, executor=1, progress=False
            ).fit(X)
            for seed in range(1 if quick else SEEDS)
        ]
        found = [normalized_mutual_info_score(classes, fit.labels_, average_method="geometric") for fit in fits]
        told.append(
            f"gamma_factor={factor}: sigma {s / np.sqrt(factor):.0f}, NMI {np.mean(found):.3f} +- {np.std(found):.3f}"
        )
    claims.note("MNIST", "sigma, pixels of 0 to 255", PIXELS_SIGMA, "; ".join(told), "gamma_factor=2 is theirs")


def shapes(claims):
    """Rings and moons, which k-means cannot tell apart."""
    for name, make, gamma, rank in (
        ("rings", partial(make_circles, noise=0.03, factor=0.3), 4.0, 4),
        ("moons", partial(make_moons, noise=0.04), 20.0, 2),
    ):
        kernel, plain = [], []
        for seed in range(SEEDS):
            X, classes = make(1000, random_state=seed)
            fit = kernel_fit(X, 2, gamma, seed, n_landmarks=300, rank=rank)
            kernel.append(common.accuracy(classes, fit.labels_))
            plain.append(common.accuracy(classes, common.cluster(X, 2, seed)))
        cases = [case("kernel k-means", kernel, ">=", 0.98), case("k-means", plain, "<=", 0.98)]
        claims.add(name, f"kernel k-means, gamma = {gamma}, s = {rank}, finds what k-means cannot: accuracy", cases)


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
    sizes, n_seeds, most = (SIZES[:2], 1, QUICK_ROWS) if quick else (SIZES, n_seeds, ROWS)
    loads = {
        "Mushrooms": ("mushrooms.svm", common.svmlight),
        "PenDigits": ("pendigits.scale", common.svmlight),
        "MNIST": ("mnist.h5", lambda _: common.mnist(data, most)),
    }
    rows, claims = [], Claims()
    shapes(claims)
    for name, (file, load) in loads.items():
        if (data / file).exists():
            X, classes = load(data / file)
            order = np.random.default_rng(0).permutation(X.shape[0])[:most]
            X, classes = np.ascontiguousarray((X if isinstance(X, np.ndarray) else X.toarray())[order]), classes[order]
            few = [size for size in sizes if size < len(X)]
            found = measure(name, X, classes, few, n_seeds)
            rows += found
            section_4_and_5(name, found, claims)
            if len(X) <= MOST_EXACT:
                section_3(name, X, len(np.unique(classes)), quick, claims)
            common.write_table(out / f"{STEM}.csv", rows, say=False)
    if (data / "mnist.h5").exists():
        widths(data, quick, claims)
    print(out / f"{STEM}.csv")
    claims.write(out, "wang2019")
    plot(out / f"{STEM}.png", rows)


if __name__ == "__main__":
    main()
