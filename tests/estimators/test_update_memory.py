"""Memory of updates: the limit is kept, what does not fit is refused before rows are read, and states stay small."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse as sp

from streamkm import IncrementalKMeans, open_source
from streamkm.core.exceptions import MemoryLimitError
from tests.fresh import run_compiled

MIB = 1 << 20
UPDATES = """
import json, sys
path, k, limit, n_updates = sys.argv[1:5]
from streamkm import IncrementalKMeans
kmeans = IncrementalKMeans(int(k), memory_limit=limit, n_init=1, max_iter=5, progress=False, random_state=0)
for _ in range(int(n_updates)):
    kmeans.update(path)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({"peak": int(status["VmHWM"].split()[0]) * 1024, "n_bytes": kmeans.stream_.n_bytes}))
"""


def write_groups(path, n_rows, width, k=20):
    rng = np.random.default_rng(0)
    centers = rng.normal(0, 4, (k, width)).astype(np.float32)
    X = np.lib.format.open_memmap(path, "w+", np.float32, (n_rows, width))
    for start in range(0, n_rows, 20_000):
        n_part = min(20_000, n_rows - start)
        X[start : start + n_part] = centers[rng.integers(k, size=n_part)] + rng.normal(size=(n_part, width))
    return path


@pytest.mark.parametrize(
    ("n_rows", "width", "limit"),
    [(300_000, 32, 300), pytest.param(40_000, 784, 750, marks=pytest.mark.slow)],
)
def test_updates_keep_the_limit(disk, n_rows, width, limit):
    path = write_groups(disk / f"{n_rows}.npy", n_rows, width)
    got = run_compiled(UPDATES, [str(path), "20", f"{limit}MiB", "2"])
    assert got["peak"] <= limit * MIB


def test_what_does_not_fit_is_refused_with_the_limit_that_will_do(tmp_path):
    path = write_groups(tmp_path / "x.npy", 2000, 2000, k=4)
    kmeans = IncrementalKMeans(2, memory_limit="300MiB, process 250 MiB", progress=False, random_state=0)
    with pytest.raises(
        MemoryLimitError, match=r"2 clusters of 2,000 features .* above the limit of 300\.0 MiB"
    ) as told:
        kmeans.update(path)
    assert not hasattr(kmeans, "stream_")
    needed = int(re.search(r"raise memory_limit to ([\d,]+) MiB", str(told.value))[1].replace(",", ""))
    for limit, fits in ((needed - 1, False), (needed, True)):
        kmeans.set_params(memory_limit=f"{limit}MiB, process 250 MiB")
        if fits:
            kmeans.update(path)
        else:
            with pytest.raises(MemoryLimitError):
                kmeans.update(path)
    assert kmeans.n_samples_seen_ == 2000


def test_many_wide_centers_are_refused_before_rows_are_read(monkeypatch):
    source = open_source(sp.csr_array((2000, 1 << 20), dtype=np.float32))
    monkeypatch.setattr(source, "read", None)
    with pytest.raises(MemoryLimitError, match=r"1,024 clusters of 1,048,576 features .* raise memory_limit to"):
        IncrementalKMeans(1024, memory_limit="300MiB", progress=False).update(source)
