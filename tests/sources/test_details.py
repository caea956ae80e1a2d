"""What `streamkm inspect` tells of each kind of storage."""

from __future__ import annotations

import gzip
from pathlib import Path

import h5py
import numpy as np
import scipy.sparse as sp
import zarr
from click.testing import CliRunner

from streamkm.cli.main import main
from streamkm.sources import open_source
from tests.sources.matrices import dense_matrix, sparse_matrix, write_csr
from tests.tables import cases

X, S = dense_matrix(53, 7), sparse_matrix(53, 31)
NNZ = {"nnz": f"{S.nnz:,}, {S.nnz / 53:.1f} a row", "indices": "int32, pointers int32"}
PLAIN = {"chunks": "none, contiguous", "compression": "none"}


def hdf5(name, **options):
    with h5py.File(name, "w") as file:
        file.create_dataset("X", data=X, **options)


def hdf5_csr(name, **options):
    with h5py.File(name, "w") as file:
        write_csr(file.create_group("X"), S, **options)


def tenx(name):
    with h5py.File(name, "w") as file:
        write_csr(group := file.create_group("matrix"), S)
        del group.attrs["shape"], group.attrs["encoding-type"]
        group["shape"] = S.shape[::-1]
        group["barcodes"] = np.arange(53)
        group.create_group("features")


def zarr_dense(name, **options):
    zarr.create_array(name, shape=X.shape, chunks=(10, 4), dtype=X.dtype, **options)[:] = X


def zarr_csr(name, version):
    write_csr(zarr.open_group(name, mode="w", zarr_format=version).create_group("X"), S, chunk=100)


def text(name, content, pack=bytes):
    Path(name).write_bytes(pack(content.encode()))


FIRST_BASE = "one-based, as the head has no index 0"
CASES = {
    "x.npy": (lambda name: np.save(name, X), {"format": ".npy dense", **PLAIN}),
    "x.npz": (lambda name: np.savez(name, x=X), {"format": ".npz dense", **PLAIN}),
    "packed.npz": (
        lambda name: np.savez_compressed(name, x=X), {"format": ".npz dense, compressed, loaded whole"}
    ),
    "csr.npz": (
        lambda name: sp.save_npz(name, sp.csr_matrix(S), compressed=False),
        {"format": "SciPy CSR in .npz", **NNZ, **PLAIN},
    ),
    "packed csr.npz": (
        lambda name: sp.save_npz(name, sp.csr_matrix(S)),
        {"format": "SciPy CSR in .npz, loaded whole", "nnz": NNZ["nnz"], "indices": "int32"},
    ),
    "plain.h5": (hdf5, {"format": "HDF5 dense", **PLAIN}),
    "gzip.h5": (
        lambda name: hdf5(name, chunks=(10, 4), compression="gzip", shuffle=True),
        {"format": "HDF5 dense", "chunks": "12 of 10 x 4", "compression": "shuffle + gzip, level 4"},
    ),
    "lzf.h5": (
        lambda name: hdf5(name, chunks=(10, 7), compression="lzf"),
        {"format": "HDF5 dense", "chunks": "6 of 10 x 7", "compression": "lzf"},
    ),
    "x.h5ad": (
        lambda name: hdf5_csr(name, chunk=100, compression="gzip"),
        {"format": "AnnData CSR in HDF5", **NNZ, "chunks": "4 of 100", "compression": "gzip, level 4"},
    ),
    "csr.h5": (
        lambda name: hdf5_csr(name, encoding=""), {"format": "CSR in HDF5", **NNZ, **PLAIN}
    ),
    "tenx.h5": (tenx, {"format": "10x Genomics matrix, cells as rows, in HDF5", **NNZ, **PLAIN}),
    "v2.zarr": (
        lambda name: zarr_dense(name, zarr_format=2),
        {"format": "Zarr v2 dense", "chunks": "12 of 10 x 4", "compression": "zstd"},
    ),
    "v3.zarr": (
        lambda name: zarr_dense(name, compressors=zarr.codecs.BloscCodec(cname="lz4"), shards=(20, 8)),
        {"format": "Zarr v3 dense", "chunks": "12 of 10 x 4", "shards": "3 of 20 x 8", "compression": "blosc lz4"},
    ),
    "plain.zarr": (
        lambda name: zarr_dense(name, compressors=None),
        {"format": "Zarr v3 dense", "chunks": "12 of 10 x 4", "compression": "none"},
    ),
    "csr.zarr": (
        lambda name: zarr_csr(name, 3),
        {"format": "AnnData CSR in Zarr v3", **NNZ, "chunks": "4 of 100", "compression": "zstd"},
    ),
    "x.svm": (
        lambda name: text(name, "1 1:2 3:4\n" * 20),
        {"format": "svmlight text", "nnz": "about 40", "indices": FIRST_BASE, "compression": "none"},
    ),
    "x.svm.gz": (
        lambda name: text(name, "1 0:2 3:4\n" * 20, gzip.compress),
        {
            "format": "svmlight text",
            "nnz": "about 40",
            "indices": "zero-based, as the head has an index 0",
            "compression": "gzip",
        },
    ),
}  # fmt: skip


@cases("name", CASES)
def test_details(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    write, told = CASES[name]
    write(name)
    assert open_source(name).details() == told
    lines = CliRunner().invoke(main, ["inspect", name]).output.splitlines()
    assert [line.split("  ", 1)[0] for line in lines] == ["data", "rows", "features", "values", "stored bytes", *told]
    for line, expected in zip(lines[5:], told.values(), strict=True):
        assert line.endswith(f"  {expected}")


def test_details_of_several_files(tmp_path):
    for part, height in enumerate((10, 20)):
        with h5py.File(tmp_path / f"{part}.h5", "w") as file:
            file.create_dataset("X", data=X, chunks=(height, 7))
    told = open_source(str(tmp_path / "*.h5")).details()
    assert told == {
        "parts": "2", "format": "HDF5 dense", "chunks": "6 of 10 x 7 (first part)", "compression": "none",
    }  # fmt: skip
    text(tmp_path / "a.svm", "1 0:1\n")
    text(tmp_path / "b.svm", "1 0:1\n", gzip.compress)
    told = open_source({"path": [str(tmp_path / "a.svm"), str(tmp_path / "b.svm")], "zero_based": True}).details()
    assert told["format"] == "svmlight text in 2 files"
    assert told["indices"] == "zero-based"
    assert told["compression"] == "gzip and none"


def test_chunks_that_a_zarr_array_does_not_hold(tmp_path):
    array = zarr.create_array(tmp_path / "x.zarr", shape=(50, 7), chunks=(10, 7), dtype="f4", fill_value=1)
    array[:20] = 3
    told = open_source(tmp_path / "x.zarr").details()
    assert told["not stored"] == "3 of 5 chunks, which hold the fill value 1.0"
