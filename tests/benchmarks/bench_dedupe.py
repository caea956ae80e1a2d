"""Row A: near-duplicates of embeddings, against a look at all pairs; and what a bound on memory costs."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import make_embeddings
from tests.benchmarks.make_embeddings import Embeddings
from tests.benchmarks.measure import Row, Settings, run_child

THRESHOLD = 0.95
FASTER = 5.0  # than a look at all pairs
RECALL = 0.9
BLOCK_ROWS = 2000
LIMIT = "512 MiB"


def run(settings: Settings) -> list[Row]:
    """Row A."""
    rows = []
    sizes = [2000] if settings.quick else [60_000, 300_000]
    for n_rows in sizes:
        compared = n_rows == sizes[0]
        path = _embeddings(settings, n_rows)
        found = run_child("call", function="bench_dedupe:measured", data=str(path), compared=compared)
        what = f"near-duplicates of {n_rows:,} x 256, cosine {THRESHOLD:g}"
        note = f"{found['removed']:,} rows go, {found['n_compared']:,} pairs; recall about {found['recall']:.3f}"
        if not compared:
            note += f"; {found['peak_bytes'] / 2**20:,.0f} MiB of {LIMIT}"
            rows.append(
                Row("A", f"{what}, memory_limit={LIMIT!r}", "", "", f"{found['seconds']:.1f} s", "", "", None, note)
            )
            continue
        ratio = found["all_seconds"] / found["seconds"]
        met = None if settings.quick else ratio >= FASTER
        rows += [
            Row("A", what, "all pairs, by blocks of products", f"{ratio:.1f} x", f"{found['seconds']:.2f} s",
                f"{found['all_seconds']:.1f} s", f">= {FASTER:g} x", met, note, found),
            Row("A", "near pairs of which one row goes", "all", f"{found['measured']:.4f}", "", "", f">= {RECALL:g}",
                None if settings.quick else found["measured"] >= RECALL),
        ]  # fmt: skip
    return rows


def measured(data: str, compared: bool) -> dict[str, Any]:
    """Seconds of a search, after a small one that compiles; and of all pairs, with the share that the search found."""
    from streamkm import dedupe

    X = np.load(data, mmap_mode="r")
    options: dict[str, Any] = {"random_state": 0, "progress": False}
    dedupe(X[:1000], THRESHOLD, **options)
    started = time.perf_counter()
    found = dedupe(Path(data), THRESHOLD, **options, **({} if compared else {"memory_limit": LIMIT}))
    told = {
        "seconds": time.perf_counter() - started,
        "removed": found.n_removed,
        "n_compared": found.n_compared,
        "recall": found.recall if found.recall is not None else float("nan"),
        "stages": {stage.name: stage.seconds for stage in found.stages},
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
    if compared:
        kept = np.zeros(len(X), bool)
        kept[found.rows] = True
        told |= _all_pairs(np.ascontiguousarray(X), kept)
    return told


def _all_pairs(X: np.ndarray, kept: np.ndarray) -> dict[str, float]:
    """Seconds that all products take, and the share of near pairs that are not both kept."""
    started, n_pairs, n_left = time.perf_counter(), 0, 0
    for first in range(0, len(X), BLOCK_ROWS):
        stop = first + BLOCK_ROWS
        near = X[first:stop] @ X[first:].T >= THRESHOLD
        rows, others = np.nonzero(near)
        later = others > rows
        n_pairs += int(later.sum())
        n_left += int((kept[first + rows[later]] & kept[first + others[later]]).sum())
    return {"all_seconds": time.perf_counter() - started, "measured": 1 - n_left / max(1, n_pairs), "n_pairs": n_pairs}


def _embeddings(settings: Settings, n_rows: int) -> Path:
    """Unit rows, float32, .npy."""
    path = settings.folder / f"near-duplicates{n_rows // 1000}k.npy"
    if not path.exists():
        make_embeddings.write(path, Embeddings(n_groups=200 if settings.quick else 20_000), n_rows)
    return path
