"""The limit that a refusal names is accepted; sizes that a plan chooses: chunks, threads, memory of steps."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from functools import partial

import h5py
import numpy as np
import pytest
import scipy.sparse as sp

from streamkm import SketchOptions, StreamKernelKMeans, StreamKMeans, open_source
from streamkm.core.exceptions import MemoryLimitError
from streamkm.core.memory import with_process_memory
from streamkm.deduplication.shares import plan_run
from streamkm.engine.pass_memory import MIB
from streamkm.passes.sizes import UpdateSizes
from streamkm.planning.fit_plan import plan_labels, plan_sweep
from streamkm.planning.memory_budget import accepted
from streamkm.planning.plan import PlannedSketch
from streamkm.planning.request import Resources
from streamkm.sources.chunks import default_chunk_bytes
from streamkm.stores.planned import reader_for_store
from tests.limits import PROCESS_MEMORY, limited
from tests.planning.test_plan import UnreadSource
from tests.programs import run_program
from tests.tables import slow_but

UPDATE = UpdateSizes(n_clusters=100, n_features=2000, coreset_bytes=1 << 20, held_bytes=0)
PROCESS = 256 * MIB  # what it holds must not change between two plans
ROWS = ("x.npy", "x.csv", "x.svm", "long.svm", "x.h5:/X")


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
    line = "1 " + " ".join(f"{number}:1.25" for number in range(1, 600_000))
    (folder / "long.svm").write_text(f"1 1:2\n2 2:1\n{line}\n" + "1 3:1\n" * 1500)
    S = sp.random_array((20_000, 2000), density=0.01, format="csr", rng=rng, dtype=np.float32)
    with h5py.File(folder / "x.h5", "w") as file:
        group = file.create_group("X")
        group.attrs["encoding-type"], group.attrs["shape"] = "csr_matrix", S.shape
        for name in ("data", "indices", "indptr"):
            values = getattr(S, name)
            group.create_dataset(name, data=values, compression="gzip", chunks=values.shape)
    return {name: open_source(str(folder / name)) for name in ROWS}


def resources_below(limit):
    return Resources(memory_limit=limit, chunk_bytes="auto", n_threads=4)


PLANS = {
    "10": lambda source, limit: StreamKMeans(10, memory_limit=limit).plan_for(source),
    "300": lambda source, limit: StreamKMeans(300, memory_limit=limit).plan_for(source),
    "1500": lambda source, limit: StreamKMeans(1500, memory_limit=limit).plan_for(source),
    "cosine": lambda source, limit: StreamKMeans(20, metric="cosine", memory_limit=limit).plan_for(source),
    "prepared": lambda source, limit: StreamKMeans(20, preprocess=["unit"], memory_limit=limit).plan_for(source),
    "kernel": lambda source, limit: StreamKernelKMeans(10, memory_limit=limit).plan_for(source),
    "fourier": lambda source, limit: StreamKernelKMeans(10, method="fourier", memory_limit=limit).plan_for(source),
    "landmarks": lambda source, limit: StreamKernelKMeans(100, n_landmarks=1500, memory_limit=limit).plan_for(source),
    "two-step": lambda source, limit: StreamKernelKMeans(10, method="two-step", memory_limit=limit).plan_for(source),
    "svd": lambda source, limit: StreamKMeans(20, sketch=SketchOptions("svd", 16), memory_limit=limit).plan_for(source),
    "store": lambda source, limit: reader_for_store(source, "euclidean", "raise", memory_limit=limit),
    "labels": lambda source, limit: plan_labels(source, resources_below(limit), n_columns=4, centers_bytes=1 << 20),
    "update": lambda source, limit: plan_labels(source, resources_below(limit), update=UPDATE, centers_bytes=1 << 20),
    "dedupe": lambda source, limit: accepted(partial(plan_run, StreamKMeans(10, metric="spherical"), source), limit),
    "sweep": lambda source, limit: plan_sweep(
        source, resources_below(limit), PlannedSketch("identity", 20, ""), 10_000, 1000, 50
    ),
}


PAIRS = [(plan, name) for plan in PLANS for name in ROWS]


@pytest.mark.parametrize(("plan", "name"), slow_but(PAIRS[:: len(ROWS) + 1] + PAIRS[2 :: len(ROWS) + 1], PAIRS))
def test_the_named_limit_is_accepted(sources, name, plan):
    for first in (1, 300):
        try:
            PLANS[plan](sources[name], with_process_memory(first * MIB, PROCESS))
        except MemoryLimitError as error:
            refused = error
        else:
            assert first > 1 or plan == "labels"
            continue
        named = -(-refused.needed_bytes // MIB)
        assert f"raise memory_limit to {named:,} MiB" in str(refused)
        PLANS[plan](sources[name], with_process_memory(named * MIB, PROCESS))


def test_a_refusal_keeps_its_number_on_its_way_from_a_worker():
    error = pickle.loads(pickle.dumps(MemoryLimitError("it needs much", 5 * MIB + 1, "use less")))
    assert (error.needed_bytes, str(error)) == (5 * MIB + 1, "it needs much; raise memory_limit to 6 MiB, or use less")


@pytest.mark.parametrize(
    "command",
    [
        ("fit", "-k", "5", "--no-report"),
        pytest.param(("sweep", "-k", "3,5"), marks=(pytest.mark.slow, pytest.mark.full)),
        pytest.param(("sketch",), marks=(pytest.mark.slow, pytest.mark.full)),
        pytest.param(("dedupe",), marks=pytest.mark.slow),
    ],
    ids=lambda command: command[0],
)
def test_a_command_names_the_limit_of_documents_once(tmp_path, command):
    """Counting frequencies lets the process grow before the fit is planned again."""
    words = np.random.default_rng(0).zipf(1.3, (2000, 40)) % 20_000
    (tmp_path / "x.jsonl").write_text(
        "".join(json.dumps({"text": " ".join(f"w{w}" for w in row)}) + "\n" for row in words)
    )
    target = {"dedupe": "keep.npy", "sketch": "store.zarr"}.get(command[0], "out")
    given = ["-m", "streamkm", *command, "x.jsonl", "--set", "text.field=text", "-o", target, "--memory-limit"]
    run = partial(run_program, folder=tmp_path, timeout=120)
    refused = run([*given, "1 MiB"])
    assert refused.returncode == 2
    named = re.search(r"raise --memory-limit to ([\d,]+ MiB)", refused.stderr)
    done = run([*given, named[1].replace(",", "")])
    assert (done.returncode, "Error" in done.stderr) == (0, False), done.stderr


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


def test_chunks_grow_with_the_largest_sources_alone():
    row_bytes = 256
    at_16_mib = 2**23 * 16 * MIB // row_bytes  # rows of as many chunks as are wanted at most

    def chunk_bytes(n_rows, **given):
        return default_chunk_bytes(UnreadSource(n_rows, row_bytes // 4), **given)

    assert [chunk_bytes(n) for n in (10**8, 10**11, at_16_mib)] == 3 * [16 * MIB]
    assert chunk_bytes(10 * at_16_mib) == 160 * MIB
    assert chunk_bytes(10 * at_16_mib, largest=64 * MIB) == 64 * MIB
