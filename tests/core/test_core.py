"""Progress, warnings, sums in a fixed order; results that take their places whole; secrets in URLs."""

from __future__ import annotations

import ast
import importlib
import io
import json
import os
import pickle
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.datasets import dump_svmlight_file
from sklearn.metrics import adjusted_rand_score

import streamkm
from streamkm import StreamKernelKMeans, StreamKMeans, open_source
from streamkm.cli.main import main
from streamkm.cluster.rows import Totals, absorb_totals
from streamkm.core import progress as progress_module
from streamkm.core.atomic_io import check_new_directory, replace_file, replace_tree
from streamkm.core.display import masked, without_secrets
from streamkm.core.exceptions import InvalidParameterError, OutputError, SourceError, StreamkmWarning
from streamkm.core.matrix import added_in_order
from streamkm.core.progress import COMPILING, Progress
from streamkm.sources.fingerprints import fingerprint
from streamkm.sources.remote import Address
from tests.children import tree
from tests.tables import cases, slow_but
from tests.web_server import Web, serving

X = np.random.default_rng(0).normal(size=(300, 4))


@pytest.mark.parametrize("make", [StreamKMeans, StreamKernelKMeans])
def test_stages_are_told(capsys, caplog, make):
    for progress, told in (("auto", False), (False, False), (True, True), (np.True_, True)):
        kmeans = make(3, progress=progress, random_state=0).fit(X)
        kmeans.predict(X)
        said = capsys.readouterr()
        assert not said.out
        stages = [line.split(":")[0] for line in said.err.splitlines() if not line.startswith("compiling ")]
        assert stages == ([*(stage.name for stage in kmeans.stages_), "predict"] if told else [])
    for wrong in (-1, "yes", None):
        with pytest.raises(InvalidParameterError, match="progress="):
            make(3, progress=wrong).fit(X)
    with pytest.raises(TypeError, match="verbose"):
        make(3, verbose=1)
    with caplog.at_level("INFO", "streamkm"):  # what the log takes is told once
        kmeans = make(3, progress=True, random_state=0).fit(X)
    assert not capsys.readouterr().err
    logged = [message.split(":")[0] for message in caplog.messages]
    assert all(logged.count(stage.name) == 1 for stage in kmeans.stages_)


def test_bars_count_what_stages_count(capsys, monkeypatch):
    """A stage that counts nothing is no chunk, at a rate; one that ends early has all of what it took."""
    monkeypatch.setattr(progress_module, "_on_terminal", lambda: True)
    progress = Progress(show=True)
    with progress.stage("seed"):
        pass
    with progress.stage("read", 4) as stage:
        for _ in range(4):
            stage.advance()
    with progress.stage("lloyd", 100, "steps") as stage:
        stage.advance(2)
    with progress.stage("sample") as stage:  # of chunks whose number was not known
        stage.advance(3)
    told = {line.split()[0]: line for line in capsys.readouterr().err.splitlines() if line.strip()}
    assert list(told) == ["seed", "read", "lloyd", "sample"]
    assert "/" not in told["seed"]
    for name, count in {"read": "4/4", "lloyd": "2/2", "sample": "3/3"}.items():
        assert f" {count} " in told[name]


def test_a_long_stage_says_how_far_it_is_where_there_is_no_bar(capsys, caplog, monkeypatch):
    monkeypatch.setattr(progress_module, "TOLD_EVERY_S", 0.05)
    with Progress("auto").stage("quiet") as stage:  # nobody reads what it would say
        time.sleep(0.12)
    assert not capsys.readouterr().err
    with caplog.at_level("INFO", "streamkm"):
        with Progress("auto").stage("lloyd", 300, "steps") as stage:
            stage.advance(12)
            time.sleep(0.18)
        with Progress("auto").stage("seed"):
            time.sleep(0.12)
    told = [message for message in caplog.messages if message.endswith(" so far")]
    assert sum(message.startswith("lloyd: 12/300 ") for message in told) >= 2
    assert all("steps/s, 0 s so far" in message for message in told if message.startswith("lloyd"))
    assert "seed: 0 s so far" in told
    time.sleep(0.1)
    assert [message for message in caplog.messages if message.endswith(" so far")] == told


def test_no_stage_counts_what_is_compiled():
    progress = Progress(False)
    with progress.stage("seed"):
        COMPILING.seconds += 5
    with progress.stage("lloyd"):
        time.sleep(0.02)
    assert progress.stages[0].seconds == 0
    assert 0.02 <= progress.stages[1].seconds < 5


pytest.importorskip("ipykernel")
manager = pytest.importorskip("jupyter_client.manager")

CODE = """
import numpy as np
from streamkm import StreamKMeans
np.save("X.npy", np.random.default_rng(0).normal(size=(400, 3)))
kmeans = StreamKMeans(2, random_state=0, chunk_bytes=1000).fit("X.npy")
kmeans.summary()
"""
ENDS = {
    "kmeans.plan_": "text/html",
    "sweep('X.npy', range(2, 5), random_state=0)": "text/html",
    "kmeans.plot()": "image/png",
}


def test_stages_are_shown_below_the_cell(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    kernel = manager.KernelManager(kernel_name="python3")
    kernel.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.start_kernel(cwd=str(tmp_path))
    client, seen = kernel.blocking_client(), []
    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
        reply = client.execute_interactive(CODE, timeout=120, output_hook=seen.append)
        ends = {}
        for code in ENDS:
            got = []
            client.execute_interactive(f"from streamkm import sweep\n{code}", timeout=120, output_hook=got.append)
            (ends[code],) = [each["content"]["data"] for each in got if each["msg_type"] == "execute_result"]
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
    assert reply["content"]["status"] == "ok"
    shown = [each["content"]["data"] for each in seen if each["msg_type"] in ("display_data", "update_display_data")]
    made = [each for each in seen if each["msg_type"] == "display_data"]
    stages = {data["text/plain"].split()[0] for data in shown}
    assert {"sketch", "lloyd", "assign"} <= stages
    assert len(made) == len({each["content"]["transient"]["display_id"] for each in made})
    last = [data for data in shown if data["text/plain"].startswith("assign")][-1]
    assert "<progress value=" in last["text/html"]
    (result,) = [each["content"]["data"] for each in seen if each["msg_type"] == "execute_result"]
    assert result["text/html"].startswith("<table>")
    assert result["text/plain"].split()[:3] == ["cluster", "size", "share"]
    seed = [data for data in shown if data["text/plain"].startswith("seed")][-1]
    assert "chunks" not in seed["text/plain"]  # it counts none
    assert 'value="1" max="1"' in seed["text/html"]
    for code, kind in ENDS.items():  # prints well, and no figure needs pyplot
        assert kind in ends[code], code
        assert "(source=" not in ends[code]["text/plain"], code
    plan = ends["kmeans.plan_"]
    assert '<th style="text-align:left">passes</th>' in plan["text/html"]
    assert plan["text/plain"].splitlines()[0].split() == ["data", "X.npy"]
    assert not any(each["msg_type"] == "stream" for each in seen)


ROOT = Path(streamkm.__file__).parent


def categories(path):
    """Classes that a module's calls of `warnings.warn` name."""
    calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
    named = [call.args[1:] for call in calls if ast.unparse(call.func) == "warnings.warn"]
    if not named:
        return []
    module = importlib.import_module(".".join(path.relative_to(ROOT.parent).with_suffix("").parts))
    return [getattr(module, ast.unparse(given[0])) for given in named]


def test_every_warning_is_the_packages_own():
    found = [category for path in sorted(ROOT.rglob("*.py")) for category in categories(path)]
    assert len(found) > 5
    assert all(issubclass(category, StreamkmWarning) for category in found)


def test_warnings_that_point_at_callers_are_errors():
    with pytest.raises(StreamkmWarning, match="found 1 cluster instead of 3"):
        StreamKMeans(3, progress=False).fit(np.ones((8, 2)))


@pytest.mark.parametrize("category", [DeprecationWarning, RuntimeWarning, UserWarning])
def test_warnings_of_its_lines_are_errors_and_those_of_other_packages_are_not(category):
    with pytest.raises(category, match="divide by zero"):
        warnings.warn_explicit("divide by zero", category, "rows.py", 1, module="streamkm.cluster.rows")
    with warnings.catch_warnings(record=True) as seen:
        warnings.warn_explicit("of pandas", category, "frame.py", 1, module="pandas.core.frame")
    assert [each.category for each in seen] == [category]


PARTS = (1e16, 1.0, 1.0)  # from Python 3.12 on, `sum` gives 1e16 + 2


def test_numbers_are_added_one_after_the_other():
    assert added_in_order(PARTS) == 1e16
    assert added_in_order([]) == 0.0


def test_totals_are_added_one_after_the_other_too():
    first, second, third = (Totals(np.full((2, 3), d2), np.full(2, d2), d2) for d2 in PARTS)
    joined = absorb_totals(absorb_totals(first, second), third)
    assert joined.d2 == joined.sums[0, 0] == joined.counts[0] == 1e16


def test_a_directory_is_replaced_or_nothing_is_changed(tmp_path):
    for target in (tmp_path / "new", tmp_path / "out"):
        with pytest.raises(OutputError):
            replace_tree(tmp_path / "missing", target, tmp_path / "aside")
        target.mkdir()
        (target / "made").write_text(target.name)
        with pytest.raises(OutputError):
            replace_tree(tmp_path / "missing", target, tmp_path / "aside")
    assert tree(tmp_path) == {"new/made": b"new", "out/made": b"out"}
    replace_tree(tmp_path / "new", tmp_path / "out", tmp_path / "aside")
    assert tree(tmp_path) == {"out/made": b"new", "aside/made": b"out"}


def test_a_file_is_replaced_only_where_that_is_said_also_one_that_comes_meanwhile(tmp_path):
    path = tmp_path / "x"

    def write(file):
        path.write_text("mine")
        file.write(b"new")

    for _ in range(2):  # the first time it comes meanwhile
        with pytest.raises(OutputError, match="x exists; pass overwrite to replace it"):
            replace_file(path, write, overwrite=False)
    assert path.read_text() == "mine"
    replace_file(path, write)
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_of_other_files_is_refused_whatever_is_said(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-1").write_text("")
    check_new_directory(tmp_path / "out", "part-[0-9]", overwrite=True)
    with pytest.raises(OutputError, match="out exists; pass overwrite"):
        check_new_directory(tmp_path / "out", "part-[0-9]", overwrite=False)
    (tmp_path / "out" / "part-1.bak").write_text("mine")
    with pytest.raises(OutputError, match=r"out exists and holds other files \(part-1.bak\)"):
        check_new_directory(tmp_path / "out", "part-[0-9]", overwrite=True)


SECRET = "pLaNtEd"
QUERY = f"X-Amz-Signature={SECRET}&token={SECRET}"
OTHER_QUERY = QUERY.replace(SECRET, f"{SECRET}-of-today")
N_ROWS, N_FEATURES = 600, 5


def rows(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(N_ROWS, N_FEATURES)) + 6 * rng.integers(0, 3, (N_ROWS, 1))).astype(np.float32)


def npy(X: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, X)
    return file.getvalue()


@pytest.fixture(scope="module")
def web(tmp_path_factory) -> Iterator[Web]:
    folder, X = tmp_path_factory.mktemp("data"), rows()
    np.save(folder / "x.npy", X)
    np.save(folder / "more.npy", rows(1))
    np.save(folder / "bad.npy", np.where(np.arange(X.size).reshape(X.shape) == 7, np.nan, X))
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("X", data=X, chunks=(100, N_FEATURES), compression="gzip")
    dump_svmlight_file(X, np.zeros(N_ROWS), str(folder / "x.svm"), zero_based=False)
    np.savetxt(folder / "x.csv", X, delimiter=",", header="a,b,c,d,e", comments="")
    (folder / "bad.csv").write_text("a,b\n1,2\n3\n")
    with serving() as web:
        web.objects.update({path.name: path.read_bytes() for path in folder.iterdir()})
        yield web


def url(web: Web, name: str, query: str = QUERY) -> str:
    return f"{web.url.replace('://', f'://user:{SECRET}@')}/{name}?{query}"


def run(arguments: list[str], *, code: int = 0) -> str:
    """Run a command; give what it says, in which there is no secret."""
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    assert SECRET not in result.output
    return result.output


def assert_kept(folder: Path) -> None:
    """Whether no file below a folder has a secret in its bytes or its name."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert SECRET not in str(path)
        assert SECRET.encode() not in path.read_bytes(), path


@cases(
    "shown, text",
    [
        ("https://***@h/x.npy?a=***&b=***", "https://user:SECRET@h/x.npy?a=SECRET&b=SECRET"),
        ("ftp://***@h/x", "ftp://user:SE@CRET@h/x"),
        ("http://h/x?***", "http://h/x?SECRET"),
        ("http://h/x#a=***", "http://h/x#a=SECRET"),
        ("http://h/x.npy;key=***?sig=***", "http://h/x.npy;key=SECRET?sig=SECRET"),
        ("http://h/a;b/x;y.npy#1;k=***", "http://h/a;b/x;y.npy#1;k=SECRET"),
        ("zip://x.npy::https://***@h/x.zip?t=***", "zip://x.npy::https://SECRET@h/x.zip?t=SECRET=="),
        ("s3://bucket/part#1@2.npy", "s3://bucket/part#1@2.npy"),
    ],
)
def test_what_is_shown_of_a_url(shown, text):
    assert masked(text) == shown
    assert masked(shown) == shown
    assert without_secrets(f"404, url='{text}'; {text}: gone.") == f"404, url='{shown}'; {shown}: gone."
    assert Address(text).url == text
    assert str(Address(text)) == json.loads(json.dumps(Address(text))) == shown


@cases("piece", ["a", "#", ";", "#a", "://", "://,", "=", "@", "?", "a=", "::", "/;a"])
def test_masking_takes_linear_time(piece):
    begun = time.process_time()
    for text in (piece * 50_000, f"s3://{piece * 50_000}", f"{piece * 50_000}://", f"s3://h?{piece * 50_000}"):
        without_secrets(text)
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("name", slow_but(["x.csv"], ["x.h5", "x.svm", "x.csv"]))
def test_commands_tell_no_secret(web, tmp_path, name):
    data, verbose = url(web, name), ("-v",)
    assert "?X-Amz-Signature=***&token=***" in run(["inspect", data])
    said = run(["plan", data, "-k", "3", *verbose])
    assert "***@127.0.0.1" in said
    run(["plan", data, "-k", "3", "--json"])
    run(["fit", data, "-k", "3", "-o", str(tmp_path / "out"), *verbose])
    run(["assign", str(tmp_path / "out/model.npz"), data, "-o", str(tmp_path / "labels.csv"), *verbose])
    run(["sketch", data, "-o", str(tmp_path / "st.zarr"), *verbose])
    run(["sweep", data, "-k", "2:4", "-o", str(tmp_path / "sweep"), *verbose])
    here = StreamKMeans(n_clusters=3, progress=False).fit(rows())
    assert adjusted_rand_score(np.load(tmp_path / "out/labels.npy"), here.labels_) == 1
    assert_kept(tmp_path)


def test_stores_and_checkpoints_keep_no_secret(web, tmp_path):
    """Fingerprints outlive signatures."""
    assert fingerprint(open_source(url(web, "x.npy"))) == fingerprint(open_source(url(web, "x.npy", OTHER_QUERY)))
    store, saved = tmp_path / "st.zarr", tmp_path / "saved"
    run(["sketch", url(web, "x.npy"), "-o", str(store), "-v"])
    run(["sketch", "--append", str(store), url(web, "more.npy"), "-v"])
    assert "already" in run(["sketch", "--append", str(store), url(web, "more.npy", OTHER_QUERY), "-v"], code=2)
    run(["fit", str(store), "-k", "3", "-o", str(tmp_path / "out"), "-v"])
    StreamKMeans(n_clusters=3, progress=False).fit(url(web, "x.npy"), checkpoint=str(saved))
    km = StreamKMeans(n_clusters=3, progress=False).fit(url(web, "x.npy", OTHER_QUERY), checkpoint=str(saved))
    (tmp_path / "km.pickle").write_bytes(pickle.dumps(km))
    km.report(tmp_path / "report.html")
    assert_kept(tmp_path)


@cases(
    "arguments, said",
    [
        (["fit", "{missing}", "-k", "3"], "does not exist"),
        (["fit", "{refused}", "-k", "3"], "403"),
        (["fit", "{bad.npy}", "-k", "3"], "NaN"),
        (["fit", "{bad.csv}", "-k", "3"], "bad.csv"),
        (["fit", "{x.npy}", "{x.svm}", "-k", "3"], "files of one format"),
        (["fit", "{x.npy}", "-k", "3", "--set", "text.field=a"], "text.field is for documents"),
        (["fit", "-k", "3", "{x.npy}", "--set", "data.paths={x.npy}"], "data.paths"),
        (["fit", "-k", "3", "{x.npy}", "--set", "data.storage_options=" + SECRET], "data.storage_options"),
        (["fit", "-k", "3", "nowhere://user:" + SECRET + "@host/x.npy?a=" + SECRET], "nowhere"),
        (["assign", "{x.npy}", "{x.npy}", "-o", "labels.npy"], "does not exist"),
    ],
)
def test_failures_tell_no_secret(web, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(web, "before", lambda _, path: {"refused": 403}.get(path))
    for name in ("missing", "refused", "bad.npy", "bad.csv", "x.npy", "x.svm"):
        arguments = [each.replace(f"{{{name}}}", url(web, name)) for each in arguments]
    assert said in run([*arguments, *(["-v"] if arguments[0] == "fit" else [])], code=2)


def test_tracebacks_tell_no_secret_nor_do_redirects_that_are_followed(web, monkeypatch):
    monkeypatch.setattr(web, "before", lambda _, path: {"refused": 403}.get(path))
    monkeypatch.setattr(web, "moved", {"moved": url(web, "x.npy"), "moved-away": url(web, "refused")})
    assert open_source(f"{web.url}/moved").n_rows == N_ROWS
    for name in ("missing", "refused", "bad.npy", "x.npy"):
        storage = {"no_such_option": 1} if name == "x.npy" else {}
        with pytest.raises(Exception) as told:  # noqa: PT011 - of each kind
            StreamKMeans(n_clusters=3, progress=False).fit(open_source(url(web, name), storage_options=storage))
        said = "".join(traceback.format_exception(told.value))
        assert "***@127.0.0.1" in said
        assert SECRET not in said
    with pytest.raises(SourceError, match="403") as told:
        open_source(f"{web.url}/moved-away")
    said = "".join(traceback.format_exception(told.value))
    assert "refused?X-Amz-Signature=***" in said
    assert SECRET not in said


def test_failures_of_ours_tell_no_secret(web, tmp_path):
    data = url(web, "x.npy")
    program = (
        "import sys\nfrom streamkm.cli import main as cli, common\n"
        "def fail(*_): raise RuntimeError(f'broken by {sys.argv[1]}')\n"
        "from streamkm.cli import config\nconfig.inspected = fail\ncli.main(['inspect', sys.argv[1]])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, data], capture_output=True, text=True, cwd=tmp_path, env=os.environ, check=False
    )
    assert done.returncode == 1
    assert "broken by http://***@" in done.stderr
    assert "Please report it" in done.stderr
    assert SECRET not in done.stdout + done.stderr
