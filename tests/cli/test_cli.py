"""The commands, as people run them: arguments, files, messages and exit codes."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import numpy as np
import pandas as pd
import pytest
import zarr
from click.testing import CliRunner
from sklearn.exceptions import ConvergenceWarning

from streamkm import StreamKMeans, __version__
from streamkm.cli.main import main
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.progress import COMPILING
from streamkm.engine import checkpoint as saving
from streamkm.engine import executor_choice as engine_open
from streamkm.engine.checkpoint import records
from streamkm.estimators import kmeans as kmeans_module
from streamkm.estimators.model_files import summarize
from tests.children import StoppedError, chunks_read, stopped_after
from tests.programs import Program
from tests.tables import cases, row, slow_but

TOP = Path(__file__).parents[2]
FILES = {"labels.npy", "model.npz", "streamkm.json", "report.html"}


def rows(n_rows=90, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n_rows, 5)) + 20 * (np.arange(n_rows) % 3)[:, None]).astype(np.float32)


def svmlight(X):
    return "".join("0 " + " ".join(f"{j + 1}:{value:.6g}" for j, value in enumerate(row)) + "\n" for row in X)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with the same rows as x.svm and x.npy."""
    monkeypatch.chdir(tmp_path)
    X = rows()
    Path("x.svm").write_text(svmlight(X))
    np.save("x.npy", X)
    return tmp_path


def run(*arguments, code=0):
    """Run a command in this process; give stdout and stderr."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if code != 1 and result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def summary(directory="out"):
    return json.loads(Path(directory, "streamkm.json").read_text())


def test_fit_writes_everything(folder):
    output = run("fit", "x.svm", "-k", 3, "-o", "out", "--set", "estimator.random_state=0")
    assert {path.name for path in Path("out").iterdir()} == FILES
    labels = np.load("out/labels.npy")
    assert labels.dtype == np.int32
    assert len(set(zip(labels.tolist(), (np.arange(90) % 3).tolist(), strict=True))) == 3
    assert np.array_equal(StreamKMeans.load("out/model.npz").predict("x.svm"), labels)
    told = summary()
    assert told["data"]["n_samples"] == 90
    assert told["data"]["n_features"] == 5
    result = told["result"]
    assert result["counts"] == [30, 30, 30]
    assert result["n_passes"] == 2
    X = rows().astype(np.float64)
    exact = sum(((X[labels == label] - X[labels == label].mean(axis=0)) ** 2).sum() for label in range(3))
    assert result["objective"] == pytest.approx(exact, rel=1e-4)
    assert result["objective_per_row"] == pytest.approx(exact / 90, rel=1e-4)
    assert result["distortion"] is not None
    stages = {stage["name"]: stage for stage in told["stages"]}
    assert {"sketch", "seed", "lloyd", "assign"} <= set(stages)
    assert stages["assign"]["rows"] == 90
    assert stages["sketch"]["read_bytes"] == Path("x.svm").stat().st_size
    assert stages["assign"]["read_bytes"] == 0  # rows stay in memory
    assert told["seconds"] == pytest.approx(sum(stage["seconds"] for stage in told["stages"]))
    assert told["parameters"]["n_clusters"] == 3
    assert told["versions"]["streamkm"] == __version__
    # plain log lines, one a stage, as the output is no terminal; then the outcome
    for stage in stages.keys() - {COMPILING.name}:
        assert sum(line[8:].startswith(f" {stage}: ") for line in output.splitlines()) == 1, output
    assert "clusters   3\n" in output
    assert output.endswith("results    out\n")
    table = output[output.index("cluster  size") : output.index("results  ")]
    assert len(table.splitlines()) == 5  # with an empty line at the end
    assert "set apart by" in table


def test_the_time_printed_is_that_of_the_command(folder, monkeypatch):
    """With what was compiled, drawn and written."""

    def slow_fit(*args, **kwargs):
        time.sleep(0.4)
        COMPILING.seconds += 0.4
        return usual(*args, **kwargs)

    usual = kmeans_module.run_fit
    monkeypatch.setattr(kmeans_module, "run_fit", slow_fit)
    started = time.perf_counter()
    output = run("fit", "x.npy", "-k", 3, "-o", "out")
    wall = time.perf_counter() - started
    compiling = "compiling kernels that no run before needed"
    (told,) = re.findall(rf"^time +([0-9.]+) s \(.*{compiling}: ([0-9.]+) s\)$", output, re.M)
    assert wall - 0.3 < float(told[0]) <= wall + 0.01
    assert float(told[1]) >= 0.4
    assert re.search(r"^time +[0-9.]+ s", run("assign", "out/model.npz", "x.npy", "-o", "y.npy"), re.M)


def test_configuration_and_overrides(folder):
    Path("c.yaml").write_text(
        "data: {path: x.npy}\nestimator: {n_clusters: 2, max_iter: 7}\n"
        "output: {directory: conf, report: false, labels: zarr}\n"
    )
    run("fit", "c.yaml")
    assert summary("conf")["parameters"]["n_clusters"] == 2
    assert {path.name for path in Path("conf").iterdir()} == FILES - {"labels.npy", "report.html"} | {"labels.zarr"}
    run("fit", "c.yaml", "--set", "estimator.n_clusters=4", "-k", 3, "-o", "out", "--labels-format", "npy")
    assert summary()["parameters"]["n_clusters"] == 3
    assert summary()["parameters"]["max_iter"] == 7
    assert Path("out/labels.npy").exists()


def test_results_are_kept_unless_asked(folder):
    run("fit", "x.npy", "-k", 3, "-o", "out", "--set", "estimator.random_state=0")
    before = {path.name: path.read_bytes() for path in Path("out").iterdir()}
    Path("bad.svm").write_text("1 1:oh\n")  # would be noticed when it is read
    message = run("fit", "bad.svm", "-k", 2, "-o", "out", code=2)
    assert message.startswith("streamkm: error: out holds results of an earlier run (streamkm.json, labels.npy")
    assert "--overwrite" in message
    # a run that fails later leaves them alone too
    run("fit", "bad.svm", "-k", 2, "-o", "out", "--overwrite", code=2)
    assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == before
    Path("out/notes.txt").write_text("mine")
    run("fit", "x.npy", "-k", 2, "-o", "out", "--overwrite", "--labels-format", "zarr", "--no-report")
    assert {path.name for path in Path("out").iterdir()} == (FILES - {"labels.npy", "report.html"}) | {
        "labels.zarr", "notes.txt"
    }  # fmt: skip
    run("fit", "x.npy", "-k", 3, "-o", "out", "--overwrite", "--labels-format", "zarr", "--no-report")
    assert len(np.unique(zarr.open_array("out/labels.zarr", mode="r")[:])) == 3


def test_the_summary_repeats_the_run_and_holds_no_address(folder):
    run("fit", "x.npy", "-k", 3, "-o", "out", "--set", "estimator.init=random", "--set", "estimator.n_init=1")
    text = Path("out/streamkm.json").read_text() + Path("out/report.html").read_text()
    assert not re.search(r"0x[0-9a-f]{6}|object at", text)
    seed = summary()["result"]["seed"]
    assert StreamKMeans.load("out/model.npz").seed_ == seed
    given = ("--set", "estimator.init=random", "--set", "estimator.n_init=1", "--set", f"estimator.random_state={seed}")
    run("fit", "x.npy", "-k", 3, "-o", "again", "--no-report", *given)
    assert Path("again/labels.npy").read_bytes() == Path("out/labels.npy").read_bytes()
    assert summary("again")["result"] == summary()["result"]
    kmeans = StreamKMeans(2, random_state=np.random.RandomState(0), progress=False).fit(rows())
    text = json.dumps(summarize(kmeans.set_params(executor=object())))
    assert not re.search(r"0x[0-9a-f]{6}|object at", text)
    assert "RandomState" in text


def test_output_that_cannot_be(folder):
    Path("file").write_text("")
    assert "file is a file" in run("fit", "x.npy", "-k", 2, "-o", "file", code=2)
    assert "file is a file" in run("fit", "x.npy", "-k", 2, "-o", "file/inner", code=2)
    Path("locked").mkdir(mode=0o500)
    if os.geteuid() != 0:  # root may write anywhere
        assert "no permission" in run("fit", "x.npy", "-k", 2, "-o", "locked/out", code=2)


def test_quiet_and_verbose_set_what_is_said_of_one_command(folder):
    logger = logging.getLogger("streamkm")
    before = logger.level, list(logger.handlers), warnings.showwarning
    assert run("fit", "x.npy", "-k", 3, "-o", "out", "--quiet", "--no-report") == ""
    assert run("assign", "out/model.npz", "x.npy", "-o", "y.npy", "-q") == ""
    assert run("fit", "x.npy", "-k", 0, "-o", "out2", "--quiet", code=2).startswith("streamkm: error: ")
    assert "Traceback" in run("fit", "x.npy", "-k", 0, "-o", "out2", "-v", code=2)
    assert "exclude each other" in run("fit", "x.npy", "-k", 3, "-o", "out3", "-v", "-q", code=2)
    assert (logger.level, logger.handlers, warnings.showwarning) == before


def test_warnings_are_one_line(folder):
    np.save("same.npy", np.ones((8, 2)))
    with warnings.catch_warnings():
        warnings.simplefilter("default", ConvergenceWarning)
        output = run("fit", "same.npy", "-k", 3, "-o", "out", "--no-report")
    assert "streamkm: warning: found 1 cluster instead of 3: the data have only 1 distinct row" in output
    assert summary()["result"]["n_clusters"] == 1


@cases(
    "arguments, message",
    [
        (["fit"], "Missing argument"),
        (["fit", "x.npy"], "say how many clusters: -k 10"),
        (["fit", "x.npy", "-k", "many"], "'many' is no number of clusters"),
        (["fit", "x.npy", "c.yaml"], "give one configuration (c.yaml) or data, not both"),
        (["fit", "no.yaml"], "streamkm: error: no.yaml cannot be read"),
        (["fit", "x.npy", "-k", "0"], "-k 0; needed: an integer from 1"),
        (["sketch", "x.npy"], "say where the store goes: -o STORE.zarr"),
        (["sketch", "x.npy", "--append", ".", "--seed", "1"], "--append and --seed exclude each other"),
        (["fit", "x.npy", "-k", "2", "--set", "estimator.metrik=cosine"], "did you mean metric?"),
        (["fit", "x.npy", "-k", "2", "--set", "data.zero_based=true"], "zero_based"),
        (["fit", "x.svm", "-k", "2", "--set", "data.zero_based=maybe"], "data.zero_based must be True, False or"),
        (["assign", "no.npz", "x.npy", "-o", "y.npy"], "'no.npz' does not exist"),
        (["assign", "x.svm", "x.npy", "-o", "y.npy"], "x.svm is not a saved model"),
        (["inspect", "x.npy", "--set", "estimator.tol=1"], "this command takes keys of data, text and cluster only"),
        (["sketch", "x.npy", "-o", "s.zarr", "--sketch", "foo"], "--sketch foo; needed: one of 'auto'"),
    ],
)
def test_exit_code_2(folder, arguments, message):
    output = run(*arguments, code=2)
    assert message in output
    assert "Traceback" not in output
    if "Usage" not in output:
        lines = [line for line in output.splitlines() if not line[:2].isdigit()]  # log lines start with the time
        assert len(lines) == 1
        assert lines[0].startswith("streamkm: error: ")


def test_plan_reads_and_writes_nothing(folder, monkeypatch):
    monkeypatch.setattr("streamkm.sources.dense.DenseSource.read", lambda *_: pytest.fail("rows were read"))
    output = run("plan", "x.npy", "-k", 3)
    assert "passes      2, up to 2 more if the sample missed something\n" in output
    assert "assignment  in the original space\n" in output
    assert "results     streamkm-out\n" in output
    assert len(output.splitlines()) <= 7
    assert "row sample     all 90 rows\n" in run("plan", "x.npy", "-k", 3, "-v")
    planned = json.loads(run("plan", "x.npy", "-k", 3, "--json", "--set", "estimator.refine=2"))
    assert planned["passes"] == 4
    assert planned["n_features"] == 5
    assert not Path("streamkm-out").exists()


def test_inspect(folder):
    output = run("inspect", "x.npy", "x.svm", "--set", "data.format=auto")
    first, second = output.split("\n\n")
    assert "rows          90\n" in first
    assert "features      5\n" in first
    assert "values        float32, dense" in first
    assert "stored bytes  1,800" in first
    assert "rows          about " in second
    assert "features      known after one pass" in second
    assert "sparse" in second
    np.save("half.npy", np.ones((30, 4), np.float16))
    assert "float16, read as float32, dense" in run("inspect", "half.npy")


def test_assign(folder):
    run("fit", "x.npy", "-k", 3, "-o", "out", "--no-report")
    assert "rows    90\nlabels  y.npy" in run("assign", "out/model.npz", "x.npy", "-o", "y.npy")
    expected = np.load("out/labels.npy")
    assert np.array_equal(np.load("y.npy"), expected)
    assert "y.npy exists" in run("assign", "out/model.npz", "x.npy", "-o", "y.npy", code=2)
    run("assign", "out/model.npz", "x.npy", "x.npy", "-o", "y.npy", "--overwrite")
    assert np.array_equal(np.load("y.npy"), np.tile(expected, 2))
    for _ in range(2):
        run("assign", "out/model.npz", "x.npy", "-o", "new/y.zarr", "--overwrite")
        assert np.array_equal(zarr.open_array("new/y.zarr", mode="r")[:], expected)
    assert "written as .npy, .zarr, .csv or .parquet" in run("assign", "out/model.npz", "x.npy", "-o", "y.txt", code=2)
    np.save("wide.npy", np.ones((4, 9)))
    assert "9 features" in run("assign", "out/model.npz", "wide.npy", "-o", "z.npy", code=2)
    assert not Path("z.npy").exists()


@cases("form", ["csv", "zarr"])
def test_labels_in_results_are_replaced_as_the_results_are(folder, form):
    np.save("more.npy", rows(400))
    fit = ("fit", "x.npy", "-k", 2, "-o", form, "--no-report", "-q", "--set", f"output.labels={form}", "--overwrite")
    given = ("assign", f"{form}/model.npz", "more.npy", "-q", "-o", f"{form}/labels.{form}")
    run(*fit)
    run(*given, code=2)
    run(*given, "--overwrite")
    assert not list(Path(form).glob(".labels*"))
    run(*given, "--overwrite")
    run(*fit)
    assert summary(form)["data"]["n_samples"] == 90


@pytest.mark.parametrize("what", slow_but(["fit"], ["fit", "dedupe", "l.npy", "l.csv", "l.parquet", "l.zarr"]))
def test_no_space_names_what_was_asked_for(folder, tmpfs, what):
    """However many pages there are left: never a hidden name, and the same command goes on when there is space."""
    place, _ = tmpfs
    run("fit", "x.npy", "-k", 2, "-o", "model", "-q")
    given = {
        "fit": ("fit", "x.npy", "-k", 2, "-o", place / "out", "--no-report", "--no-checkpoint"),
        "dedupe": ("dedupe", "x.npy", "-o", place / "keep.npy"),
    }.get(what, ("assign", "model/model.npz", "x.npy", "-o", place / what))
    n_full, filler = 0, place / "filler"
    for n_pages in range(100):
        filler.write_bytes(b"")
        found = os.statvfs(place)
        filler.write_bytes(bytes((found.f_bavail - n_pages) * found.f_frsize))
        result = CliRunner().invoke(main, [*map(str, given), "-q"])
        if result.exit_code == 0:
            break
        n_full += 1
        with row(n_pages=n_pages):
            assert result.exit_code == 2, result.exception
            named = re.search(rf"error: {place}/([a-z/.]+|keep.npy.checkpoint/[a-z0.-]+): no space", result.output)
            assert named, result.output
            assert f"{place}/." not in result.output
            assert "partial" not in result.output
    assert n_full > 0
    assert result.exit_code == 0


def test_files_in_the_place_of_results_are_replaced_where_that_is_said_alone(folder):
    for name in ("labels.npy", "text.json", "streamkm.json"):
        place = Path(f"out-{name}")
        place.mkdir()
        (place / name).write_text("mine")
        assert f"{place} holds results of an earlier run ({name})" in run("fit", "x.npy", "-k", 2, "-o", place, code=2)
        assert (place / name).read_text() == "mine"
    run("fit", "x.npy", "-k", 2, "-o", place, "--overwrite", "--no-report")
    Path("other/labels.zarr").mkdir(parents=True)
    Path("other/labels.zarr/mine").write_text("mine")
    assert "other/labels.zarr exists and holds other files (mine)" in run(
        "fit", "x.npy", "-k", 2, "-o", "other", "--overwrite", code=2
    )
    Path("scores").mkdir()
    Path("scores/sweep.csv").write_text("mine")
    assert "(sweep.csv); pass --overwrite" in run("sweep", "x.npy", "-k", "2:4", "-o", "scores", code=2)
    Path("data").mkdir()
    np.save("data/x.npy", rows())
    run("fit", "data/x.npy", "-k", 3, "-o", "data", "--no-report")
    run("fit", "data/x.npy", "-k", 3, "-o", "data", "--no-report", "--overwrite")
    assert np.array_equal(np.load("data/x.npy"), rows())


@pytest.mark.parametrize(
    ("named_in", "kernel"),
    slow_but(
        [("configuration", "")], [("configuration", ""), ("command line", "kernel: {n_landmarks: 20, rank: 5}\n")]
    ),
    ids=["k-means", "kernel k-means"],
)
def test_a_run_is_kept_where_settings_say(folder, monkeypatch, named_in, kernel):
    monkeypatch.setattr(saving, "INTERVAL_S", 0.0)
    estimator = "estimator: {n_clusters: 3, random_state: 0%s}\n"
    key = ", checkpoint: kept" if named_in == "configuration" else ""
    Path("c.yaml").write_text("data: {path: x.npy}\n" + estimator % key + kernel)
    Path("plain.yaml").write_text("data: {path: x.npy}\n" + estimator % "" + kernel)
    given = ["fit", "c.yaml", "--no-report"] + ([] if key else ["--set", "estimator.checkpoint=kept"])
    run("fit", "plain.yaml", "-o", "whole", "--no-report", "--no-checkpoint")
    with monkeypatch.context() as patched:
        stopped_after(patched, "found")
        done = CliRunner().invoke(main, [*given, "-o", "out"])
    assert isinstance(done.exception, StoppedError)
    assert "found" in records("kept")
    assert not Path("out.checkpoint").exists()
    assert "kept holds what an interrupted run of this has done" in run(*given, "-o", "out", code=2)
    run(*given, "-o", "out", "--resume")
    assert not Path("kept").exists()
    np.testing.assert_array_equal(np.load("out/labels.npy"), np.load("whole/labels.npy"))
    assert summary()["result"] == summary("whole")["result"]


@pytest.mark.parametrize("made", [False, True], ids=["new directory", "directory of others"])
def test_a_short_run_that_ends_in_its_report_goes_on_there(folder, monkeypatch, made):
    """Each stage ends with a record; the directory of results appears when it is complete."""
    if made:
        Path("out").mkdir()
        Path("out/mine").write_text("mine")
    given = ("fit", "x.npy", "-k", 3, "-o", "out", "--seed", 0)
    with monkeypatch.context() as patched:
        patched.setattr("streamkm.cli.results.results_page", lambda *_: 1 / 0)
        done = CliRunner().invoke(main, list(map(str, given)))
    assert isinstance(done.exception, ZeroDivisionError)
    assert Path("out").exists() == made
    assert not made or os.listdir("out") == ["mine"]
    assert "go on with --resume" in run(*given, code=2)
    chunks = chunks_read(monkeypatch)
    said = run(*given, "--resume")
    assert not chunks
    assert "streamkm: out.checkpoint goes on behind sketch, seed, found, assign-0" in said
    assert "assign" in said
    assert {"labels.npy", "report.html", "streamkm.json"} < {*os.listdir("out")}
    assert not Path("out.checkpoint").exists()


def test_columns_that_count_are_cautioned_of_and_typical_rows_have_ids(folder):
    frame = pd.DataFrame(rows(500)[:, :2], columns=[*"ab"]).assign(number=np.arange(500) * 2 + 7)
    frame.insert(0, "name", [f"customer-{i}" for i in range(500)])
    frame.to_csv("t.csv", index=False)
    fit = ("fit", "t.csv", "-k", 3)
    caution = "number looks like a counter or an id: leave it out, or pass it as the id column"
    said = " ".join(run(*fit, "--preprocess", "standardize", "-o", "out", "--id-column", "name").split())
    assert f"caution {caution}" in said
    assert summary()["cautions"] == [caution]
    page = Path("out/report.html").read_text("utf-8")
    assert f"Caution: {caution}." in page
    typical = [each for cluster in summary()["clusters"] for each in (*cluster["typical"], *cluster["outlying"])]
    assert typical
    assert all(each["id"] == f"customer-{each['row']}" for each in typical)
    assert typical[0]["id"] in page
    assert "streamkm assign out/model.npz" in page
    assert "caution" not in run(*fit, "--id-column", "number", "--exclude", "name", "-o", "other", "--no-report")


def test_threads_of_every_command_that_computes(folder, monkeypatch):
    started = []

    class Noted(ThreadPoolExecutor):
        def __init__(self, max_workers, **options):
            started.append(max_workers)
            super().__init__(max_workers, **options)

    monkeypatch.setattr(engine_open, "ThreadPoolExecutor", Noted)
    np.save("more.npy", rows(30, seed=1))
    for command in (
        ("fit", "x.npy", "-k", 3, "-o", "out", "--no-report"),
        ("assign", "out/model.npz", "x.npy", "-o", "more-labels.npy"),
        ("sketch", "x.npy", "-o", "store.zarr"),
        ("sketch", "--append", "store.zarr", "more.npy"),
        ("fit", "store.zarr", "-k", 3, "-o", "clustered", "--no-report"),
        ("sweep", "x.npy", "-k", "2:4"),
        ("dedupe", "x.npy", "-o", "keep.npy"),
    ):
        started.clear()
        replace = [] if "--append" in command else ["--overwrite"]
        run(*command, "--threads", 3, "-q", *replace)
        assert set(started) <= {1, 3}  # small fits take one
        assert started
    assert summary()["parameters"]["executor"] == 3
    np.save("long.npy", rows(200_000))
    assert json.loads(run("plan", "long.npy", "-k", 3, "--threads", 3, "--json"))["n_threads"] == 3
    said = run("sweep", "x.npy", "-o", "new", "--threads", 2, "--set", "cluster.scheduler=tcp://x:1", code=2)
    assert "--threads 2 and the section cluster exclude each other" in said


def test_version_and_help():
    assert run("--version") == f"streamkm, version {__version__}\n"
    commands = {"fit", "plan", "assign", "sketch", "sweep", "inspect", "update", "dedupe"}
    assert set(main.commands) == commands | {"warm"}
    overview = run("--help")
    assert re.findall(r"^(\w[\w ]*):$", overview, re.M) == ["Options", "Look at data", "Cluster", "Large data"]
    assert {*re.findall(r"^  ([a-z]+) ", overview, re.M)} == commands
    assert len(overview.splitlines()) <= 24
    for name in main.commands:
        assert "Options:" in run(name, "--help")
    assert isinstance(main, click.Group)


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom streamkm.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'numpy', 'scipy', 'sklearn', 'numba', 'dask', 'pydantic', 'yaml', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=TOP, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.endswith("[]\n")


INTERRUPTED = """
import signal
import time
from pathlib import Path
from streamkm.cli.main import main
from streamkm import StreamKMeans

def fit(self, X, **_):
    print("fitting", flush=True)
    try:
        time.sleep(60)
    finally:
        Path("rests").rmdir()

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start jobs in the background without it
Path("rests").mkdir()
StreamKMeans.fit = fit
main(["fit", "x.npy", "-k", "3", "-o", "out"])
"""

FAILING = """
from streamkm.cli.main import main
from streamkm import StreamKMeans

StreamKMeans.fit = lambda self, X, **_: 1 / 0
main(["fit", "x.npy", "-k", "3", "-o", "out"])
"""


@pytest.fixture
def started(folder):
    """A function that starts a program of some text, which writes to the files out.txt and errors.txt."""
    programs = []

    def start(text):
        Path("program.py").write_text(text)
        programs.append(Program(["program.py"], folder, os.environ, folder / "out.txt", folder / "errors.txt"))
        return programs[-1]

    yield start
    for program in programs:
        program.kill()
        program.wait(60)


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM")]
)
def test_interrupt(folder, started, number, code, word):
    running = started(INTERRUPTED)
    while "fitting\n" not in (Path("out.txt").read_text() if Path("out.txt").exists() else ""):
        assert running.poll() is None, Path("errors.txt").read_text()
        time.sleep(0.02)
    running.send_signal(number)
    assert running.wait(60) == code
    errors = Path("errors.txt").read_text()
    assert errors.splitlines()[-1].startswith(f"streamkm: {word}; results of earlier runs are unchanged")
    assert "Traceback" not in errors
    assert not Path("out").exists()
    assert not Path("rests").exists()  # what a stage made is removed


def test_failure_of_ours_in_a_process(started):
    assert started(FAILING).wait(60) == 1
    errors = Path("errors.txt").read_text()
    assert "ZeroDivisionError" in errors
    assert errors.rstrip().endswith("Please report it with the lines above.")


def test_errors_of_several_lines_are_marked_on_each(folder, monkeypatch):
    def two(*_, **__):
        raise InvalidInputError("first\nsecond")

    monkeypatch.setattr(StreamKMeans, "plan_for", two)
    assert run("plan", "x.npy", "-k", 2, code=2) == "streamkm: error: first\nstreamkm: error: second\n"


CLOSED = """
import os
from streamkm.cli.main import main

reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 1)
main(["inspect", "x.npy"])
"""


def test_output_that_nobody_reads_or_finds_no_space_is_no_failure_of_ours(folder):
    """Results are complete all the same."""
    errors = Path("errors.txt")
    Path("closed.py").write_text(CLOSED)
    assert Program(["closed.py"], folder, os.environ, "out.txt", errors).wait(120) == 1
    assert errors.read_text() == "streamkm: a pipe or connection was closed: [Errno 32] Broken pipe\n"
    errors.unlink()
    if os.path.exists("/dev/full"):
        command = ["-m", "streamkm", "fit", "x.npy", "-k", "2", "-o", "out"]
        assert Program(command, folder, os.environ, "/dev/full", errors).wait(120) != 0
        assert "No space left" in errors.read_text()
        assert "Please report" not in errors.read_text()
        assert set(os.listdir("out")) == FILES


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names are Unicode there")
def test_names_that_are_no_utf8_are_escaped(folder):
    name = os.fsdecode(b"bad\xff.npy")
    shutil.copy("x.npy", name)
    directory = os.fsdecode(b"out\xfe")
    run("fit", name, "-k", 2, "-o", directory)
    assert "bad\\udcff.npy" in run("inspect", name)
    assert summary(directory)["data"]["name"] == "bad\\udcff.npy"
    page = Path(directory, "report.html").read_text("utf-8")
    assert "<h1>bad\\udcff.npy</h1>" in page
    assert "streamkm assign out\\udcfe/model.npz" in page
    StreamKMeans(2).fit(name).report("x.html")
    assert "bad\\udcff.npy" in Path("x.html").read_text("utf-8")
    run("sketch", name, "-o", os.fsdecode(b"s\xff.zarr"), "-q")
    run("inspect", os.fsdecode(b"s\xff.zarr"))
