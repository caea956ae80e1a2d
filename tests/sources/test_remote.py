"""Rows behind URLs: an S3-compatible server, a web server with faults, fsspec's memory."""

from __future__ import annotations

import gc
import gzip
import io
import json
import logging
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from click.testing import CliRunner
from sklearn.datasets import dump_svmlight_file

from streamkm import StreamKMeans, open_source
from streamkm.cli.config import Override, load_run
from streamkm.cli.main import main
from streamkm.core.exceptions import (
    ConfigError,
    InvalidParameterError,
    MissingDependencyError,
    SourceError,
    SourceNotFoundError,
)
from streamkm.sources import remote
from streamkm.sources.fingerprints import fingerprint
from streamkm.sources.remote import RemoteFile
from tests.contracts import assemble
from tests.sources.matrices import write_csr
from tests.tables import cases, slow_but
from tests.web_server import Web, serving

N_ROWS, N_FEATURES = 2_000, 40
CHUNK_BYTES = 60_000
BUCKET = "rows"
KEYS = {"key": "test", "secret": "test"}


def rows() -> np.ndarray:
    """float32 (2,000, 40), four groups, a quarter of the values zero."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, N_FEATURES)) + 4 * rng.normal(size=(4, N_FEATURES))[np.arange(N_ROWS) % 4]
    return np.where(rng.random(X.shape) < 0.25, 0, X).astype(np.float32)


def write_zarr(place: str, *, kind: str = "dense", zarr_format: int = 3, **options: object) -> None:
    group = zarr.open_group(place, mode="w", zarr_format=zarr_format)
    if kind == "csr":
        write_csr(group.create_group("X"), sp.csr_array(rows()), chunk=20_000)
    else:
        group.create_array("X", data=rows(), **{"chunks": (250, N_FEATURES), **options})


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The files of one data set in every format."""
    made, X = tmp_path_factory.mktemp("data"), rows()
    dump_svmlight_file(X, np.zeros(N_ROWS), str(made / "x.svm"), zero_based=False)
    text = (made / "x.svm").read_bytes()
    (made / "x.svm.gz").write_bytes(gzip.compress(text, 1))
    cut = text.index(b"\n", len(text) // 2) + 1
    (made / "part-0.svm").write_bytes(text[:cut])
    (made / "part-1.svm").write_bytes(text[cut:])
    with h5py.File(made / "x.h5", "w") as file:
        file.create_dataset("gzip", data=X, chunks=(250, N_FEATURES), compression="gzip")
        file.create_dataset("lzf", data=X, chunks=(250, N_FEATURES), compression="lzf")
        file.create_dataset("plain", data=X)
        write_csr(file.create_group("csr"), sp.csr_array(X), chunk=20_000)
    np.save(made / "x.npy", X)
    write_zarr(str(made / "x.zarr"))
    write_zarr(str(made / "v2.zarr"), zarr_format=2)
    write_zarr(str(made / "csr.zarr"), kind="csr")
    write_zarr(str(made / "shards.zarr"), shards=(1000, N_FEATURES))
    return made


def fit(X, executor=2, **options) -> StreamKMeans:
    return StreamKMeans(4, random_state=0, n_init=1, chunk_bytes=CHUNK_BYTES, executor=executor, **options).fit(X)


@pytest.fixture(scope="module")
def local(folder):
    """Fits of the files, made once each."""
    made: dict[str, StreamKMeans] = {}

    def of(path: str) -> StreamKMeans:
        if path not in made:
            made[path] = fit(f"{folder}/{path}")
        return made[path]

    return of


def assert_same_fit(got: StreamKMeans, wanted: StreamKMeans) -> None:
    np.testing.assert_array_equal(got.labels_, wanted.labels_)
    np.testing.assert_array_equal(got.cluster_centers_, wanted.cluster_centers_)
    assert got.inertia_ == wanted.inertia_


def put(folder: Path, fs, root: str) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            fs.pipe_file(f"{root}/{path.relative_to(folder)}", path.read_bytes())


@pytest.fixture(scope="module")
def s3(folder, tmp_path_factory) -> Iterator[dict[str, object]]:
    """Options of an S3-compatible server, a process of its own, that holds the folder in a bucket."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("s3") / "log"
    with open(log, "wb") as out:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(log.read_text()) from None
                time.sleep(0.05)
        options = {**KEYS, "endpoint_url": f"http://127.0.0.1:{port}"}
        fs = fsspec.filesystem("s3", **options)
        fs.mkdir(BUCKET)
        put(folder, fs, BUCKET)
        yield options
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def web(folder) -> Iterator[Web]:
    with serving() as served:
        for path in folder.rglob("*"):
            if path.is_file():
                served.objects[str(path.relative_to(folder))] = path.read_bytes()
        yield served


@pytest.fixture
def memory(folder) -> Iterator[fsspec.AbstractFileSystem]:
    fs = fsspec.filesystem("memory")
    put(folder, fs, "/data")
    yield fs
    fs.rm("/data", recursive=True)


@pytest.fixture(autouse=True)
def no_long_pauses(monkeypatch) -> None:
    monkeypatch.setattr(remote, "PAUSES_SECONDS", (0.01, 0.02, 0.03, 0.04))


@pytest.mark.parametrize("path", slow_but(["part-*.svm"], ["part-*.svm", "x.zarr", "x.h5:/gzip", "x.npy"]))
def test_s3_gives_the_fit_of_local_files(s3, local, path):
    source = open_source(f"s3://{BUCKET}/{path}", storage_options=s3)
    assert source.n_bytes > 0
    assert len(pickle.dumps(source)) < 5_000
    assert_same_fit(fit(source), local(path))


@pytest.mark.parametrize(
    "path",
    slow_but(
        ["x.svm.gz", "csr.zarr", "x.h5:/plain"], ["x.svm.gz", "csr.zarr", "shards.zarr", "x.h5:/csr", "x.h5:/plain"]
    ),
)
def test_a_web_server_gives_the_fit_of_local_files(web, local, path):
    given = {"path": f"{web.url}/{path}", "dataset": "/X" if "zarr" in path else None}
    assert_same_fit(fit(given), local(path))


@pytest.mark.slow
def test_a_cluster_gives_the_fit_of_local_files(client, s3, local):
    assert_same_fit(fit({"path": f"s3://{BUCKET}/x.zarr", "storage_options": s3}, client), local("x.zarr"))


@pytest.mark.parametrize("path", ["x.svm", "x.h5:/gzip", "x.zarr:/X"])
def test_a_chunk_is_few_large_requests(web, path):
    source = open_source(f"{web.url}/{path}")
    chunks = source.chunks(8 * 250 * N_FEATURES)  # two storage chunks
    source.read(chunks[0])
    web.log.clear()
    for chunk in chunks:
        source.read(chunk)
    sizes = [span[1] - span[0] + 1 for method, _, span in web.log if method == "GET" and span]
    assert len(chunks) >= 4
    assert len(sizes) <= len(chunks) + 1
    assert min(sizes, default=10_001) > 10_000
    assert web.count("GET", "x.zarr/X/c/") in (0, N_ROWS // 250)


@pytest.mark.parametrize(
    ("executor", "path"),
    slow_but(
        [("threads", "shards.zarr"), ("dask", "x.h5:/gzip")],
        [*(("threads", path) for path in ("x.npy", "x.zarr", "shards.zarr", "x.h5:/lzf")), ("dask", "x.h5:/gzip")],
    ),
)
def test_every_byte_is_fetched_once_a_pass(web, path, executor, request):
    where = request.getfixturevalue("client") if executor == "dask" else 2
    source = open_source(f"{web.url}/{path}")
    stored = source.n_bytes or sum(len(body) for key, body in web.objects.items() if key.startswith(f"{path}/X/c/"))
    web.log.clear()
    StreamKMeans(4, random_state=0, n_init=1, max_iter=2, chunk_bytes=CHUNK_BYTES * 4, executor=where).fit(source)
    asked = [(key, span or (0, len(web.objects[key]) - 1)) for method, key, span in web.log if method == "GET"]
    assert sum(last - first + 1 for _, (first, last) in asked) <= 2 * 1.04 * stored
    # at the end of a pass, whether it is the same object still; of Zarr, nothing is listed
    assert web.count("HEAD") == (0 if path.endswith(".zarr") else 2)


def test_the_index_of_small_chunks_is_fetched_without_the_chunks(web):
    file, X = io.BytesIO(), np.random.default_rng(0).normal(size=(40_000, 16)).astype(np.float32)
    with h5py.File(file, "w") as made:
        made.create_dataset("X", data=X, chunks=(32, 16), compression="gzip")
    web.objects["small.h5"] = file.getvalue()
    source = pickle.loads(pickle.dumps(open_source(f"{web.url}/small.h5")))
    web.log.clear()
    source.read(source.chunks(100_000)[0])
    sizes = [span[1] - span[0] + 1 for method, _, span in web.log if method == "GET" and span]
    assert len(sizes) <= 4
    assert sum(sizes) < len(web.objects["small.h5"]) / 8


DECODED: dict[str, dict[str, object]] = {
    "lzf": {"compression": "lzf", "shuffle": True},  # chunks that do not shrink are stored as they are
    "checked": {"fletcher32": True, "compression": "gzip"},
    "columns": {"compression": "lzf", "chunks": (500, 6)},
    "blosc": {"compression": 32001, "compression_opts": (0, 0, 0, 0, 5, 1, 1)},
}


@pytest.mark.parametrize("kind", DECODED)
def test_what_the_library_decodes_is_found_once_for_all_processes(web, kind):
    """One request a read, of the rows alone; storage chunks that were never written hold the fill value."""
    if kind == "blosc":
        pytest.importorskip("hdf5plugin")
    X, file = np.random.default_rng(0).normal(size=(5_050, 24)).astype(np.float32), io.BytesIO()
    X[1_000:2_000], X[3_000:3_100] = np.round(X[1_000:2_000]), 7
    with h5py.File(file, "w") as made:
        array = made.create_dataset("X", X.shape, "f4", fillvalue=7, **{"chunks": (100, 24), **DECODED[kind]})
        array[:3_000], array[3_100:] = X[:3_000], X[3_100:]
    web.objects["x.h5"] = file.getvalue()
    source = pickle.loads(pickle.dumps(open_source(f"{web.url}/x.h5")))
    web.log.clear()
    np.testing.assert_array_equal(assemble(source.stream(200_000), 24), X)
    spans = [span for method, _, span in web.log if method == "GET"]
    assert sum(last - first + 1 for first, last in spans) <= 1.1 * source.n_bytes
    assert len(web.log) <= 2 * len(source.chunks(200_000))


def test_a_damaged_storage_chunk_behind_a_url_is_told_with_its_rows(web):
    file = io.BytesIO()
    with h5py.File(file, "w") as made:
        made.create_dataset("X", data=np.zeros((1_000, 10)), chunks=(100, 10), fletcher32=True)
        at = made["X"].id.get_chunk_info(3).byte_offset
    web.objects["x.h5"] = file.getvalue()[:at] + b"spoiled" + file.getvalue()[at + 7 :]
    with pytest.raises(SourceError, match=r"rows 300-399, cannot be read"):
        list(open_source(f"{web.url}/x.h5").stream(8_000))


def test_compressed_text_is_read_in_large_pieces(web):
    web.objects["long.gz"] = gzip.compress(b"0 1:0.123456789\n" * 120_000, 0)
    source = open_source(f"{web.url}/long.gz", n_features=10)
    next(source.stream(1000))
    web.log.clear()
    assert sum(len(piece.row_ids) for piece in source.stream(100_000)) == 120_000
    assert len([span for method, _, span in web.log if method == "GET" and span]) <= 2


def test_any_reads_give_the_bytes_of_the_object(web):
    data = np.random.default_rng(0).bytes(1_000_003)
    web.objects["x"] = data
    file = RemoteFile(remote.Address(f"{web.url}/x"))
    rng = np.random.default_rng(1)
    for i in range(60):
        if i % 20 == 0:
            file.expected = int(at := rng.integers(0, len(data))), int(at) + 50_000
        if rng.random() < 0.5:
            file.seek(int(rng.integers(0, len(data) + 10)))
        at, n_bytes = file.tell(), int(rng.choice([1, 500, 70_000, 300_000]))
        assert file.read(n_bytes) == data[at : at + n_bytes]
    file.seek(-7, io.SEEK_END)
    assert file.read() == data[-7:]
    assert file.read(1) == b""


def test_zarr_on_a_web_server_is_found_by_known_names(web, folder, local):
    assert_same_fit(fit(f"{web.url}/x.zarr"), local("x.zarr"))  # tried: X
    assert_same_fit(fit(f"{web.url}/csr.zarr"), local("csr.zarr"))
    with pytest.raises(SourceError, match=r"x\.zarr has no /Y"):
        open_source(f"{web.url}/x.zarr:/Y")
    for key in [key for key in web.objects if key.startswith("x.zarr/")]:
        web.objects[key.replace("x.zarr/X", "named.zarr/name").replace("x.zarr", "named.zarr")] = web.objects[key]
    assert_same_fit(fit(f"{web.url}/named.zarr:/name"), local("x.zarr"))
    for key in [key for key in web.objects if key.startswith("v2.zarr/")]:
        web.objects[key.replace("v2.zarr/", "plain/")] = web.objects[key]
    assert open_source(f"{web.url}/plain").n_rows == N_ROWS  # no suffix: by what is in it


def test_failures_that_pass_are_tried_again(web, local, caplog):
    failures = [503, 500]
    web.before = lambda method, path: failures.pop() if method == "GET" and failures else None
    with caplog.at_level(logging.WARNING, "streamkm.sources.remote"):
        assert_same_fit(fit(f"{web.url}/x.svm"), local("x.svm"))
    failed = f"{web.url}/x.svm cannot be read: ClientResponseError: "
    assert [record.getMessage() for record in caplog.records] == [
        f"{failed}{status}, message={word!r}, url='{web.url}/x.svm'; asked again in {pause} s"
        for status, word, pause in ((500, "Internal Server Error", 0.01), (503, "Service Unavailable", 0.02))
    ]


@pytest.mark.parametrize("path", ["x.svm", "x.h5:/gzip", "x.zarr:/X"])
def test_answers_that_end_early_are_asked_for_again(web, local, path):
    source = open_source(f"{web.url}/{path}")
    web.cut = 2
    assert_same_fit(fit(source), local(path.removesuffix(":/X")))
    assert web.cut == 0


@pytest.mark.timeout(60, method="thread")
@pytest.mark.parametrize("path", ["x.h5:/gzip", "x.h5:/lzf"])
def test_hdf5_objects_in_cycles_never_stop_the_threads_that_fetch(web, folder, local, path):
    # the library is locked while a request of its is under way; freeing one of its objects waits for that lock
    with h5py.File(folder / "x.h5") as file:
        held = [file["plain"].id for _ in range(200)]
    assert gc.isenabled()
    source = open_source(f"{web.url}/{path}")

    def litter(method: str, path: str) -> None:
        cycle = [held.pop()]
        cycle.append(cycle)
        del cycle
        assert [[] for _ in range(2 * gc.get_threshold()[0])]  # enough for a collection

    web.before = litter
    assert_same_fit(fit(source), local(path))
    assert gc.isenabled()


def test_failures_that_stay_are_told_with_what_failed(web, caplog):
    source = open_source(f"{web.url}/x.svm")
    web.before = lambda method, path: 503 if method == "GET" else None
    with pytest.raises(SourceError, match=r"x\.svm cannot be read: ClientResponseError: 503"):
        fit(source)
    assert len(caplog.records) >= 4
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}/x.svm"
    with pytest.raises(SourceError, match=r"cannot be read: .*(Connect|refused)"):
        open_source(nobody)


@pytest.mark.parametrize(
    ("path", "etags"),
    [("x.svm", True), ("x.svm.gz", False), ("x.h5:/gzip", True), ("x.h5:/lzf", False), ("x.npy", False)],
)
def test_a_changed_object_is_noticed(web, path, etags):
    web.etags = etags
    source = open_source(f"{web.url}/{path}")
    key = path.partition(":")[0]
    old = web.objects[key]
    new = old[::-1] if etags else old[: len(old) // 2]
    web.log.clear()
    web.before = lambda *_: web.objects.update({key: new}) if web.count("GET", key) == 2 else None
    size = rf"{len(old):,} bytes" + (", etag .*" if etags else "")
    now = rf"{len(new):,} bytes" + (", etag .*" if etags else "")
    with pytest.raises(
        SourceError,
        match=rf"^{web.url}/{key} was changed while it was in use: it was {size} when it was opened and is {now} now",
    ):
        fit(source)


@pytest.mark.parametrize("path", ["x.svm", "x.zarr"])
def test_an_object_that_goes_is_noticed(web, memory, path):
    source = open_source(f"memory://data/{path}")
    memory.rm("/data/x.svm" if path == "x.svm" else "/data/x.zarr/X/c/0/0")
    gone = r"x\.svm does not exist$" if path == "x.svm" else r"/X was changed .* and is .* 8 objects, .* now"
    with pytest.raises(SourceError, match=gone):
        fit(source)
    web_source = open_source(f"{web.url}/x.svm")
    del web.objects["x.svm"]
    with pytest.raises(SourceNotFoundError, match=r"x\.svm does not exist$"):
        fit(web_source)


def test_changed_objects_on_s3_are_noticed(s3, folder):
    fs, place = fsspec.filesystem("s3", **s3), f"{BUCKET}/scratch"
    put(folder / "x.zarr", fs, f"{place}/x.zarr")
    store = open_source(f"s3://{place}/x.zarr", storage_options=s3)
    elsewhere = pickle.dumps(store)
    fs.pipe_file(f"{place}/x.zarr/X/c/0/0", fs.cat_file(f"{place}/x.zarr/X/c/1/0"))
    for source in (store, pickle.loads(elsewhere)):
        with pytest.raises(SourceError, match=r"/X was changed .* 9 objects, .* and is .* 9 objects, .* now"):
            fit(source)


def test_a_server_without_ranges_is_refused(web):
    web.ranges = False
    for path in ("x.svm", "x.h5:/gzip"):
        with pytest.raises(SourceError, match=r"/x\..* cannot be read: .* range requests.* download the file"):
            fit(f"{web.url}/{path}")
    web.objects["small"] = b"1 1:1\n1 2:2\n"
    assert assemble(open_source(f"{web.url}/small").stream(1000), 2).tolist() == [[1, 0], [0, 2]]  # fetched whole


def test_missing_and_refused_objects_are_told_apart(web, s3):
    with pytest.raises(SourceNotFoundError, match=rf"^{web.url}/no.svm does not exist$"):
        open_source(f"{web.url}/no.svm")
    with pytest.raises(SourceNotFoundError, match=r"^s3://rows/no.svm does not exist$"):
        open_source(f"s3://{BUCKET}/no.svm", storage_options=s3)
    with pytest.raises(SourceNotFoundError, match=r"^no object matches s3://rows/no-\*.svm$"):
        open_source(f"s3://{BUCKET}/no-*.svm", storage_options=s3)
    with pytest.raises(SourceError, match=r"s3://rows/x.zarr/X/c is no Zarr store"):
        open_source(f"s3://{BUCKET}/x.zarr/X/c", storage_options=s3)
    web.before = lambda method, path: 403
    for path in ("x.svm", "x.h5", "x.zarr", "x.zarr:/X"):
        with pytest.raises(SourceError, match=r"cannot be read: ClientResponseError: 403.*storage_options"):
            open_source(f"{web.url}/{path}")


def test_options_and_protocols_that_do_not_fit_are_refused(folder):
    with pytest.raises(InvalidParameterError, match=r"storage_options= does not apply to .*x.svm, which is no URL"):
        open_source(folder / "x.svm", storage_options={"anon": True})
    with pytest.raises(InvalidParameterError, match=r"storage_options= does not apply to an array"):
        open_source(rows(), storage_options={"anon": True})
    with pytest.raises(InvalidParameterError, match=r"storage_options must be a mapping of options, got str"):
        open_source("memory://x", storage_options="anon")
    with pytest.raises(SourceError, match=r"what://x cannot be read: ValueError: Protocol not known: what"):
        open_source("what://x")
    with pytest.raises(SourceError, match=r"ftp://127\.0\.0\.1:9/x\.csv cannot be read: .*refused"):
        open_source("ftp://127.0.0.1:9/x.csv")  # connects when its file system is made


@cases("protocol, extra, package", [("s3", "s3", "s3fs"), ("https", "remote", "aiohttp")])
def test_a_missing_package_is_told_with_its_extra(monkeypatch, protocol, extra, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.http", raising=False)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, protocol, raising=False)
    with pytest.raises(MissingDependencyError, match=rf"{protocol}://host.* cannot be read: .* streamkm\[{extra}\]"):
        open_source(f"{protocol}://host/x.svm")


def test_fingerprints_tell_versions(web, memory):
    for path, key in (("x.svm", "x.svm"), ("x.zarr", "x.zarr/X/c/3/0"), ("x.h5:/gzip", "x.h5")):
        before = fingerprint(open_source(f"memory://data/{path}"))
        assert before == fingerprint(open_source(f"memory://data/{path}"))
        assert json.loads(json.dumps(before)) == before
        memory.pipe_file(f"/data/{key}", memory.cat_file(f"/data/{key}"))
        assert fingerprint(open_source(f"memory://data/{path}"))["files"][0]["version"] != before["files"][0]["version"]
    url = f"{web.url}/x.zarr:/X"  # nothing is listed: samples of rows
    before = fingerprint(open_source(url))
    assert before == fingerprint(open_source(url))
    web.objects["x.zarr/X/c/0/0"] = web.objects["x.zarr/X/c/4/0"]
    assert fingerprint(open_source(url))["sample"] != before["sample"]


def test_configurations_and_commands_take_urls(s3, tmp_path, local):
    config = tmp_path / "config.yaml"
    options = json.dumps(s3)
    config.write_text(f"data:\n  path: s3://{BUCKET}/x.svm\n  storage_options: {options}\n")
    assert load_run(config).data.source.name == f"s3://{BUCKET}/x.svm"
    result = CliRunner().invoke(
        main, ["fit", str(config), "-k", "4", "-o", str(tmp_path / "out"), "--set", "estimator.random_state=0",
               "--set", f"estimator.chunk_bytes={CHUNK_BYTES}", "--set", "output.report=false"],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "labels.npy"), local("x.svm").labels_)
    written = "".join(path.read_text() for path in (tmp_path / "out").glob("*.json"))
    assert f"s3://{BUCKET}/x.svm" in written
    assert "secret" not in written
    with pytest.raises(ConfigError, match=r"data.storage_options must be a valid dictionary, got "):
        load_run(config, [Override("data.storage_options", 3, "--set")])
