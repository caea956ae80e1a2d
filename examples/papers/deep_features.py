"""Liu, Shen and Tsang, NIPS 2017, at the size of ILSVRC2012: dense rows of 2,048 features in 1,000 classes.

    python examples/papers/deep_features.py DATA --out OUT [--features FILE --labels FILE.npy] [--bound 90] [--quick]

The paper clusters deep features of the 1.2 million images of ILSVRC2012, which are not to be had here. Rows of the same
shape are generated in their place: each is a class's center plus noise, cut at 0 as features after a rectifier are.
DATA is not read. `--features` takes the real ones, whatever `streamkm` reads, with their classes in a .npy file, for
the same study.

First, 30,000 rows and every method of `sparse_embedded.py`, one fit each, with 256 components: seconds of the reduction
and of k-means, and NMI. Each method is a process of its own, which may use `--bound` processor seconds; one that needs
more is told as such, as the paper tells of methods that had not ended in three days. Second, the sparse embedding and
random signs on all 1,200,000 rows, which are made anew in every pass, within 4 GiB, with the peak of resident memory.

`liu2017_ilsvrc.csv` has a line for each fit. No line is a verdict: a fit takes minutes, and there is one seed of each.
`--quick` takes 2,000 and 20,000 rows of 50 classes.
"""

import multiprocessing
import resource
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import common
import numpy as np
from sklearn.metrics import normalized_mutual_info_score
from sparse_embedded import METHODS, by_kept_entries
from threadpoolctl import threadpool_limits

from streamkm import SketchOptions, StreamKMeans, open_source

N_CLASSES, N_FEATURES, FEW, ALL, COMPONENTS = 1000, 2048, 30_000, 1_200_000, 256
QUICK_CLASSES, QUICK_FEW, QUICK_ALL = 50, 2000, 20_000
PART_ROWS, SPREAD, LIMIT, BOUND, MIB = 5000, 0.5, "4GiB", 90, 1 << 20
KMEANS = "k-means"
LARGE = {"SE": "countsketch", "RP": "signs"}


@dataclass(frozen=True)
class Rows:
    """Rows that are generated part by part, alike in every pass, or those of a file."""

    n_rows: int
    n_classes: int
    path: str | None = None
    labels: str | None = None

    def parts(self):
        """Yield parts, float32, with the rows' classes."""
        centers = SPREAD * np.random.default_rng(0).standard_normal((self.n_classes, N_FEATURES), np.float32)
        for start in range(0, self.n_rows, PART_ROWS):
            rng = np.random.default_rng([1, start])
            classes = rng.integers(0, self.n_classes, PART_ROWS)
            X = rng.standard_normal((PART_ROWS, N_FEATURES), np.float32)
            X += centers[classes]
            n_rows = self.n_rows - start  # a part is drawn whole, so that few rows are the beginning of many
            yield np.maximum(X, 0, out=X)[:n_rows], classes[:n_rows]

    def chunks(self):
        """Yield parts without their classes."""
        for X, _ in self.parts():
            yield X

    def source(self):
        """Return what the estimators read: all rows."""
        return self.path or self.chunks

    def classes(self):
        """Classes of all rows, which are drawn before the rows are."""
        if self.labels:
            return np.load(self.labels)
        drawn = [np.random.default_rng([1, start]) for start in range(0, self.n_rows, PART_ROWS)]
        return np.concatenate([rng.integers(0, self.n_classes, PART_ROWS) for rng in drawn])[: self.n_rows]

    def matrix(self, n_rows):
        """Return the first rows at once."""
        if self.path:
            return np.asarray(open_source(self.path).take(np.arange(n_rows)), np.float32)
        few = Rows(n_rows, self.n_classes)
        return np.concatenate(list(few.chunks()))


def peak_mib():
    """Most memory that this process has held at once."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024 / MIB


def reduced(rows, n_rows, method, m):
    """One method on rows in memory, as a row of the table."""
    threadpool_limits(1)
    X, classes, k = rows.matrix(n_rows), rows.classes()[:n_rows], rows.n_classes
    sketched, sketching = (X, 0.0) if method == KMEANS else common.timed(partial(METHODS[method], seed=0), X, m)
    work = by_kept_entries if method == "PD" else common.cluster
    labels, clustering = common.timed(work, sketched, k, 0)
    return {
        "sketch_seconds": f"{sketching:.1f}",
        "cluster_seconds": f"{clustering:.1f}",
        "seconds": f"{sketching + clustering:.1f}",
        "nmi": f"{normalized_mutual_info_score(classes, labels):.3f}",
        "peak_mib": f"{peak_mib():.0f}",
    }


def streamed(rows, n_rows, method, m):  # noqa: ARG001
    """One method on all rows, out of core, as a row of the table."""
    estimator = StreamKMeans(
        rows.n_classes,
        sketch=SketchOptions(LARGE[method], m, assign_space="sketch"),
        refine=0,
        memory_limit=LIMIT,
        executor=1,
        random_state=0,
        progress=False,
    )
    threadpool_limits(1)
    fit, seconds = common.timed(estimator.fit, rows.source())
    return {
        "sketch_seconds": "",
        "cluster_seconds": "",
        "seconds": f"{seconds:.1f}",
        "nmi": f"{normalized_mutual_info_score(rows.classes(), fit.labels_):.3f}",
        "peak_mib": f"{peak_mib():.0f}",
    }


def bounded(work, bound, *given):
    """A row of the table by a process of its own, which is ended where it uses more processor seconds."""
    context = multiprocessing.get_context("spawn")
    limit = partial(resource.setrlimit, resource.RLIMIT_CPU, (bound, bound))
    try:
        with ProcessPoolExecutor(1, mp_context=context, initializer=limit) as child:
            return child.submit(work, *given).result() | {"told": ""}
    except BrokenProcessPool:
        told = f"not ended in {bound} s"
        return dict.fromkeys(("sketch_seconds", "cluster_seconds", "seconds", "nmi", "peak_mib"), "") | {"told": told}


def plot(path, table):
    """NMI against seconds, few rows left and all rows right; methods that did not end are named below."""
    sizes = sorted({line["rows"] for line in table})
    figure, axes = common.panels(1, len(sizes), f"Rows as dense as those of ILSVRC2012, m = {table[0]['m']}: NMI")
    names = list(dict.fromkeys(line["method"] for line in table))
    for n_rows, panel in zip(sizes, axes.flat, strict=True):
        shown = [line for line in table if line["rows"] == n_rows]
        for line in shown:
            number = names.index(line["method"])
            if line["nmi"]:
                look = {"color": common.COLOURS[number], "marker": common.MARKERS[number], "linestyle": ""}
                panel.plot([float(line["seconds"])], [float(line["nmi"])], **look, label=line["method"])
        ended = [line["method"] for line in shown if not line["nmi"]]
        told = f"not ended in time: {', '.join(ended)}" if ended else "all ended"
        panel.set(xlabel=f"processor seconds ({told})", title=f"{n_rows:,} rows", ylim=(0, 1.02))
        panel.set_xlim(0, 1.1 * panel.get_xlim()[1])
    common.finish(figure, axes, path, ncols=4)


def main():
    _, out, quick, path, labels, bound = common.arguments(
        __doc__,
        features=(str, None, "rows to cluster in place of generated ones, whatever streamkm reads"),
        labels=(str, None, "their classes, .npy"),
        bound=(int, BOUND, "processor seconds of a method on few rows; three times as many on all rows"),
    )
    n_classes, few, n_all = (QUICK_CLASSES, QUICK_FEW, QUICK_ALL) if quick else (N_CLASSES, FEW, ALL)
    if path:
        found = np.load(labels)
        n_all, n_classes = len(found), len(np.unique(found))
    rows, table = Rows(n_all, n_classes, path, labels), []
    fits = [(reduced, min(few, n_all), method) for method in (KMEANS, *METHODS)]
    fits += [(streamed, n_all, method) for method in LARGE]
    for work, n_rows, method in fits:
        described = {"data": path or "generated", "rows": n_rows, "classes": n_classes, "method": method}
        most = bound if work is reduced else 3 * bound
        found = bounded(work, most, rows, n_rows, method, COMPONENTS)
        table.append({**described, "m": "" if method == KMEANS else COMPONENTS, "seeds": 1, **found})
        common.write_table(out / "liu2017_ilsvrc.csv", table, say=False)
        print(", ".join(str(value) for value in table[-1].values() if value != ""), flush=True)
    print(out / "liu2017_ilsvrc.csv")
    table[0]["m"] = COMPONENTS
    plot(out / "deep_features.png", table)


if __name__ == "__main__":
    main()
