"""Rows l to o: the linear sketches against SciPy, scikit-learn's projections and products by BLAS, one thread.

Processor seconds are compared, since nothing here waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp

from tests.benchmarks import data
from tests.benchmarks.measure import Row, Settings, run_child

PEERS = {"scipy X @ S and toarray": 15, "SparseRandomProjection": 10, "GaussianRandomProjection": 30}
HADAMARD_TIMES, BLOCKS_TIMES = 2, 4.5
COMPONENTS, FEW_COMPONENTS = 512, 256
CHUNK_ROWS = 12_500
SLOW_RUNS = 3
DENSE_ROWS, DENSE_FEATURES, DENSE_CHUNK = 100_000, 1024, 4096
SEED = 7


def run(settings: Settings) -> list[Row]:
    """Rows l to o."""
    path = data.topics(settings)
    repeats = 1 if settings.quick else max(5, settings.runs)
    sparse = run_child("call", function="bench_sketches:sparse", data=path, repeats=repeats)
    n_dense = 4096 if settings.quick else DENSE_ROWS
    dense = run_child("call", function="bench_sketches:dense", repeats=repeats, n_rows=n_dense)

    def met(reached: bool) -> bool | None:
        return None if settings.quick else reached

    what = f"CountSketch of CSR, m={COMPONENTS}"
    lines = []
    for name, target in PEERS.items():
        pair = sparse[name]
        ratio = median(theirs / ours for ours, theirs in zip(pair["ours"], pair["theirs"], strict=True))
        note = f"{sparse['chunk']:,} rows; fits are not counted"
        lines.append(Row("l", what, name, f"{ratio:.0f} x", "", "", f">= {target} x", met(ratio >= target), note, pair))
    times = median(four / one for one, four in zip(sparse["s=1"], sparse["s=4"], strict=True))
    others = ", ".join(f"{name} {median(sparse[name]):.3f} s" for name in sparse["others"])
    note = f"one chunk of {sparse['chunk']:,} rows: {others}"
    lines.append(Row("m", f"{what}, s=4", "s=1", f"{times:.2f} x its time", "", "", f"<= {BLOCKS_TIMES}",
                     met(times <= BLOCKS_TIMES), note, sparse))  # fmt: skip
    shape = f"{n_dense:,} x {DENSE_FEATURES} float32, m={FEW_COMPONENTS}"
    for row, name, target in (("n", "SubsampledHadamard", HADAMARD_TIMES), ("o", "signs", None)):
        ratio = median(theirs / ours for ours, theirs in zip(dense[name], dense["sgemm"], strict=True))
        note = f"{median(dense[name]):.3f} s to {median(dense['sgemm']):.3f} s, the matrix made beforehand"
        if row == "o":
            note += "; " + ", ".join(f"{other} {median(dense[other]):.3f} s" for other in dense["others"])
        lines.append(Row(row, f"{name} of dense rows, {shape}", "sgemm", f"{ratio:.1f} x", "", "",
                         f">= {target} x" if target else "", met(ratio >= target) if target else None, note,
                         dense))  # fmt: skip
    return lines


def sparse(data: str, repeats: int) -> dict[str, Any]:
    """Seconds of CountSketch and each peer by turns on the same rows, and of the other sketches."""
    from sklearn.random_projection import GaussianRandomProjection, SparseRandomProjection
    from threadpoolctl import threadpool_limits

    from streamkm import sketches

    X = sp.csr_array(sp.load_npz(data))
    chunk = X[:CHUNK_ROWS]
    sketch = sketches.CountSketch(COMPONENTS, SEED)
    buckets, signs = sketch.hash(0, X.shape[1])
    S = sp.csr_array((signs, buckets, np.arange(X.shape[1] + 1)), shape=(X.shape[1], COMPONENTS))
    peers = {
        "scipy X @ S and toarray": lambda rows: (rows @ S).toarray(),
        "SparseRandomProjection": SparseRandomProjection(COMPONENTS, random_state=0).fit(X).transform,
        "GaussianRandomProjection": GaussianRandomProjection(COMPONENTS, random_state=0).fit(X).transform,
    }
    result: dict[str, Any] = {}
    with threadpool_limits(1):
        for name, peer in peers.items():
            result[name] = by_turns({"ours": sketch.apply, "theirs": peer}, chunk, min(repeats, SLOW_RUNS))
        blocks = sketches.CountSketch(COMPONENTS, SEED, 4)
        result |= by_turns({"s=1": sketch.apply, "s=4": blocks.apply}, chunk, 5 * repeats)
        ours = {
            "signs": sketches.RandomProjection(COMPONENTS, SEED),
            "Gaussian": sketches.RandomProjection(COMPONENTS, SEED, "gaussian"),
            "sparse, 1/3": sketches.RandomProjection(COMPONENTS, SEED, "sparse"),
            "sparse, 1/sqrt(d)": sketches.RandomProjection(COMPONENTS, SEED, "sparse", X.shape[1] ** -0.5),
        }
        result |= by_turns({name: each.apply for name, each in ours.items()}, chunk, repeats)
    return {**result, "chunk": chunk.shape[0], "others": ["s=1", "s=4", *ours]}


def dense(repeats: int, n_rows: int) -> dict[str, Any]:
    """Seconds of our dense sketches and of a product with a matrix that exists, by turns over the same chunks."""
    from threadpoolctl import threadpool_limits

    from streamkm import sketches

    X = np.random.default_rng(0).standard_normal((n_rows, DENSE_FEATURES), np.float32)
    ours = {
        "SubsampledHadamard": sketches.SubsampledHadamard(FEW_COMPONENTS, DENSE_FEATURES, SEED),
        "PreconditionedSampling, 1/4": sketches.PreconditionedSampling(0.25, DENSE_FEATURES, SEED),
        "CountSketch": sketches.CountSketch(FEW_COMPONENTS, SEED),
        "signs": sketches.RandomProjection(FEW_COMPONENTS, SEED),
        "gaussian": sketches.RandomProjection(FEW_COMPONENTS, SEED, "gaussian"),
    }
    matrix = ours["signs"].apply(np.eye(DENSE_FEATURES, dtype=np.float32))
    ways = {name: chunked(sketch.apply) for name, sketch in ours.items()}
    with threadpool_limits(1):
        took = by_turns({**ways, "sgemm": chunked(lambda rows: rows @ matrix)}, X, repeats)
    return {**took, "others": list(ours)}


def chunked(work: Callable[[Any], Any]) -> Callable[[Any], None]:
    """The work chunk by chunk, as fits do it."""

    def all_chunks(X: Any) -> None:
        for start in range(0, X.shape[0], DENSE_CHUNK):
            work(X[start : start + DENSE_CHUNK])

    return all_chunks


def by_turns(ways: dict[str, Callable[[Any], Any]], X: Any, repeats: int) -> dict[str, list[float]]:
    """Processor seconds of each run of each way; one on few rows, which compiles, is not counted."""
    took: dict[str, list[float]] = {name: [] for name in ways}
    for work in ways.values():
        work(X[:64])
    for _ in range(repeats):
        for name, work in ways.items():
            started = time.process_time()
            work(X)
            took[name].append(time.process_time() - started)
    return took
