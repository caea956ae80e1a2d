"""Local files that are no files, and files that change while they are read: one clear error, in every process."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
import zarr
from pyarrow import parquet

from streamkm import StreamKMeans, open_documents
from streamkm.core.exceptions import SourceError
from streamkm.sources import open_source
from streamkm.sources.fingerprints import file_fingerprint
from streamkm.sources.local import opened
from streamkm.sources.row_source import RowSource
from tests.containers import ALL, values
from tests.tables import cases, slow_but

ROWS = 2_000
CHUNK_BYTES = 8_000


class Kind(NamedTuple):
    """A kind of file: its name, how it is written from a seed, and opened."""

    name: str
    write_rows: Callable
    open: Callable = open_source

    def write(self, path, seed):
        """Write rows that differ by the seed."""
        self.write_rows(path, values(ROWS) + seed)


def write_zipped_zarr(path, X):
    with zarr.storage.ZipStore(path, mode="w") as store:
        zarr.create_array(store, data=X, chunks=(64, 6), compressors=None)


def write_shards(path, X):
    zarr.create_array(path, data=X, chunks=(64, 6), shards=(128, 6))


def write_texts(path, X):
    texts = pa.table({"text": [f"word{row[0]:.0f} {row[1]}" for row in X]})
    parquet.write_table(texts, path, row_group_size=100, compression="none")


def words(field):
    return lambda path: open_documents(path, field=field, tfidf=False)


NAMES = ("x.npy", "x.h5", "checked.h5", "x.h5ad", "3.zarr", "x.svm", "x.svm.gz", "x.csv")
KINDS = {name: Kind(name, ALL[name]) for name in NAMES} | {
    "memory map": Kind("x.npy", np.save, lambda path: open_source(np.load(path, mmap_mode="r"))),
    "csr": Kind("x.npz", lambda path, X: sp.save_npz(path, sp.csr_array(X), compressed=False)),
    "shards": Kind("x.zarr", write_shards),
    "zip": Kind("x.zip", write_zipped_zarr),
    "lines": Kind("x.txt", lambda path, X: np.savetxt(path, X, "%d"), words(None)),
    "documents": Kind("x.jsonl", ALL["x.jsonl"], words("text")),
    "documents of Parquet": Kind("x.parquet", write_texts, words("text")),
    "documents of CSV": Kind("x.csv", ALL["x.csv"], words("f1")),
}
CHANGED = r"{name}.* was changed while it was in use: it was .* when .* opened .*; open the source again once"


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def read_all(source):
    for _ in source.stream(CHUNK_BYTES):
        pass


def last_file(path: Path) -> Path:
    """The file itself, or that with the last values of a directory."""
    if path.is_file():
        return path
    array = path / "data" if (path / "data").exists() else path
    numbers = {each: [int(n) for n in re.findall(r"[0-9]+", str(each.relative_to(array)))] for each in array.rglob("*")}
    return max((each for each in numbers if each.is_file()), key=lambda each: (numbers[each], each))


def replace(kind, path):
    """Put another file, or directory, in its place, as careful writers do."""
    new = path.with_name(f"new-{path.name}")
    kind.write(new, 1)
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    new.rename(path)


def overwrite(kind, path):
    """Change a byte in the middle; the size stays."""
    file = last_file(path)
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 2)
        byte = opened.read(1)[0]
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([byte ^ 1]))


CHANGES = {name: [(replace, overwrite)[number % 2]] for number, name in enumerate(KINDS)}
CHANGES.update({name: [replace, overwrite] for name in ("x.npy", "x.h5", "3.zarr", "x.svm", "x.csv")})


@pytest.mark.parametrize(
    ("name", "change"),
    [pytest.param(name, change, id=f"{change.__name__} {name}") for name in KINDS for change in CHANGES[name]],
)
def test_a_file_that_changes_between_two_passes(name, change, tmp_path):
    kind = KINDS[name]
    path = tmp_path / kind.name
    kind.write(path, 0)
    source = kind.open(path)
    read_all(source)
    elsewhere = pickle.loads(pickle.dumps(source))
    change(kind, path)
    for each in (source, elsewhere):
        with pytest.raises(SourceError, match=CHANGED.format(name=path)):
            read_all(each)
    if change is replace:
        read_all(kind.open(path))


def test_a_file_that_nobody_changed_is_read_anywhere_until_it_is_gone(kind, tmp_path):
    path = tmp_path / kind.name
    kind.write(path, 0)
    source = kind.open(path)
    read_all(source)
    os.link(last_file(path), tmp_path / "link")  # which changes the time of its state
    last_file(path).chmod(0o600)
    read_all(source)
    read_all(pickle.loads(pickle.dumps(source)))
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(SourceError, match=str(path)):
        read_all(source)


def test_a_storage_chunk_that_appears_or_vanishes(tmp_path):
    array = zarr.create_array(tmp_path / "x.zarr", shape=(50, 4), chunks=(10, 4), dtype="f4")
    array[:20] = 3
    source = open_source(tmp_path / "x.zarr")
    array[20:30] = 3
    with pytest.raises(SourceError, match=r"c/2/0 was changed .* it was missing when"):
        read_all(source)
    source = open_source(tmp_path / "x.zarr")
    (tmp_path / "x.zarr" / "c" / "1" / "0").unlink()
    with pytest.raises(SourceError, match=r"c/1/0 was changed .* is missing now"):
        read_all(source)


def test_a_checkpoint_knows_what_was_opened(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((9, 2)))
    path = opened(str(tmp_path / "x.npy"))
    told = file_fingerprint(path)
    assert told == file_fingerprint(str(path))
    assert told["mtime_ns"] == os.stat(path).st_mtime_ns
    np.save(tmp_path / "x.npy", np.ones((9, 2)))
    with pytest.raises(SourceError, match="was changed while it was in use"):
        file_fingerprint(path)


class ChangesAfter(RowSource):
    """A source whose file somebody changes after so many reads, in whatever processes they are."""

    def __init__(self, source, path, n_reads, change):
        self.__dict__.update({name: getattr(source, name) for name in ("name", "n_rows", "n_features", "dtype")})
        self.is_sparse, self.n_bytes, self.origin = source.is_sparse, source.n_bytes, source.origin
        self.source, self.path, self.n_reads, self.change = source, path, n_reads, change

    def chunks(self, target_bytes):
        return self.source.chunks(target_bytes)

    def read(self, chunk):
        rows = self.source.read(chunk)
        count = self.path.with_name("count")
        with count.open("ab", buffering=0) as file:
            file.write(b".")
        if count.stat().st_size >= self.n_reads:  # two that read at once may both have counted before either looks
            with suppress(FileExistsError):
                self.path.with_name("changed").touch(exist_ok=False)
                self.change(None, self.path)
        return rows


@pytest.mark.parametrize(
    ("executor", "name"), slow_but([("threads", "3.zarr")], [("threads", "3.zarr"), ("dask", "checked.h5")])
)
def test_a_fit_does_not_mix_old_and_new_rows(name, executor, tmp_path, request):
    kind = KINDS[name]
    path = tmp_path / kind.name
    kind.write(path, 0)
    source = kind.open(path)
    n_chunks = len(source.chunks(CHUNK_BYTES))
    changes = ChangesAfter(source, path, n_chunks + n_chunks // 3, overwrite)
    where = request.getfixturevalue("client") if executor == "dask" else 2
    model = StreamKMeans(3, executor=where, chunk_bytes=CHUNK_BYTES, random_state=0, progress=False)
    with pytest.raises(SourceError, match=CHANGED.format(name=path)):
        model.fit(changes)


def test_a_worker_that_sees_another_file_under_the_same_path(client, tmp_path, monkeypatch):
    kind, folders = KINDS["3.zarr"], [tmp_path / "here", tmp_path / "there"]
    for seed, folder in enumerate(folders):
        folder.mkdir()
        kind.write(folder / kind.name, seed)
    monkeypatch.chdir(folders[0])
    _, second = client.scheduler_info()["workers"]
    before = client.run(os.getcwd)
    client.run(os.chdir, folders[0])
    client.run(os.chdir, folders[1], workers=[second])
    try:
        with pytest.raises(SourceError, match=rf"{kind.name} was changed .*cp -p, rsync -t.* seen from worker .*there"):
            StreamKMeans(3, executor=client, chunk_bytes=CHUNK_BYTES, progress=False).fit(kind.name)
    finally:
        for worker, folder in before.items():
            client.run(os.chdir, folder, workers=[worker])


@pytest.fixture(params=["a FIFO", "a socket"])
def no_file(request, tmp_path, monkeypatch):
    """The path of something that would block whoever opens it, or fail oddly."""
    monkeypatch.chdir(tmp_path)  # names of sockets must be short
    if request.param == "a FIFO":
        os.mkfifo("b.data")
    else:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("b.data")  # whose name stays
    return request.param, tmp_path / "b.data"


@cases("form", ["auto", "hdf5", "npy", "npz", "zarr", "svmlight", "store", "lines", "jsonl", "csv", "parquet"])
def test_what_is_no_file_is_refused(no_file, form):
    what, path = no_file
    options = {"field": "text"} if form in ("jsonl", "csv", "parquet") else {}
    opener = open_documents if form in ("lines", "jsonl", "csv", "parquet") else open_source
    with pytest.raises(SourceError, match=rf"{path} is .*{what}.*, not a regular file; name files"):
        opener(path, format=form, **options)


def test_what_is_no_file_among_those_of_a_glob(no_file):
    what, path = no_file
    np.save("a.npy", np.eye(3))
    for opener in (open_source, open_documents):
        with pytest.raises(SourceError, match=rf"b.data is .*{what}"):
            opener(str(path.parent / "*.*"))


def test_what_is_no_file_in_a_zarr_store(no_file):
    what, _ = no_file
    write_shards(Path("x.zarr"), values())
    Path("b.data").rename("x.zarr/c/0/9")
    with pytest.raises(SourceError, match=rf"x.zarr/c/0/9 is .*{what}"):
        open_source("x.zarr")
