"""Liu, Shen and Tsang, "Sparse embedded k-means clustering", NIPS 2017: accuracy and times against m.

    python examples/papers/sparse_embedded.py DATA --out OUT [--seeds N] [--files PATH,...] [--quick]

Methods, in the paper's letters: k-means on all features; SVD; LLE (scikit-learn, comparison only, dense rows only); LS,
Laplacian scores; RP, random signs, by this project's kernels and as the plain product with a matrix that is drawn
first; PD, preconditioned sparsification, which keeps m entries of a row, clustered as its authors do, by the entries
that are kept; SE, the sparse embedding, here CountSketch. Their labels are those of k-means in the sketch, as the
paper's are. "SE, whole fit" is `StreamKMeans` with that sketch: means of sampled rows, polished among the original
features, and a final pass that assigns there. "ours" is `StreamKMeans` as it comes.

Data: COIL20; 4,000 texts of 20 Newsgroups (training part, tf-idf), which the paper does not have; generated topics as
wide as RCV1, of which 4,000 rows are clustered and all 804,414 are sketched by SE; and of what follows those files that
are in DATA: `sector.scale` and `rcv1_train.multiclass` of the LIBSVM collection, plain or .bz2, and `rcv1_small.svm`,
1000 rows of RCV1 in two classes. SECTOR and RCV1 themselves were not to be had where `results/` was made; `--files`
takes them, or any other svmlight file, from any path. `--quick` takes two sizes, one seed and 1,500 rows at most.

The paper's curves have no points in the copy that figures were taken from, so what is compared are its claims:
`liu2017.csv` has each beside what is found here, decided by all methods, sizes and eight seeds, and
`liu2017_cases.csv` the values that decide. Its k-means is Matlab's; ours starts from k-means++ with split-and-merge
search. Its times are of another machine, so ratios are comparable and seconds are not. Some of what is found:

- On 20 Newsgroups SE at m = 1000 is below k-means in accuracy. What the theory keeps is kept: the objective of SE's
  clusters, among the original features, is half a percent above that of k-means. But distances of groups differ little
  beside the lengths of the texts, a map to m components adds noise of relative size sqrt(2 / m) to them, and the
  objective decides little. The whole fit, with its final pass among the original features, has no loss.
- SE is hundreds of times faster than RP as a product with a drawn matrix. This project's own RP makes signs 64 to a
  word and is much nearer. SE's time does not grow with m; it falls between 100 and 300, because rows stay sparse from
  there; features of a row that fall together are added up by k-means' first step, in its time.
- LLE falls at m = 1000: its coordinates all have the same length, so that late ones drown the first.
"""

from functools import partial
from itertools import pairwise
from pathlib import Path

import common
import numpy as np
import scipy.sparse as sp
from claims import Claims, by_seed, case, difference, paired, ratio
from laplacian import by_laplacian_scores

from streamkm import SketchOptions
from streamkm.sketches import CountSketch, PreconditionedSampling, RandomProjection, TruncatedSVDSketch
from streamkm.sketches.subspace import fit_rows, subspace_fit

SIZES, FEW_SIZES, RCV1_ROWS = (10, 30, 100, 300, 1000), (10, 100, 1000), 804_414
N_SEEDS, MOST_ROWS = 8, 4000
DENSE_ONLY = ("LLE",)
DENSE = ("COIL20",)
SVD_MOST = 100  # directions of sparse rows
KEPT_STARTS, KEPT_STEPS = 3, 50
LIBSVM = {"sector.scale": "SECTOR", "rcv1_train.multiclass": "RCV1", "rcv1_small.svm": "RCV1 sample"}
AT_SMALL_M = "at small m, SVD and LLE, which are fitted to the data, keep more than a map that is drawn without them"
WHY = {
    **{(name, "accurate"): AT_SMALL_M for name in ("COIL20", "20 Newsgroups", "topics", "RCV1 sample")},
    (
        "COIL20",
        "rises",
    ): "LLE's coordinates all have the same length, so that late ones drown the first; others level out",
}
QUICK_ROWS = 1500


def svd(X, m, seed):
    fit = subspace_fit(m, TruncatedSVDSketch.of_subspace, n_features=X.shape[1], seed=seed)
    return fit_rows(fit, X, np.empty(0)).apply(X)


def lle(X, m, seed):  # noqa: ARG001
    from sklearn.manifold import LocallyLinearEmbedding

    return LocallyLinearEmbedding(n_neighbors=12, n_components=m, eigen_solver="dense").fit_transform(X)


def laplacian(X, m, seed):  # noqa: ARG001
    return by_laplacian_scores(X, m).apply(X)


def signs(X, m, seed):
    return RandomProjection(m, seed).apply(X)


def matrix(X, m, seed):
    drawn = np.random.default_rng(seed).integers(0, 2, (X.shape[1], m), np.int8)
    return X @ ((2 * drawn - 1) / np.sqrt(m)).astype(np.float32)


def sparsified(X, m, seed):
    padded = PreconditionedSampling(1.0, X.shape[1], seed).n_components
    return PreconditionedSampling(m / padded, X.shape[1], seed).apply(X)


def by_kept_entries(X, k, seed):
    """Labels by Lloyd's algorithm that sees only the entries that a row has kept, in distances and in means."""
    rng = np.random.default_rng([seed, 2017])  # of a seed alone, its first numbers are the classes of the topics
    kept = sp.csr_array(X).astype(np.float64)
    told = sp.csr_array((np.ones(kept.nnz), kept.indices, kept.indptr), shape=kept.shape)
    mean = kept.sum(axis=0) / np.maximum(1, told.sum(axis=0))
    best, least = None, np.inf
    for _ in range(KEPT_STARTS):
        labels, objective = rng.integers(0, k, kept.shape[0]), np.inf
        for _ in range(KEPT_STEPS):
            members = sp.csr_array((np.ones(len(labels)), (labels, np.arange(len(labels)))), shape=(k, len(labels)))
            counts = (members @ told).toarray()
            centers = np.where(counts > 0, (members @ kept).toarray() / np.maximum(1, counts), mean)
            d2 = told @ np.square(centers).T - 2 * (kept @ centers.T)
            labels, before, objective = d2.argmin(axis=1), objective, float(d2.min(axis=1).sum())
            if objective >= before - 1e-9 * abs(objective):
                break
        if objective < least:
            best, least = labels, objective
    return best


def embedded(X, m, seed):
    return CountSketch(m, seed).apply(X)


WHOLE, DEFAULT = "SE, whole fit", "ours"
METHODS = {"SVD": svd, "LLE": lle, "LS": laplacian, "RP": signs, "RP, matrix": matrix, "PD": sparsified, "SE": embedded}


def measure(name, X, classes, sizes, n_seeds):
    """A row of the table for every method, m and seed."""
    k, dense, rows = len(np.unique(classes)), isinstance(X, np.ndarray), []
    reference = common.cluster(X, k, 0)

    def add(method, m, seed, sketching, clustered):
        labels, clustering = clustered
        found = {"sketch_seconds": sketching, "cluster_seconds": clustering}
        found["accuracy"] = common.accuracy(classes, labels)
        found["objective"] = common.objective(X, labels) / common.objective(X, reference)
        rows.append({"data": name, "method": method, "m": m, "seed": seed, **found})

    fits = {m: partial(common.cluster, sketch=SketchOptions("countsketch", m)) for m in sizes}
    default = partial(common.cluster, sketch="auto")
    for fit in (common.cluster, default, fits[min(sizes)], fits[max(sizes)]):
        fit(X[:500], k, 0)  # compiles
    for seed in range(n_seeds):
        clustered = common.timed(common.cluster, X, k, seed)
        as_it_comes = common.timed(default, X, k, seed)
        for m, fit in fits.items():
            add("k-means", m, seed, 0.0, clustered)
            add(DEFAULT, m, seed, 0.0, as_it_comes)
            add(WHOLE, m, seed, 0.0, common.timed(fit, X, k, seed))
    for method, work in METHODS.items():
        if method in DENSE_ONLY and not dense:
            continue
        tried = [m for m in sizes if method not in ("SVD", "LLE", "LS") or m < min(X.shape)]
        if method == "SVD" and not dense:
            tried = [m for m in tried if m <= SVD_MOST] or [SVD_MOST]
        if method not in DENSE_ONLY:
            for m in (min(tried), max(tried)):
                work(X[:64], min(m, 63) if method in ("SVD", "LS") else m, 0)  # compiles what sketches of this size run
        kmeans = by_kept_entries if method == "PD" else common.cluster
        for m in tried:
            for seed in range(n_seeds):
                sketched, sketching = common.timed(partial(work, seed=seed), X, m)
                add(method, m, seed, sketching, common.timed(kmeans, sketched, k, seed))
    return rows


def beside(name, rows, claims):
    """The paper's claims about one data set, each decided by all methods, sizes and seeds."""
    methods = [method for method in METHODS if any(row["method"] == method for row in rows)]
    sizes = sorted({row["m"] for row in rows})

    def each(first, second, value, combine, relation, bound):
        """A case for every size that both methods have."""
        found = []
        for m in sizes:
            values = paired(*(by_seed(rows, value, method=method, m=m) for method in (first, second)), combine)
            found += [case(f"{first}, {second}, m = {m}", values, relation, bound)] if values else []
        return found

    def steps(method, value, combine, relation, bound, *, from_first=False):
        """A case for every size beside the size before it, or beside the smallest."""
        had = [m for m in sizes if by_seed(rows, value, method=method, m=m)]
        found = []
        for before, m in pairwise(had):
            least = had[0] if from_first else before
            values = paired(*(by_seed(rows, value, method=method, m=size) for size in (m, least)), combine)
            found.append(case(f"{method}, m = {m} beside {least}", values, relation, bound))
        return found

    others = [method for method in methods if method != "SE"]
    worst = [method for method in ("LLE", "LS") if method in methods]
    spectral = [method for method in ("SVD", "LLE") if method in methods]
    dense = "rows are dense: a product with signs uses the processor as well as any code does" if name in DENSE else ""
    claims.add(
        name,
        "SE is the most accurate reduction",
        [one for method in others for one in each("SE", method, "accuracy", difference, ">=", 0)],
        difference=WHY.get((name, "accurate"), ""),
    )
    claims.add(
        name,
        "accuracy of all reductions rises with m",
        [one for method in methods for one in steps(method, "accuracy", difference, ">=", 0)],
        difference=WHY.get((name, "rises"), ""),
    )
    claims.add(
        name,
        "LLE and LS are generally the worst",
        [
            one
            for method in worst
            for other in methods
            if other not in worst
            for one in each(other, method, "accuracy", difference, ">=", 0)
        ],
        of="most",
        difference=WHY.get((name, "worst"), ""),
    )
    claims.add(
        name,
        "SVD and LLE are the slowest to reduce",
        [
            one
            for method in spectral
            for other in methods
            if other not in spectral
            for one in each(method, other, "sketch_seconds", ratio, ">=", 1)
        ],
        difference="our SVD is a few passes of products, LS a graph of neighbours; drawing a large matrix takes longer",
    )
    claims.add(
        name,
        "SE is several hundred times faster than random signs",
        each("RP, matrix", "SE", "sketch_seconds", ratio, ">=", 100),
        difference=dense or "the ratio grows with m",
    )
    claims.add(
        name,
        "the time of SE does not grow with m",
        steps("SE", "sketch_seconds", ratio, "<=", 1.5, from_first=True),
    )
    claims.add(
        name,
        "the time of random signs grows with m",
        [one for m in ("RP, matrix",) for one in steps(m, "sketch_seconds", ratio, ">=", 1)],
    )
    claims.add(
        name,
        "all reductions make k-means faster",
        [one for method in methods for one in each(method, "k-means", "cluster_seconds", ratio, "<=", 1)],
        difference="PD's k-means sees the kept entries alone and is a plain one; m components of dense rows "
        "cost more than few stored entries of sparse ones",
    )
    for method in (WHOLE, DEFAULT):
        claims.add(
            name,
            f"{method}: objective over SE's",
            each(method, "SE", "objective", ratio, "<=", 1.0005),
            paper="not in the paper",
        )


def plot(path, rows):
    """A line of panels for every data set: accuracy, sketch time, clustering time."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    figure, axes = common.panels(len(names), 3, "Sparse embedded k-means: means and ranges over seeds")
    for name, line in zip(names, axes, strict=True):
        for panel, value in zip(line, ("accuracy", "sketch_seconds", "cluster_seconds"), strict=True):
            for number, method in enumerate(("k-means", *METHODS, WHOLE, DEFAULT)):
                curve = common.mean_by(rows, value, data=name, method=method)
                if curve[0] and not (value == "sketch_seconds" and method in ("k-means", WHOLE, DEFAULT)):
                    common.draw(panel, method, number, curve)
            panel.set(xlabel="components, m", title=f"{name}: {value.replace('_seconds', ' time, s')}")
            common.log_scale(panel, "x")
            if value != "accuracy":
                common.log_scale(panel, "y")
    common.finish(figure, axes, path)


def sketch_all(n_rows, out):
    """SE on as many rows as RCV1 has, part by part as they are generated, for each m."""
    from tests.benchmarks.make_topics import Topics

    seconds, n_stored = dict.fromkeys(SIZES, 0.0), 0
    for m in SIZES:
        embedded(common.topics(64)[0], m, 0)  # compiles
    for X, _ in Topics(common.TOPIC_FEATURES, common.TOPICS).parts(n_rows):
        n_stored += X.nnz
        for m in SIZES:
            seconds[m] += common.timed(embedded, X, m, 0)[1]
    rows = [{"rows": n_rows, "nonzeros": n_stored, "m": m, "sketch_seconds": s} for m, s in seconds.items()]
    common.write_table(out / "sparse_embedded_rcv1_size.csv", rows)
    for row in rows:
        print(f"SE of {n_rows:,} rows of topics, m = {row['m']}: {row['sketch_seconds']:.2f} s")


def paths(text):
    """Paths apart by commas."""
    return [Path(part) for part in text.split(",")]


def main():
    data, out, quick, n_seeds, more = common.arguments(
        __doc__,
        seeds=(int, N_SEEDS, "of every method and size; 8 unless given"),
        files=(paths, (), "svmlight files (.bz2 too) for the same study, apart by commas: SECTOR, RCV1, others"),
    )
    rows, claims, sets = [], Claims(), {}
    most = QUICK_ROWS if quick else MOST_ROWS
    if (data / "coil20.mat").exists():
        sets["COIL20"] = lambda: common.coil20(data)
    if (data / "20news-bydate.tar.xz").exists():
        sets["20 Newsgroups"] = lambda: common.news_tfidf(data, most // 20)
    sets["topics"] = lambda: common.topics(most)
    found = [path for stem in LIBSVM for path in (data / stem, data / f"{stem}.bz2") if path.exists()]
    for path in (*found, *more):
        sets[LIBSVM.get(path.name.removesuffix(".bz2"), path.stem)] = partial(common.svmlight, path)
    for name, load in sets.items():
        sizes = SIZES[::2][:2] if quick else SIZES if name in DENSE else FEW_SIZES
        found = measure(name, *load(), sizes, 1 if quick else n_seeds)
        beside(name, found, claims)
        rows += found
        common.write_table(out / "sparse_embedded.csv", rows, say=False)
    print(out / "sparse_embedded.csv")
    claims.write(out, "liu2017")
    plot(out / "sparse_embedded.png", rows)
    sketch_all(10_000 if quick else RCV1_ROWS, out)


if __name__ == "__main__":
    main()
