"""open_source: types, first bytes and names decide; unused options are refused; chunks as runs; what inspect tells."""

from __future__ import annotations

import gzip
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from streamkm.cli.main import main
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, SourceError, SourceNotFoundError
from streamkm.sources import open_source
from streamkm.sources.chunks import Chunk, ChunkRuns
from streamkm.sources.concat import PartsSource
from tests.sources.matrices import dense_matrix, sparse_matrix, write_csr
from tests.tables import cases

X = dense_matrix()


def all_rows(source):
    blocks = [rows.X.toarray() if sp.issparse(rows.X) else rows.X for rows in source.stream(1 << 20)]
    return np.concatenate(blocks)


@pytest.fixture
def folder(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "x.npz", X=X)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"] = X
    zarr.create_array(tmp_path / "x.zarr", data=X)
    text = "".join(f"{i} " + " ".join(f"{j + 1}:{v}" for j, v in enumerate(row)) + "\n" for i, row in enumerate(X))
    (tmp_path / "x.svm").write_text(text)
    (tmp_path / "x.svm.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path


FILES = ("x.npy", "x.npz", "x.h5", "x.zarr", "x.svm", "x.svm.gz")


@cases("name", FILES)
@cases("kind", [str, Path, "renamed", "mapping", "list", "glob"])
def test_files(folder, name, kind):
    path = folder / name
    if kind == "renamed":
        # the first bytes tell, not the name
        path = path.rename(folder / "data")
    given = {
        "mapping": {"path": str(path), "format": "auto", "dataset": None, "zero_based": None, "key": None},
        "list": [path],
        "glob": str(path)[:-1] + "[" + str(path)[-1] + "]",
    }.get(kind, path if kind in (Path, "renamed") else str(path))
    np.testing.assert_array_equal(all_rows(open_source(given)), X)
    path.rename(folder / name)


def test_the_format_can_be_named(folder):
    for name in FILES:
        form = {"gz": "svmlight", "svm": "svmlight", "h5": "hdf5"}.get(name.split(".")[-1], name.split(".")[-1])
        np.testing.assert_array_equal(all_rows(open_source(folder / name, format=form)), X)
    with pytest.raises(SourceError, match=r"x\.npy cannot be opened as HDF5"):
        open_source(folder / "x.npy", format="hdf5")
    with pytest.raises(InvalidParameterError, match=r"format='hdf' is unknown \(did you mean 'hdf5'\?\)"):
        open_source(folder / "x.npy", format="hdf")


def test_a_path_inside_of_a_file(folder, tmp_path):
    assert open_source(f"{folder}/x.h5:/X").name == f"{folder}/x.h5:/X"
    assert open_source(f"{folder}/x.h*:/X").n_rows == 53
    with pytest.raises(InvalidParameterError, match="names a dataset already"):
        open_source(f"{folder}/x.h5:/X", dataset="X")
    with pytest.raises(InvalidParameterError, match="nothing inside; leave :/X out"):
        open_source(f"{folder}/x.svm:/X")
    with pytest.raises(SourceNotFoundError, match=r"x\.h does not exist \(did you mean 'x\.h5'\?\)"):
        open_source(f"{folder}/x.h:/X")
    (tmp_path / "link.npy").symlink_to("nowhere.npy")
    with pytest.raises(SourceNotFoundError, match=r"link\.npy is a link to nowhere\.npy, which does not exist"):
        open_source(tmp_path / "link.npy")


def test_several_files(folder):
    source = open_source([folder / "x.npy", folder / "x.h5", folder / "x.zarr"])
    np.testing.assert_array_equal(all_rows(source), np.vstack([X, X, X]))
    assert source.describe(54) == f"row 1 of {folder}/x.h5:/X"
    assert len(all_rows(open_source([folder / "x.svm", folder / "x.svm.gz"]))) == 106
    with pytest.raises(InvalidInputError, match=r"is svmlight text and .* is npy"):
        open_source([folder / "x.svm", folder / "x.npy"])
    with pytest.raises(SourceNotFoundError, match="no file matches"):
        open_source(folder / "y*.h5")


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ("x.h5", {"datset": "X"}, r"datset= does not apply to HDF5 \(did you mean 'dataset'\?\)"),
        ("x.npy", {"dataset": "X"}, r"dataset= does not apply to \.npy; its options are none"),
        ("x.svm", {"key": "X"}, "key= does not apply to svmlight text"),
        ("x.h5", {"zero_based": True}, "zero_based= does not apply to HDF5; its options are dataset, follow_external"),
        (X, {"dataset": "X"}, "does not apply to an array"),
        (X, {"format": "npy"}, "format= does not apply to an array"),
        ({"dataset": "X"}, {}, "a mapping needs the key path; it has dataset"),
    ],
)
def test_options_that_are_unknown_or_of_no_use(folder, given, options, message):
    with pytest.raises(InvalidParameterError, match=message):
        open_source(folder / given if isinstance(given, str) else given, **options)


def test_binary_data_of_no_known_format(tmp_path):
    (tmp_path / "x.mat").write_bytes(b"MATLAB 5.0 MAT-file" + b"\0" * 100)
    with pytest.raises(SourceError, match=r"x\.mat is binary and of no format"):
        open_source(tmp_path / "x.mat")
    import zipfile

    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a.txt", "a")
    with pytest.raises(SourceError, match=r"x\.zip is a \.zip file with neither"):
        open_source(tmp_path / "x.zip")


class TestObjects:
    def test_a_source_is_returned_as_it_is(self):
        source = open_source(X)
        assert open_source(source) is source

    @cases("values", [X.tolist(), list(X), tuple(map(tuple, X.tolist()))])
    def test_a_list_of_rows_is_one_array(self, values):
        assert not isinstance(open_source(values), PartsSource)
        np.testing.assert_array_equal(all_rows(open_source(values)), X)

    @cases("values", [[X, X], (X.tolist(), X.tolist()), [X, open_source(X)]])
    def test_a_list_of_matrices_is_one_after_the_other(self, values):
        source = open_source(values)
        assert isinstance(source, PartsSource)
        np.testing.assert_array_equal(all_rows(source), np.vstack([X, X]))


CUTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 3), st.integers(0, 2)), max_size=30)
MOST_BYTES = 1_000  # of the runs of a source with equal chunks


def naive(cuts):
    return tuple(Chunk(index, *cut) for index, cut in enumerate(cuts))


@settings(deadline=None, max_examples=200)
@given(CUTS)
def test_runs_are_the_chunks_that_they_were_made_of(drawn):
    cuts, at = [], 0
    for part, gap, length, n_bytes in drawn:
        at += gap
        cuts.append((part, at, at + length, n_bytes))
        at += length
    runs, wanted = ChunkRuns.of(cuts), naive(cuts)
    assert tuple(runs) == wanted
    assert len(runs) == len(wanted)
    assert [runs[index] for index in range(-len(wanted), len(wanted))] == [*wanted, *wanted]
    assert runs.total_bytes == sum(chunk.n_bytes for chunk in wanted)
    assert runs.largest_bytes == max((chunk.n_bytes for chunk in wanted), default=0)
    with pytest.raises(IndexError):
        runs[len(wanted)]


def test_joined_and_resized_chunks():
    first, second = ChunkRuns.even(7, 3, 2), ChunkRuns.of([(0, 5, 9, 1)])
    joined = naive([(0, 0, 3, 6), (0, 3, 6, 6), (0, 6, 7, 2), (1, 5, 9, 1)])
    assert tuple(ChunkRuns.joined([first, second])) == joined
    assert len(ChunkRuns.joined([])) == 0
    assert tuple(first.resized(lambda n_bytes: n_bytes * 1.5)) == naive([(0, 0, 3, 9), (0, 3, 6, 9), (0, 6, 7, 3)])


def test_chunks_of_equal_length_take_no_memory_each(tmp_path):
    np.lib.format.open_memmap(tmp_path / "rows.npy", "w+", np.uint8, (1_000_000, 4)).flush()
    chunks = open_source(tmp_path / "rows.npy").chunks(4)
    assert len(chunks) == 1_000_000
    assert chunks[999_999] == Chunk(999_999, 0, 999_999, 1_000_000, 4)
    assert chunks._runs.nbytes + chunks._ends.nbytes < MOST_BYTES


DENSE, SPARSE = dense_matrix(53, 7), sparse_matrix(53, 31)
NNZ = {"nnz": f"{SPARSE.nnz:,}, {SPARSE.nnz / 53:.1f} a row", "indices": "int32, pointers int32"}
PLAIN = {"chunks": "none, contiguous", "compression": "none"}


def hdf5(name, **options):
    with h5py.File(name, "w") as file:
        file.create_dataset("X", data=DENSE, **options)


def hdf5_csr(name, **options):
    with h5py.File(name, "w") as file:
        write_csr(file.create_group("X"), SPARSE, **options)


def tenx(name):
    with h5py.File(name, "w") as file:
        write_csr(group := file.create_group("matrix"), SPARSE)
        del group.attrs["shape"], group.attrs["encoding-type"]
        group["shape"] = SPARSE.shape[::-1]
        group["barcodes"] = np.arange(53)
        group.create_group("features")


def zarr_dense(name, **options):
    zarr.create_array(name, shape=DENSE.shape, chunks=(10, 4), dtype=DENSE.dtype, **options)[:] = DENSE


def zarr_csr(name, version):
    write_csr(zarr.open_group(name, mode="w", zarr_format=version).create_group("X"), SPARSE, chunk=100)


def text(name, content, pack=bytes):
    Path(name).write_bytes(pack(content.encode()))


CASES = {
    "csr.npz": (
        lambda name: sp.save_npz(name, sp.csr_matrix(SPARSE), compressed=False),
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
