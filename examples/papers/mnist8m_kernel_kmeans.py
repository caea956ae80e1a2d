"""Wang, Gittens and Mahoney, "Scalable kernel k-means clustering with Nystroem approximation", JMLR 20 (2019): MNIST8M.

    python mnist8m_kernel_kmeans.py DATA --out OUT [--rows 8100000] [--digits DIGITS.zarr] [--seeds 1] [--workers 1,2]
        [--quick]

The paper clusters 8.1 million deformed digits into k = 10 by rank-restricted Nystroem features, on 8 to 64 nodes of a
supercomputer. Here one machine does, within 4 GiB: seconds of every stage, NMI with the digits, and the peak of
resident memory of a process that does one fit, for the paper's rank 20 and 400 landmarks and for grids of both, each
with 1 and 2 workers (threads). `mnist8m_seconds.csv` has the paper's columns: seconds of the Nystroem features (the
sample, landmarks, features), of the SVD, of k-means (start and steps), and of the final labels, for each number of
workers. Seconds count on an idle machine alone; labels are the same whatever the workers, which is checked.

Data: digits like those of MNIST8M by this project's own generator, from `mnist.h5` in DATA; 6.35 GB before compression,
in OUT unless `--digits` names an array that exists, with its digits beside it as DIGITS.zarr.labels.npy. Fewer rows are
the beginning of more.

What it shows, on two cores: 29 to 43 s a fit on the sample (NMI 0.307 to 0.325 over three seeds) and 125 s on all rows
(0.323), of which 5 s sample and 24 s label; 29 to 81 s for 100 to 1,600 landmarks, 37 to 58 s for ranks 10 to 160; one
worker takes 1.5 to 2 times as long. Peaks of 428 to 581 MiB, 1,099 on all rows. NMI is 0.302 to
0.325, and about that of k-means of the images (19 s, 0.305): these digits are deformed so strongly that sizes hardly
show, and most points have one seed. Figure 2 of the paper is in `landmarks_and_rank.py`.

What differs from the paper. Its digits are those of MNIST8M; ours are turned, sheared, scaled and shifted, with noise
on the strokes, so that NMI is not comparable. Its SVD and its k-means see all rows, which is `fit_on="all"` here, in
four passes; the default finds both on a row sample, in two. Its k-means is that of Spark; ours starts several times and
searches. Its published code cuts the pseudo-inverse of the landmarks' kernel matrix at half their number, ours at what
float32 determines. Seconds and NMI of the paper are in no column: its numbers were not at hand.
"""

import multiprocessing
import time
import zlib
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import common
import numpy as np
from sklearn.metrics import normalized_mutual_info_score

from streamkm import StreamKernelKMeans, StreamKMeans

K, RANK, LANDMARKS, LIMIT = 10, 20, 400, "4GiB"
RANKS, MANY_LANDMARKS, SEEDS = (10, 20, 40, 80, 160), (100, 200, 400, 800, 1600), 3
STAGES = ("sketch", "landmarks", "gram", "sketch-all", "seed", "lloyd", "assign")
PARTS = {
    "nystroem": ("sketch", "landmarks", "sketch-all"),
    "svd": ("gram",),
    "kmeans": ("seed", "lloyd"),
    "labels": ("assign",),
}
MIB = 1 << 20


def numbers(text):
    """Whole numbers apart by commas."""
    return tuple(int(number) for number in text.split(","))


def digits(data, out, rows, given):
    """Path of the digits, which are made where they are not there."""
    path = given or out / f"digits{rows}.zarr"
    if not Path(f"{path}.labels.npy").exists():
        from tests.benchmarks.make_digits import Digits, write

        write(str(path), Digits.open(data / "mnist.h5"), rows)
    return path


def fit(path, n_landmarks, rank, fit_on, seed, workers):
    """One fit, as a row of the table; k-means of the images without landmarks."""
    shared = {"memory_limit": LIMIT, "random_state": seed, "progress": False, "executor": workers}
    if n_landmarks:
        estimator = StreamKernelKMeans(K, n_landmarks=n_landmarks, rank=rank, fit_on=fit_on, refine=0, **shared)
    else:
        estimator = StreamKMeans(K, **shared)
    started = time.perf_counter()
    estimator.fit(str(path))
    seconds = time.perf_counter() - started
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    classes = np.load(f"{path}.labels.npy")
    took = {stage.name: stage.seconds for stage in estimator.stages_}
    return {
        "rows": len(classes),
        "method": "kernel k-means" if n_landmarks else "k-means",
        "landmarks": n_landmarks,
        "rank": rank,
        "fit_on": fit_on,
        "seed": seed,
        "workers": workers,
        "labels": zlib.crc32(estimator.labels_.tobytes()),
        "passes": estimator.n_passes_,
        "seconds": seconds,
        **{f"{name}_seconds": took.get(name, "") if n_landmarks else "" for name in STAGES},
        "nmi": normalized_mutual_info_score(classes, estimator.labels_),
        "accuracy": common.accuracy(classes, estimator.labels_),
        "peak_mib": int(status["VmHWM"].split()[0]) * 1024 / MIB,
        "projected_mib": estimator.plan_.peak_bytes / MIB,
        "limit_mib": estimator.plan_.limit_bytes / MIB,
    }


def configurations(quick, n_seeds):
    """(landmarks, rank, rows fitted on, seed) of all fits; the paper's first."""
    if quick:
        return [(50, RANK, "sample", 0), (50, RANK, "all", 0), (None, None, "", 0)]
    grid = [(c, RANK) for c in MANY_LANDMARKS if c != LANDMARKS] + [(LANDMARKS, s) for s in RANKS if s != RANK]
    paper = [(LANDMARKS, RANK, "sample", seed) for seed in range(SEEDS)]
    compared = [(LANDMARKS, RANK, "all", 0), (None, None, "", 0)]
    return [paper[0], *compared, *((*sizes, "sample", seed) for seed in range(n_seeds) for sizes in grid), *paper[1:]]


def measure(path, fits, table):
    """Rows of all fits, each in a process of its own, whose peak is of that fit alone; the table grows with them."""
    rows = []
    context = multiprocessing.get_context("spawn")
    for given in fits:
        with ProcessPoolExecutor(1, mp_context=context) as child:
            rows.append(child.submit(fit, path, *given).result())
        common.write_table(table, rows, say=False)
        now = rows[-1]
        print(
            f"{now['rows']:,} rows, {now['method']}"
            + (f", {now['landmarks']} landmarks, rank {now['rank']}, on {now['fit_on']}" if now["landmarks"] else "")
            + f", workers {now['workers']}: {now['seconds']:.1f} s, NMI {now['nmi']:.3f}, "
            + f"peak {now['peak_mib']:,.0f} MiB",
            flush=True,
        )
    print(table)
    return rows


def seconds_table(rows):
    """The paper's table of times: a line for each pair of sizes, the parts' seconds for each number of workers."""
    lines = {}
    for row in rows:
        if row["landmarks"]:
            sizes = {name: row[name] for name in ("rows", "landmarks", "rank", "fit_on")}
            line = lines.setdefault(tuple(sizes.values()), sizes)
            for part, stages in PARTS.items():
                took = sum(row[f"{stage}_seconds"] or 0.0 for stage in stages)
                line.setdefault(f"{part}_seconds_{row['workers']}", f"{took:.2f}")
            line.setdefault(f"seconds_{row['workers']}", f"{row['seconds']:.2f}")
    return list(lines.values())


def check(rows):
    """Say what holds."""
    found = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in ("landmarks", "rank", "fit_on", "seed")), set()).add(row["labels"])
    print(f"the same labels with any number of workers: {all(len(labels) == 1 for labels in found.values())}")
    rows = [row for row in rows if row["workers"] == max(row["workers"] for row in rows)]
    peak, limit = max(row["peak_mib"] for row in rows), rows[0]["limit_mib"]
    print(f"peak of all fits {peak:,.0f} MiB, below {limit:,.0f}: {peak < limit}")
    linear = np.mean([row["nmi"] for row in rows if row["method"] == "k-means"])
    for how in dict.fromkeys(row["fit_on"] for row in rows if row["landmarks"]):
        of_paper = [row for row in rows if row["fit_on"] == how and row["landmarks"] == rows[0]["landmarks"]]
        of_paper = [row for row in of_paper if row["rank"] == rows[0]["rank"]]
        nmi = [row["nmi"] for row in of_paper]
        print(
            f"fitted on {how}: {np.median([row['seconds'] for row in of_paper]):.1f} s, NMI {np.mean(nmi):.3f} "
            f"({min(nmi):.3f} to {max(nmi):.3f}); k-means {linear:.3f}"
        )


def plot(path, rows):
    """A line of panels for each grid: seconds of the stages, NMI, peak memory."""
    first = rows[0]
    linear = next(row for row in rows if row["method"] == "k-means")
    workers = max(row["workers"] for row in rows)
    kernel = [row for row in rows if row["fit_on"] == "sample" and row["workers"] == workers]
    title = f"{first['rows']:,} digits, k = {K}, one machine, {workers} workers: means and ranges over seeds"
    figure, axes = common.panels(2, 3, title)
    grids = (("landmarks", "rank", f"rank {first['rank']}"), ("rank", "landmarks", f"{first['landmarks']} landmarks"))
    for line, (varied, fixed, name) in zip(axes, grids, strict=True):
        shown = [{**row, "m": row[varied]} for row in kernel if row[fixed] == first[fixed]]
        sizes = sorted({row["m"] for row in shown})
        places, bottom = np.arange(len(sizes)), np.zeros(len(sizes))
        for number, stage in enumerate(STAGES):
            took = common.mean_by([{**row, "took": row[f"{stage}_seconds"] or 0.0} for row in shown], "took")[1]
            line[0].bar(places, took, 0.6, bottom, color=common.COLOURS[number], label=stage)
            bottom += took
        line[0].set_xticks(places, sizes)
        line[0].grid(visible=False, axis="x")
        line[0].set_axisbelow(True)
        line[0].set(xlabel=varied, title=f"{name}: seconds of stages")
        curve = common.mean_by(shown, "nmi")
        common.draw(line[1], "kernel k-means", 7, curve, band=False)
        line[1].vlines(curve[0], *curve[2:], color=common.COLOURS[7], linewidth=4, alpha=0.3)
        whole = [{**row, "m": row[varied]} for row in rows if row["fit_on"] == "all"]
        line[1].plot([row["m"] for row in whole], [row["nmi"] for row in whole], "D", label="fitted on all rows")
        line[1].axhline(linear["nmi"], color="#9a9a9a", linestyle="--", linewidth=1.2, label="k-means of the images")
        line[1].set(xlabel=varied, title=f"{name}: NMI")
        common.span_at_least(line[1], 0.05)
        common.draw(line[2], "kernel k-means", 7, common.mean_by(shown, "peak_mib"))
        line[2].axhline(first["limit_mib"], color="#D55E00", linestyle=":", linewidth=1.5, label="memory limit")
        line[2].set(xlabel=varied, title=f"{name}: peak memory, MiB", ylim=(0, 1.08 * first["limit_mib"]))
        for panel in line[1:]:
            common.size_scale(panel, sizes)
    common.finish(figure, axes, path)


def main():
    options = {
        "rows": (int, 8_100_000, "digits to make; 8,100,000 unless given"),
        "digits": (Path, None, "Zarr array of digits that exists, with its .labels.npy"),
        "seeds": (int, 1, f"fits for each size of the grids; there are {SEEDS} for the paper's"),
        "workers": (numbers, (1, 2), "threads of the fits, several numbers apart by commas; 1,2 unless given"),
    }
    data, out, quick, n_rows, given, n_seeds, workers = common.arguments(__doc__, **options)
    path = digits(data, out, 10_000 if quick else n_rows, given)
    fits = [(*sizes, n) for sizes in configurations(quick, n_seeds) for n in (workers if sizes[0] else (max(workers),))]
    rows = measure(path, fits, out / "mnist8m_kernel_kmeans.csv")
    common.write_table(out / "mnist8m_seconds.csv", seconds_table(rows))
    check(rows)
    plot(out / "mnist8m_kernel_kmeans.png", rows)


if __name__ == "__main__":
    main()
