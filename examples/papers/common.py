"""What the scripts share: the data folder, k-means with the time it took, tables and pictures.

Times are processor seconds of one thread.
"""

import argparse
import csv
import re
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from scipy.optimize import linear_sum_assignment
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import pair_confusion_matrix, pairwise_distances_argmin
from sklearn.metrics.cluster import contingency_matrix
from threadpoolctl import threadpool_limits

from streamkm import StreamKMeans

sys.path.append(str(Path(__file__).parents[2]))  # for the generator of topics

COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7A5195"),
    *("#222222", "#8B6914", "#9a9a9a", "#9E0142", "#00B3B3", "#6BAF00"),
)
MARKERS = "os^DvP*X<>dph"
HEADER_END = re.compile(r"\n\n|\t\t")  # some copies of the texts have tabs for line breaks
TOPICS, TOPIC_FEATURES = 50, 47_236  # the features of RCV1


def arguments(text, **more):
    """(data folder, output folder, whether to run a small part, values of more options), with BLAS on one thread.

    Options by name: (type, default, help).
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of data sets; those that are missing are left out")
    parser.add_argument("--out", type=Path, required=True, help="folder for CSV and PNG")
    parser.add_argument("--quick", action="store_true", help="few rows, sizes and seeds")
    for name, (kind, default, text_of_option) in more.items():
        parser.add_argument(f"--{name}", type=kind, default=default, help=text_of_option)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    threadpool_limits(1)
    return given.data, given.out, given.quick, *(getattr(given, name) for name in more)


def coil20(data):
    """Images of 20 objects, 1440 x 1024 in [0, 1], and the objects; dense."""
    from scipy.io import loadmat

    stored = loadmat(data / "coil20.mat")
    return stored["X"].astype(np.float32), stored["Y"].ravel().astype(int)


def mnist(data, n):
    """The first n digits, n x 784 in [0, 1], and their values; dense."""
    import h5py

    with h5py.File(data / "mnist.h5") as file:
        return file["X"][:n].astype(np.float32) / 255, file["y"][:n].astype(int)


def cells(data, n):
    """n cells by 1000 genes of 10x Genomics, log(1 + count); dense, without classes."""
    import zarr

    return np.log1p(zarr.open_group(data / "10x-10k-subset.zarr", mode="r")["X"][:n])


def news(data, per_group=None, groups=None):
    """Training texts of 20 Newsgroups without their headers, the number of each one's group, and the groups' names."""
    texts = {}
    with tarfile.open(data / "20news-bydate.tar.xz") as tar:
        for member in tar:
            part, _, rest = member.name.partition("/")
            group = rest.partition("/")[0]
            if not member.isfile() or part != "20news-bydate-train" or (groups and group not in groups):
                continue
            if len(texts.setdefault(group, [])) != per_group:
                text = tar.extractfile(member).read().decode("latin-1")
                texts[group].append(HEADER_END.split(text, maxsplit=1)[-1])
    names = sorted(texts)
    labels = np.repeat(np.arange(len(names)), [len(texts[name]) for name in names])
    return [text for name in names for text in texts[name]], labels, names


def news_tfidf(data, per_group=None):
    """Texts of 20 Newsgroups as tf-idf of words that occur in two texts at least, and their groups; CSR."""
    texts, labels, _ = news(data, per_group)
    vectorizer = TfidfVectorizer(min_df=2, stop_words="english", sublinear_tf=True, dtype=np.float32)
    return sp.csr_array(vectorizer.fit_transform(texts)), labels


def topics(n):
    """n rows of generated topics as wide as RCV1, and their topics; CSR."""
    from tests.benchmarks.make_topics import Topics

    return Topics(TOPIC_FEATURES, TOPICS).matrix(n)


def svmlight(path):
    """All rows of a svmlight file (.bz2 too) and their classes; CSR."""
    from sklearn.datasets import load_svmlight_file

    X, y = load_svmlight_file(str(path), dtype=np.float32)
    return sp.csr_array(X), np.unique(y, return_inverse=True)[1]


def timed(work, *given):
    """(result, processor seconds; or seconds, where a virtual machine counts nothing for short work)."""
    started, at = time.process_time(), time.perf_counter()
    result = work(*given)
    return result, time.process_time() - started or time.perf_counter() - at


def cluster(X, k, seed, **options):
    """Labels by this project's k-means, on rows as they are unless `options` of `StreamKMeans` say otherwise."""
    if sp.issparse(X):
        X = X.copy()
        X.sum_duplicates()
    return StreamKMeans(k, **{"sketch": "identity", "executor": 1, "random_state": seed} | options).fit(X).labels_


def assigned(X, labels):
    """Labels by the nearest mean: what a final pass makes of the clusters of a sketch."""
    means, _ = means_of(X, labels)
    return pairwise_distances_argmin(X, means.toarray() if sp.issparse(means) else means)


def means_of(X, labels):
    """Means of clusters, and their numbers of rows."""
    labels = np.unique(labels, return_inverse=True)[1]
    members = sp.csr_array((np.ones(len(labels)), (labels, np.arange(len(labels)))))
    counts = members.sum(axis=1)
    return (members @ X) / counts[:, None], counts


def objective(X, labels):
    """Sum of squared distances of rows to the means of their clusters."""
    means, counts = means_of(X, labels)
    squares = means.power(2).sum(axis=1) if sp.issparse(means) else np.square(means).sum(axis=1)
    rows = X.data if sp.issparse(X) else X
    return float(np.square(rows, dtype=np.float64).sum() - counts @ squares)


def accuracy(classes, labels):
    """Share of rows in the right cluster when clusters are matched with classes, one to one, as well as can be."""
    table = contingency_matrix(classes, labels)
    return float(table[linear_sum_assignment(table, maximize=True)].sum() / len(labels))


def pair_f(classes, labels, beta):
    """F measure over pairs of rows: a pair is found if it shares a cluster, and right if it shares a class."""
    (_, clusters_alone), (classes_alone, both) = pair_confusion_matrix(classes, labels).tolist()
    return (1 + beta**2) * both / ((1 + beta**2) * both + beta**2 * classes_alone + clusters_alone)


def write_table(path, rows, *, say=True):
    """CSV of dicts, and the path on the terminal."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    if say:
        print(path)


def read_table(path):
    """Dicts of a CSV."""
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def mean_by(rows, value, **where):
    """(m, mean, least, most) of a value over seeds, for the rows where columns have these values."""
    kept = [row for row in rows if all(row[name] == wanted for name, wanted in where.items())]
    sizes = sorted({row["m"] for row in kept})
    values = [np.array([row[value] for row in kept if row["m"] == m], float) for m in sizes]
    return sizes, *(np.array([reduce(v) for v in values]) for reduce in (np.mean, np.min, np.max))


def panels(n_rows, n_columns, title):
    """Make a figure and its axes."""
    figure = Figure(figsize=(4.4 * n_columns, 3.5 * n_rows + 0.9), dpi=110, layout="constrained")
    axes = figure.subplots(n_rows, n_columns, squeeze=False)
    for panel in axes.flat:
        panel.grid(color="#e4e4e4", linewidth=0.8)
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure, axes


def draw(panel, name, number, curve, *, band=True):
    """A curve of `mean_by`, with the range of seeds behind it."""
    sizes, mean, least, most = curve
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    panel.plot(sizes, mean, color=colour, marker=marker, markersize=5, linewidth=1.5, label=name)
    if band:
        panel.fill_between(sizes, least, most, color=colour, alpha=0.12, linewidth=0)


def log_scale(panel, name):
    """Make axis "x" or "y" logarithmic, with plain numbers, 2 and 5 of each decade too where there are few decades."""
    panel.set(**{f"{name}scale": "log"})
    axis, (low, high) = getattr(panel, f"{name}axis"), getattr(panel, f"get_{name}lim")()
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(LogLocator(subs=(2, 5)))
    axis.set_minor_formatter("{x:g}" if high < 200 * low else NullFormatter())


def size_scale(panel, sizes):
    """Make the x axis logarithmic, with ticks at these sizes alone."""
    panel.set_xscale("log")
    panel.set_xticks(sizes, sizes)
    panel.minorticks_off()


def span_at_least(panel, span):
    """Widen the y axis, so that small differences look small."""
    low, high = panel.get_ylim()
    more = max(0, span - (high - low)) / 2
    panel.set_ylim(low - more, high + more)
    panel.ticklabel_format(axis="y", useOffset=False)


def finish(figure, axes, path, ncols=6):
    """One legend below all panels; PNG, and the path on the terminal."""
    named = {}
    for panel in axes.flat:
        for line, name in zip(*panel.get_legend_handles_labels(), strict=True):
            named.setdefault(name, line)
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=ncols, frameon=False, fontsize=9)
    figure.savefig(path)
    print(path)
