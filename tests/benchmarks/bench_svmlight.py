"""Rows a and b: svmlight text to CSR, one thread against scikit-learn, two threads against one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from sklearn.datasets import load_svmlight_file

from streamkm.sources.svmlight_text import SvmlightSource
from tests.benchmarks import data
from tests.benchmarks.measure import Row, Settings, middle, paired, ratio_of, run_child

FASTER, SCALED = 20, 1.8
CHUNK_BYTES = 16 << 20


def run(settings: Settings) -> list[Row]:
    """Rows a and b."""
    path = data.topics(settings, kind="svmlight")
    ours, theirs = paired(
        lambda run: run_child("parse", data=path, n_threads=1),
        lambda run: run_child("parse_sklearn", data=path),
        settings,
    )
    ratio, same = ratio_of(ours, theirs), same_values(path)
    rate, their_rate = (path.stat().st_size / middle(runs, "seconds") / 1e6 for runs in (ours, theirs))
    two, one = paired(
        lambda run: run_child("parse", data=path, n_threads=2),
        lambda run: ours[0] if settings.quick else run_child("parse", data=path, n_threads=1),
        settings,
    )
    scaled = ratio_of(two, one)
    return [
        Row("a", f"{path.name} to CSR, one thread", "scikit-learn load_svmlight_file", f"{ratio:.1f} x",
            "equal bits" if same else "OTHER VALUES", "", f">= {FASTER} x, equal bits",
            None if settings.quick else ratio >= FASTER and same,
            f"quoted: the reading, chunk by chunk as passes read, kernels loaded; {rate:.0f} to {their_rate:.0f} MB/s",
            {"ours": ours, "theirs": theirs}),
        Row("b", f"{path.name} to CSR, two threads", "one thread", f"{scaled:.2f} x", "", "", f">= {SCALED} x",
            None if settings.quick else scaled >= SCALED,
            f"{path.stat().st_size / middle(two, 'seconds') / 1e6:.0f} MB/s", {"ours": two, "theirs": one}),
    ]  # fmt: skip


def read_all(source: SvmlightSource, chunk_bytes: int, n_threads: int) -> None:
    """Read every chunk and let go of it."""
    with ThreadPoolExecutor(n_threads) as pool:
        for _ in pool.map(lambda chunk: source.read(chunk).X.shape[0], source.chunks(chunk_bytes)):
            pass


def same_values(path: Path) -> bool:
    """Whether scikit-learn's arrays are ours."""
    expected, _ = load_svmlight_file(str(path))
    source = SvmlightSource([path], n_features=expected.shape[1])
    found = sp.vstack([source.read(chunk).X for chunk in source.chunks(CHUNK_BYTES)], format="csr")
    return (
        np.array_equal(found.indptr, expected.indptr)
        and np.array_equal(found.indices, expected.indices)
        and np.array_equal(found.data.view(np.int64), expected.data.view(np.int64))
    )
