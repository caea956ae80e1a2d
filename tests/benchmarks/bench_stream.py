"""Row p: an endless stream: memory as rows pass by, objective of the stream shuffled and sorted.

    python -m tests.benchmarks stream --data FOLDER

Rows are made on the fly: a mixture of unequal Gaussian clusters, in random order or sorted by cluster.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.measure import Row, Settings, run_child

N_ROWS, N_FEATURES, K = 20_000_000, 32, 100
MARKS = (1_000_000, 5_000_000, 10_000_000, 20_000_000)
QUICK = 100  # times fewer rows in quick runs
PEER_ROWS = 5_000_000
CHUNK_ROWS, JUDGED_ROWS = 10_000, 200_000
GROWTH_MOST, SORTED_MOST = 1.25, 1.02
MIB = 1 << 20


@dataclass(frozen=True)
class Mixture:
    """Gaussian clusters; the largest has ten times the rows of the smallest."""

    n_rows: int  # of the whole stream
    seed: int = 0

    @cached_property
    def centers(self) -> NDArray[np.float32]:
        """The true centers (k, d)."""
        drawn = np.random.default_rng(self.seed).normal(0, 2, (K, N_FEATURES))
        return drawn.astype(np.float32)

    @cached_property
    def bounds(self) -> NDArray[np.float64]:
        """Shares of the rows up to each cluster."""
        sizes = np.random.default_rng(self.seed + 1).permutation(np.linspace(1, 10, K))
        return np.cumsum(sizes) / sizes.sum()

    def chunk(self, number: int, *, in_order: bool) -> NDArray[np.float32]:
        """Rows of one chunk: a function of (seed, number); `in_order`: sorted by cluster over the whole stream."""
        rng = np.random.default_rng([self.seed, number])
        shares = rng.random(CHUNK_ROWS)
        if in_order:
            shares = (number * CHUNK_ROWS + np.arange(CHUNK_ROWS)) / self.n_rows
        labels = np.searchsorted(self.bounds, shares, side="right").clip(0, K - 1)
        return self.centers[labels] + rng.standard_normal((CHUNK_ROWS, N_FEATURES), np.float32)

    def objective(self, centers: Any) -> float:
        """Mean squared distance of fresh rows to the nearest of `centers`."""
        from sklearn.metrics import pairwise_distances_argmin_min

        total = 0.0
        for number in range(JUDGED_ROWS // CHUNK_ROWS):
            X = self.chunk((1 << 40) + number, in_order=False)
            _, distances = pairwise_distances_argmin_min(X, np.asarray(centers, np.float32))
            total += float((distances.astype(np.float64) ** 2).sum())
        return total / JUDGED_ROWS


def run(settings: Settings) -> list[Row]:
    """Row p."""
    n_rows = N_ROWS // QUICK if settings.quick else N_ROWS
    peer_rows = PEER_ROWS // QUICK if settings.quick else PEER_ROWS
    ours, shorter, theirs = (
        {
            order: run_child("call", function=f"bench_stream:{name}", rows=each, in_order=order)
            for order in (False, True)
        }
        for name, each in (("ours", n_rows), ("ours", peer_rows), ("minibatch", peer_rows))
    )
    marks = ours[False]["marks"]
    growth = marks[-1]["rss_mib"] / marks[0]["rss_mib"]
    ratio = ours[True]["objective"] / ours[False]["objective"]
    what = f"stream of {n_rows / 1e6:g} million rows x {N_FEATURES}, k={K}"
    seen = ", ".join(f"{mark['rows'] / 1e6:g} million rows {mark['rss_mib']:.0f} MiB" for mark in marks)
    rows = [
        Row("p", f"{what}: resident memory, last over first mark", ratio=f"{growth:.2f}", target=f"<= {GROWTH_MOST}",
            met=None if settings.quick else growth <= GROWTH_MOST, figures=ours[False],
            note=f"{seen}; peak {ours[False]['peak_mib']:.0f} MiB; {ours[False]['rate']:,.0f} rows/s"),
        Row("p", f"{what}: sorted by cluster", "the same shuffled", f"{ratio:.4f}", f"{ours[True]['objective']:.4f}",
            f"{ours[False]['objective']:.4f}", f"<= {SORTED_MOST}", None if settings.quick else ratio <= SORTED_MOST,
            f"the true centers: {ours[False]['true']:.4f}; clustering the state takes {ours[False]['cluster_s']:.1f} s",
            ours[True]),
    ]  # fmt: skip
    for order, name in ((False, "shuffled"), (True, "sorted")):
        quotient = theirs[order]["objective"] / shorter[order]["objective"]
        rows.append(
            Row("p", f"{peer_rows / 1e6:g} million rows {name}", "MiniBatchKMeans.partial_fit", f"{quotient:.3f}",
                f"{shorter[order]['objective']:.4f}", f"{theirs[order]['objective']:.4f}", ">= 1",
                None if settings.quick else quotient >= 1,
                f"its objective over ours; {shorter[order]['rate']:,.0f} to {theirs[order]['rate']:,.0f} rows/s",
                {"ours": shorter[order], "theirs": theirs[order]})
        )  # fmt: skip
    return rows


def ours(rows: int, in_order: bool) -> dict[str, Any]:
    """Streamkm: memory at the marks, rate, objective of the centers at the end."""
    import psutil

    from streamkm.cluster.sampling.coreset import CoresetRule
    from streamkm.fitting.streams.coreset_clusters import StreamSettings, cluster_coreset
    from streamkm.fitting.streams.stream import Stream, stream_size

    stream = Stream(CoresetRule(stream_size(K, 4 * N_FEATURES), K, 0))
    found: dict[str, Any] = {"marks": []}

    def look(done: int) -> None:
        if done in {mark * rows // N_ROWS for mark in MARKS}:
            found["marks"].append({"rows": done, "rss_mib": psutil.Process().memory_info().rss / MIB})

    mixture = Mixture(rows)
    found["rate"] = _rate(mixture, in_order, stream.add, look)
    found["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    started = time.perf_counter()
    seeds = np.random.SeedSequence(0)
    settings = StreamSettings(n_clusters=K, init="k-means++", n_init=1, max_iter=100, tol=1e-4, seeds=seeds)
    clusters, _ = cluster_coreset(stream.coreset(), settings)
    found["cluster_s"] = time.perf_counter() - started
    found["objective"] = mixture.objective(clusters.centers)
    found["true"] = mixture.objective(mixture.centers)
    return found


def minibatch(rows: int, in_order: bool) -> dict[str, Any]:
    """scikit-learn's MiniBatchKMeans.partial_fit on the same chunks."""
    from sklearn.cluster import MiniBatchKMeans

    mixture = Mixture(rows)
    fitted = MiniBatchKMeans(K, n_init=3, random_state=0)
    rate = _rate(mixture, in_order, fitted.partial_fit, lambda done: None)
    return {"rate": rate, "objective": mixture.objective(fitted.cluster_centers_)}


def _rate(mixture: Mixture, in_order: bool, take: Callable[[Any], Any], look: Callable[[int], None]) -> float:
    """Feed the stream; rows a second of taking them alone."""
    took = 0.0
    for number in range(mixture.n_rows // CHUNK_ROWS):
        X = mixture.chunk(number, in_order=in_order)
        started = time.perf_counter()
        take(X)
        took += time.perf_counter() - started
        look((number + 1) * CHUNK_ROWS)
    return mixture.n_rows / took
