"""Resident memory of fresh processes, as the operating system accounts it, against the limit and the projection."""

from __future__ import annotations

import gzip
import json
import mmap
import os
import platform
import re
import subprocess
import sys
import tempfile
import weakref
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from streamkm import StreamKMeans
from streamkm.cluster.model import Model
from streamkm.core.progress import Stage
from streamkm.engine import open_executor
from streamkm.engine.pass_memory import waiting_calls
from streamkm.passes.assign import Assign, assign_pass
from streamkm.passes.labels import GatheredLabels
from streamkm.passes.pass_context import PassContext
from streamkm.passes.reader import RowReader
from streamkm.sketches import IdentitySketch
from streamkm.sources import open_source
from streamkm.sources.chunks import Access
from streamkm.sources.row_source import Rows, RowSource
from streamkm.stores.writer import write_store
from tests.benchmarks.make_topics import Topics
from tests.benchmarks.make_topics import write as write_topics
from tests.fresh import run_compiled, run_fresh
from tests.tables import slow_but

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
FULL = (pytest.mark.slow, pytest.mark.full)  # reduced runs have others of their kind
IMPORTED = ("pandas", "scipy.stats")
"""As whoever uses frames or other parts of scikit-learn has imported them."""
GIVEN_BYTES = 320 << 20
HELD_BYTES = f"process {GIVEN_BYTES >> 20} MiB"
"""What plans count such a process as: it holds about 256 MiB and grows by 64, which is at the edge of a step."""
FIT = """
import json, sys
path, k, limit, given = sys.argv[1:5]
from streamkm import StreamKMeans
parameters = {"memory_limit": limit, "progress": False, "random_state": 0, **json.loads(given)}
fitted = StreamKMeans(int(k), **parameters).fit(path)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
peak = int(status["VmHWM"].split()[0]) * 1024  # of this program alone; getrusage remembers what started it
# a search before another pass is planned for, and compared with what was measured only if it was made
searched = fitted.n_passes_ > fitted.plan_.passes
projected = max(size for stage, size in fitted.plan_.memory.items() if searched or stage != "search")
print(json.dumps({"peak": peak, "projected": projected, "limit": fitted.plan_.limit_bytes,
                  "inertia": fitted.inertia_, "space": fitted.assign_space_, "cluster_on": fitted.plan_.cluster_on}))
"""


def fit(path, k, limit, coreset="auto", **given):
    """Fit in a process of its own; what it says of its memory."""
    given = json.dumps({"coreset": coreset, **given})
    return run_compiled(FIT, [str(path), str(k), f"{limit}, {HELD_BYTES}", given], imported=IMPORTED)


def images(path, n_rows, *, chunk_rows=4096):
    """Dense rows, uint8, more than what the limits of the tests leave for data."""
    rng = np.random.default_rng(0)
    centers = rng.integers(0, 180, (20, 784), np.uint8)
    array = zarr.create_array(store=str(path), shape=(n_rows, 784), chunks=(chunk_rows, 784), dtype="uint8")
    for start in range(0, n_rows, 40_000):
        n_part = min(40_000, n_rows - start)
        array[start : start + n_part] = centers[rng.integers(0, 20, n_part)] + rng.integers(
            0, 60, (n_part, 1), np.uint8
        )
    return path


def long_text(path, n_rows):
    """Sparse rows of 20,000 words, each of them four times, because making them takes longer than clustering them."""
    write_topics(str(path), Topics(20_000, 20), n_rows // 4, kind="svmlight")
    path.write_bytes(4 * path.read_bytes())
    return path


@pytest.fixture(scope="module")
def text(disk):
    """A function that gives text of so many rows."""

    @cache
    def written(n_rows):
        return long_text(disk / f"text{n_rows}.svm", n_rows)

    return written


@cache
def held_bytes():
    """What such a process holds beside data, with the packages that are installed: the peak of a fit of few rows."""
    with tempfile.TemporaryDirectory() as directory:
        path = images(Path(directory) / "few.zarr", 1000)
        return fit(path, 2, "1 GiB")["peak"]


def assert_within(got):
    """A limit is kept; and the projection, with what the process holds in truth, is near the peak."""
    assert got["peak"] <= got["limit"]
    projected = got["projected"] - GIVEN_BYTES + held_bytes()
    assert 0.75 <= projected / got["peak"] <= 1.25


@pytest.mark.parametrize(
    ("n_rows", "cases"),
    [
        (60_000, [("350 MiB", None, "spilled")]),
        pytest.param(120_000, [("400 MiB", None, "blocks"), ("400 MiB", "auto", "blocks")], marks=FULL),
    ],
    ids=["47 MB", "94 MB"],
)
def test_dense_rows_are_clustered_within_the_limit(disk_path, n_rows, cases):
    path = images(disk_path / "images.zarr", n_rows)
    for limit, coreset, cluster_on in cases:
        got = fit(path, 20, limit, coreset)
        assert (got["cluster_on"], got["space"]) == (cluster_on, "original")
        assert_within(got)


@pytest.mark.parametrize(
    ("n_rows", "k", "limit", "space"),
    [(50_000, 20, "400 MiB", "original"), pytest.param(50_000, 300, "446 MiB", "sketch", marks=pytest.mark.slow)],
)
def test_text_is_clustered_within_the_limit(text, n_rows, k, limit, space):
    got = fit(text(n_rows), k, limit)
    assert got["space"] == space
    assert_within(got)


@pytest.mark.slow
def test_more_narrow_rows_than_fit_get_a_coreset(disk_path):
    n_rows = 1_200_000
    path = disk_path / "x.npy"
    rng = np.random.default_rng(0)
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n_rows, 16))
    for start in range(0, len(rows), 400_000):
        rows[start : start + 400_000] = rng.integers(0, 10, (400_000, 1)) * 10 + rng.standard_normal(
            (400_000, 16), np.float32
        )
    del rows
    got = fit(path, 10, "376 MiB")
    assert got["cluster_on"] == "coreset"
    assert_within(got)
    np.testing.assert_allclose(got["inertia"], n_rows * 16, rtol=0.01)  # every group found


def narrow(path, n_rows, n_features):
    """Rows of fifty groups, float32."""
    rng = np.random.default_rng(0)
    centers = rng.normal(0, 10, (50, n_features)).astype(np.float32)
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n_rows, n_features))
    for start in range(0, n_rows, 200_000):
        labels = rng.integers(0, 50, min(200_000, n_rows - start))
        rows[start : start + len(labels)] = centers[labels] + rng.standard_normal((len(labels), n_features), np.float32)
    return path


def half_equal(path, n_rows, n_features):
    """Rows of which half are equal."""
    rng = np.random.default_rng(0)
    rows = rng.normal(0, 10, (n_rows, n_features)).astype(np.float32)
    rows[rng.random(n_rows) < 0.5] = 0
    np.save(path, rows)
    return path


def sketched(path, n_rows, n_features):
    """Rows of fifty groups in a sketch store."""
    source = RowReader(
        open_source(str(narrow(path.with_suffix(".npy"), n_rows, n_features))), 4 << 20, "euclidean", "raise"
    )
    with open_executor(2) as workers:
        write_store(path, source, IdentitySketch(n_features), workers, Stage("sketch"))
    return path


CASES = {
    "a few rows": (narrow, "few.npy", (1000, 8), 5, "334 MiB", "auto"),
    "wide": (narrow, "wide.npy", (12, 300_000), 2, "400 MiB", "auto"),
}
SLOW_CASES = {
    "store": (sketched, "x.zarr", (200_000, 64), 20, "410 MiB", "uniform"),
    "coreset": (narrow, "x.npy", (800_000, 16), 200, "466 MiB", "sensitivity"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("n_threads", "limit"), [(2, "460 MiB"), (8, "640 MiB")])
def test_equal_rows_that_are_moved_one_by_one_stay_within_the_limit(disk_path, n_threads, limit):
    """A quarter of a million rows, in six passes; each thread keeps rows near a border."""
    path = half_equal(disk_path / "x.npy", 500_000, 2)
    got = fit(path, 50, limit, cluster_size=[0.9, 1.1], executor=n_threads, chunk_bytes=250_000)
    assert got["peak"] <= got["projected"] <= got["limit"]


@pytest.mark.parametrize("cases", [CASES, pytest.param(SLOW_CASES, marks=FULL)], ids=["small", "of more rows"])
def test_what_was_above_its_limit_stays_below(disk_path, cases):
    for name, (make, file, shape, *rest) in cases.items():
        got = fit(make(disk_path / file, *shape), *rest)
        assert got["peak"] <= got["limit"], name
        assert got["peak"] <= 1.1 * got["projected"] <= 1.1 * got["limit"], name


WORDS = FIT.replace(
    """fitted = StreamKMeans(int(k), **parameters).fit(path)""",
    """from streamkm import open_documents
documents = open_documents(path, field="text", memory_limit=limit)
fitted = StreamKMeans(int(k), **parameters).fit(documents)""",
)


@pytest.mark.slow
def test_documents_are_counted_and_clustered_within_the_limit(disk_path, reduced):
    rng, path = np.random.default_rng(0), disk_path / "x.jsonl.gz"
    words = np.array([f"word{i:05d}" for i in range(30_000)])
    shares = 1 / np.arange(1, 30_001)
    with gzip.open(path, "wt", compresslevel=1) as file:
        for _ in range(5 if reduced else 12):
            texts = words[rng.choice(30_000, (10_000, 50), p=shares / shares.sum())]
            file.writelines(json.dumps({"text": " ".join(text)}) + "\n" for text in texts)
    got = run_compiled(WORDS, [str(path), "20", f"384 MiB, {HELD_BYTES}", "{}"], imported=IMPORTED)
    assert got["peak"] <= got["limit"]


LONG = """
import json, sys
from streamkm import SketchOptions, StreamKMeans, open_documents, open_source
from streamkm.core.exceptions import MemoryLimitError
path, limit, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
said = ""
try:
    source = open_source(path) if options is None else open_documents(path, memory_limit=limit, **options)
    # labels in the sketch, of fewer numbers: what a wide line takes is then most of the peak
    sketch = SketchOptions(assign_space="sketch")
    StreamKMeans(3, sketch=sketch, memory_limit=limit, progress=False, random_state=0).fit(source)
except MemoryLimitError as error:
    said = str(error)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({"peak": int(status["VmHWM"].split()[0]) * 1024, "said": said}))
"""


def words_in_a_line(file, n_words):
    file.writelines(f"w{i % 5} x{i % 7}\n" for i in range(2000))
    file.write(" ".join(f"w{i % 100_000}" for i in range(n_words)) + "\n")
    file.writelines(f"w{i % 5} x{i % 7}\n" for i in range(2000))


def values_in_a_line(file, n_values=3_000_000):
    file.writelines(f"1 {1 + i % 5}:1 {10 + i % 7}:2\n" for i in range(2000))
    file.write("1 " + " ".join(f"{i}:1" for i in range(1, n_values + 1)) + "\n")


@pytest.mark.parametrize(
    ("write", "options", "limit"),
    [
        pytest.param(
            partial(words_in_a_line, n_words=1_000_000),
            {"format": "lines", "tfidf": False},
            "380 MiB",
            marks=FULL,
        ),
        (values_in_a_line, None, "390 MiB"),
    ],
    ids=["lines", "svmlight"],
)
def test_a_long_line_is_refused_by_its_place_or_read_within_the_limit(disk_path, write, options, limit):
    path = disk_path / "x.svm"
    with path.open("w") as file:
        write(file)

    def run(limit):
        got = run_compiled(LONG, [str(path), f"{limit}, {HELD_BYTES}", json.dumps(options)], imported=IMPORTED)
        assert got["peak"] <= int(limit.removesuffix(" MiB")) << 20
        return got["said"]

    said, n_refused = run(limit), 0
    while said:
        n_refused += 1
        assert n_refused <= 2  # the pass that counts words, and the fit
        named = re.search(
            rf"{re.escape(str(path))}, line 2,001 \(byte [\d,]+\), of [\d,]+ bytes.* memory_limit to .*?([\d,]+) MiB",
            said,
        )
        assert named, said
        said = run(f"{named[1].replace(',', '')} MiB")
    assert n_refused


@pytest.mark.slow
def test_a_long_line_that_no_probe_sees_is_refused_as_it_is_read(disk_path):
    """A limit that is named is one that will do."""
    path, limit, n_named = disk_path / "x.gz", "430 MiB", 0
    with gzip.open(path, "wt", 1) as file:
        values_in_a_line(file, 3_200_000)
    while True:
        given = [str(path), f"{limit}, {HELD_BYTES}", json.dumps(None)]
        got = run_compiled(LONG, given, imported=IMPORTED)
        assert got["peak"] <= int(limit.removesuffix(" MiB")) << 20
        if not got["said"]:
            break
        said = re.fullmatch(
            rf"{re.escape(str(path))}, line 2,001 \(byte [\d,]+\), of 3[\d,]+ bytes, takes up to .* MiB, and the limit "
            r"of .* leaves .* for a line; raise memory_limit to ([\d,]+) MiB, or cut the line",
            got["said"],
        )
        assert said is not None, got
        limit, n_named = f"{said[1].replace(',', '')} MiB", n_named + 1
    assert n_named == 1


CLIENT = (
    FIT.replace(
        """fitted = StreamKMeans(int(k), **parameters).fit(path)""",
        """from distributed import Client
with Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
    fitted = StreamKMeans(int(k), executor=client, **parameters).fit(path)
    of_workers = client.run(eval, "open('/proc/self/status').read()").values()""",
    )
    + """
found = json.loads(said)
found["worker_peak"] = max(int(each.split("VmHWM:")[1].split()[0]) * 1024 for each in of_workers)
print(json.dumps(found | {"worker_projected": fitted.plan_.workers.peak_bytes}))
"""
).replace("print(json.dumps({", "said = (json.dumps({")


@pytest.mark.slow
def test_the_client_of_a_cluster_stays_within_the_limit(disk_path, reduced):
    """The scheduler is in its process, too, and so is what workers tell; the sketched rows lie on workers."""
    path = disk_path / "rows.npy"
    np.save(path, np.random.default_rng(0).random((1_000_000, 64), np.float32))
    limits = [f"{limit}, {HELD_BYTES}" for limit in ("400 MiB", "460 MiB")]
    for limit in ("auto", *limits)[: 3 - reduced]:
        got = run_compiled(CLIENT, [str(path), "20", limit, "{}"], imported=IMPORTED)
        assert got["cluster_on"] == "blocks"
        assert got["peak"] <= got["projected"] <= min(2 * got["peak"], got["limit"])
        assert got["worker_peak"] <= got["worker_projected"] <= 2 * got["worker_peak"]


HELD = """
import json, sys
from streamkm import StreamKMeans, open_source
from streamkm.core.memory import resident_bytes

source = open_source(sys.argv[1])
held = resident_bytes()
fitted = StreamKMeans(3, memory_limit="2 GiB", executor=1, progress=False, random_state=0).fit(source)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({"held": held, "counted": fitted.plan_.base_bytes,
                  "peak": int(status["VmHWM"].split()[0]) * 1024, "projected": fitted.plan_.peak_bytes}))
"""


def small_table(path, X):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pa.table({f"x{j}": X[:, j] for j in range(X.shape[1])})
    parquet.write_table(table, path)


def small_h5ad(path, X):
    pytest.importorskip("anndata").AnnData(sp.csr_matrix(X)).write_h5ad(path)


@pytest.mark.parametrize(
    ("file", "write"),
    slow_but([("x.parquet", small_table)], [("x.npy", np.save), ("x.parquet", small_table), ("x.h5ad", small_h5ad)]),
)
def test_plans_count_what_a_process_holds_that_reads_rows_of_a_kind(disk_path, file, write):
    """Libraries above all: there are few rows."""
    write(disk_path / file, np.random.default_rng(0).random((500, 4), np.float32))
    got = run_compiled(HELD, [str(disk_path / file)])
    assert got["held"] <= got["counted"]
    assert got["peak"] <= got["projected"]


@pytest.mark.parametrize("k", [3, 3000])
def test_pieces_of_a_stream_wait_one_a_call(k):
    """Not in runs: all of a run would lie in memory. Neither where sums are smaller than a piece nor where larger."""
    alive, most = 0, 0

    class Pieces(RowSource):
        access = Access(streams=True)
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

    reader = RowReader(Pieces(), 80_000, "euclidean", "raise")
    model = Model(np.random.default_rng(0).random((k, 200)), 200, "euclidean", "original", IdentitySketch(200))
    assert StreamKMeans(k).plan(Pieces()).memory_model.reading.streams
    with open_executor(2) as workers:
        context, chunk_rows = PassContext(executor=workers, reader=reader), np.full(60, 100)
        sink = GatheredLabels(chunk_rows, context.writer)
        assign_pass(context, Assign(model, model.table()), chunk_rows, Stage("assign"), sink=sink)
    assert alive == 0
    assert most <= waiting_calls(2) + 2


STREAM = """
import json, sys
import numpy as np
from streamkm import StreamKMeans

def chunks():
    rng = np.random.default_rng(0)
    centers = rng.normal(0, 10, (10, 64)).astype(np.float32)
    for _ in range(int(sys.argv[2])):
        y = rng.integers(0, 10, 20_000)
        yield centers[y] + rng.standard_normal((20_000, 64), np.float32)

X = chunks if sys.argv[3:] == ["again"] else chunks()
# of the same chunks, or sums would be rounded otherwise under another limit
fitted = StreamKMeans(10, memory_limit=sys.argv[1], chunk_bytes=2 << 20, progress=False, random_state=0).fit(X)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({"peak": int(status["VmHWM"].split()[0]) * 1024, "limit": fitted.plan_.limit_bytes,
                  "inertia": fitted.inertia_, "n": len(fitted.labels_), "passes": fitted.n_passes_,
                  "cluster_on": fitted.plan_.cluster_on}))
"""


def test_a_stream_that_outgrows_memory_is_spilled(disk_path):
    """Seen once, or starting anew: nobody knows how many rows there will be, so what memory does not hold goes to disk.

    72 MB of rows.
    """
    n_chunks, limit = 14, "370 MiB"
    once, again, roomy = (
        run_compiled(
            STREAM, [f"{most}, {HELD_BYTES}", str(n_chunks), *more], {"TMPDIR": str(disk_path)}, imported=IMPORTED
        )
        for most, *more in ((limit,), (limit, "again"), ("4 GiB",))
    )
    assert once["peak"] <= once["limit"] < roomy["peak"]
    assert once["inertia"] == roomy["inertia"]
    assert (once["n"], once["passes"]) == (20_000 * n_chunks, 1)
    assert again["peak"] <= again["limit"]
    assert (again["n"], again["passes"], again["cluster_on"]) == (20_000 * n_chunks, 2, "spilled")
    assert list(disk_path.iterdir()) == []


GIVE_BACK = """
import json, sys
from streamkm.core.memory import trim_heap, resident_bytes

small = [bytearray(50_000) for _ in range(2_000)]  # from the heap, whose end is in use
kept = small[::100]
del small
before = resident_bytes()
for share, expected in json.loads(sys.argv[1]):
    held = resident_bytes()
    trim_heap(int(share * before), int(expected * before))
    print(held - resident_bytes())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize("crowded", [(1, 0), (3, 0.9)], ids=["a limit is near", "less is expected"])
def test_freed_memory_is_given_back_only_where_it_must_be(crowded):
    arguments = json.dumps([(3, 0), (3, 1.1), crowded])
    done = subprocess.run([sys.executable, "-c", GIVE_BACK, arguments], capture_output=True, text=True, check=True)
    *roomy, given_back = map(int, done.stdout.split())
    assert all(abs(size) <= 4 * mmap.PAGESIZE for size in roomy)  # looking takes a page now and then
    assert given_back > 80_000_000


FORKED = """
import json, os
from streamkm.core.memory import resident_bytes

resident_bytes()
reader, writer = os.pipe()
if os.fork() == 0:
    before = resident_bytes()
    held = b"1" * 100_000_000
    os.write(writer, str(resident_bytes() - before).encode())
    os._exit(0)
print(json.dumps(int(os.read(reader, 50))))
"""


def test_a_forked_process_is_asked_what_it_holds_itself():
    assert run_fresh(FORKED) > 80_000_000


HEAP = """
import ctypes, json
from streamkm.core.memory import trim_heap, heap_restored, resident_bytes

class Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t * size) for name, size in (("before", 3), ("hblks", 1), ("after", 6))]

mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Mallinfo2

def apart():
    "Whether a block of 8 MiB, as many have been freed before, comes from the system and not from the heap."
    before = mallinfo2().hblks[0]
    block = bytearray(8 << 20)
    return mallinfo2().hblks[0] > before

found = [apart(), apart()]  # the C library notices that it was freed
trim_heap(resident_bytes())  # no call to end
found.append(apart())
with heap_restored:
    trim_heap(10 * resident_bytes())
    found.append(apart())
    with heap_restored:
        trim_heap(resident_bytes())
        found.append(apart())
    found.append(apart())
found.append(apart())
print(json.dumps(found))
"""


@pytest.mark.skipif(platform.libc_ver() < ("glibc", "2.33"), reason="another C library, or without mallinfo2")
def test_large_blocks_come_from_the_heap_again_when_a_call_has_ended():
    own = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}  # Dask sets one
    bound = {**own, "MALLOC_TRIM_THRESHOLD_": "65536"}  # as in its workers, where no heap holds large blocks
    for environment, apart in ((own, [True, False, False, False, True, True, False]), (bound, [True] * 7)):
        done = subprocess.run([sys.executable, "-c", HEAP], capture_output=True, text=True, check=True, env=environment)
        assert json.loads(done.stdout) == apart


LABELS = """
import json, sys
from streamkm import StreamKMeans
path, folder, limit = sys.argv[1:]
fitted = StreamKMeans(10, memory_limit=limit, progress=False, random_state=0).fit(path)
same = bool((fitted.predict(path) == fitted.labels_).all())
score = fitted.score(path)
rows = fitted.predict_to(path, f"{folder}/labels.parquet").n_rows
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({"peak": int(status["VmHWM"].split()[0]) * 1024, "limit": fitted.plan_.limit_bytes, "same": same,
                  "score": score / fitted.inertia_, "rows": rows}))
"""


@pytest.mark.slow
def test_predictions_and_tables_of_labels_stay_within_the_limit(disk_path):
    """Of narrow rows, what is found of a chunk takes more than the chunk."""
    n_rows = 2_000_000
    path = narrow(disk_path / "x.npy", n_rows, 4)
    got = run_compiled(LABELS, [str(path), str(disk_path), "400 MiB"])
    assert got["peak"] <= got["limit"]
    assert (got["same"], got["rows"]) == (True, n_rows)
    assert got["score"] == pytest.approx(-1)


NEAR_DUPLICATES = """
import json, sys
from streamkm import dedupe
path, limit = sys.argv[1:3]
found = dedupe(path, 0.95, n_clusters=120, memory_limit=limit, progress=False, random_state=0)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({"peak": int(status["VmHWM"].split()[0]) * 1024, "largest": found.largest_cluster}))
"""


@pytest.mark.slow
def test_clusters_are_compared_within_the_limit(disk_path):
    """Rows take half of the limit's room, so that a part of them goes to the disk before they are compared."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50_000, 256)).astype(np.float32)
    X[: len(X) // 2] += 3.7  # a few in a million pairs of these are near duplicates
    np.save(disk_path / "x.npy", X)
    got = run_compiled(NEAR_DUPLICATES, [str(disk_path / "x.npy"), "412 MiB"])
    assert got["peak"] <= 360 << 20
    assert got["largest"] <= 4 * len(X) / 120
