"""The limit that a refusal names is accepted: by planning alone, for sources, estimators and tools."""

from __future__ import annotations

import re

import h5py
import numpy as np
import pytest
import scipy.sparse as sp

from streamkm import StreamKernelKMeans, StreamKMeans, open_source
from streamkm.core.exceptions import MemoryLimitError
from streamkm.core.memory import with_process_memory
from streamkm.planning.plan_parts import PlannedSketch
from streamkm.planning.sample_plan import plan_sweep

MIB = 1 << 20
PROCESS = 256 * MIB  # what it holds must not change between two plans
ROWS = {"x.npy": 20_000, "x.csv": 2000, "x.svm": 2000, "x.h5:/X": 20_000}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The same kind of rows as arrays, text and compressed sparse rows in one chunk."""
    folder = tmp_path_factory.mktemp("limits")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 20)).astype("f4")
    np.save(folder / "x.npy", X)
    np.savetxt(
        folder / "x.csv", X[:2000], delimiter=",", fmt="%.4f", header=",".join("abcdefghijklmnopqrst"), comments=""
    )
    (folder / "x.svm").write_text("".join(f"1 {i % 20 + 1}:{value:.3f}\n" for i, value in enumerate(X[:2000, 0])))
    S = sp.random_array((20_000, 2000), density=0.01, format="csr", rng=rng, dtype=np.float32)
    with h5py.File(folder / "x.h5", "w") as file:
        group = file.create_group("X")
        group.attrs["encoding-type"], group.attrs["shape"] = "csr_matrix", S.shape
        for name in ("data", "indices", "indptr"):
            values = getattr(S, name)
            group.create_dataset(name, data=values, compression="gzip", chunks=values.shape)
    return {name: open_source(str(folder / name)) for name in ROWS}


PLANS = {
    "10": lambda source, limit: StreamKMeans(10, memory_limit=limit).plan_for(source),
    "300": lambda source, limit: StreamKMeans(300, memory_limit=limit).plan_for(source),
    "1500": lambda source, limit: StreamKMeans(1500, memory_limit=limit).plan_for(source),
    "cosine": lambda source, limit: StreamKMeans(20, metric="cosine", memory_limit=limit).plan_for(source),
    "prepared": lambda source, limit: StreamKMeans(20, preprocess=["unit"], memory_limit=limit).plan_for(source),
    "kernel": lambda source, limit: StreamKernelKMeans(10, memory_limit=limit).plan_for(source),
    "fourier": lambda source, limit: StreamKernelKMeans(10, method="fourier", memory_limit=limit).plan_for(source),
    "landmarks": lambda source, limit: StreamKernelKMeans(100, n_landmarks=1500, memory_limit=limit).plan_for(source),
    "sweep": lambda source, limit: plan_sweep(
        source, PlannedSketch("identity", 20, ""), 10_000, 1000, 50, memory_limit=limit, n_threads=4
    ),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("plan", PLANS)
def test_the_named_limit_is_accepted(sources, name, plan):
    for first in (1, 260, 300):
        try:
            PLANS[plan](sources[name], with_process_memory(first * MIB, PROCESS))
        except MemoryLimitError as error:
            named = re.search(r"memory_limit to (?:at least )?([0-9,]+) MiB", str(error))[1]
            PLANS[plan](sources[name], with_process_memory(int(named.replace(",", "")) * MIB, PROCESS))
        else:
            assert first > 1
