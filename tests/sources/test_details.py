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


CASES = {
    "csr.npz": (
        lambda name: sp.save_npz(name, sp.csr_matrix(S), compressed=False),
        {"format": "SciPy CSR in .npz", **NNZ, **PLAIN},
    ),
    "gzip.h5": (
        lambda name: hdf5(name, chunks=(10, 4), compression="gzip", shuffle=True),
        {"format": "HDF5 dense", "chunks": "12 of 10 x 4", "compression": "shuffle + gzip, level 4"},
    ),
    "x.h5ad": (
        lambda name: hdf5_csr(name, chunk=100, compression="gzip"),
        {"format": "AnnData CSR in HDF5", **NNZ, "chunks": "4 of 100", "compression": "gzip, level 4"},
    ),
    "tenx.h5": (tenx, {"format": "10x Genomics matrix, cells as rows, in HDF5", **NNZ, **PLAIN}),
    "v3.zarr": (
        lambda name: zarr_dense(name, compressors=zarr.codecs.BloscCodec(cname="lz4"), shards=(20, 8)),
        {"format": "Zarr v3 dense", "chunks": "12 of 10 x 4", "shards": "3 of 20 x 8", "compression": "blosc lz4"},
    ),
    "csr.zarr": (
        lambda name: zarr_csr(name, 3),
        {"format": "AnnData CSR in Zarr v3", **NNZ, "chunks": "4 of 100", "compression": "zstd"},
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
