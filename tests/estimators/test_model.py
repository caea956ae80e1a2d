"""Saved models: round trip without pickle, damaged and hostile files refused, the old file kept when writing fails."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

from streamkm import StreamKernelKMeans, StreamKMeans
from streamkm.cluster.fit_info import FitInfo
from streamkm.cluster.model import Model
from streamkm.core.atomic_io import replace_file
from streamkm.core.exceptions import DiskFullError, InvalidInputError, ModelFileError, OutputError
from streamkm.sketches import (
    CountSketch,
    FeatureSelection,
    IdentitySketch,
    KernelMap,
    PCASketch,
    PreconditionedSampling,
    SubsampledHadamard,
    TruncatedSVDSketch,
)
from tests.tables import cases

PARAMETERS = {"n_clusters": 3, "tol": 1e-4, "init": "k-means++", "progress": False}


def a_model(space="original", metric="euclidean"):
    sketch = CountSketch(6, 11) if space == "sketch" else IdentitySketch(4)
    centers = np.random.default_rng(0).normal(size=(3, 6 if space == "sketch" else 4))
    return Model(centers, 4, metric, space, sketch)


def header_of(**changed):
    header = {
        "format": 1,
        "n_features": 4,
        "metric": "euclidean",
        "space": "original",
        "sketch": {"kind": "identity", "n_components": 4},
        "parameters": PARAMETERS,
    }
    return {**header, **changed}


def write_npz(path, header=None, centers=None, **arrays):
    text = header if isinstance(header, str) else json.dumps(header_of() if header is None else header)
    np.savez(path, header=np.array(text), centers=np.zeros((3, 4)) if centers is None else centers, **arrays)
    return path


@cases("space", ["original", "sketch"])
@cases("metric", ["euclidean", "cosine"])
def test_round_trip(tmp_path, space, metric):
    model = a_model(space, metric)
    model.save(tmp_path / "model", PARAMETERS)
    loaded, parameters = Model.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.centers, model.centers)
    assert loaded.centers.dtype == np.float64
    assert (loaded.n_features, loaded.metric, loaded.space, loaded.sketch) == (4, metric, space, model.sketch)
    assert parameters == PARAMETERS
    assert os.listdir(tmp_path) == ["model"]  # that very name, and nothing left beside it


def sparse_model():
    """One of text: centers that are zero almost everywhere, with a negative zero."""
    centers = np.zeros((3, 500))
    centers[[0, 0, 1, 2], [3, 499, 7, 0]] = [0.1, 2.5, -0.0, 1e-300]
    return Model(centers, 500, "cosine", "original", IdentitySketch(500))


def test_centers_of_text_are_stored_entry_by_entry(tmp_path):
    model = sparse_model()
    model.save(tmp_path / "m.npz", {})
    assert (tmp_path / "m.npz").stat().st_size < model.centers.nbytes / 3
    loaded, _ = Model.load(tmp_path / "m.npz")
    assert loaded.centers.tobytes() == model.centers.tobytes()
    assert loaded.centers.flags.c_contiguous


@cases(
    "name, values",
    [
        ("counts", np.array([2, 1, 2])),
        ("counts", np.array([[2, 1, 1]])),
        ("columns", np.array([3, 500, 7, 0], np.int32)),
        ("columns", np.array([3, 499, 7, 0])),
        ("values", np.array([1.0, np.nan, 1, 1])),
    ],
)
def test_wrong_entries_of_centers_are_refused(tmp_path, name, values):
    sparse_model().save(tmp_path / "m.npz", {})
    with np.load(tmp_path / "m.npz") as stored:
        arrays = dict(stored)
    arrays[f"center_{name}"] = values
    np.savez(tmp_path / "m.npz", **arrays)
    with pytest.raises(ModelFileError, match=r"m\.npz"):
        Model.load(tmp_path / "m.npz")


def pca_arrays(mean=4, rows=4, columns=2, dtype=np.float64):
    return {"sketch_mean": np.zeros(mean), "sketch_directions": np.eye(rows, columns).astype(dtype)}


@cases(
    "arrays",
    [
        {},
        pca_arrays(mean=3),
        pca_arrays(rows=5),
        pca_arrays(dtype=np.complex128),
        {**pca_arrays(), "other": np.zeros(1)},
    ],
)
def test_sketches_with_wrong_arrays_are_refused(tmp_path, arrays):
    header = header_of(space="sketch", sketch={"kind": "pca"})
    write_npz(tmp_path / "good.npz", header, np.zeros((3, 2)), **pca_arrays())
    assert Model.load(tmp_path / "good.npz")[0].sketch.n_components == 2
    with pytest.raises(ModelFileError, match=r"m\.npz"):
        Model.load(write_npz(tmp_path / "m.npz", header, np.zeros((3, 2)), **arrays))


FOUR = 4
WIDTHS = {
    "pca": (lambda d: PCASketch(np.zeros(d), np.eye(d, 2)), (3, 5)),
    "svd": (lambda d: TruncatedSVDSketch(np.eye(d, 2)), (3, 5)),
    "identity": (IdentitySketch, (3, 5)),
    "kernel": (lambda d: KernelMap("rbf", 1.0, 3, 1.0, d, np.eye(2, dtype="f4"), np.eye(2, d)), (3, 5)),
    "selection": (lambda d: FeatureSelection(np.array([0, d - 1]), np.ones(2)), (5,)),
    "hadamard": (lambda d: SubsampledHadamard(2, d, 0), (3,)),
    "sampling": (lambda d: PreconditionedSampling(0.5, d, 0), (3,)),
}


@cases("kind", WIDTHS)
def test_sketches_for_other_rows_than_the_models_are_refused(tmp_path, kind):
    make, wrong = WIDTHS[kind]
    for space in ("sketch", "original"):
        for d in (FOUR, *wrong):
            sketch = make(d)
            centers = np.zeros((3, FOUR if space == "original" else sketch.n_components))
            Model(centers, FOUR, "euclidean", space, sketch).save(tmp_path / "m.npz", {})
            if d == FOUR:
                assert Model.load(tmp_path / "m.npz")[0].sketch.kind == sketch.kind
            else:
                with pytest.raises(ModelFileError, match=rf"m\.npz .*{sketch.kind} sketch is for other rows.* 4 feat"):
                    Model.load(tmp_path / "m.npz")


@cases("kind", WIDTHS)
@cases("sparse", [False, True])
def test_chunks_of_other_features_are_refused(kind, sparse):
    sketch = WIDTHS[kind][0](FOUR)
    model = Model(np.zeros((3, sketch.n_components)), FOUR, "euclidean", "sketch", sketch)
    for width in (3, 5):
        X = np.ones((2, width))
        if width == 3 and sparse:
            continue  # sparse rows that lack their last features are as good as any
        with pytest.raises(InvalidInputError, match=f"rows have {width} features; the model was fitted on 4"):
            model.place(sp.csr_array(X) if sparse else X)


class Bomb:
    """Its unpickling leaves a mark."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("where", ["header", "centers"])
def test_pickled_arrays_are_refused_and_not_executed(tmp_path, where):
    evil = np.array([Bomb(tmp_path / "mark")], dtype=object)
    arrays = {"header": np.array(json.dumps(header_of())), "centers": np.zeros((3, 4)), where: evil}
    np.savez(tmp_path / "m.npz", **arrays)
    with pytest.raises(ModelFileError, match=r"m\.npz"):
        Model.load(tmp_path / "m.npz")
    assert not (tmp_path / "mark").exists()


@cases("content", [b"", b"PK\x03\x04", b"\x00" * 1000])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(ModelFileError, match="m is not a saved model"):
        Model.load(tmp_path / "m")


def test_a_file_cut_anywhere_is_refused(tmp_path):
    a_model().save(tmp_path / "m", PARAMETERS)
    content = (tmp_path / "m").read_bytes()

    @given(st.integers(0, len(content) - 1))
    def check(length):
        (tmp_path / "cut").write_bytes(content[:length])
        with pytest.raises(ModelFileError):
            Model.load(tmp_path / "cut")

    check()


@pytest.mark.slow
def test_a_file_with_a_few_flipped_bits_is_refused_or_the_same_model(tmp_path):
    """Of a whole estimator; each file is read or refused in one line."""
    X = np.random.default_rng(0).normal(size=(300, 20))
    StreamKMeans(5, random_state=0).fit(X).save(tmp_path / "m.npz")
    content, labels = (tmp_path / "m.npz").read_bytes(), StreamKMeans.load(tmp_path / "m.npz").predict(X)
    n_refused = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        changed = bytearray(content)
        # every other time in the archive's directory, which says where members are
        for at in rng.integers(len(content) - 600 if seed % 2 else 0, len(content), rng.choice([1, 2, 6])):
            changed[at] ^= 1 << rng.integers(0, 8)
        (tmp_path / "changed.npz").write_bytes(changed)
        try:
            loaded = StreamKMeans.load(tmp_path / "changed.npz")
        except ModelFileError as error:
            assert "changed.npz" in str(error)  # noqa: PT017
            n_refused += 1
        else:
            np.testing.assert_array_equal(loaded.predict(X), labels)
    assert n_refused > 200


def test_centers_that_the_file_cannot_hold_are_refused(tmp_path):
    """Before memory is taken for them."""
    a_model().save(tmp_path / "m.npz", PARAMETERS)
    with zipfile.ZipFile(tmp_path / "m.npz") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(member, {"descr": "<f8", "fortran_order": False, "shape": (10**8, 9)})
    members["centers.npy"] = member.getvalue() + bytes(96)
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive:
        for name, stored in members.items():
            archive.writestr(name, stored)
    message = r"m\.npz .*damaged \(centers is damaged: its header says 7,200,000,000 bytes .* holds 96 at most"
    with pytest.raises(ModelFileError, match=message):
        Model.load(tmp_path / "m.npz")


@cases(
    "header",
    [
        "not json",
        "[1, 2]",
        header_of(format=3),  # of prepared rows, without a word of how
        header_of(sketch={"kind": "gaussian", "n_components": 4}),
        header_of(sketch={"kind": "identity", "n_components": 4, "extra": 1}),
        header_of(sketch={"kind": "countsketch", "n_components": 0, "seed": 1}),
        header_of(sketch=None),
        header_of(space="moon"),
        header_of(n_features="4"),
        header_of(parameters=None),
    ],
)
def test_wrong_headers_are_refused(tmp_path, header):
    with pytest.raises(ModelFileError, match=r"m\.npz"):
        Model.load(write_npz(tmp_path / "m.npz", header))


@cases("missing", header_of())
def test_headers_without_a_value_are_refused(tmp_path, missing):
    header = header_of()
    del header[missing]
    with pytest.raises(ModelFileError, match=r"m\.npz"):
        Model.load(write_npz(tmp_path / "m.npz", header))


@cases("centers", [np.zeros((3, 4), np.float32), np.zeros(4), np.zeros((0, 4)), np.full((3, 4), np.nan)])
def test_wrong_centers_are_refused(tmp_path, centers):
    with pytest.raises(ModelFileError, match=r"m\.npz"):
        Model.load(write_npz(tmp_path / "m.npz", centers=centers))


@cases(
    "changed, width",
    [
        ({"n_features": 5}, 4),
        ({}, 3),
        ({"space": "sketch", "sketch": {"kind": "countsketch", "n_components": 64, "seed": 1}}, 4),
    ],
)
def test_centers_of_another_width_than_the_header_says_are_refused(tmp_path, changed, width):
    """Kernels trust widths: such a file would have them read, and write, outside of arrays."""
    with pytest.raises(ModelFileError, match=r"m\.npz"):
        Model.load(write_npz(tmp_path / "m.npz", header_of(**changed), np.zeros((3, width))))


@cases("failing", ["numpy.savez", "os.fsync", "os.replace"])
def test_the_old_file_stays_when_writing_fails(tmp_path, monkeypatch, failing):
    a_model().save(tmp_path / "m", PARAMETERS)
    before = (tmp_path / "m").read_bytes()

    def fail(file, *args, **kwargs):
        if hasattr(file, "write"):
            file.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(failing, fail)
    with pytest.raises(OSError, match="No space left"):
        a_model("sketch").save(tmp_path / "m", PARAMETERS)
    assert (tmp_path / "m").read_bytes() == before
    assert os.listdir(tmp_path) == ["m"]


LAYING = """
import os, sys
place, victim, writer = sys.argv[1:]
names = {f".m.npz.{number}.partial" for number in (int(writer), os.getpid(), os.getppid())}
print("laying", flush=True)
while True:
    for name in names | {name for name in os.listdir(place) if name.endswith(".partial")}:
        path = os.path.join(place, name)
        try:
            if not os.path.islink(path):
                if os.path.exists(path):
                    os.unlink(path)
                os.symlink(victim, path)
        except OSError:
            pass
"""


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_links_that_others_lay_in_the_directory_are_not_followed(tmp_path):
    """A process that lays them under every name that it sees or could know before; saves may fail, no more."""
    victim, place = tmp_path / "victim.txt", tmp_path / "shared"
    victim.write_text("mine")
    place.mkdir()
    laid = place / f".m.npz.{os.getpid()}.partial"
    laid.symlink_to(victim)
    a_model().save(place / "m.npz", PARAMETERS)
    assert Model.load(place / "m.npz")[1] == PARAMETERS
    assert victim.read_text() == "mine"
    command = [sys.executable, "-S", "-c", LAYING, str(place), str(victim), str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as laying:
        assert laying.stdout.readline() == "laying\n"
        for _ in range(400):
            with suppress(OutputError):
                replace_file(place / "m.npz", lambda file: file.write(b"a model"))
            assert victim.read_text() == "mine"
        assert laying.poll() is None
        laying.kill()


@pytest.mark.skipif(sys.platform == "win32", reason="no directories are opened there")
def test_a_directory_that_is_swapped_for_a_link_is_not_followed(tmp_path):
    for name in ("place", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "other" / "m").write_text("mine")

    def swapped(file):
        file.write(b"a model")
        (tmp_path / "place").rename(tmp_path / "moved")
        (tmp_path / "place").symlink_to("other")

    with pytest.raises(OutputError, match=r"m cannot be written"):
        replace_file(tmp_path / "place" / "m", swapped)
    assert (tmp_path / "other" / "m").read_text() == "mine"
    assert os.listdir(tmp_path / "other") == ["m"]


@cases("kind", [StreamKMeans, StreamKernelKMeans])
def test_saving_replaces_a_file_only_where_that_is_allowed(tmp_path, kind):
    fitted, path = kind(n_clusters=3, random_state=0).fit(named_rows()), tmp_path / "m.npz"
    path.write_bytes(b"a thesis")
    for _ in range(2):  # the second time a model is there
        content = path.read_bytes()
        with pytest.raises(OutputError, match=r"m\.npz exists; pass overwrite"):
            fitted.save(path)
        assert path.read_bytes() == content
        fitted.save(path, overwrite=True)
        assert len(kind.load(path).cluster_centers_) == 3
    (tmp_path / "directory").mkdir()
    with pytest.raises(OutputError, match="no regular file"):
        fitted.save(tmp_path / "directory", overwrite=True)


def test_saving_to_a_full_disk(tmpfs):
    place, make_space = tmpfs
    a_model().save(place / "m", PARAMETERS)
    before = (place / "m").read_bytes()
    wide = Model(np.ones((50, 5_000)), 5_000, "euclidean", "original", IdentitySketch(5_000))
    with pytest.raises(DiskFullError, match=r"small/m: no space for 2,00\d,\d{3} bytes .*make space"):
        wide.save(place / "m", {})
    assert (place / "m").read_bytes() == before
    assert os.listdir(place) == ["m"]
    make_space()
    wide.save(place / "m", {})
    assert Model.load(place / "m")[0].n_features == 5_000


def named_rows(seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(rng.normal(size=(60, 3)) + 9 * rng.integers(0, 3, (60, 1)), columns=["age", "height", "weight"])


KEPT = ("counts_", "inertia_", "distortion_", "n_samples_", "n_iter_", "converged_", "n_passes_", "seed_", "fitted_on_")


@pytest.mark.parametrize("estimator", [StreamKMeans, StreamKernelKMeans])
def test_a_loaded_model_tells_what_the_fitted_one_does(tmp_path, estimator):
    X = named_rows()
    fitted = estimator(3, progress=False).fit(X)
    fitted.save(tmp_path / "m")
    loaded = estimator.load(tmp_path / "m")
    for name in KEPT:
        assert np.array_equal(getattr(loaded, name, None), getattr(fitted, name)), name
    assert loaded.feature_names_in_.tolist() == ["age", "height", "weight"]
    assert loaded.fitted_on_["name"] == "data frame"
    messages = []
    for each in (fitted, loaded):
        np.testing.assert_array_equal(each.predict(X), fitted.labels_)
        for other in (X[["height", "age", "weight"]], X.rename(columns={"age": "years"})):
            with pytest.raises(ValueError, match="feature names should match") as caught:
                each.predict(other)
            messages.append(str(caught.value))
    assert messages[:2] == messages[2:]
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "m").read_bytes()


@cases(
    "estimator, drawn",
    [
        (StreamKMeans, None), (StreamKMeans, np.random.RandomState(3)), (StreamKernelKMeans, None),
        (StreamKernelKMeans, np.int64(7)),
    ],
)  # fmt: skip
def test_the_seed_gives_the_same_fit_again(estimator, drawn):
    X = np.random.default_rng(0).random((600, 30))
    options = {"init": "random", "n_init": 1, "max_iter": 2, "progress": False}
    fitted = estimator(9, random_state=drawn, **options).fit(X)
    assert type(fitted.seed_) is int
    again = estimator(9, random_state=fitted.seed_, **options).fit(X)
    assert again.seed_ == fitted.seed_
    np.testing.assert_array_equal(again.labels_, fitted.labels_)
    np.testing.assert_array_equal(again.cluster_centers_, fitted.cluster_centers_)
    if drawn is None:
        assert estimator(9, **options).fit(X).seed_ != fitted.seed_


def test_a_file_of_an_earlier_release_loads(tmp_path):
    write_npz(tmp_path / "m.npz", header_of(parameters={"n_clusters": 3}), np.arange(12.0).reshape(3, 4))
    loaded = StreamKMeans.load(tmp_path / "m.npz")
    assert loaded.predict(np.arange(4.0)[None]).tolist() == [0]
    assert not any(hasattr(loaded, name) for name in (*KEPT, "feature_names_in_"))
    assert FitInfo.load(tmp_path / "m.npz") == FitInfo()


@cases(
    "fit",
    [
        3,
        {"feature_names": ["a"]},
        {"feature_names": [1, 2, 3, 4]},
        {"counts": [1.0, 2.0]},
        {"n_passes": 2.5},
        {"source": "x.npy"},
    ],
)
def test_what_cannot_be_of_a_fit_is_refused(tmp_path, fit):
    write_npz(tmp_path / "m.npz", header_of(fit=fit, parameters={"n_clusters": 3}))
    with pytest.raises(ModelFileError, match=r"m\.npz is not a model that this release reads: fit"):
        StreamKMeans.load(tmp_path / "m.npz")


@pytest.mark.parametrize("kind", ["dense", "words", "filled"])
def test_a_loaded_model_sums_up_and_fits_like_the_saved_one(kind, tmp_path):
    """Means of spherical clusters, which are shorter than centers; the seed; the words on missing values."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 5)) + np.eye(5)[np.arange(400) % 4]
    if kind == "words":
        X = sp.random_array((400, 5000), density=0.002, format="csr", rng=rng)
    elif kind == "filled":
        X[rng.random(X.shape) < 0.1] = np.nan
    model = StreamKMeans(4, metric="spherical", max_iter=2, invalid="mean" if kind == "filled" else "raise").fit(X)
    model.save(tmp_path / "m.npz")
    loaded = StreamKMeans.load(tmp_path / "m.npz")
    assert str(loaded.summary()) == str(model.summary())
    assert str(loaded.missing_) == str(model.missing_)
    assert ("missing" in str(loaded.summary())) == (kind == "filled")
    np.testing.assert_array_equal(loaded.cluster_means_, model.cluster_means_)
    assert loaded.random_state == model.seed_
    np.testing.assert_array_equal(clone(loaded).fit(X).labels_, model.labels_)
