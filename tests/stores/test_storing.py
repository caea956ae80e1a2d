"""Writing sketch stores and adding to them: linearity, refusals by name, kills, a full disk, clustering a store."""

from __future__ import annotations

import os
import random
import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from sklearn.datasets import dump_svmlight_file

from streamkm import StreamKMeans
from streamkm.core.exceptions import (
    InUseError,
    InvalidInputError,
    OutputError,
    SourceError,
    StoreError,
)
from streamkm.core.locks import Lock
from streamkm.core.progress import Progress, Stage
from streamkm.engine import open_executor
from streamkm.passes.context import PassContext
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
from tests.tables import cases

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


def write_arrays(path, name, values):
    """Other values for an array of a sketch."""
    zarr.open_array(str(path / "sketch" / name), mode="r+")[...] = values
    return path


def sketched(X):
    return dense(X) @ countsketch_matrix(SKETCH.seed, X.shape[1], SKETCH.n_components)


def do(operation, path, X, *args, executor=2, reader=None, **options):
    with open_executor(executor) as workers:
        reader = reader_of(X, **(reader or {"chunk_bytes": 3000}))
        return operation(path, reader, *args, workers, Stage("test"), **options)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("streamkm.stores.writer.CHUNK_BYTES", 1 << 14)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


class TestWriting:
    @pytest.mark.parametrize("chunk_bytes", [1, 2_000, 1 << 30])
    def test_rows_are_the_sketch_whatever_the_chunks(self, tmp_path, kind, chunk_bytes):
        X = matrix(kind)
        source = do(write_store, tmp_path / "s.zarr", X, SKETCH, reader={"chunk_bytes": chunk_bytes})
        assert source.info.kind == {"dense": "dense", "sparse": "csr"}[kind]
        np.testing.assert_array_equal(stored_rows(source), sketched(X))
        assert [path.name for path in tmp_path.iterdir()] == ["s.zarr"]

    def test_files_are_the_same_whatever_the_executor(self, tmp_path, kind, client):
        X = matrix(kind)
        for name, executor in (("1", 1), ("4", 4), ("cluster", client)):
            do(write_store, tmp_path / name, X, SKETCH, executor=executor)
        assert tree(tmp_path / "1") == tree(tmp_path / "4") == tree(tmp_path / "cluster")

    @pytest.mark.parametrize("sketch", [IdentitySketch(40), PCASketch.fit(matrix("dense"), 5, random_state=0)])
    def test_other_sketches_come_back(self, tmp_path, sketch):
        X = matrix("dense")
        source = do(write_store, tmp_path / "s.zarr", X, sketch)
        np.testing.assert_array_equal(stored_rows(source), sketch.apply(X))
        found = sketch_of_store(open_source(tmp_path / "s.zarr"))
        assert found.to_dict() == sketch.to_dict()
        for name, values in sketch.arrays().items():
            np.testing.assert_array_equal(found.arrays()[name], values, strict=True)

    def test_damaged_arrays_of_a_sketch_are_noticed(self, tmp_path):
        do(write_store, tmp_path / "s", matrix("dense"), PCASketch.fit(matrix("dense"), 5, random_state=0))
        shutil.rmtree(tmp_path / "s/sketch/mean/c")
        with pytest.raises(SourceError, match="sketch/mean is missing"):
            sketch_of_store(open_source(tmp_path / "s"))

    def test_text_of_unknown_length_and_a_stream(self, tmp_path):
        X = matrix("sparse")
        dump_svmlight_file(X, np.zeros(120), str(tmp_path / "x.svm"), zero_based=False)
        source = do(write_store, tmp_path / "t", tmp_path / "x.svm", SKETCH)
        np.testing.assert_array_equal(stored_rows(source), sketched(X))
        assert source.info.inputs[0]["source"]["files"][0]["path"] == str(tmp_path / "x.svm")
        source = do(write_store, tmp_path / "i", lambda: iter([X[:50], X[50:]]), SKETCH)
        np.testing.assert_array_equal(stored_rows(source), sketched(X))

    def test_skipped_rows_keep_their_numbers(self, tmp_path, kind):
        X = dense(matrix(kind)).astype(np.float32)
        X[[3, 70], 5] = np.nan
        given = X if kind == "dense" else sp.csr_array(X)
        source = do(write_store, tmp_path / "s", given, SKETCH, reader={"chunk_bytes": 3000, "invalid": "skip"})
        found = stored_rows(source)
        assert np.flatnonzero(np.isnan(found).any(axis=1)).tolist() == [3, 70]
        wanted = sketched(np.nan_to_num(X))
        np.testing.assert_array_equal(np.delete(found, [3, 70], 0), np.delete(wanted, [3, 70], 0))
        labels = StreamKMeans(3, invalid="skip", random_state=0).fit(source).labels_
        assert np.flatnonzero(labels < 0).tolist() == [3, 70]

    def test_cosine_rows_are_scaled_first(self, tmp_path, kind):
        X = matrix(kind)
        source = do(write_store, tmp_path / "s", X, SKETCH, reader={"chunk_bytes": 3000, "metric": "cosine"})
        norms = np.linalg.norm(dense(X), axis=1, keepdims=True)
        np.testing.assert_allclose(stored_rows(source), sketched(dense(X) / np.where(norms > 0, norms, 1)), atol=1e-6)

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

    def test_no_rows(self, tmp_path):
        (tmp_path / "x.svm").write_text("# nothing\n")
        with pytest.raises(InvalidInputError, match="has no rows; needed: at least 1"):
            do(write_store, tmp_path / "s", tmp_path / "x.svm", SKETCH)


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
    @pytest.mark.parametrize("cuts", [(50,), (1, 2, 119)])
    def test_are_as_if_there_from_the_start(self, tmp_path, kind, cuts):
        X = matrix(kind)
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

    def test_dense_rows_to_a_sparse_store_and_back(self, tmp_path, kind):
        X, other = matrix(kind), matrix("sparse" if kind == "dense" else "dense", seed=1)
        do(write_store, tmp_path / "s", X, SKETCH)
        source = do(append_rows, tmp_path / "s", other)
        np.testing.assert_array_equal(stored_rows(source), np.concatenate([sketched(X), sketched(other)]))

    def test_wider_rows_of_text(self, tmp_path):
        for name, X in (("a", matrix("sparse", n_features=30)), ("b", matrix("sparse", n_features=40, seed=1))):
            dump_svmlight_file(X, np.zeros(120), str(tmp_path / f"{name}.svm"), zero_based=False)
        do(write_store, tmp_path / "s", tmp_path / "a.svm", SKETCH)
        assert do(append_rows, tmp_path / "s", tmp_path / "b.svm").info.n_features == 40

    @pytest.mark.parametrize(
        ("sketch", "metric", "message"),
        [
            (CountSketch(300, 8), "euclidean", "was sketched with seed 7, not 8"),
            (CountSketch(301, 7), "euclidean", "was sketched with n_components 300, not 301"),
            (IdentitySketch(300), "euclidean", "was sketched with kind countsketch, not identity"),
            (SKETCH, "cosine", "was sketched with metric euclidean, not cosine"),
        ],
    )
    def test_by_another_sketch_are_refused_by_name(self, tmp_path, sketch, metric, message):
        source = do(write_store, tmp_path / "s", matrix("sparse"), SKETCH)
        with pytest.raises(StoreError, match=message):
            check_made_alike(source, sketch, metric, None)
        if sketch is SKETCH:
            with pytest.raises(StoreError, match=message):
                do(append_rows, tmp_path / "s", matrix("sparse", seed=1), reader={"metric": metric})
            assert open_source(tmp_path / "s").info == source.info

    def test_by_another_projection_are_refused(self, tmp_path):
        first, second = (PCASketch.fit(matrix("dense", seed=seed), 5, random_state=0) for seed in (0, 1))
        source = do(write_store, tmp_path / "s", matrix("dense"), first)
        check_made_alike(source, first, "euclidean", None)
        with pytest.raises(StoreError, match="was sketched with another mean; use its own"):
            check_made_alike(source, second, "euclidean", None)

    def test_of_another_width_are_refused(self, tmp_path, kind):
        do(write_store, tmp_path / "s", matrix(kind), SKETCH)
        with pytest.raises(StoreError, match=r"has 39 features; the rows of .*s have 40"):
            do(append_rows, tmp_path / "s", matrix(kind, n_features=39))

    @cases("saved", [sp.save_npz, np.savez_compressed])
    def test_of_an_npz_file_that_is_loaded_whole_and_there_already_are_refused(self, tmp_path, saved):
        path = tmp_path / "a.npz"
        saved(path, sp.csr_matrix(matrix("dense")) if saved is sp.save_npz else matrix("dense"))
        do(write_store, tmp_path / "s", path, SKETCH)
        with pytest.raises(StoreError, match=r"a\.npz is in .*s already, among rows 0-119"):
            do(append_rows, tmp_path / "s", path)

    def test_arrays_of_one_npz_file_are_appended_one_after_the_other(self, tmp_path):
        path = tmp_path / "two.npz"
        np.savez_compressed(path, a=matrix("dense"), b=matrix("dense", seed=1))
        do(write_store, tmp_path / "s", open_source(path, key="a"), SKETCH)
        do(append_rows, tmp_path / "s", open_source(path, key="b"))
        with pytest.raises(StoreError, match="already, among rows 120-239"):
            do(append_rows, tmp_path / "s", open_source(path, key="b"))

    def test_of_a_file_that_is_there_already_are_refused(self, tmp_path):
        for name in ("a.npy", "b.npy"):
            np.save(tmp_path / name, matrix("dense", seed=ord(name[0])))
        do(write_store, tmp_path / "s", tmp_path / "a.npy", SKETCH)
        with pytest.raises(StoreError, match=r"a\.npy is in .*s already, among rows 0-119"):
            do(append_rows, tmp_path / "s", tmp_path / "a.npy")
        do(append_rows, tmp_path / "s", tmp_path / "b.npy")
        (tmp_path / "a.npy").unlink()
        assert do(append_rows, tmp_path / "s", matrix("dense")).n_rows == 360


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

    @cases(
        "kind, options, wanted",
        [
            ("dense", ("auto", "auto"), IdentitySketch(40)),
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
        assert found.to_dict() == wanted.to_dict()
        for name, values in wanted.arrays().items():  # the sample holds all rows, in another order
            np.testing.assert_allclose(np.abs(found.arrays()[name]), np.abs(values), atol=1e-5)

    @pytest.mark.parametrize(
        ("kind", "steps"), [("dense", ("standardize",)), ("sparse", ("log1p", "robust")), ("sparse", ("unit",))]
    )
    def test_rows_are_prepared_as_a_fit_prepares_them(self, tmp_path, kind, steps):
        X = abs(matrix(kind))
        with open_executor(2) as workers:
            reader, _ = reader_for_store(open_source(X), "euclidean", "raise", preprocess=steps)
            reader = prepared_reader(reader, workers, Progress(show=False))
            store = write_store(tmp_path / "s", reader, IdentitySketch(40), workers, Stage("test"))
            fitted = StreamKMeans(3, random_state=0, progress=False).fit(tmp_path / "s")
            again = StreamKMeans(3, preprocess=list(steps), random_state=0, progress=False).fit(X)
            assert store.details()["preprocess"] == ", ".join(steps)
            np.testing.assert_array_equal(stored_rows(store), dense(again.preparation_.apply(X)))
            np.testing.assert_array_equal(fitted.predict(X), fitted.labels_)  # original rows
            np.testing.assert_array_equal(fitted.predict(tmp_path / "s"), fitted.labels_)  # those of the store
            np.testing.assert_array_equal(fitted.predict(X), again.labels_)
            fitted.save(tmp_path / "m.npz")
            loaded = StreamKMeans.load(tmp_path / "m.npz")
            np.testing.assert_array_equal(loaded.predict(X), fitted.labels_)
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

    @pytest.mark.parametrize(
        ("sketch", "step"), [(IdentitySketch(40), "robust"), (SKETCH, "standardize")], ids=["identity", "countsketch"]
    )
    def test_rows_of_the_other_kind_are_prepared_as_the_store_s(self, tmp_path, kind, step, sketch):
        X, more = matrix("dense") + 5, matrix("dense", 50, seed=1) + 5  # no zeros
        as_kind, as_other = (np.asarray, sp.csr_array) if kind == "dense" else (sp.csr_array, np.asarray)
        stored = []
        with open_executor(2) as workers:
            for name, make in (("same", as_kind), ("other", as_other)):
                reader, _ = reader_for_store(open_source(as_kind(X)), "euclidean", "raise", preprocess=(step,))
                reader = prepared_reader(reader, workers, Progress(show=False))
                store = write_store(tmp_path / name, reader, sketch, workers, Stage("test"))
                reader = replace(reader, source=prepared_as(store, open_source(make(more))))
                stored.append(stored_rows(append_rows(tmp_path / name, reader, workers, Stage("test"))))
                narrow = replace(reader, source=prepared_as(store, open_source(make(more[:, :30]))))
                with pytest.raises(StoreError, match=r"has 30 features; the rows of .* have 40"):
                    append_rows(tmp_path / name, narrow, workers, Stage("test"))
        np.testing.assert_allclose(stored[1], stored[0], rtol=1e-6, atol=1e-6)

    def test_what_steps_have_found_is_checked(self, tmp_path):
        with open_executor(1) as workers:
            reader, _ = reader_for_store(
                open_source(matrix("sparse")), "euclidean", "raise", preprocess=("standardize",)
            )
            reader = prepared_reader(reader, workers, Progress(show=False))
            store = write_store(tmp_path / "s", reader, SKETCH, workers, Stage("test"))
            wide = replace(reader, source=prepared_as(store, open_source(matrix("sparse", 9, 40, seed=2))))
            assert len(wide.source.origin.prepared_by.found[0].factor) == 40
            with pytest.raises(InvalidInputError, match="sketched already"):
                reader_for_store(store, "euclidean", "raise", preprocess=("unit",))
        other = write_arrays(tmp_path / "s", "steps_factor0", np.ones(40))
        with pytest.raises(SourceError, match="steps_factor0 is damaged"):
            open_source(other).preparation()

    def test_of_rows_as_they_are(self, tmp_path):
        source = do(write_store, tmp_path / "s", matrix("dense"), IdentitySketch(40))
        assert model_of_store(source, np.zeros((2, 40))).space == "original"


class TestAfterAKill:
    """Processes that write are killed; the same call again must give the very files that an undisturbed one gives."""

    @pytest.fixture
    def data(self, tmp_path):
        for number, n_features in (("1", 40), ("2", 40)):
            np.save(tmp_path / f"{number}.npy", matrix("dense", 1_500, n_features, seed=int(number)))
        X = matrix("sparse", 1_500, 40)
        dump_svmlight_file(X, np.zeros(1_500), str(tmp_path / "4.svm"), zero_based=False)
        return tmp_path

    def kill_and_compare(self, operation, data, before, path, n_kills, rng):
        """Kill processes that do `operation` on a copy of `before`; compare with one that was left alone."""
        context = forking()

        def start(target):
            child = context.Process(target=children.run, args=(operation, target, data))
            child.start()
            return child

        for target in (path, path.with_name("undisturbed")):
            shutil.rmtree(target, ignore_errors=True)
            if before is not None:
                shutil.copytree(before, target)
        started = time.monotonic()
        undisturbed = start(path.with_name("undisturbed"))
        undisturbed.join()
        assert undisturbed.exitcode == 0
        seconds = time.monotonic() - started
        killed = 0
        for n in range(n_kills):
            child = start(path)
            # the first one early: the undisturbed process may have been slower, as it was the first of all
            child.join(rng.uniform(0, seconds / (1 if n else 40)))
            child.kill()
            child.join()
            killed += child.exitcode != 0
            if child.exitcode == 0:
                break
            if before is not None:  # what was there is as it was, or complete
                assert open_source(path).n_rows in (open_source(before).n_rows, 3_000)
        if child.exitcode != 0:
            child = start(path)
            child.join()
            # killed between the last step and the removal of what it needed no more
            assert child.exitcode == 0 or tree(path) == tree(path.with_name("undisturbed"))
        assert tree(path) == tree(path.with_name("undisturbed"))
        return killed

    def kill(self, operation, data, n_kills, rng):
        """Kill an operation on a store of 1.npy, or the making of a store of text."""
        if operation in ("write", "text"):
            given = data / ("4.svm" if operation == "text" else "1.npy")
            return self.kill_and_compare("write", given, None, data / "s", n_kills, rng)
        do(write_store, data / "before", data / "1.npy", SKETCH)
        given = data / "2.npy"
        return self.kill_and_compare(operation, given, data / "before", data / "s", n_kills, rng)

    @pytest.mark.parametrize("operation", ["text", "rows"])  # the others are killed in slow tests
    def test_once(self, data, operation):
        self.kill(operation, data, 1, random.Random(0))

    @pytest.mark.slow
    @pytest.mark.parametrize("operation", ["write", "text", "rows"])
    def test_many_times(self, data, reduced, operation):
        assert self.kill(operation, data, 3 if reduced else 15, random.Random(1)) >= 1

    def ended_at(self, moments, operation, data):
        """Kill an operation before each of some renamings, the narrowest gaps there are: how many of them came.

        A file that is complete under its temporary name must not stay in the store when the operation is done.
        """
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
    X = np.random.default_rng(0).random((10_000, 40), np.float32)
    np.save(tmp_path / "x.npy", X)
    context = forking()
    problem = context.Queue()

    def run(operation, target):
        child = context.Process(
            target=children.run, args=(operation, target, tmp_path / "x.npy"), kwargs={"problem": problem}
        )
        child.start()
        said = problem.get(timeout=120)
        child.join()
        return said

    said = run("write", place / "s")
    assert said.startswith("DiskFullError")
    assert str(place) in said
    assert "make space and run the same again" in said
    assert not (place / "s").exists()
    make_space()
    assert run("write", place / "s") is None
    assert run("write", tmp_path / "undisturbed") is None
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


@pytest.mark.parametrize("name", ["signs", "svd"])
def test_any_sketch_by_name(tmp_path, name):
    np.save(tmp_path / "1.npy", matrix("dense"))
    reader = reader_of(tmp_path / "1.npy")
    with open_executor(2) as executor:
        assert choose_store_sketch(reader, SketchOptions(name, 8), 3, executor, Stage("sketch")).kind == name
