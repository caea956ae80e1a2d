"""Secrets in URLs: requests are made with them, and nothing that is written, printed or raised tells them."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.datasets import dump_svmlight_file
from sklearn.metrics import adjusted_rand_score

from streamkm import StreamKMeans, open_source
from streamkm.cli.main import main
from streamkm.core.display import masked, without_secrets
from streamkm.core.exceptions import SourceError
from streamkm.sources.fingerprints import fingerprint
from streamkm.sources.remote import Address
from tests.tables import cases, slow_but
from tests.web_server import Web, serving

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
