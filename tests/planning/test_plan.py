"""The plan: sketch, space, chunks and bytes, chosen before the first read, and what is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import fields
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from sklearn.datasets import dump_svmlight_file

from streamkm import SketchOptions, StreamKernelKMeans, StreamKMeans
from streamkm.cli.main import main
from streamkm.cli.summary import result_lines
from streamkm.core import memory as limits
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, MemoryLimitError
from streamkm.core.memory import is_given, memory_limit_bytes
from streamkm.estimators.model_files import summarize
from streamkm.planning import memory_budget
from streamkm.planning.fit_plan import plan_fit, plan_store, plan_sweep
from streamkm.planning.plan import PlannedSketch
from streamkm.planning.request import Resources
from streamkm.sketches import CountSketch
from streamkm.sketches.options import full_options
from streamkm.sources import open_source
from streamkm.sources.chunks import Access, ChunkRuns, default_chunk_bytes
from streamkm.sources.row_source import RowSource
from streamkm.stores.planned import StoredRows
from tests.limits import PROCESS_MEMORY, limited
from tests.passes.test_passes import StreamedSource
from tests.tables import cases

GIB = 1 << 30


class UnreadSource(RowSource):
    """Only a description: reading fails the test."""

    name = "unread"
    n_bytes = 12_345

    def __init__(self, n_rows, n_features, *, sparse=False, dtype=np.float32):
        self.n_rows, self.n_features = n_rows, n_features
        self.is_sparse, self.dtype = sparse, np.dtype(dtype)

    def chunks(self, target_bytes):
        row_bytes = 600 if self.is_sparse else self.n_features * self.dtype.itemsize
        rows = max(1, target_bytes // row_bytes)
        starts = range(0, self.n_rows, rows)
        stops = [min(start + rows, self.n_rows) for start in starts]
        cuts = zip(starts, stops, strict=True)
        return ChunkRuns.of((0, start, stop, (stop - start) * row_bytes) for start, stop in cuts)

    def read(self, chunk):
        raise AssertionError("planning must not read")


def plan(source, **changed):
    parameters = {
        "n_clusters": 10,
        "sketch": "auto",
        "refine": 0,
        "coreset": "auto",
        "chunk_bytes": "auto",
        "memory_limit": 8 * GIB,
        "n_threads": 2,
    }
    parameters |= changed
    if is_given(parameters["memory_limit"]):
        parameters["memory_limit"] = limited(parameters["memory_limit"])
    parameters["options"] = full_options("sketch", parameters.pop("sketch"))
    resources = Resources(
        **{each.name: parameters.pop(each.name) for each in fields(Resources) if each.name in parameters}
    )
    return plan_fit(source, resources, **parameters)


def test_components_as_asked_for():
    for kind in ("countsketch", "pca"):
        got = plan(UnreadSource(1000, 20), sketch=SketchOptions(kind, 7))
        assert (got.sketch, got.n_components) == (kind, 7)
    assert plan(UnreadSource(1000, 20, sparse=True), sketch=SketchOptions(n_components=7)).n_components == 7
    # nothing to gain where d <= m
    assert plan(UnreadSource(1000, 20), sketch=SketchOptions(n_components=20)).sketch == "identity"
    assert plan(UnreadSource(1000, 20), sketch=SketchOptions(n_components=21)).n_components == 20
    assert plan(UnreadSource(1000, 20), sketch=SketchOptions("countsketch", 20)).sketch == "countsketch"
    assert plan(UnreadSource(1000, 5000), sketch="identity").n_components == 5000


def test_impossible_sketches_are_refused(tmp_path):
    with pytest.raises(InvalidParameterError, match=r"n_components=7.*20"):
        plan(UnreadSource(1000, 20), sketch=SketchOptions("identity", 7))
    with pytest.raises(InvalidParameterError, match=r"pca.*sparse.*countsketch"):
        plan(UnreadSource(1000, 20, sparse=True), sketch="pca")
    (tmp_path / "x.svm").write_text("1 1:1 5:2\n0 2:3\n")
    for kind in ("identity", "hadamard"):
        with pytest.raises(InvalidParameterError, match=rf'sketch="{kind}" needs .*pass n_features with the data'):
            plan(open_source(tmp_path / "x.svm"), sketch=kind)


@cases("sparse", [False, True])
@cases("kind", ["countsketch", "hadamard", "svd"])
def test_no_more_components_than_features_unless_the_number_is_given(kind, sparse):
    got = plan(UnreadSource(1000, 16, sparse=sparse), sketch=kind)
    assert (got.sketch, got.n_components) == ("identity", 16)
    assert f"{kind} would have" in dict(got.lines())["sketch"]
    asked = plan(UnreadSource(1000, 16, sparse=sparse), sketch=SketchOptions(kind, 20 if kind != "hadamard" else 16))
    assert asked.n_components == (20 if kind != "hadamard" else 16)
    wide = plan(UnreadSource(1000, 3000, sparse=sparse), sketch=kind)
    assert (wide.sketch, wide.n_components) == (kind, {"svd": 48}.get(kind, 2048 if sparse else 256))
    chosen = [plan(UnreadSource(1000, n_features, sparse=sparse)).sketch for n_features in (16, 100_000)]
    assert chosen == ["identity", "countsketch" if sparse else "pca"]


@cases("n_rows", [10, 1_000_000])
def test_chunks_depend_on_the_data_alone(n_rows):
    source = UnreadSource(n_rows, 100)
    got = plan(source)
    assert got.n_chunks == len(source.chunks(got.chunk_bytes))
    assert plan(source, n_clusters=3, memory_limit=1 << 50, n_threads=8).chunk_bytes == got.chunk_bytes
    assert got.chunk_bytes <= 64 << 20
    assert plan(source, chunk_bytes=12_345).chunk_bytes == 12_345
    assert plan(UnreadSource(100_000, 100)).n_chunks >= 8  # work is shared where the data are few, too
    assert default_chunk_bytes(StreamedSource(np.ones((3, 2)))) == 8 << 20  # nothing is known of the rows


@cases("sparse, space", [(False, "original"), (True, "sketch")])
def test_refuses_what_does_not_fit_before_reading(sparse, space):
    source = UnreadSource(1_000_000, 10_000, sparse=sparse)
    fixed = {"sketch": SketchOptions(assign_space=space), "chunk_bytes": 1 << 20, "n_clusters": 5000}
    needed = plan(source, memory_limit=1 << 60, **fixed).peak_bytes
    assert plan(source, memory_limit=needed, **fixed).limit_bytes == needed
    with pytest.raises(
        MemoryLimitError, match=r"unread needs about .*[GM]iB.*stage.*limit of.*raise memory_limit"
    ) as caught:
        plan(source, memory_limit=400 << 20, **fixed)
    assert isinstance(caught.value, MemoryError)


def test_a_limit_below_the_libraries_says_so():
    with pytest.raises(MemoryLimitError, match=r"294\.0 MiB of it are this process and its libraries"):
        plan(UnreadSource(1000, 20), memory_limit="100 MB")


def test_one_storage_chunk_above_the_limit_is_refused_by_name():
    class OneChunk(UnreadSource):
        name = "x.h5:/X"

        def chunks(self, target_bytes):
            return ChunkRuns.of([(0, 0, self.n_rows, self.n_rows * self.n_features * 8)])

    with pytest.raises(
        MemoryLimitError, match=r"x\.h5:/X .*stored in chunks of 7\.5 GiB, which can only be read whole"
    ):
        plan(OneChunk(1_000_000, 1000, dtype=np.float64), memory_limit="1 GiB")


def test_memory_does_not_grow_with_the_rows_where_a_sample_is_clustered():
    few, many = (plan(UnreadSource(n, 1000, dtype=np.uint8)) for n in (1_000_000, 10_000_000))
    assert many.cluster_on == few.cluster_on == "sample"
    assert many.peak_bytes - few.peak_bytes <= 12 * 9_000_000  # labels, and 8 bytes in flight


def test_rows_that_do_not_fit_get_a_coreset():
    source = UnreadSource(100_000_000, 100)
    roomy = plan(source, memory_limit=64 * GIB)
    tight = plan(source)
    assert (roomy.cluster_on, tight.cluster_on, tight.sketch) == ("blocks", "coreset", "identity")
    assert "would not fit" in dict(tight.lines())["clustering"]
    assert tight.peak_bytes <= tight.limit_bytes
    sketched = plan(source, sketch=SketchOptions("countsketch", 50, assign_space="sketch"))
    assert (sketched.cluster_on, sketched.assign_space) == ("coreset", "sketch")


def test_all_rows_are_sketched_where_few_can_be_sampled():
    """A limit costs a pass, not quality: 100 clusters of wide rows need more than a sample of 75 rows each."""
    wide = UnreadSource(300_000, 784, dtype=np.uint8)
    found = {limit: plan(wide, n_clusters=100, memory_limit=limit) for limit in ("360 MiB", "600 MiB", "8 GiB")}
    assert [each.cluster_on for each in found.values()] == ["spilled", "blocks", "blocks"]
    assert [each.passes for each in found.values()] == [3, 2, 2]
    assert found["360 MiB"].sample_rows < 200 * 100 <= found["600 MiB"].sample_rows
    assert plan(wide, n_clusters=300, memory_limit="1 GiB").cluster_on == "blocks"
    assert all(each.peak_bytes <= each.limit_bytes for each in found.values())


def test_no_limit_leaves_a_sample_too_small_to_serve():
    """At the smallest limit, too: all rows are sketched where fewer than 200 sampled rows a cluster have room."""
    found = []
    for wide in (UnreadSource(60_000, 784, dtype=np.uint8), UnreadSource(300_000, 784, dtype=np.uint8)):
        for limit in range(300, 420, 8):
            with suppress(MemoryLimitError):
                found.append(plan(wide, n_clusters=20, memory_limit=f"{limit} MiB", refine="auto"))
    assert {each.cluster_on for each in found} >= {"blocks", "spilled"}
    assert all(each.cluster_on != "sample" or each.sample_rows >= 200 * 20 for each in found)


def test_a_plan_depends_on_data_parameters_and_limit_alone(monkeypatch):
    """Neither on what is free now nor on what this process holds: the same call twice plans the same."""
    X, source = np.zeros((50_000, 100), np.float32), UnreadSource(5_000_000, 100)
    for given, limit in ((X, "700 MiB"), (source, "700 MiB"), (source, "auto")):
        estimator, plans = StreamKMeans(50, memory_limit=limit if limit == "auto" else limited(limit)), []
        for free in (20 * GIB, 3 * GIB):
            monkeypatch.setattr(limits, "resident_bytes", lambda free=free: 23 * GIB - free)
            monkeypatch.setattr(limits, "available_memory", lambda free=free: free)
            monkeypatch.setattr(memory_budget, "available_memory", lambda free=free: free)
            plans.append(estimator.plan(given))
        assert plans[0] == plans[1]
    assert plan(open_source(X)).base_bytes == PROCESS_MEMORY + X.nbytes


SAID_OF_THREADS = {"n_threads", "memory_model", "memory", "block_room", "cached_bytes"}  # what more of them may change


def settled(got):
    """What a plan says that results depend on."""
    return {name: value for name, value in got.to_dict().items() if name not in SAID_OF_THREADS}


@cases(
    "limit, case",
    [
        (limit, case)
        for i, limit in enumerate(("330 MiB", "600 MiB", "8 GiB"))
        for j, case in enumerate(("rows", "wide", "sparse", "many", "text", "stream", "all", "kernel"))
        if (i + j) % 3 != 2
    ],
)
def test_no_number_of_threads_changes_what_is_planned(case, limit, tmp_path):
    """Sizes, cluster_on and space are those of one thread; where the rest have no room, fewer run."""
    source, changed = UnreadSource(40_000_000, 16), {"n_clusters": 20, "refine": "auto"}
    if case == "wide":
        source = UnreadSource(300_000, 784, dtype=np.uint8)
    elif case == "sparse":
        source = UnreadSource(1_000_000, 20_000, sparse=True)
    elif case == "many":
        source, changed["n_clusters"] = UnreadSource(2_000_000, 32), 1000
    elif case == "text":
        (tmp_path / "x.svm").write_text("1 1:1 5000:2\n0 2:3\n" * 20_000)
        source, changed["coreset"] = open_source(tmp_path / "x.svm"), None
    elif case == "stream":
        source = StreamedSource(np.zeros((10, 16), np.float32))
    elif case == "all":
        changed["coreset"] = None

    def of(n_threads):
        try:
            if case == "kernel":
                kernel = StreamKernelKMeans(10, memory_limit=limit, executor=n_threads)
                return kernel.plan_for(UnreadSource(500_000, 30))
            return plan(source, memory_limit=limit, n_threads=n_threads, **changed)
        except MemoryLimitError as error:
            return str(error)

    got = {n_threads: of(n_threads) for n_threads in (1, 2, 4, 8)}
    if isinstance(got[1], str):
        assert set(got.values()) == {got[1]}
        return
    for n_threads, each in got.items():
        assert settled(each) == settled(got[1])
        assert 1 <= each.n_threads <= n_threads
        assert each.peak_bytes <= each.limit_bytes


@cases("limit", ["450 MiB", "8 GiB"])
def test_no_number_of_threads_changes_a_sweep_or_a_store(limit):
    source, sketch = UnreadSource(400_000, 500), PlannedSketch("pca", 50, "")
    for planned in (
        lambda given: plan_sweep(source, given, sketch, 5_000, 2_000, 20),
        lambda given: plan_store(source, given, sketch, 10_000, StoredRows.memory),
    ):
        given = partial(Resources, memory_limit=limited(limit), chunk_bytes="auto")
        got = [planned(given(n_threads=n_threads)) for n_threads in (1, 2, 4, 8)]
        assert len({each.chunk_bytes for each in got}) == 1
        assert all(max(each.memory.values()) <= each.limit_bytes for each in got)
        assert [each.n_threads for each in got] == sorted(each.n_threads for each in got)


def test_a_plan_counts_what_the_process_holds_in_steps(monkeypatch):
    """With a limit; without one, results do not depend on the process. What was told repeats the plan elsewhere."""
    X, found = np.zeros((50_000, 100), np.float32), {}
    for held in (130, 145, 600):
        monkeypatch.setattr(memory_budget, "resident_bytes", lambda held=held: (held << 20) + X.nbytes)
        found[held] = StreamKMeans(5, memory_limit="1 GiB").plan(X)
        assert found[held].base_bytes == found[held].process_memory + X.nbytes
        assert found[held].process_memory >= held << 20
        assert StreamKMeans(5).plan(X).process_memory == memory_budget.AUTO_BYTES
    assert found[130] == found[145] != found[600]
    assert all((each.process_memory - (200 << 20)) % (32 << 20) == 0 for each in found.values())
    told = found[130].process_memory
    for limit in ({"limit": "1 GiB", "process_memory": told}, f"1 GiB, process {told >> 20} MiB"):
        assert StreamKMeans(5, memory_limit=limit).plan(X) == found[130]
    assert found[130].to_dict()["process_memory"] == told
    assert f"each includes {told >> 20}.0 MiB of the process itself" in dict(found[130].lines())["stages"]


def test_a_fit_tells_what_the_process_held(tmp_path):
    limit = limited("1 GiB")
    fitted = StreamKMeans(2, memory_limit=limit, progress=False).fit(np.eye(4))
    fitted.save(tmp_path / "model.npz")
    for told in (fitted, StreamKMeans.load(tmp_path / "model.npz")):
        assert told.fitted_on_["process_memory"] == limit["process_memory"]
        assert told.get_params()["memory_limit"] == limit
    assert summarize(fitted)["result"]["process_memory"] == limit["process_memory"]
    path = tmp_path / "run.yaml"
    np.save(tmp_path / "x.npy", np.eye(4))
    path.write_text(
        "data: {path: x.npy}\nestimator:\n  n_clusters: 2\n  memory_limit: {limit: 1 GiB, process_memory: 192 MiB}\n"
    )
    planned = CliRunner().invoke(main, ["plan", str(path), "--json"])
    told = planned.stdout  # older versions of click put the log in front
    assert json.loads(told[told.index("{") :])["process_memory"] == 192 << 20


@cases("limit", [{"limit": "1 GiB"}, {"limit": "auto", "process_memory": 1}, "auto, process 1 GiB", "1 GiB, process"])
def test_what_says_nothing_of_the_process_is_no_limit(limit):
    with pytest.raises(InvalidParameterError, match=r'memory_limit=.*needed: .*"1 GiB, process 256 MiB"'):
        StreamKMeans(2, memory_limit=limit).plan(np.eye(4))


def test_without_a_limit_what_the_machine_cannot_give_now_is_refused(monkeypatch):
    """Not planned in another way: labels would differ."""
    source = UnreadSource(10_000_000, 100)
    monkeypatch.setattr(limits, "total_memory", lambda: 20 * GIB)
    monkeypatch.setattr(memory_budget, "available_memory", lambda: 2 * GIB)
    with pytest.raises(MemoryLimitError, match=r'2\.0 GiB are free; end what.*memory_limit="(\d+) MiB"') as caught:
        plan(source, memory_limit="auto")
    asked = str(caught.value).rpartition('memory_limit="')[2].partition('"')[0]
    got = plan(source, memory_limit=asked)
    assert got.peak_bytes - got.base_bytes <= 2 * GIB
    monkeypatch.setattr(memory_budget, "available_memory", lambda: 15 * GIB)
    assert plan(source, memory_limit="auto").limit_bytes == 16 * GIB


def test_chunks_that_a_program_makes_take_memory_twice():
    X = np.zeros((50_000, 100), np.float32)
    made, listed = (plan(open_source(chunks)).memory for chunks in (lambda: iter([X]), [X]))
    assert made["sketch"] - listed["sketch"] >= 2 * X.nbytes


@cases(
    "kind, dtype", [("signs", np.float64), ("svd", np.float32), (CountSketch(700, 1, nnz_per_feature=3), np.float64)]
)
def test_what_sketches_make_of_sparse_rows_is_projected(kind, dtype):
    X = sp.random_array((400, 3000), density=0.01, format="csr", dtype=dtype, rng=np.random.default_rng(0))
    size = 256 if isinstance(kind, str) else "auto"
    kmeans = StreamKMeans(
        3, sketch=SketchOptions(kind, size), progress=False, random_state=0, n_init=1, max_iter=1
    ).fit(X)
    sketched = kmeans.sketch_.apply(X)
    held = sketched.nbytes if isinstance(sketched, np.ndarray) else sketched.data.nbytes + sketched.indices.nbytes
    assert kmeans.plan_.memory_model.rows.block_row_bytes >= 0.9 * held / 400


def test_centers_that_do_not_fit_are_kept_in_the_sketch():
    source = UnreadSource(10_000, 1_000_000, sparse=True)
    assert plan(source, n_clusters=10).assign_space == "original"
    got = plan(source, n_clusters=1000)
    assert got.assign_space == "sketch"
    assert got.peak_bytes < GIB
    assert plan(source, n_clusters=10, sketch=SketchOptions(assign_space="sketch")).assign_space == "sketch"
    assert plan(source, n_clusters=1000, memory_limit=1 << 50).assign_space == "original"


def test_labels_of_the_sketch_for_want_of_memory_are_warned_of(tmp_path):
    """Before the last pass, and in plan, log and summary by their right name."""
    X = sp.random_array((300, 3000), density=1.0, format="csr", dtype=np.float32, rng=np.random.default_rng(0))
    X.resize((300, 2_000_000))
    estimator = StreamKMeans(
        30, memory_limit=limited("600 MiB"), sketch=SketchOptions(n_components=64), random_state=0, progress=False
    )
    said = dict(estimator.plan(X).lines())["assignment"]
    assert said == "in the sketch space: centers of all features do not fit below the limit"
    with pytest.warns(
        UserWarning, match=r"^30 centers of 2,000,000 .*600\.0 MiB, so rows were assigned in the sketch \(64 components"
    ):
        fitted = estimator.fit(X)
    assert fitted.assign_space_ == "sketch"
    told = dict(result_lines(summarize(fitted)))
    assert "to the nearest center, in the sketch space" in told["objective"]
    asked = StreamKMeans(
        30, sketch=SketchOptions(n_components=64, assign_space="sketch"), random_state=0, progress=False
    ).fit(X)
    assert asked.assign_space_ == "sketch"  # no warning: it was asked for
    # of text, only the first pass tells: the plan says what it takes for granted
    lines = (f"1 {row + 1}:1 {1_999_000 + row}:2\n" for row in range(300))
    (tmp_path / "x.svm").write_text("".join(lines))
    assert dict(estimator.plan(tmp_path / "x.svm").lines())["assignment"] == (
        "in the original space (about 1,999,299 features are expected; the first pass decides)"
    )


def test_centers_of_few_documents_are_planned_by_what_may_occur():
    """At most as many features as there are entries, where the sample has all rows."""
    few, many = (UnreadSource(n_rows, 1 << 20, sparse=True) for n_rows in (1000, 60_000))
    assert plan(few, n_clusters=50).memory_model.rows.center_features <= 1000 * 75  # of 8 bytes
    peaks = [plan(source, n_clusters=50, memory_limit="64 GiB").peak_bytes for source in (few, many)]
    assert peaks[0] < peaks[1] - 3 * 50 * 8 * (1 << 19)
    assert plan(many, n_clusters=50).memory_model.rows.center_features == 1 << 20
    assert plan(few, n_clusters=50, sketch="svd").memory_model.rows.center_features == 1 << 20


@pytest.mark.parametrize(("times", "cluster_on"), [(0.5, "sample"), (2, "blocks"), (9, "blocks"), (11, "sample")])
def test_wide_sparse_rows_are_all_clustered_up_to_ten_times_the_sample(times, cluster_on):
    source = UnreadSource(int(times * 50_000), 47_236, sparse=True)
    got = plan(source, n_clusters=20)
    assert (got.sketch, got.cluster_on, got.passes, got.reads_ahead) == ("countsketch", cluster_on, 2, False)
    said = {0.5: "on all rows: the row sample", 11: "coreset=None clusters all sketched rows"}
    assert said.get(times, "on all sketched rows, seeding too") in dict(got.lines())["clustering"]
    for asked, found in (("uniform", "sample"), (None, "blocks")):
        assert plan(source, n_clusters=20, coreset=asked).cluster_on == found
    assert plan(source, n_clusters=20, memory_limit="600 MiB").cluster_on == ("sample" if times > 2 else cluster_on)


def test_rows_of_unknown_number_are_kept_where_memory_is_free(monkeypatch):
    """The room that they may take is not more than the machine has left, whatever the limit."""
    monkeypatch.setattr(memory_budget, "available_memory", lambda: 2 * GIB)
    chunks = iter([np.zeros((10, 4))])
    got = StreamKMeans(2, coreset=None).plan(chunks)
    assert GIB < got.block_room < 2 * GIB
    assert got.peak_bytes - got.base_bytes <= 2 * GIB


def test_a_search_that_too_few_rows_rule_out_takes_no_memory(tmp_path):
    """A million rows of 128 bytes; with more rows for each cluster, it is planned."""
    path = str(tmp_path / "x.npy")
    np.lib.format.open_memmap(path, "w+", np.uint8, (1_000_000, 128))  # a hole: nobody reads it

    def stages(n_clusters, limit):
        given = {"limit": limit, "process_memory": 200 << 20}
        return StreamKMeans(n_clusters, memory_limit=given, executor=1).plan(open_source(path)).memory

    assert "search" not in stages(1024, "256 MiB")
    assert "search" not in stages(16_384, "512 MiB")
    assert "search" in stages(1024, "4 GiB")
    assert "search" in stages(100, "300 MiB")


def test_the_plan_tries_what_it_can_choose_before_it_refuses():
    """Cases that were refused, though other sizes fit."""
    assert plan(UnreadSource(1000, 8), memory_limit="306 MiB").peak_bytes <= 306 << 20
    for source, k in ((UnreadSource(3_000_000, 256), 100), (UnreadSource(40_000_000, 16), 1000)):
        got = plan(source, n_clusters=k, memory_limit="1 GiB")
        assert got.peak_bytes <= GIB
        assert got.cluster_on in ("coreset", "spilled")  # time is given up, not quality
    tight = plan(UnreadSource(3_000_000, 256), n_clusters=500, memory_limit="700 MiB")
    assert (tight.cluster_on, tight.assign_space) == ("spilled", "original")
    assert tight.block_room > 0
    assert tight.limit_bytes >= tight.peak_bytes >= tight.base_bytes + tight.block_room  # what is kept is counted
    assert "is written to disk" in dict(tight.lines())["clustering"]


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        (UnreadSource(3_000_000, 256), {"n_clusters": 500}),
        (UnreadSource(3_000_000, 256), {"n_clusters": 500, "coreset": "sensitivity"}),
        (UnreadSource(3_000_000, 256), {"n_clusters": 500, "coreset": None}),
        (UnreadSource(1_000_000, 20_000), {"n_clusters": 100}),
        (UnreadSource(1_000_000, 20_000, sparse=True), {"n_clusters": 1000}),
    ],
)
def test_the_remedy_of_a_refusal_works(source, changed):
    with pytest.raises(MemoryLimitError) as caught:
        plan(source, memory_limit="300 MiB", **changed)
    needed = str(caught.value).partition("raise memory_limit to ")[2].partition(" MiB")[0].replace(",", "")
    got = plan(source, memory_limit=f"{needed} MiB", **changed)
    assert got.peak_bytes <= int(needed) << 20


def test_storage_chunks_are_decoded_by_as_many_threads_as_fit():
    """One at a time, rather than a refusal."""

    class LargeChunks(UnreadSource):
        access = Access(read_factor=4.0)

        def chunks(self, target_bytes):
            return super().chunks(86 << 20)

    roomy, tight = (plan(LargeChunks(1_000_000, 784), memory_limit=limit) for limit in ("8 GiB", "1 GiB"))
    assert (roomy.n_threads, tight.n_threads) == (2, 1)
    assert tight.peak_bytes <= GIB


def test_a_stream_that_cannot_be_replayed_gets_one_pass():
    def once(d=2):
        return open_source(iter([np.zeros((3, d))]))

    got = plan(once())
    assert (got.passes, got.cluster_on, got.assign_space, got.sketch) == (1, "spilled", "original", "identity")
    wide = plan(once(5000))
    assert (wide.passes, wide.cluster_on, wide.assign_space, wide.sketch) == (1, "spilled", "sketch", "countsketch")
    assert "read only once" in wide.why_regime
    for impossible in ({"refine": 1}, {"sketch": "pca"}, {"sketch": SketchOptions(assign_space="original")}):
        with pytest.raises(InvalidInputError, match=r"read only once, and .* needs another pass; pass a list"):
            plan(once(5000), **impossible)
    assert plan(open_source(lambda: iter([np.zeros((3, 2))]))).n_rows is None


def test_plan_of_text_knows_the_rows_roughly(tmp_path):
    path = tmp_path / "x.svm"
    path.write_text("".join(f"{i % 3} 1:{i} 7:2.5\n" for i in range(5000)))
    got = plan(open_source(path))
    assert (got.n_features, got.assign_space, got.space_for(5), got.space_for(1 << 30)) == (
        None, None, "original", "sketch",
    )  # fmt: skip
    assert 2500 < got.n_rows < 10_000


def test_a_plan_prints_as_the_command_does(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(50, 4)))
    printed = CliRunner().invoke(main, ["plan", str(tmp_path / "x.npy"), "-k", "3"]).output.splitlines()
    kmeans = StreamKMeans(3, random_state=0, progress=False).fit(tmp_path / "x.npy")
    assert str(kmeans.plan_).splitlines() == printed[:-1]
    assert printed[-1].startswith("results")


# ---- limits


@cases(
    "limit, wanted",
    [
        (12345, 12345),
        ("1 GiB", GIB),
        ("1.5GB", 1_500_000_000),
        ("500 mib", 500 << 20),
        ("1000", 1000),
        ("2 TB", 2 * 10**12),
    ],
)
def test_limits_in_bytes(limit, wanted):
    assert memory_limit_bytes(limit) == wanted


def test_limits_as_shares(monkeypatch):
    monkeypatch.setattr(limits, "total_memory", lambda: 1000)
    monkeypatch.setattr(limits, "available_memory", lambda: 500)
    assert memory_limit_bytes(0.25) == memory_limit_bytes("25%") == 250
    assert memory_limit_bytes(1.0) == 1000
    assert memory_limit_bytes("auto") == 800


@cases("limit", [0, -1, 0.0, 1.5, "lots", "", "0 GB", "200%", True, None, "5 XB"])
def test_other_limits_are_refused(limit):
    with pytest.raises(InvalidParameterError, match=r"memory_limit=.*needed"):
        memory_limit_bytes(limit)


def test_a_containers_limit_counts(monkeypatch, tmp_path):
    (tmp_path / "max").write_text("1000000\n")
    (tmp_path / "current").write_text("400000\n")
    monkeypatch.setattr(limits, "_CONTAINERS", ((str(tmp_path / "max"), str(tmp_path / "current")),))
    assert limits.total_memory() == 1_000_000
    assert limits.available_memory() == 600_000
    (tmp_path / "max").write_text("max\n")
    assert limits.total_memory() > 1_000_000


def test_rows_are_told_as_exactly_as_they_are_known(tmp_path):
    np.savetxt(
        tmp_path / "x.csv", np.random.default_rng(0).normal(size=(3000, 3)), delimiter=",", header="a,b,c", comments=""
    )
    told = dict(StreamKMeans(3).plan(np.zeros((344, 4))).lines())
    assert (told["rows"], told["row sample"]) == ("344", "all 344 rows")
    told = dict(StreamKMeans(3).plan(np.broadcast_to(np.float32(1), (200_000, 4))).lines())
    assert told["rows"] == "200,000"
    assert told["row sample"].startswith("up to ")
    told = dict(StreamKMeans(3).plan(str(tmp_path / "x.csv")).lines())
    assert told["rows"].startswith("about ")
    assert told["row sample"] == f"all {told['rows']} rows"
    rows = sp.random_array((400, 16), density=0.9, rng=np.random.default_rng(0), format="csr")
    dump_svmlight_file(rows, np.zeros(400), str(tmp_path / "x.svm"), zero_based=False)
    told = dict(StreamKMeans(3).plan(str(tmp_path / "x.svm")).lines())
    assert told["features"] == "known after the first pass"
    assert "about 16 features" in told["assignment"]


# ---- epochs


def rows_of_groups(n_rows, n_features=8, dtype=np.float32):
    rng = np.random.default_rng(0)
    return (
        3 * rng.normal(size=(200, n_features))[rng.integers(200, size=n_rows)] + rng.normal(size=(n_rows, 1))
    ).astype(dtype)


def sparse_rows(n_features):
    return sp.random_array(
        (4000, n_features), density=0.05, format="csr", dtype=np.float32, rng=np.random.default_rng(0)
    )


NARROW_LABELS = SketchOptions(n_components=64, assign_space="sketch")
FULL = (pytest.mark.slow, pytest.mark.full)
EPOCHS = [
    pytest.param(rows_of_groups(5000), {"n_clusters": 70}, 8, id="dense"),
    pytest.param(rows_of_groups(12_000, dtype="f8"), {"n_clusters": 70}, 4, id="many-rows", marks=pytest.mark.slow),
    pytest.param(rows_of_groups(5000), {"n_clusters": 70, "n_init": 1}, 0, id="one-start", marks=pytest.mark.slow),
    pytest.param(rows_of_groups(5000), {"n_clusters": 70, "tol": 0.0}, 0, id="no-tol", marks=pytest.mark.slow),
    pytest.param(rows_of_groups(5000), {"n_clusters": 70, "init": "random"}, 0, id="drawn", marks=pytest.mark.slow),
    pytest.param(rows_of_groups(5000), {"n_clusters": 70, "coreset": None}, 8, id="blocks", marks=FULL),
    pytest.param(
        rows_of_groups(5000, 90), {"n_clusters": 70, "sketch": SketchOptions("countsketch", 32)}, 0, id="polished",
        marks=pytest.mark.slow,
    ),
    pytest.param(sparse_rows(900), {"n_clusters": 70}, 0, id="sparse-sketched", marks=pytest.mark.slow),
    pytest.param(sparse_rows(900), {"n_clusters": 70, "sketch": NARROW_LABELS}, 8, id="sparse-narrow"),
    pytest.param(rows_of_groups(9000), {"n_clusters": 64, "coreset": "sensitivity"}, 4, id="coreset"),
]  # fmt: skip


@pytest.mark.parametrize(("X", "options", "epochs"), EPOCHS)
def test_epochs_run_where_they_serve(X, options, epochs):
    estimator = StreamKMeans(random_state=0, progress=False, **options)
    planned = estimator.plan(X)
    stages = {stage.name: stage for stage in estimator.fit(X).stages_}
    assert str(estimator.plan_) == str(planned)
    assert ("epochs" in stages) == (epochs > 0)
    if epochs:
        assert len(stages["epochs"].inertias) == epochs
        assert len(stages["lloyd"].inertias) > 0
