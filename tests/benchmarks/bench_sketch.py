"""Row c: CountSketch of CSR against scipy's product."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp

from tests.benchmarks import data
from tests.benchmarks.measure import Row, Settings, run_child

FASTER, RATE = 15, 140e6
COMPONENTS = 512
CHUNK_ROWS = 12_500  # the fits sketch chunk by chunk
SEED = 7


def run(settings: Settings) -> list[Row]:
    """Row c."""
    path = data.topics(settings)
    repeats = 1 if settings.quick else max(5, settings.runs)
    sparse = run_child("call", function="bench_sketch:sketch_csr", data=path, repeats=repeats)
    ratio = median(peer / ours for ours, peer in zip(sparse["ours"], sparse["scipy"], strict=True))
    rate = sparse["nnz"] / median(sparse["ours"])
    product, whole, full = (sparse["nnz"] / median(sparse[name]) / 1e6 for name in ("product", "scipy", "to_dense"))
    return [
        Row("c", f"CountSketch of CSR, {sparse['nnz_per_row']:.0f} values a row, m={COMPONENTS}, one thread",
            "scipy X @ S and toarray", f"{ratio:.1f} x, {rate / 1e6:.0f} M nnz/s", sparse["same"], "",
            f">= {FASTER} x, >= {RATE / 1e6:.0f} M nnz/s",
            None if settings.quick else ratio >= FASTER and rate >= RATE,
            f"ours gives sparse rows, as fits use them; scipy {product:.0f} M nnz/s for the product alone, {whole:.0f} "
            f"with toarray; ours into dense rows {full:.0f} M nnz/s", sparse),
    ]  # fmt: skip


def sketch_csr(data: str, repeats: int) -> dict[str, Any]:
    """Seconds of each run of ours, of the product, of product and toarray, and of ours into dense rows."""
    from streamkm.sketches import CountSketch

    X = sp.csr_array(sp.load_npz(data))
    sketch = CountSketch(COMPONENTS, SEED)
    buckets, signs = sketch.hash(0, X.shape[1])
    S = sp.csr_array((signs, buckets, np.arange(X.shape[1] + 1)), shape=(X.shape[1], COMPONENTS))
    chunks = [X[start : start + CHUNK_ROWS] for start in range(0, X.shape[0], CHUNK_ROWS)]
    ways: dict[str, Callable[[Any], Any]] = {
        "ours": sketch.apply,
        "product": lambda chunk: chunk @ S,
        "scipy": lambda chunk: (chunk @ S).toarray(),
        "to_dense": lambda chunk: sketch.apply(chunk).toarray(),
    }
    equal = np.allclose(ways["scipy"](chunks[0]), sp.csr_array(sketch.apply(chunks[0])).toarray(), atol=1e-5)
    took = _by_turns(ways, chunks, repeats)
    return {
        **took,
        "nnz": X.nnz,
        "nnz_per_row": X.nnz / X.shape[0],
        "same": "equal sketch" if equal else "OTHER SKETCH",
    }


def _by_turns(ways: dict[str, Callable[[Any], Any]], chunks: list[Any], repeats: int) -> dict[str, list[float]]:
    took: dict[str, list[float]] = {name: [] for name in ways}
    for work in ways.values():
        work(chunks[0])
    for _ in range(repeats):
        for name, work in ways.items():
            started = time.perf_counter()
            for chunk in chunks:
                work(chunk)
            took[name].append(time.perf_counter() - started)
    return took
