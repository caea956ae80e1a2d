"""Tables that come after the fit: the columns of the fit, by name, whatever stands beside them."""

from functools import partial

import numpy as np
import pytest

from streamkm import FeatureHashing, IncrementalKMeans, StreamKMeans, open_documents, open_source
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from tests.tables import slow_but

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")


def customers(n_rows=300):
    rng = np.random.default_rng(0)
    group = np.arange(n_rows) % 3
    return pd.DataFrame(
        {
            "id": [f"c{row}" for row in range(n_rows)],
            "age": rng.normal(size=n_rows) + 9 * group,
            "income": rng.normal(size=n_rows),
            "kind": np.array(["new", "old", "lost"])[group],
            "note": "none",
        }
    )


OPTIONS = {"id_column": "id", "exclude": "note", "categories": "onehot"}


def fitted(X, **given):
    return StreamKMeans(3, random_state=0, progress=False, **given).fit(X)


@pytest.fixture(scope="module")
def model():
    return fitted(open_source(customers(), **OPTIONS))


def test_the_frame_that_was_fitted_is_taken(model):
    frame = customers()
    np.testing.assert_array_equal(model.predict(frame), model.labels_)
    np.testing.assert_array_equal(model.predict(frame[["note", "kind", "income", "age"]]), model.labels_)
    np.testing.assert_array_equal(model.with_labels(frame)["cluster"], model.labels_)
    assert model.transform(frame).shape == (300, 3)
    assert model.score(frame) == pytest.approx(-model.inertia_)


@pytest.mark.parametrize("make", ["lazy", "dataset", "reader"])
def test_frames_of_other_packages(model, make, tmp_path):
    pa = pytest.importorskip("pyarrow")
    table = pa.Table.from_pandas(customers())
    if make == "lazy":
        X = pytest.importorskip("polars").from_pandas(customers()).lazy()
    else:
        X = pytest.importorskip("pyarrow.dataset").dataset(table) if make == "dataset" else table.to_reader()
    np.testing.assert_array_equal(model.predict(X), model.labels_)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_saved_model_opens_later_files_alike(model, suffix, tmp_path):
    model.save(tmp_path / "model.npz")
    loaded = StreamKMeans.load(tmp_path / "model.npz")
    path = tmp_path / f"later.{suffix}"
    shuffled = customers()[["kind", "note", "income", "id", "age"]]
    shuffled.to_csv(path, index=False) if suffix == "csv" else shuffled.to_parquet(path)
    for X in (customers(), path, str(path), {"path": str(path), "categories": "onehot", "id_column": "id"}):
        np.testing.assert_array_equal(loaded.predict(X), model.labels_)
    loaded.predict_to(path, tmp_path / "labels.csv")
    assert pd.read_csv(tmp_path / "labels.csv")["id"].tolist() == customers()["id"].tolist()
    loaded.predict_to(customers().drop(columns="id"), tmp_path / "numbered.csv")
    assert pd.read_csv(tmp_path / "numbered.csv")["row"].tolist() == list(range(300))


def test_a_column_that_is_missing_is_named(model):
    with pytest.raises(InvalidInputError, match="'income' is missing"):
        model.predict(customers().drop(columns="income"))
    strange = customers()
    strange.loc[7, "kind"] = "vip"
    with pytest.raises(InvalidInputError, match=r"'vip' in row 7"):
        model.predict(strange)


def test_labels_go_beside_frames_with_more_columns_than_a_plain_fit():
    frame = customers()
    plain = fitted(frame[["age", "income"]])
    np.testing.assert_array_equal(plain.with_labels(frame[["income", "id", "age"]])["cluster"], plain.labels_)
    polars = pytest.importorskip("polars").from_pandas(frame)
    assert plain.with_labels(polars.lazy()).collect()["cluster"].to_list() == plain.labels_.tolist()
    with pytest.raises(ValueError, match="feature names"):  # as scikit-learn has it
        plain.predict(frame[["income", "age"]])


@pytest.mark.parametrize(("categories", "kind"), [("onehot", "category"), ("hash", "text")])
def test_dask_frames_are_tables_like_others(categories, kind, tmp_path):
    frames = pytest.importorskip("dask.dataframe")
    frame = customers()
    options = {**OPTIONS, "categories": categories}
    typed = frame.astype({"kind": "category"}) if kind == "category" else frame
    X = frames.from_pandas(typed, npartitions=4)
    model, wanted = fitted(open_source(X, **options)), fitted(open_source(frame, **options))
    assert list(model.feature_names_in_) == list(wanted.feature_names_in_)
    np.testing.assert_allclose(model.inertia_, wanted.inertia_)
    for fit in (model, wanted):
        np.testing.assert_array_equal(fit.predict(X).compute(), fit.labels_)
        np.testing.assert_array_equal(fit.predict(frame), fit.labels_)
        np.testing.assert_array_equal(fit.with_labels(X).compute()["cluster"], fit.labels_)
    np.testing.assert_array_equal(X.assign(cluster=model.dask_labels_).compute()["cluster"], model.labels_)
    model.predict_to(X, tmp_path / "labels.csv")
    assert pd.read_csv(tmp_path / "labels.csv")["id"].tolist() == frame["id"].tolist()


def test_dask_frames_that_are_refused():
    frames, arrays = pytest.importorskip("dask.dataframe"), pytest.importorskip("dask.array")
    X = frames.from_pandas(customers(), npartitions=2)
    with pytest.raises(InvalidInputError, match=r"'kind' contains text .*exclude=\"kind\""):
        open_source(X, id_column="id", exclude="note")
    with pytest.raises(InvalidInputError, match=r"'ids' is missing .did you mean 'id'"):
        open_source(X, id_column="ids")
    with pytest.raises(InvalidInputError, match='categories="onehot"'):
        open_source(X)
    with pytest.raises(InvalidParameterError, match="columns= is for Dask data frames"):
        open_source(arrays.ones((4, 2)), columns="a")


@pytest.mark.parametrize("known", ["onehot", {"kind": ["new", "old", "lost"]}])
def test_categories_that_the_fit_has_not_seen_may_be_ignored(known, tmp_path):
    given = {**OPTIONS, "categories": known, "categories_unseen": "ignore"}
    model = fitted(open_source(customers(), **given))
    model.save(tmp_path / "model.npz")
    strange, without = customers(), customers()
    strange.loc[7, "kind"], without.loc[7, "kind"] = "vip", None
    strange.to_parquet(tmp_path / "x.parquet")
    frames = pytest.importorskip("dask.dataframe")
    for each in (model, StreamKMeans.load(tmp_path / "model.npz")):
        wanted = each.transform(without)
        assert np.isfinite(wanted[7]).all()
        for X in (strange, tmp_path / "x.parquet", frames.from_pandas(strange, npartitions=3)):
            np.testing.assert_array_equal(np.asarray(each.transform(X)), wanted)
    with pytest.raises(InvalidParameterError, match='"raise" or "ignore"'):
        open_source(customers(), **{**given, "categories_unseen": "skip"})


STEPS = {"standardize": ["age", "income"]}
STREAMS = {
    "of a fit": lambda rows: fitted(rows).incremental(),
    "of steps of columns": lambda rows: fitted(rows, preprocess=STEPS).incremental(),
    "partial_fit": lambda rows: IncrementalKMeans(3, random_state=0, progress=False).partial_fit(rows),
    "fit": lambda rows: IncrementalKMeans(3, random_state=0, progress=False, preprocess={"log1p": ["kind"]}).fit(rows),
}


@pytest.mark.parametrize("begun", slow_but(["of steps of columns", "fit"], STREAMS))
def test_streams_take_what_a_fit_takes(begun, tmp_path):
    """In every method, also after a file; a category may be missing, columns may come in another order."""
    stream = STREAMS[begun](open_source(customers(), **OPTIONS))
    chosen = (customers()["kind"] != "old").to_numpy()
    later = customers()[chosen][["kind", "note", "income", "id", "age"]]
    later.to_csv(tmp_path / "later.csv", index=False)
    again = STREAMS[begun](open_source(customers(), **OPTIONS))
    again.update(open_source(later, **{**OPTIONS, "categories": {"kind": ["lost", "new", "old"]}}))
    stream.update(later, labels_to=tmp_path / "labels.csv")
    assert pd.read_csv(tmp_path / "labels.csv")["id"].tolist() == later["id"].tolist()
    np.testing.assert_array_equal(stream.labels_, again.labels_)
    np.testing.assert_array_equal(stream.cluster_centers_, again.cluster_centers_)
    stream.save(tmp_path / "stream.npz")
    for each in (stream, IncrementalKMeans.load(tmp_path / "stream.npz")):
        np.testing.assert_array_equal(each.predict(later), again.labels_)
        np.testing.assert_array_equal(each.with_labels(later)["cluster"], again.labels_)
        assert str(each.drift(later)) == str(each.drift(tmp_path / "later.csv"))
        if begun.startswith("of"):
            both = pd.concat([later, customers()])
            np.testing.assert_array_equal(each.relabel(both), each.predict(both))
        each.update(tmp_path / "later.csv")
        assert each.partial_fit(later).n_samples_seen_ == 300 + 3 * len(later)


def test_streams_take_dates_and_genes_like_a_fit(tmp_path):
    ad = pytest.importorskip("anndata")
    days = customers().assign(day=pd.date_range("2024-01-01", periods=300))[["age", "day"]]
    stream = fitted(open_source(days, dates="days")).incremental()
    assert stream.update(days[::-1]).n_rows == 300
    cells = ad.AnnData(np.random.default_rng(0).poisson(3.0, (60, 9)).astype("f4"))
    cells.var_names = [f"g{gene}" for gene in range(9)]
    chosen = fitted(open_source(cells, genes=["g4", "g1", "g7", "g2"]))
    nightly = chosen.incremental()
    assert nightly.update(cells).n_rows == 60
    np.testing.assert_array_equal(nightly.predict(cells), nightly.labels_)


def test_steps_of_columns_that_need_all_rows_are_refused_without_a_fit():
    with pytest.raises(InvalidInputError, match="'standardize' must see all rows"):
        IncrementalKMeans(3, preprocess=STEPS).partial_fit(open_source(customers(), **OPTIONS))
    stream = STREAMS["fit"](open_source(customers(), **OPTIONS))
    before = stream.cluster_centers_
    with pytest.raises(InvalidInputError, match="column 'income', which is missing"):
        stream.set_params(preprocess=STEPS).fit(customers()[["age"]])
    np.testing.assert_array_equal(stream.cluster_centers_, before)


def test_chunks_of_frames_are_read_by_the_names_of_the_fit():
    frame = customers()[["age", "income"]]
    model = fitted(frame)
    parts = [frame[:100][["income", "age"]], frame[100:], frame[:0]]
    for X in (parts[:2], parts[1::-1][::-1], lambda: iter(parts), iter(parts)):
        np.testing.assert_array_equal(model.predict(X), model.labels_)
    stream = model.incremental()
    stream.update(parts[:2])
    np.testing.assert_array_equal(stream.labels_, stream.predict(frame))
    with pytest.raises(InvalidInputError, match="without 'age'"):
        model.predict([frame[["income"]], frame[["income"]]])


def test_documents_are_weighted_by_the_frequencies_of_the_fit(tmp_path):
    """Whatever they were weighted by when they were opened; those of a fit without weights get none."""
    documents = partial(open_documents, hashing=FeatureHashing(n_features=1 << 12))
    rng, words = np.random.default_rng(0), np.array(["red", "blue", "green", "fish", "sea", "sky", "cat", "dog"])
    old, new = ([" ".join(words[rng.integers(n, size=5)]) for _ in range(90)] for n in (8, 4))
    source = documents(old)
    model = fitted(source)
    wanted = model.transform(documents(new, tfidf=source.tfidf))
    model.save(tmp_path / "model.npz")
    model.incremental().save(tmp_path / "stream.npz")
    models = [model, StreamKMeans.load(tmp_path / "model.npz"), IncrementalKMeans.load(tmp_path / "stream.npz")]
    for each in (*models, IncrementalKMeans(3, progress=False, init=model.cluster_centers_).fit(source)):
        np.testing.assert_array_equal(
            each.transform(documents(new)), each.transform(documents(new, tfidf=source.tfidf))
        )
    for each in models:
        for tfidf in (True, False):
            np.testing.assert_array_equal(each.transform(documents(new, tfidf=tfidf)), wanted)
    counts = fitted(documents(old, tfidf=False))
    plain = documents(new, tfidf=False)
    np.testing.assert_array_equal(counts.transform(documents(new)), counts.transform(plain))
    model.tfidf_ = None  # of a model that does not keep them
    with pytest.raises(InvalidInputError, match=r"not weighted by the frequencies of the fit.*pass tfidf="):
        model.predict(documents(new))
    model.predict(documents(new, tfidf=source.tfidf))
