""".npy, .npz and scipy.sparse.save_npz: read in parts where that is possible; never a pickle."""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from contextlib import suppress

import numpy as np
import pytest
import scipy.sparse as sp

from streamkm import StreamKMeans
from streamkm.core.exceptions import (
    InvalidInputError,
    MemoryLimitError,
    SourceError,
    SourceNotFoundError,
    StreamkmError,
)
from streamkm.sources import open_source
from streamkm.sources.binary import numpy_files
from streamkm.sources.binary.csr_groups import CsrSource
from streamkm.sources.dense import DenseSource
from tests.contracts import Opened, SourceContract
from tests.sources.matrices import DTYPES, dense_matrix, sparse_matrix
from tests.tables import cases


class TestNpy(SourceContract):
    @pytest.fixture(params=[*DTYPES, "by columns", "format 2"])
    def opened(self, request, tmp_path):
        X = dense_matrix(dtype=request.param if request.param in DTYPES else "f8")
        with (tmp_path / "x.npy").open("wb") as file:
            stored = np.asfortranarray(X) if request.param == "by columns" else X
            np.lib.format.write_array(file, stored, version=(2, 0) if request.param == "format 2" else None)
        return Opened(open_source(tmp_path / "x.npy"), X)


class TestNpz(SourceContract):
    @pytest.fixture(params=["plain", "compressed", "by columns"])
    def opened(self, request, tmp_path):
        X = dense_matrix()
        save = np.savez_compressed if request.param == "compressed" else np.savez
        stored = np.asfortranarray(X) if request.param == "by columns" else X
        save(tmp_path / "x.npz", y=np.arange(53), X=stored)
        return Opened(open_source(tmp_path / "x.npz"), X)


class TestSavedSparse(SourceContract):
    @pytest.fixture(params=["csr", "csr compressed", "csr_array", "csc", "int64"])
    def opened(self, request, tmp_path):
        X = sparse_matrix()
        if request.param == "int64":
            X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
        kinds = {"csr_array": sp.csr_array, "csc": sp.csc_matrix, "int64": sp.csr_array}
        stored = kinds.get(request.param, sp.csr_matrix)(X)
        sp.save_npz(tmp_path / "x.npz", stored, compressed=request.param == "csr compressed")
        return Opened(open_source(tmp_path / "x.npz"), X.toarray())


class TestFilesOneAfterTheOther(SourceContract):
    @pytest.fixture
    def opened(self, tmp_path):
        X = sparse_matrix()
        sp.save_npz(tmp_path / "b.npz", X[:20])
        sp.save_npz(tmp_path / "a.npz", X[20:], compressed=False)
        return Opened(open_source([tmp_path / "b.npz", str(tmp_path / "a.npz")]), X.toarray())


def test_what_is_not_compressed_is_read_in_parts(tmp_path):
    np.savez(tmp_path / "x.npz", X=dense_matrix(5_000))
    sp.save_npz(tmp_path / "s.npz", sparse_matrix(5_000), compressed=False)
    for name, kind in (("x.npz", DenseSource), ("s.npz", CsrSource)):
        source = open_source(tmp_path / name)
        assert isinstance(source, kind)
        assert len(pickle.dumps(source)) < 2_000


def saved_as(kind, path):
    """Zeros: some 128 MB in a file of a few hundred KB."""
    if kind == "dense":
        np.savez_compressed(path, X=np.zeros((2_000_000, 8)))
        return
    given = {"data": np.zeros(8_000_000), "indices": np.zeros(8_000_000, np.int32), "shape": (2_000_000, 8)}
    major = 8 if kind == "csc" else 2_000_000
    indptr = np.r_[np.zeros(major, np.int64), 8_000_000]
    np.savez_compressed(path, **given, indptr=indptr, format=kind.encode())


@cases("kind", ["dense", "csr", "csc"])
def test_nothing_is_unpacked_before_its_size_is_compared_with_the_limit(tmp_path, kind, monkeypatch):
    saved_as(kind, tmp_path / "x.npz")
    loads = []
    read = numpy_files.npy_format.read_array
    monkeypatch.setattr(
        numpy_files.npy_format, "read_array", lambda member, **given: loads.append(member.name) or read(member, **given)
    )
    source = open_source(tmp_path / "x.npz")
    limit = {"limit": 200 << 20, "process_memory": 128 << 20}
    for call in (StreamKMeans(2, memory_limit=limit).plan, StreamKMeans(2, memory_limit=limit).fit):
        with pytest.raises(MemoryLimitError, match=r"x\.npz.* can only be loaded whole, and needs about"):
            call(source)
    assert not {name for name in loads if name not in ("shape.npy", "format.npy")}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed, sp.save_npz])
def test_bytes_that_were_flipped_are_told_by_the_checksum(tmp_path, save):
    X = dense_matrix(500)
    if save is sp.save_npz:
        save(tmp_path / "x.npz", sp.csr_array(X), compressed=False)
    else:
        save(tmp_path / "x.npz", X=X)
    stored = bytearray((tmp_path / "x.npz").read_bytes())
    for at in (len(stored) // 3, len(stored) // 2):
        damaged = stored.copy()
        damaged[at] ^= 64
        (tmp_path / "y.npz").write_bytes(damaged)
        with pytest.raises(SourceError, match=r"y\.npz.* cannot be read as"):
            list(open_source(tmp_path / "y.npz").stream(1_000))


def test_values_beyond_their_member_are_refused(tmp_path):
    """They would be those of the next one."""
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(member, {"descr": "<f8", "fortran_order": False, "shape": (40, 3)})
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("X.npy", member.getvalue() + bytes(96))
        archive.writestr("Y.npy", bytes(4_000))
    with pytest.raises(SourceError, match=r"x\.npz:X is damaged: .* 960 bytes .* holds 96 at most"):
        open_source(tmp_path / "x.npz", key="X")


def test_pickles_are_never_loaded(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[1, None]]), allow_pickle=True)
    np.savez(tmp_path / "x.npz", X=np.array([[1, None]]))
    np.savez_compressed(tmp_path / "z.npz", X=np.array([[1, None]]))
    for name, options in (("x.npy", {}), ("x.npz", {"key": "X"}), ("z.npz", {"key": "X"})):
        with pytest.raises(InvalidInputError, match=rf"{name}.* holds Python objects"):
            open_source(tmp_path / name, **options)


def test_keys(tmp_path):
    np.savez(tmp_path / "x.npz", train=dense_matrix(), test=dense_matrix(9), y=np.arange(3))
    assert open_source(tmp_path / "x.npz", key="test").n_rows == 9
    assert open_source(f"{tmp_path}/x.npz:/train").n_rows == 53
    with pytest.raises(InvalidInputError, match=r"2 matrices .*test \(9, 7\) float32.*choose one with key="):
        open_source(tmp_path / "x.npz")
    with pytest.raises(SourceNotFoundError, match="no array X; it has test, train, y"):
        open_source(tmp_path / "x.npz", key="X")


@cases("keep", [0, 3, 20, 200])
def test_truncated_npy(tmp_path, keep):
    np.save(tmp_path / "x.npy", dense_matrix())
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:keep])
    with pytest.raises(SourceError, match=r"x\.npy"):
        open_source(tmp_path / "x.npy")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_npz(tmp_path, save):
    save(tmp_path / "x.npz", X=dense_matrix())
    stored = bytearray((tmp_path / "x.npz").read_bytes())
    (tmp_path / "cut.npz").write_bytes(stored[:100])
    with pytest.raises(SourceError, match=r"cut\.npz"):
        open_source(tmp_path / "cut.npz")
    stored[40:80] = b"\xff" * 40
    (tmp_path / "x.npz").write_bytes(stored)
    with pytest.raises(SourceError, match=r"x\.npz"):
        open_source(tmp_path / "x.npz", key="X")


@cases("shape", [(5, -3), (-5, 3)])
def test_a_negative_shape_is_refused(tmp_path, shape):
    np.save(tmp_path / "x.npy", dense_matrix())
    stored = (tmp_path / "x.npy").read_bytes()
    said = str(dense_matrix().shape).encode()
    (tmp_path / "x.npy").write_bytes(stored.replace(said, str(shape).encode().ljust(len(said))))
    with pytest.raises(SourceError, match=rf"x\.npy is damaged: .*{re.escape(str(shape))}; .* not be negative"):
        open_source(tmp_path / "x.npy")


@cases("save", [np.savez, np.savez_compressed])
def test_values_that_the_archive_cannot_hold_are_refused(tmp_path, save):
    """Before memory is taken for them."""
    member, whole = io.BytesIO(), np.zeros((4, 3))
    np.lib.format.write_array_header_1_0(member, {"descr": "<f8", "fortran_order": False, "shape": (10**8, 9)})
    save(tmp_path / "x.npz", X=whole)
    kind = zipfile.ZIP_STORED if save is np.savez else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(tmp_path / "y.npz", "w", kind) as archive:
        archive.writestr("X.npy", member.getvalue() + whole.tobytes())
    with pytest.raises(SourceError, match=r"y\.npz:X .*(is truncated|holds 96 at most)"):
        list(open_source(tmp_path / "y.npz").stream(1 << 20))


def test_a_saved_matrix_that_does_not_fit_together(tmp_path):
    X = sparse_matrix()
    parts = {"data": X.data, "indices": X.indices[:-1], "indptr": X.indptr, "shape": X.shape, "format": b"csr"}
    np.savez(tmp_path / "x.npz", **parts)
    np.savez_compressed(tmp_path / "z.npz", **parts)
    for name in ("x.npz", "z.npz"):
        with pytest.raises(InvalidInputError, match=name):
            open_source(tmp_path / name)
    np.savez(tmp_path / "x.npz", **{**parts, "format": b"dia"})
    with pytest.raises(InvalidInputError, match="in dia format"):
        open_source(tmp_path / "x.npz")


@cases("name", ["x.npy", "plain.npz", "compressed.npz", "saved.npz", "saved_plain.npz"])
def test_any_damage_is_an_error_of_ours_or_other_values(tmp_path, name):
    np.save(tmp_path / "x.npy", dense_matrix())
    np.savez(tmp_path / "plain.npz", X=dense_matrix())
    np.savez_compressed(tmp_path / "compressed.npz", X=dense_matrix())
    sp.save_npz(tmp_path / "saved.npz", sparse_matrix())
    sp.save_npz(tmp_path / "saved_plain.npz", sparse_matrix(), compressed=False)
    whole = (tmp_path / name).read_bytes()
    path = tmp_path / f"damaged.{name.split('.')[-1]}"
    for seed in range(40):
        rng = np.random.default_rng(seed)
        stored = bytearray(whole)
        # every other time in the headers
        for at in rng.integers(0, len(stored) if seed % 2 else 300, 6):
            stored[at] = rng.integers(0, 256)
        path.write_bytes(stored)
        with suppress(StreamkmError):
            list(open_source(path, format=path.suffix[1:]).stream(1_000))


def test_chunks_tell_the_bytes_of_their_rows(tmp_path):
    np.save(tmp_path / "x.npy", dense_matrix())
    source = open_source(tmp_path / "x.npy")
    for target_bytes in (1, 300, 1 << 40):
        for chunk in source.chunks(target_bytes):
            assert chunk.n_bytes == 7 * 4 * (chunk.stop - chunk.start)
