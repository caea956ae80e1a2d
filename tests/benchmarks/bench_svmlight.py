#!/usr/bin/env python
"""Speed of the svmlight reader against scikit-learn's, with one thread and with two, all values compared bit by bit.

python -m tests.benchmarks.bench_svmlight FILE [--repeats 5] [--chunk-mib 16] [--json OUT]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.datasets import load_svmlight_file

from streamkm.sources.svmlight.source import SvmlightSource


def seconds(work: Callable[[], Any], repeats: int) -> float:
    """Best of some runs: what the machine can do when nobody else wants it."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def read_all(source: SvmlightSource, chunk_bytes: int, n_threads: int) -> int:
    """Read every chunk and let go of it; the number of rows."""
    chunks = source.chunks(chunk_bytes)
    if n_threads == 1:
        return sum(source.read(chunk).X.shape[0] for chunk in chunks)
    with ThreadPoolExecutor(n_threads) as pool:
        return sum(pool.map(lambda chunk: source.read(chunk).X.shape[0], chunks))


def same_values(path: Path, chunk_bytes: int) -> tuple[bool, float]:
    """Whether scikit-learn's arrays are ours, and its seconds."""
    start = time.perf_counter()
    expected, _ = load_svmlight_file(str(path))
    took = time.perf_counter() - start
    source = SvmlightSource([path], n_features=expected.shape[1])
    found = sp.vstack([source.read(chunk).X for chunk in source.chunks(chunk_bytes)], format="csr")
    same = (
        np.array_equal(found.indptr, expected.indptr)
        and np.array_equal(found.indices, expected.indices)
        and np.array_equal(found.data.view(np.int64), expected.data.view(np.int64))
    )
    return same, took


def measure(path: Path, repeats: int, chunk_bytes: int) -> dict[str, Any]:
    """All figures of one file."""
    source = SvmlightSource([path])
    start = time.perf_counter()
    source.read(source.chunks(1 << 16)[0])
    first = time.perf_counter() - start
    same, sklearn_seconds = same_values(path, chunk_bytes)
    one = seconds(lambda: read_all(source, chunk_bytes, 1), repeats)
    two = seconds(lambda: read_all(source, chunk_bytes, 2), repeats)
    single = SvmlightSource([path], dtype=np.float32)
    read_all(single, chunk_bytes, 1)
    narrow = seconds(lambda: read_all(single, chunk_bytes, 1), repeats)
    n_bytes = path.stat().st_size
    return {
        "file": path.name,
        "n_bytes": n_bytes,
        "chunk_bytes": chunk_bytes,
        "n_cores": os.cpu_count(),
        "same_bits_as_sklearn": same,
        "first_read_s": first,
        "sklearn_mb_s": n_bytes / sklearn_seconds / 1e6,
        "one_thread_mb_s": n_bytes / one / 1e6,
        "one_thread_float32_mb_s": n_bytes / narrow / 1e6,
        "two_threads_mb_s": n_bytes / two / 1e6,
        "ratio_to_sklearn": sklearn_seconds / one,
        "two_threads_to_one": one / two,
        "estimated_rows": source.estimated_rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--chunk-mib", type=float, default=16)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    figures = measure(args.file, args.repeats, int(args.chunk_mib * 2**20))
    for name, value in figures.items():
        print(f"{name:26} {value:>14,.2f}" if isinstance(value, float) else f"{name:26} {value!s:>14}")
    print(json.dumps(figures))
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
