"""Local files that are no files, and files that change while they are read: one clear error, in every process."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import os
import pickle
import re
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from sklearn.datasets import dump_svmlight_file

from streamkm import StreamKMeans, open_documents
from streamkm.core.exceptions import InvalidInputError, SourceError, SourceNotFoundError
from streamkm.sources import open_source
from streamkm.sources.base import RowSource
from streamkm.sources.fingerprints import file_fingerprint
from streamkm.sources.local import opened
from tests.sources.matrices import sparse_matrix, write_csr
from tests.tables import slow_but

ROWS = 2_000
CHUNK_BYTES = 8_000


def dense(seed):
    return np.random.default_rng(seed).integers(0, 100, (ROWS, 4)).astype(np.float32)


def sparse(seed):
    X = sparse_matrix(ROWS, 31)
    X.data = np.random.default_rng(seed).integers(1, 100, X.nnz).astype(np.float32)
    return X


def words(seed):
    return [f"word{number:03d} word{number % 7}" for number in np.random.default_rng(seed).integers(0, 999, ROWS)]


def write_npz(path, seed):
    np.savez(path, X=dense(seed))


def write_svmlight(path, seed):
    dump_svmlight_file(sparse(seed), np.zeros(ROWS), str(path))


def packed(write, pack):
    def write_packed(path, seed):
        write(path, seed)
        path.write_bytes(pack(path.read_bytes()))

    return write_packed


def write_hdf5(path, seed, **options):
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=dense(seed), **options)


def write_hdf5_csr(path, seed):
    with h5py.File(path, "w") as file:
        write_csr(file.create_group("X"), sparse(seed), chunk=500)


def write_zarr(path, seed, **options):
    array = zarr.create_array(path, shape=(ROWS, 4), dtype="f4", chunks=(100, 2), compressors=None, **options)
    array[:] = dense(seed)


def write_zipped_zarr(path, seed):
    with zarr.storage.ZipStore(path, mode="w") as store:
        write_zarr(store, seed)


def write_zarr_csr(path, seed):
    write_csr(zarr.open_group(path, mode="w"), sparse(seed), chunk=500, compressors=None)


def write_lines(path, seed):
    path.write_text("\n".join(words(seed)) + "\n")


def write_json(path, seed):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in words(seed)))


def write_csv(path, seed):
    path.write_text("id,text\n" + "".join(f'1,"{text}"\n' for text in words(seed)))


def write_parquet(path, seed):
    pa = pytest.importorskip("pyarrow", reason="reads Parquet")
    from pyarrow import parquet

    parquet.write_table(pa.table({"text": words(seed)}), path, row_group_size=100, compression="none")


class Kind(NamedTuple):
    """A kind of file: its name, how it is written from a seed, and opened."""

    name: str
    write: Callable
    open: Callable = open_source


def documents(**options):
    return lambda path: open_documents(path, tfidf=False, **options)


KINDS = {
    "npy": Kind("x.npy", lambda path, seed: np.save(path, dense(seed))),
    "npy by columns": Kind("x.npy", lambda path, seed: np.save(path, np.asfortranarray(dense(seed)))),
    "memory map": Kind(
        "x.npy", lambda path, seed: np.save(path, dense(seed)), lambda path: open_source(np.load(path, mmap_mode="r"))
    ),
    "npz": Kind("x.npz", write_npz),
    "npz csr": Kind("x.npz", lambda path, seed: sp.save_npz(path, sparse(seed), compressed=False)),
    "svmlight": Kind("x.svm", write_svmlight),
    "svmlight, gzip": Kind("x.svm.gz", packed(write_svmlight, gzip.compress)),
    "svmlight, bzip2": Kind("x.svm.bz2", packed(write_svmlight, bz2.compress)),
    "hdf5, contiguous": Kind("x.h5", write_hdf5),
    "hdf5, chunks": Kind("x.h5", lambda path, seed: write_hdf5(path, seed, chunks=(500, 4), compression="gzip")),
    "hdf5, by the library": Kind("x.h5", lambda path, seed: write_hdf5(path, seed, chunks=(50, 4), fletcher32=True)),
    "hdf5 csr": Kind("x.h5", write_hdf5_csr),
    "zarr": Kind("x.zarr", write_zarr),
    "zarr 2": Kind("x.zarr", lambda path, seed: write_zarr(path, seed, zarr_format=2)),
    "zarr, shards": Kind("x.zarr", lambda path, seed: write_zarr(path, seed, shards=(200, 4))),
    "zarr, zip": Kind("x.zip", write_zipped_zarr),
    "zarr csr": Kind("x.zarr", write_zarr_csr),
    "lines": Kind("x.txt", write_lines, documents()),
    "lines, gzip": Kind("x.txt.gz", packed(write_lines, gzip.compress), documents()),
    "json lines": Kind("x.jsonl", write_json, documents(field="text")),
    "csv": Kind("x.csv", write_csv, documents(field="text")),
    "parquet": Kind("x.parquet", write_parquet, documents(field="text")),
}
CHANGED = r"{name}.* was changed while it was in use: it was .* when .* opened .*; open the source again once"


QUICK = (
    "npy", "memory map", "npz csr", "svmlight", "svmlight, gzip", "hdf5, chunks", "hdf5 csr", "zarr", "zarr, shards",
    "zarr, zip", "lines", "json lines", "csv", "parquet",
)  # fmt: skip


@pytest.fixture(params=slow_but(QUICK, KINDS))
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


@pytest.mark.parametrize("change", [replace, overwrite], ids=lambda change: change.__name__)
def test_a_file_that_changes_between_two_passes(kind, change, tmp_path):
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


def test_a_file_that_nobody_changed_is_read_anywhere(kind, tmp_path):
    path = tmp_path / kind.name
    kind.write(path, 0)
    source = kind.open(path)
    read_all(source)
    os.link(last_file(path), tmp_path / "link")  # which changes the time of its state
    last_file(path).chmod(0o600)
    read_all(source)
    read_all(pickle.loads(pickle.dumps(source)))


def test_a_file_that_is_gone(kind, tmp_path):
    path = tmp_path / kind.name
    kind.write(path, 0)
    source = kind.open(path)
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
    np.save(tmp_path / "x.npy", dense(0))
    path = opened(str(tmp_path / "x.npy"))
    told = file_fingerprint(path)
    assert told == file_fingerprint(str(path))
    assert told["mtime_ns"] == os.stat(path).st_mtime_ns
    np.save(tmp_path / "x.npy", dense(1))
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


MIXED = itertools.product(["threads", "dask"], ["npy", "zarr", "hdf5, chunks", "svmlight"])


@pytest.mark.parametrize(("executor", "name"), slow_but([("threads", "zarr"), ("dask", "hdf5, chunks")], MIXED))
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


@pytest.mark.parametrize("name", ["npy", "zarr"])
def test_a_worker_that_sees_another_file_under_the_same_path(name, client, tmp_path, monkeypatch):
    kind, folders = KINDS[name], [tmp_path / "here", tmp_path / "there"]
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


# ---- what is no file


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


@pytest.mark.parametrize("form", ["auto", "hdf5", "npy", "npz", "zarr", "svmlight", "store"])
def test_what_is_no_file_is_refused(no_file, form):
    what, path = no_file
    with pytest.raises(SourceError, match=rf"{path} is .*{what}.*, not a regular file; name files"):
        open_source(path, format=form)


@pytest.mark.parametrize("form", ["auto", "lines", "jsonl", "csv", "parquet"])
def test_what_is_no_file_of_documents_is_refused(no_file, form):
    what, path = no_file
    options = {} if form in ("auto", "lines") else {"field": "text"}
    with pytest.raises(SourceError, match=rf"{path} is .*{what}.*, not a regular file; name files"):
        open_documents(path, format=form, **options)


def test_what_is_no_file_among_those_of_a_glob(no_file):
    what, path = no_file
    np.save("a.npy", dense(0))
    for opener in (open_source, open_documents):
        with pytest.raises(SourceError, match=rf"b.data is .*{what}"):
            opener(str(path.parent / "*.*"))


def test_what_is_no_file_in_a_zarr_store(no_file):
    what, _ = no_file
    write_zarr(Path("x.zarr"), 0)
    Path("b.data").rename("x.zarr/c/0/9")
    with pytest.raises(SourceError, match=rf"x.zarr/c/0/9 is .*{what}"):
        open_source("x.zarr")


@pytest.mark.parametrize("opener", [open_source, open_documents])
def test_a_directory_among_the_files_of_a_glob(opener, tmp_path):
    write_lines(tmp_path / "a.txt", 0)
    (tmp_path / "b.txt").mkdir()
    told = r"b.txt is a directory" if opener is open_source else "files of several formats"
    with pytest.raises((SourceError, InvalidInputError), match=told):
        opener(str(tmp_path / "*"), **({"format": "svmlight"} if opener is open_source else {}))
    with pytest.raises(SourceNotFoundError, match="does not exist"):
        opener(tmp_path / "a.txt" / "below")
