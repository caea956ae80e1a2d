"""Sizes that a plan chooses: chunks, threads, and the memory of steps."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from streamkm import StreamKMeans
from streamkm.core.exceptions import MemoryLimitError
from streamkm.engine.pass_memory import MIB
from streamkm.planning.fit_plan import plan_labels
from streamkm.planning.request import Resources
from streamkm.sources import open_source
from streamkm.sources.chunks import default_chunk_bytes
from tests.limits import PROCESS_MEMORY, limited
from tests.planning.test_plan import UnreadSource


def test_passes_that_label_keep_the_limit_by_chunks_and_then_by_threads(tmp_path):
    np.save(tmp_path / "narrow.npy", np.zeros((400_000, 2), np.float32))
    np.save(tmp_path / "wide.npy", np.zeros((2_000, 400), np.float32))
    narrow, wide = open_source(str(tmp_path / "narrow.npy")), open_source(str(tmp_path / "wide.npy"))

    def sizes(source, limit, asked="auto", n_columns=0, centers_bytes=0, n_threads=8):
        resources = Resources(memory_limit=limited(limit), chunk_bytes=asked, n_threads=n_threads)
        found = plan_labels(source, resources, centers_bytes=centers_bytes, n_columns=n_columns)
        return found.chunk_bytes, found.n_threads

    assert sizes(wide, "4 GiB") == (default_chunk_bytes(wide), 8)
    # a row of 8 bytes gets 32 for its label, and 8 for each further value
    assert sizes(narrow, "4 GiB") == (default_chunk_bytes(narrow) * 8 // 32, 8)
    assert sizes(narrow, "4 GiB", n_columns=4) == (default_chunk_bytes(narrow) * 8 // 64, 8)
    assert sizes(wide, "4 GiB", 3_000_000) == (3_000_000, 8)
    wide.access = replace(wide.access, read_factor=20.0, producer_bytes=10 << 20)
    tight = PROCESS_MEMORY + (60 << 20)
    chunk, n_threads = sizes(wide, tight)
    assert (chunk, n_threads) == (1 << 20, 1)
    assert sizes(wide, tight, centers_bytes=1 << 30) == (1 << 20, 1)  # nothing smaller: not refused
    assert sizes(wide, tight, 3_000_000) == (3_000_000, 1)
    np.lib.format.open_memmap(tmp_path / "large.npy", "w+", np.float32, (1_000_000, 100))
    large = open_source(str(tmp_path / "large.npy"))
    for limit in (tight, tight + (40 << 20), tight + (200 << 20)):
        assert len({sizes(large, limit, n_threads=count)[0] for count in (1, 2, 4, 8)}) == 1


@pytest.mark.slow
def test_the_smallest_limit_costs_no_quality(tmp_path):
    """What a sample of the rows there is room for would miss, far groups, is found; or the limit is refused."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60_000, 6)).astype(np.float32)
    X[rng.choice(len(X), 240, replace=False)] += np.repeat(100 * rng.normal(size=(12, 6)), 20, axis=0)
    np.save(tmp_path / "x.npy", X)
    path, accepted = str(tmp_path / "x.npy"), []
    for limit in range(300, 400):
        with suppress(MemoryLimitError):
            accepted.append(StreamKMeans(15, memory_limit=limited(f"{limit} MiB")).plan(path))
    assert all(plan.drawn_rows and plan.keeps_sample and plan.cluster_on != "sample" for plan in accepted)
    tight, free = (
        np.median([StreamKMeans(15, memory_limit=limit, random_state=seed, progress=False).fit(path).inertia_
                   for seed in range(3)])
        for limit in (limited(accepted[0].limit_bytes), "auto")
    )  # fmt: skip
    assert tight <= 1.005 * free


def test_chunks_grow_with_the_largest_sources_alone():
    row_bytes = 256
    at_16_mib = 2**23 * 16 * MIB // row_bytes  # rows of as many chunks as are wanted at most

    def chunk_bytes(n_rows, **given):
        return default_chunk_bytes(UnreadSource(n_rows, row_bytes // 4), **given)

    assert [chunk_bytes(n) for n in (10**8, 10**11, at_16_mib)] == 3 * [16 * MIB]
    assert chunk_bytes(10 * at_16_mib) == 160 * MIB
    assert chunk_bytes(10 * at_16_mib, largest=64 * MIB) == 64 * MIB
