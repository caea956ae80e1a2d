"""Writing sketch stores and adding to them: linearity, refusals by name, kills, a full disk, clustering a store."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from sklearn.datasets import dump_svmlight_file

from streamkm import StreamKMeans
from streamkm.core.exceptions import DiskFullError, InUseError, InvalidInputError, OutputError, SourceError, StoreError
from streamkm.core.locks import Lock
from streamkm.core.progress import Progress, Stage
from streamkm.engine import open_executor
from streamkm.passes.pass_context import PassContext
from streamkm.passes.predict import map_rows, nearest_labels
from streamkm.sketches import CountSketch, IdentitySketch, PCASketch
from streamkm.sketches.options import SketchOptions
from streamkm.sources import open_source
from streamkm.stores import planned as store_planning
from streamkm.stores.planned import (
    check_made_alike,
    choose_store_sketch,
    metric_on_store,
    model_of_store,
    model_on_store,
    prepared_as,
    prepared_reader,
    reader_for_store,
    sketch_of_store,
)
from streamkm.stores.writer import append_rows, write_store
from tests import children
from tests.children import SKETCH, reader_of, tree
from tests.naive import countsketch_matrix, dense
from tests.programs import forking
from tests.tables import cases, slow_but

KINDS = ("dense", "sparse")
STORED = store_planning.StoredRows.output


def matrix(kind, n_rows=120, n_features=40, seed=0):
    """Whole numbers, so that sums are exact in any order; some rows empty."""
    rng = np.random.default_rng(seed)
    X = np.where(rng.random((n_rows, n_features)) < 0.3, rng.integers(-9, 10, (n_rows, n_features)), 0)
    X[::17] = 0
    return X.astype(np.float32) if kind == "dense" else sp.csr_array(X.astype(np.float32))


def stored_rows(source):
    return np.concatenate([dense(rows.X) for rows in source.stream(3000)])


def sketched(X):
    return dense(X) @ countsketch_matrix(SKETCH.seed, X.shape[1], SKETCH.n_components)


def do(operation, path, X, *args, executor=2, reader=None, **options):
    with open_executor(executor) as workers:
        reader = reader_of(X, **(reader or {"chunk_bytes": 3000}))
        return operation(path, reader, *args, workers, Stage("test"), **options)


def write_prepared(path, X, sketch, steps, workers):
    """A store of prepared rows, and its reader."""
    reader, _ = reader_for_store(open_source(X), "euclidean", "raise", preprocess=steps)
    reader = prepared_reader(reader, workers, Progress(show=False))
    return reader, write_store(path, reader, sketch, workers, Stage("test"))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("streamkm.stores.writer.CHUNK_BYTES", 1 << 14)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


class TestWriting:
    def test_rows_are_the_sketch_whatever_the_chunks_and_files_whatever_the_executor(self, tmp_path, kind, client):
        X = matrix(kind)
        for name, chunk_bytes in (("small.zarr", 1), ("large.zarr", 1 << 30)):
            source = do(write_store, tmp_path / name, X, SKETCH, reader={"chunk_bytes": chunk_bytes})
            assert source.info.kind == {"dense": "dense", "sparse": "csr"}[kind]
            np.testing.assert_array_equal(stored_rows(source), sketched(X))
        assert {path.name for path in tmp_path.iterdir()} == {"small.zarr", "large.zarr"}
        for name, executor in (("1", 1), ("4", 4), ("cluster", client)):
            do(write_store, tmp_path / name, X, SKETCH, executor=executor)
        assert tree(tmp_path / "1") == tree(tmp_path / "4") == tree(tmp_path / "cluster")

    @cases("sketch", [IdentitySketch(40), PCASketch.fit(matrix("dense"), 5, random_state=0)])
    def test_other_sketches_come_back(self, tmp_path, sketch):
        X = matrix("dense")
        source = do(write_store, tmp_path / "s.zarr", X, sketch)
        np.testing.assert_array_equal(stored_rows(source), sketch.apply(X))
        found = sketch_of_store(open_source(tmp_path / "s.zarr"))
        assert found.to_dict() == sketch.to_dict()
        for name, values in sketch.arrays().items():
            np.testing.assert_array_equal(found.arrays()[name], values, strict=True)
        if sketch.arrays():
            shutil.rmtree(tmp_path / "s.zarr/sketch/mean/c")
            with pytest.raises(SourceError, match="sketch/mean is missing"):
                sketch_of_store(open_source(tmp_path / "s.zarr"))

    def test_text_of_unknown_length_and_a_stream(self, tmp_path):
        X = matrix("sparse", n_features=30)
        dump_svmlight_file(X, np.zeros(120), str(tmp_path / "x.svm"), zero_based=False)
        source = do(write_store, tmp_path / "t", tmp_path / "x.svm", SKETCH)
        np.testing.assert_array_equal(stored_rows(source), sketched(X))
        assert source.info.inputs[0]["source"]["files"][0]["path"] == str(tmp_path / "x.svm")
        wider = matrix("sparse", n_features=40, seed=1)
        dump_svmlight_file(wider, np.zeros(120), str(tmp_path / "wider.svm"), zero_based=False)
        assert do(append_rows, tmp_path / "t", tmp_path / "wider.svm").info.n_features == 40
        source = do(write_store, tmp_path / "i", lambda: iter([X[:50], X[50:]]), SKETCH)
        np.testing.assert_array_equal(stored_rows(source), sketched(X))

    def test_skipped_rows_keep_their_numbers_and_cosine_rows_are_scaled_first(self, tmp_path, kind):
        X = dense(matrix(kind)).astype(np.float32)
        X[[3, 70], 5] = np.nan
        given = X if kind == "dense" else sp.csr_array(X)
        clean = np.delete(X, [3, 70], 0)
        norms = np.linalg.norm(clean, axis=1, keepdims=True)
        for metric, wanted in (("euclidean", clean), ("cosine", clean / np.where(norms > 0, norms, 1))):
            reader = {"chunk_bytes": 3000, "invalid": "skip", "metric": metric}
            source = do(write_store, tmp_path / metric, given, SKETCH, reader=reader)
            found = stored_rows(source)
            assert np.flatnonzero(np.isnan(found).any(axis=1)).tolist() == [3, 70]
            most = 0 if metric == "euclidean" else 1e-6
            np.testing.assert_allclose(np.delete(found, [3, 70], 0), sketched(wanted), rtol=0, atol=most)
            labels = StreamKMeans(3, invalid="skip", random_state=0).fit(source).labels_
            assert np.flatnonzero(labels < 0).tolist() == [3, 70]

    def test_what_is_there_is_kept_unless_told(self, tmp_path):
        X = matrix("sparse")
        do(write_store, tmp_path / "s", X, SKETCH)
        with pytest.raises(OutputError, match="s exists; choose another name, append to it, or pass overwrite"):
            do(write_store, tmp_path / "s", X[:9], SKETCH)
        assert do(write_store, tmp_path / "s", X[:9], SKETCH, overwrite=True).n_rows == 9
        (tmp_path / "mine").mkdir()
        with pytest.raises(SourceError, match="mine is no sketch store"):
            do(write_store, tmp_path / "mine", X, SKETCH, overwrite=True)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "s"]
        (tmp_path / "x.svm").write_text("# nothing\n")
        with pytest.raises(InvalidInputError, match="has no rows; needed: at least 1"):
            do(write_store, tmp_path / "none", tmp_path / "x.svm", SKETCH)


class TestFilesOfOthers:
    """In a store's directory, and where a store is to be."""

    @cases("name", ["notes.txt", "x.partial"])
    def test_are_not_replaced_with_a_store(self, tmp_path, name):
        do(write_store, tmp_path / "s", matrix("dense"), SKETCH)
        (tmp_path / "s" / name).write_text("mine")
        before = tree(tmp_path)
        with pytest.raises(OutputError, match=rf"s exists and holds other files \({name}\)"):
            do(write_store, tmp_path / "s", matrix("dense"), SKETCH, overwrite=True)
        assert tree(tmp_path) == before

    def test_stay_while_rows_are_added(self, tmp_path):
        do(write_store, tmp_path / "s", matrix("dense"), SKETCH)
        mine = ["mine.partial", "parts/mine.partial", "parts/7/mine", "parts/mine/x", "sketch/mine.partial"]
        for name in mine:
            (tmp_path / "s" / name).parent.mkdir(exist_ok=True)
            (tmp_path / "s" / name).write_text("mine")
        do(append_rows, tmp_path / "s", matrix("dense", seed=1))
        for name in mine:
            assert (tmp_path / "s" / name).read_text() == "mine"

    def test_came_while_rows_were_read(self, tmp_path, monkeypatch):
        def meanwhile(self, rows):
            (tmp_path / "s").mkdir(exist_ok=True)
            (tmp_path / "s" / "mine").write_text("mine")
            return STORED(self, rows)

        with monkeypatch.context() as patched:
            patched.setattr(store_planning.StoredRows, "output", meanwhile)
            with pytest.raises(OutputError, match="s exists"):
                do(write_store, tmp_path / "s", matrix("dense"), SKETCH)
        assert (tmp_path / "s" / "mine").read_text() == "mine"

    def test_a_store_behind_a_link_is_replaced_there(self, tmp_path):
        (tmp_path / "disk").mkdir()
        do(write_store, tmp_path / "disk" / "s", matrix("dense"), SKETCH)
        (tmp_path / "link").symlink_to(tmp_path / "disk" / "s")
        assert do(write_store, tmp_path / "link", matrix("dense", 9), SKETCH, overwrite=True).n_rows == 9
        assert (tmp_path / "link").is_symlink()
        assert [path.name for path in (tmp_path / "disk").iterdir()] == ["s"]


class TestRowsAdded:
    def test_are_as_if_there_from_the_start(self, tmp_path, kind):
        X, cuts = matrix(kind), (1, 2, 119)
        first, *rest = np.split(np.arange(120), cuts)
        source = do(write_store, tmp_path / "s", X[first], SKETCH)
        for rows in rest:
            source = do(append_rows, tmp_path / "s", X[rows])
        whole = do(write_store, tmp_path / "whole", X, SKETCH)
        np.testing.assert_array_equal(stored_rows(source), stored_rows(whole))
        assert [entry["rows"] for entry in source.info.inputs] == [
            [a, b] for a, b in zip((0, *cuts), (*cuts, 120), strict=True)
        ]
        assert source.info.n_features == 40
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
        other = matrix("sparse" if kind == "dense" else "dense", seed=1)  # dense rows to a sparse store, and back
        source = do(append_rows, tmp_path / "s", other)
        np.testing.assert_array_equal(stored_rows(source), np.concatenate([sketched(X), sketched(other)]))
        with pytest.raises(StoreError, match=r"has 39 features; the rows of .*s have 40"):
            do(append_rows, tmp_path / "s", matrix(kind, n_features=39))

    def test_by_another_sketch_or_projection_are_refused_by_name(self, tmp_path):
        source = do(write_store, tmp_path / "s", matrix("sparse"), SKETCH)
        for sketch, metric, message in (
            (CountSketch(300, 8), "euclidean", "was sketched with seed 7, not 8"),
            (CountSketch(301, 7), "euclidean", "was sketched with n_components 300, not 301"),
            (IdentitySketch(300), "euclidean", "was sketched with kind countsketch, not identity"),
            (SKETCH, "cosine", "was sketched with metric euclidean, not cosine"),
        ):
            with pytest.raises(StoreError, match=message):
                check_made_alike(source, sketch, metric, None)
        with pytest.raises(StoreError, match="was sketched with metric euclidean, not cosine"):
            do(append_rows, tmp_path / "s", matrix("sparse", seed=1), reader={"metric": "cosine"})
        assert open_source(tmp_path / "s").info == source.info
        first, second = (PCASketch.fit(matrix("dense", seed=seed), 5, random_state=0) for seed in (0, 1))
        source = do(write_store, tmp_path / "p", matrix("dense"), first)
        check_made_alike(source, first, "euclidean", None)
        with pytest.raises(StoreError, match="was sketched with another mean; use its own"):
            check_made_alike(source, second, "euclidean", None)

    @cases("saved", [np.save, sp.save_npz])
    def test_of_a_file_that_is_there_already_are_refused(self, tmp_path, saved):
        """Of a file that is loaded whole, too."""
        suffix = "npy" if saved is np.save else "npz"
        for name in ("a", "b"):
            X = matrix("dense", seed=ord(name))
            saved(tmp_path / f"{name}.{suffix}", sp.csr_matrix(X) if saved is sp.save_npz else X)
        do(write_store, tmp_path / "s", tmp_path / f"a.{suffix}", SKETCH)
        with pytest.raises(StoreError, match=rf"a\.{suffix} is in .*s already, among rows 0-119"):
            do(append_rows, tmp_path / "s", tmp_path / f"a.{suffix}")
        do(append_rows, tmp_path / "s", tmp_path / f"b.{suffix}")
        (tmp_path / f"a.{suffix}").unlink()
        assert do(append_rows, tmp_path / "s", matrix("dense")).n_rows == 360
        np.savez_compressed(tmp_path / "two.npz", a=matrix("dense"), b=matrix("dense", seed=1))
        for key in ("a", "b"):  # arrays of one file are told apart
            do(append_rows, tmp_path / "s", open_source(tmp_path / "two.npz", key=key))
        with pytest.raises(StoreError, match="already, among rows 480-599"):
            do(append_rows, tmp_path / "s", open_source(tmp_path / "two.npz", key="b"))


class TestClustering:
    def test_labels_original_rows_as_the_stored_ones(self, tmp_path, small_topics):
        do(write_store, tmp_path / "s", small_topics.X, CountSketch(1024, 3), reader={"chunk_bytes": 1 << 18})
        source = open_source(tmp_path / "s")
        fitted = StreamKMeans(10, random_state=0).fit(source)
        assert fitted.plan_.sketch == "identity"
        model = model_of_store(source, fitted.cluster_centers_.astype(np.float64))
        with open_executor(2) as executor:
            context = PassContext(executor=executor, reader=reader_of(small_topics.X))
            labels = np.concatenate(list(map_rows(context, model, nearest_labels, Stage("p"))))
            np.testing.assert_array_equal(labels, fitted.labels_)
            again = model_on_store(model, source)
            context = PassContext(executor=executor, reader=reader_of(tmp_path / "s"))
            labels = np.concatenate(list(map_rows(context, again, nearest_labels, Stage("p"))))
            np.testing.assert_array_equal(labels, fitted.labels_)
        model.save(tmp_path / "model.npz", {})
        assert type(model).load(tmp_path / "model.npz")[0].sketch == CountSketch(1024, 3)
        other = do(write_store, tmp_path / "t", small_topics.X, CountSketch(1024, 4))
        with pytest.raises(StoreError, match="was sketched with seed 4, not 3"):
            model_on_store(model, other)

    def test_metrics(self, tmp_path):
        source = do(write_store, tmp_path / "s", matrix("dense"), SKETCH)
        assert metric_on_store(source, "euclidean") == "euclidean"
        with pytest.raises(StoreError, match="was sketched for the euclidean metric"):
            metric_on_store(source, "cosine")
        source = do(write_store, tmp_path / "c", matrix("dense"), SKETCH, reader={"metric": "cosine"})
        assert metric_on_store(source, "cosine") == metric_on_store(source, "euclidean") == "euclidean"
        assert model_of_store(source, np.zeros((2, 300))).metric == "cosine"
        source = do(write_store, tmp_path / "as they are", matrix("dense"), IdentitySketch(40))
        assert model_of_store(source, np.zeros((2, 40))).space == "original"

    @cases(
        "kind, options, wanted",
        [
            ("sparse", ("auto", "auto"), IdentitySketch(40)),
            ("sparse", ("auto", 16), CountSketch(16, 3)),
            ("dense", ("countsketch", "auto"), IdentitySketch(40)),
            ("dense", ("pca", 5), PCASketch.fit(matrix("dense"), 5, random_state=3)),
        ],
    )
    def test_the_sketch_is_chosen_as_for_a_fit(self, kind, options, wanted):
        reader, _ = reader_for_store(open_source(matrix(kind)), "euclidean", "raise")
        with open_executor(2) as executor:
            found = choose_store_sketch(reader, SketchOptions(*options), 3, executor, Stage("sample"))
            for name in ("signs", "svd"):
                assert choose_store_sketch(reader, SketchOptions(name, 8), 3, executor, Stage("sketch")).kind == name
        assert found.to_dict() == wanted.to_dict()
        for name, values in wanted.arrays().items():  # the sample holds all rows, in another order
            np.testing.assert_allclose(np.abs(found.arrays()[name]), np.abs(values), atol=1e-5)

    @pytest.mark.parametrize(
        ("kind", "steps"),
        slow_but(
            [("sparse", ("log1p", "robust"))], [("dense", ("standardize",)), ("sparse", ("log1p", "robust"))], full=True
        ),
    )
    def test_rows_are_prepared_as_a_fit_prepares_them(self, tmp_path, kind, steps):
        X = abs(matrix(kind))
        with open_executor(2) as workers:
            reader, store = write_prepared(tmp_path / "s", X, IdentitySketch(40), steps, workers)
            fitted = StreamKMeans(3, random_state=0, progress=False).fit(tmp_path / "s")
            again = StreamKMeans(3, preprocess=list(steps), random_state=0, progress=False).fit(X)
            assert store.details()["preprocess"] == ", ".join(steps)
            np.testing.assert_array_equal(stored_rows(store), dense(again.preparation_.apply(X)))
            np.testing.assert_array_equal(fitted.predict(X), fitted.labels_)  # original rows
            np.testing.assert_array_equal(fitted.predict(tmp_path / "s"), fitted.labels_)  # those of the store
            np.testing.assert_array_equal(fitted.predict(X), again.labels_)
            fitted.save(tmp_path / "m.npz")
            np.testing.assert_array_equal(StreamKMeans.load(tmp_path / "m.npz").predict(X), fitted.labels_)
            more = replace(reader, source=prepared_as(store, open_source(abs(matrix(kind, 50, 40, seed=1)))))
            longer = append_rows(tmp_path / "s", more, workers, Stage("test"))
            added = dense(fitted.preparation_.apply(abs(matrix(kind, 50, 40, seed=1))))
            np.testing.assert_array_equal(stored_rows(longer)[120:], added)
            with pytest.raises(StoreError, match=f"was sketched with steps {', '.join(steps)}, not none"):
                append_rows(tmp_path / "s", reader_of(matrix(kind, 5)), workers, Stage("test"))
        plain = StreamKMeans(3, random_state=0, progress=False).fit(X)
        with pytest.raises(StoreError, match="not none"):
            plain.predict(tmp_path / "s")
        with pytest.raises(InvalidInputError, match="sketched already"):
            StreamKMeans(3, preprocess=["unit"]).fit(tmp_path / "s")

    @cases("sketch, step", [(IdentitySketch(40), "robust"), (SKETCH, "standardize")])
    def test_rows_of_the_other_kind_are_prepared_as_the_store_s(self, tmp_path, kind, step, sketch):
        X, more = matrix("dense") + 5, matrix("dense", 50, seed=1) + 5  # no zeros
        as_kind, as_other = (np.asarray, sp.csr_array) if kind == "dense" else (sp.csr_array, np.asarray)
        stored = []
        with open_executor(2) as workers:
            for name, make in (("same", as_kind), ("other", as_other)):
                reader, store = write_prepared(tmp_path / name, as_kind(X), sketch, (step,), workers)
                reader = replace(reader, source=prepared_as(store, open_source(make(more))))
                stored.append(stored_rows(append_rows(tmp_path / name, reader, workers, Stage("test"))))
                narrow = replace(reader, source=prepared_as(store, open_source(make(more[:, :30]))))
                with pytest.raises(StoreError, match=r"has 30 features; the rows of .* have 40"):
                    append_rows(tmp_path / name, narrow, workers, Stage("test"))
        np.testing.assert_allclose(stored[1], stored[0], rtol=1e-6, atol=1e-6)

    def test_what_steps_have_found_is_checked(self, tmp_path):
        with open_executor(1) as workers:
            reader, store = write_prepared(tmp_path / "s", matrix("sparse"), SKETCH, ("standardize",), workers)
            wide = replace(reader, source=prepared_as(store, open_source(matrix("sparse", 9, 40, seed=2))))
            assert len(wide.source.origin.prepared_by.found[0].factor) == 40
        zarr.open_array(str(tmp_path / "s" / "sketch" / "steps_factor0"), mode="r+")[...] = np.ones(40)
        with pytest.raises(SourceError, match="steps_factor0 is damaged"):
            open_source(tmp_path / "s").preparation()


class TestAfterAKill:
    """Processes that write are killed; the same call again must give the very files that an undisturbed one gives."""

    @pytest.fixture
    def data(self, tmp_path):
        for number in (1, 2):
            np.save(tmp_path / f"{number}.npy", matrix("dense", 1_500, seed=number))
        dump_svmlight_file(matrix("sparse", 1_500), np.zeros(1_500), str(tmp_path / "4.svm"), zero_based=False)
        return tmp_path

    def ended_at(self, moments, operation, data):
        """Kill an operation before each of some renamings, the narrowest gaps there are: how many of them came."""
        context, given = forking(), data / {"write": "4.svm", "rows": "2.npy"}[operation]
        if operation != "write":
            do(write_store, data / "before", data / "1.npy", SKETCH)

        def fresh(name):
            shutil.rmtree(data / name, ignore_errors=True)
            if operation != "write":
                shutil.copytree(data / "before", data / name)
            return data / name

        def exit_code(function, *args):
            child = context.Process(target=function, args=args)
            child.start()
            child.join()
            return child.exitcode

        assert exit_code(children.run, operation, fresh("undisturbed"), given) == 0
        wanted = tree(data / "undisturbed")
        for n_killed, moment in enumerate(moments):
            if exit_code(children.killed_at, moment, children.run, operation, fresh("s"), given) == 0:
                return n_killed
            if operation != "write":  # what was there is as it was, or complete
                assert open_source(data / "s").n_rows in (1_500, 3_000)
            # refused where all was done but the removal of what is needed no more
            assert exit_code(children.run, operation, data / "s", given) == 0 or tree(data / "s") == wanted
            assert tree(data / "s") == wanted, f"killed at {moment}"
        return len(moments)

    @pytest.mark.parametrize("operation", ["write", "rows"])
    def test_before_it_becomes_part_of_the_store(self, data, operation):
        assert self.ended_at([".zarr.json."], operation, data) == 1

    @pytest.mark.slow
    @pytest.mark.parametrize("operation", ["write", "rows"])
    def test_before_every_renaming(self, data, reduced, operation):
        step = 30 if reduced else 1
        assert self.ended_at(range(0, 1_000, step), operation, data) > 20 // step


def test_a_second_writer_is_refused(tmp_path):
    do(write_store, tmp_path / "s", matrix("sparse"), SKETCH)
    held = Lock(tmp_path / ".s.lock", "it")
    with pytest.raises(InUseError, match=f"s is in use by process {os.getpid()}"):
        do(append_rows, tmp_path / "s", matrix("sparse"))
    held.release()  # as where a process was killed, the file is there
    assert do(append_rows, tmp_path / "s", matrix("sparse")).n_rows == 240
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_full_disk(tmpfs, tmp_path):
    place, make_space = tmpfs
    X = np.random.default_rng(0).random((2_000, 40), np.float32)
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(DiskFullError, match=rf"{place}.* make space and run the same again"):
        do(write_store, place / "s", tmp_path / "x.npy", SKETCH)
    assert not (place / "s").exists()
    make_space()
    for path in (place / "s", tmp_path / "undisturbed"):
        do(write_store, path, tmp_path / "x.npy", SKETCH)
    assert tree(place / "s") == tree(tmp_path / "undisturbed")
    assert [path.name for path in place.iterdir() if path.name.startswith(".s.")] == []


def test_a_part_that_a_kill_left_behind_is_swept(tmp_path):
    for name in ("1", "2"):
        np.save(tmp_path / f"{name}.npy", matrix("dense", seed=int(name)))
    do(write_store, tmp_path / "s", tmp_path / "1.npy", SKETCH)
    shutil.copytree(tmp_path / "s", tmp_path / "t")
    shutil.copytree(tmp_path / "s" / "parts" / "0", tmp_path / "s" / "parts" / "1")  # as if killed before the end
    assert open_source(tmp_path / "s").n_rows == 120
    assert do(append_rows, tmp_path / "s", tmp_path / "2.npy").n_rows == 240
    do(append_rows, tmp_path / "t", tmp_path / "2.npy")
    assert tree(tmp_path / "s") == tree(tmp_path / "t")
