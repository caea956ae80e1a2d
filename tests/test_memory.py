"""Resident memory of fresh processes, as the operating system accounts it, against the limit and the projection."""

from __future__ import annotations

import json
import mmap
import os
import platform
import subprocess
import sys
import weakref
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr

from streamkm import StreamKMeans
from streamkm.cluster.blocks import NO_WEIGHTS
from streamkm.cluster.model import Model
from streamkm.compute import open_executor
from streamkm.core.progress import Stage
from streamkm.passes.assign import assign_pass
from streamkm.passes.reader import Walk
from streamkm.planning.memory import waiting_calls
from streamkm.sketches import IdentitySketch
from streamkm.sources import open_source
from streamkm.sources.base import Rows, RowSource
from streamkm.stores.operations import write_store
from tests.benchmarks.make_topics import Topics
from tests.benchmarks.make_topics import write as write_topics

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
FIT = """
import json, sys
path, k, limit, coreset = sys.argv[1:5]
from streamkm import StreamKMeans
parameters = {"memory_limit": limit, "coreset": json.loads(coreset), "progress": False, "random_state": 0}
fitted = StreamKMeans(int(k), **parameters).fit(path)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
peak = int(status["VmHWM"].split()[0]) * 1024  # of this program alone; getrusage remembers what started it
print(json.dumps({"peak": peak, "projected": fitted.plan_.peak_bytes, "limit": fitted.plan_.limit_bytes,
                  "inertia": fitted.inertia_, "space": fitted.assign_space_, "regime": fitted.plan_.regime}))
"""


COMPILE = """
import sys
import numpy as np
from streamkm import StreamKMeans
rng = np.random.default_rng(0)
text, store = sys.argv[1:3]
narrow, wide = rng.random((3000, 16), np.float32), rng.random((3000, 600), np.float32)
for X, options in [
    *((narrow, {"coreset": coreset}) for coreset in ("auto", "sensitivity", "uniform")),
    *((X, {"coreset": coreset}) for X in (wide, (wide * 200).astype(np.uint8), text) for coreset in ("auto", None)),
    (narrow.astype(np.float64), {}), (text, {"assign_space": "sketch"}), (store, {}), (store, {"coreset": "uniform"}),
]:
    StreamKMeans(20, progress=False, random_state=0, chunk_bytes=100_000, **options).fit(X)
print("null")
"""


@pytest.fixture(scope="module", autouse=True)
def compiled(disk):
    """Kernels are compiled and kept before a limit is measured: LLVM takes more memory than any fit here."""
    folder = disk / "compiled"
    folder.mkdir()
    write_topics(str(folder / "x.svm"), Topics(5_000, 20), 3_000, kind="svmlight")
    run([COMPILE, str(folder / "x.svm"), str(sketched(folder / "x.zarr", 3_000, 64))])


def fit(path, k, limit, coreset="auto"):
    """Fit in a process of its own; what it says of its memory."""
    return run([FIT, str(path), str(k), limit, json.dumps(coreset)])


def run(arguments, environment=None):
    """Run a program in a process of its own; what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | (environment or {}),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def images(disk):
    """Dense rows, uint8, twice as large as what the limits of the tests leave for data."""
    path = disk / "images.zarr"
    rng = np.random.default_rng(0)
    centers = rng.integers(0, 180, (20, 784), np.uint8)
    array = zarr.create_array(store=str(path), shape=(400_000, 784), chunks=(4096, 784), dtype="uint8")
    for start in range(0, 400_000, 40_000):
        rows = centers[rng.integers(0, 20, 40_000)] + rng.integers(0, 60, (40_000, 1), np.uint8)
        array[start : start + 40_000] = rows
    return path


@pytest.fixture(scope="module")
def text(disk):
    path = disk / "text.svm"
    write_topics(str(path), Topics(20_000, 20), 100_000, kind="svmlight")
    return path


@pytest.mark.parametrize("limit", ["512 MiB", pytest.param("1 GiB", marks=pytest.mark.slow)])
def test_dense_rows_are_clustered_within_the_limit(images, limit):
    got = fit(images, 20, limit)
    assert got["peak"] <= got["limit"]
    assert 0.75 <= got["projected"] / got["peak"] <= 1.25


@pytest.mark.parametrize(("limit", "regime"), [("600 MiB", "blocks"), ("400 MiB", "spilled")])
def test_all_dense_rows_are_projected_within_the_limit(images, limit, regime):
    got = fit(images, 20, limit, None)
    assert (got["regime"], got["space"]) == (regime, "original")
    assert got["peak"] <= got["limit"]
    assert 0.75 <= got["projected"] / got["peak"] <= 1.25


@pytest.mark.parametrize(("k", "limit", "space"), [(20, "450 MiB", "original"), (600, "512 MiB", "sketch")])
def test_text_is_clustered_within_the_limit(text, k, limit, space):
    got = fit(text, k, limit)
    assert got["space"] == space
    assert got["peak"] <= got["limit"]
    assert 0.75 <= got["projected"] / got["peak"] <= 1.25


def test_more_narrow_rows_than_fit_get_a_coreset(disk_path):
    path = disk_path / "x.npy"
    rng = np.random.default_rng(0)
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(4_000_000, 16))
    for start in range(0, len(rows), 500_000):
        rows[start : start + 500_000] = rng.integers(0, 10, (500_000, 1)) * 10 + rng.normal(0, 1, (500_000, 16))
    rows.flush()
    got = fit(path, 10, "500 MiB")
    assert got["regime"] == "coreset"
    assert got["peak"] <= got["limit"]
    assert 0.75 <= got["projected"] / got["peak"] <= 1.25
    np.testing.assert_allclose(got["inertia"], 4_000_000 * 16, rtol=0.01)  # every group found


def narrow(path, n_rows, n_features):
    """Rows of fifty groups, float32."""
    rng = np.random.default_rng(0)
    centers = rng.normal(0, 10, (50, n_features)).astype(np.float32)
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n_rows, n_features))
    for start in range(0, n_rows, 200_000):
        labels = rng.integers(0, 50, min(200_000, n_rows - start))
        rows[start : start + len(labels)] = centers[labels] + rng.standard_normal((len(labels), n_features), np.float32)
    rows.flush()
    return path


def large_chunks(path, n_rows, n_features):
    """The same in HDF5, in gzipped chunks of 86 MiB."""
    rows = np.load(narrow(path.with_suffix(".npy"), n_rows, n_features), mmap_mode="r")
    with h5py.File(path, "w") as file:
        height = (86 << 20) // (4 * n_features)
        array = file.create_dataset("X", rows.shape, "f4", chunks=(height, n_features), compression=1)
        for start in range(0, n_rows, height):
            array[start : start + height] = rows[start : start + height]
    return path


def sketched(path, n_rows, n_features):
    """The same in a sketch store."""
    source = Walk(open_source(str(narrow(path.with_suffix(".npy"), n_rows, n_features))), 4 << 20, "euclidean", "raise")
    with open_executor(2) as workers:
        write_store(path, source, IdentitySketch(n_features), workers, Stage("sketch"))
    return path


CASES = {
    "a few rows": (narrow, "x.npy", (1000, 8), 5, "308 MiB", "auto"),
    "coreset": (narrow, "x.npy", (800_000, 16), 200, "440 MiB", "sensitivity"),
    "store": (sketched, "x.zarr", (400_000, 64), 20, "380 MiB", "uniform"),
    "wide": (narrow, "x.npy", (12, 300_000), 2, "400 MiB", "auto"),
}
LARGE_CASES = {
    "narrow": (narrow, "x.npy", (40_000_000, 16), 500, "1 GiB", "auto"),
    "narrow, more clusters": (narrow, "x.npy", (40_000_000, 16), 1000, "1 GiB", "auto"),
    "sensitivity": (narrow, "x.npy", (5_000_000, 16), 500, "630 MiB", "sensitivity"),
    "wide": (narrow, "x.npy", (20, 1_000_000), 3, "1 GiB", "auto"),
    "wider": (narrow, "x.npy", (3_000_000, 256), 100, "1 GiB", "auto"),
    "large chunks": (large_chunks, "x.h5", (1_500_000, 256), 20, "1 GiB", "auto"),
    "store": (sketched, "x.zarr", (5_000_000, 64), 50, "600 MiB", "auto"),
}

LARGE = [pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(
    "case",
    [
        *CASES.values(),
        *(pytest.param(case, marks=LARGE) for case in LARGE_CASES.values()),
    ],
    ids=[*CASES, *(f"{name}, as large as it was found" for name in LARGE_CASES)],
)
def test_what_was_above_its_limit_stays_below(disk_path, case):
    make, name, shape, n_clusters, limit, coreset = case
    got = fit(make(disk_path / name, *shape), n_clusters, limit, coreset)
    assert got["peak"] <= got["limit"]
    assert got["peak"] <= 1.1 * got["projected"] <= 1.1 * got["limit"]


TWICE = """
import json, sys
import numpy as np
from streamkm import StreamKMeans

fits = [StreamKMeans(20, memory_limit="400 MiB", progress=False, random_state=0).fit(sys.argv[1]) for _ in range(2)]
held = np.ones(60_000_000)  # what else the process holds is none of the plan's business
fits.append(StreamKMeans(20, memory_limit="400 MiB", progress=False, random_state=0).fit(sys.argv[1]))
print(json.dumps({"same": [bool((fit.labels_ == fits[0].labels_).all()) for fit in fits],
                  "plans": len({repr(fit.plan_) for fit in fits})}))
"""


def test_the_same_call_gives_the_same_labels_whatever_the_process_holds(text):
    assert run([TWICE, str(text)]) == {"same": [True] * 3, "plans": 1}


@pytest.mark.parametrize("k", [3, 3000])
def test_pieces_of_a_stream_wait_one_a_call(k):
    """Not in runs: all of a run would lie in memory. Neither where sums are smaller than a piece nor where larger."""
    alive, most = 0, 0

    class Pieces(RowSource):
        name, is_sparse, dtype = "pieces", False, np.dtype(np.float32)
        n_rows = n_bytes = None
        n_features = 200

        def stream(self, target_bytes):
            nonlocal alive, most
            for number in range(60):
                X = np.random.default_rng(number).random((100, 200), np.float32)
                alive, most = alive + 1, max(most, alive + 1)
                weakref.finalize(X, gone)
                yield Rows(X, np.arange(100 * number, 100 * number + 100))
                del X

    def gone():
        nonlocal alive
        alive -= 1

    walk = Walk(Pieces(), 80_000, "euclidean", "raise")
    model = Model(np.random.default_rng(0).random((k, 200)), 200, "euclidean", "original", IdentitySketch(200))
    assert StreamKMeans(k).plan(Pieces()).needs.streams
    with open_executor(2) as workers:
        assign_pass(workers, walk, model, NO_WEIGHTS, np.full(60, 100), Stage("assign"))
    assert alive == 0
    assert most <= waiting_calls(2) + 2


STREAM = """
import json, sys
import numpy as np
from streamkm import StreamKMeans

def chunks():
    rng = np.random.default_rng(0)
    centers = rng.normal(0, 10, (10, 64))
    for _ in range(60):
        y = rng.integers(0, 10, 20_000)
        yield (centers[y] + rng.normal(0, 1, (20_000, 64))).astype(np.float32)

X = chunks if sys.argv[2:] == ["again"] else chunks()
fitted = StreamKMeans(10, memory_limit=sys.argv[1], progress=False, random_state=0).fit(X)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({"peak": int(status["VmHWM"].split()[0]) * 1024, "limit": fitted.plan_.limit_bytes,
                  "inertia": fitted.inertia_, "n": len(fitted.labels_), "passes": fitted.n_passes_,
                  "regime": fitted.plan_.regime}))
"""


def test_a_stream_that_is_seen_once_and_outgrows_memory_is_spilled(disk_path):
    said = run([STREAM, "480 MiB"], {"TMPDIR": str(disk_path)})
    roomy = run([STREAM, "4 GiB"], {"TMPDIR": str(disk_path)})
    assert said["peak"] <= said["limit"] < roomy["peak"]  # 307 MB of rows
    assert said["inertia"] == roomy["inertia"]
    assert (said["n"], said["passes"]) == (1_200_000, 1)
    assert list(disk_path.iterdir()) == []


def test_a_stream_that_starts_anew_and_outgrows_memory_is_spilled(disk_path):
    """Nobody knows how many rows there will be: what memory does not hold of them goes to disk."""
    said = run([STREAM, "480 MiB", "again"], {"TMPDIR": str(disk_path)})
    assert said["peak"] <= said["limit"]
    assert (said["n"], said["passes"], said["regime"]) == (1_200_000, 2, "spilled")
    assert list(disk_path.iterdir()) == []


GIVE_BACK = """
import json
from streamkm.core.memory import give_back, resident_bytes

small = [bytearray(50_000) for _ in range(2_000)]  # from the heap, whose end is in use
kept = small[::100]
del small
before = resident_bytes()
give_back(3 * before)
roomy = resident_bytes()
give_back(before)
print(json.dumps([before - roomy, roomy - resident_bytes()]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_given_back_where_a_limit_is_near():
    roomy, crowded = run([GIVE_BACK])
    assert abs(roomy) <= 4 * mmap.PAGESIZE  # looking takes a page now and then
    assert crowded > 80_000_000


@pytest.mark.slow
def test_a_folder_of_parquet_files_under_a_limit(disk, reduced):
    """Row groups larger than the limit leaves room for are read in pieces."""
    import pyarrow as pa
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    centers = 4 * rng.normal(size=(20, 16))
    (disk / "rows").mkdir()
    sizes = (600_000, 100_000, 10) if reduced else (2_500_000, 1_500_000, 700_000, 299_990, 10)
    for number, n_rows in enumerate(sizes):
        X = (centers[rng.integers(0, 20, n_rows)] + rng.normal(size=(n_rows, 16))).astype(np.float32)
        parquet.write_table(pa.table({f"x{j}": X[:, j] for j in range(16)}), disk / "rows" / f"{number}.parquet")
    for _ in range(2):  # the first compiles
        done = subprocess.run(
            [sys.executable, "-c", FIT, str(disk / "rows"), "20", "500 MiB", '"auto"'], capture_output=True, check=True
        )
    told = json.loads(done.stdout)
    assert told["peak"] <= told["limit"] == 500 << 20
