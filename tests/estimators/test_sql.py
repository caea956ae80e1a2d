"""Labels by one SELECT are those of `predict`; places where results cannot be written are refused first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from streamkm import SketchOptions, StreamKMeans, open_source
from streamkm.cli.main import main
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, OutputError
from streamkm.core.progress import Progress

pd = pytest.importorskip("pandas")


def trips(n_rows=2_000):
    rng = np.random.default_rng(0)
    group = np.arange(n_rows) % 4
    return pd.DataFrame(
        {
            'the "id"': np.arange(n_rows) + 5,
            "fare": np.exp(rng.normal(2 + group, 0.5, n_rows)),
            "order": rng.normal(size=n_rows) + 3 * (group % 2),
            "Miles driven": np.abs(rng.normal(size=n_rows)) + group,
            "kind": np.array(["it's", 'b"q', "back\\slash", None], object)[rng.integers(4, size=n_rows)],
        }
    )


NUMBERS = ["fare", "order", "Miles driven"]
ID = 'the "id"'


def labels_in_duckdb(model, frame, **given):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as database:
        database.execute("SET threads TO 1")
        database.register("trips today", frame)
        return database.sql(model.to_sql("duckdb", table="trips today", **given)).df()


def fitted(X, n_clusters=7, **given):
    return StreamKMeans(n_clusters, random_state=0, progress=False, **given).fit(X)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"metric": "cosine"},
        {"metric": "spherical"},
        {"preprocess": ["robust"], "metric": "cosine"},
        {"preprocess": {"log1p": ["fare"], "standardize": None}},
        {"preprocess": {"total": ["fare", "Miles driven"], "unit": ["order", "fare"]}},
        {"n_clusters": 40},
    ],
)
def test_labels_are_those_of_predict(given):
    frame = trips()
    model = fitted(open_source(frame[[ID, *NUMBERS]], id_column=ID), **given)
    table = labels_in_duckdb(model, frame)
    assert list(table.columns) == [ID, "cluster"]
    np.testing.assert_array_equal(table[ID], frame[ID])
    np.testing.assert_array_equal(table["cluster"], model.labels_)


def test_categories_with_quotes_and_without_values():
    frame = trips()
    source = open_source(frame, id_column=ID, categories="onehot")
    model = fitted(source, preprocess={"standardize": NUMBERS})
    np.testing.assert_array_equal(labels_in_duckdb(model, frame)["cluster"], model.labels_)
    strange = frame.copy()
    strange.loc[3, "kind"] = "other"
    found = labels_in_duckdb(model, strange)["cluster"]
    assert found.isna().tolist() == [row == 3 for row in range(len(frame))]
    ignoring = fitted(open_source(frame, id_column=ID, categories="onehot", categories_unseen="ignore"))
    np.testing.assert_array_equal(labels_in_duckdb(ignoring, strange)["cluster"], ignoring.predict(strange))


def test_rows_without_label_are_null():
    frame = trips()
    frame.loc[3, "fare"], frame.loc[5, "order"], frame.loc[9, "fare"] = np.nan, np.inf, -2.0
    skipping = fitted(frame[NUMBERS], invalid="skip", preprocess=["log1p"])
    found = labels_in_duckdb(skipping, frame)["cluster"].fillna(-1)
    np.testing.assert_array_equal(found, skipping.labels_)
    assert (found[[3, 5, 9]] == -1).all()


def test_missing_values_are_filled_and_infinity_is_not():
    frame = trips()
    frame.loc[3, "fare"] = np.nan
    model = fitted(frame[NUMBERS], invalid="mean", preprocess=["standardize"])
    np.testing.assert_array_equal(labels_in_duckdb(model, frame)["cluster"], model.labels_)
    frame.loc[5, "order"] = -np.inf
    found = labels_in_duckdb(model, frame)["cluster"].fillna(-1)
    assert np.flatnonzero(found == -1).tolist() == [5]


def test_ties_go_to_the_lower_cluster():
    model = fitted(np.array([[0.0], [2.0], [4.0]]), 3, init=np.array([[0.0], [2.0], [4.0]]))
    middle = pd.DataFrame({"x": [1.0, 3.0, 0.0]})
    found = labels_in_duckdb(model, middle, columns=["x"])["cluster"]
    np.testing.assert_array_equal(found, model.predict(middle.to_numpy()))


@pytest.mark.slow
def test_many_features_are_no_deep_sum(tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 1100))
    X[:, 0] += 90 * (np.arange(60) % 2)
    frame = pd.DataFrame(X, columns=[f"x{column}" for column in range(1100)])
    model = fitted(frame, 2)
    model.save(tmp_path / "model.npz")
    loaded = StreamKMeans.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(labels_in_duckdb(loaded, frame, id_column="x0")["cluster"], model.labels_)


def test_dialects_differ_in_quotes_and_types():
    model = fitted(open_source(trips(200), id_column=ID, categories="onehot"), 2)
    postgres = model.to_sql("postgres", table="mart.trips")
    assert 'FROM "mart"."trips"' in postgres
    assert 'CAST("Miles driven" AS DOUBLE PRECISION)' in postgres
    assert "'it''s'" in postgres
    assert '"the ""id"""' in postgres
    bigquery = model.to_sql("bigquery", table="project.mart.trips")
    assert "FROM `project`.`mart`.`trips`" in bigquery
    assert "CAST(`Miles driven` AS FLOAT64)" in bigquery
    assert "'it\\'s'" in bigquery
    assert "'back\\\\slash'" in bigquery


def test_what_has_no_statement():
    frame = trips(400)
    plain = fitted(frame[NUMBERS], 3)
    with pytest.raises(InvalidParameterError, match="'duckdb', 'postgres', 'bigquery'"):
        plain.to_sql("oracle", table="t")
    with pytest.raises(InvalidParameterError, match="3 names, for fare, order"):
        plain.to_sql(table="t", columns=["fare"])
    with pytest.raises(InvalidParameterError, match="names of the columns, in order"):
        fitted(frame[NUMBERS].to_numpy(), 3).to_sql(table="t")
    X = np.random.default_rng(0).normal(size=(400, 60))
    sketched = fitted(X, 3, sketch=SketchOptions("pca", 5, assign_space="sketch"), refine=0)
    hashed = fitted(open_source(frame, id_column=ID, categories="hash"), 3)
    for model, reason in ((sketched, "in a sketch"), (hashed, "are hashed")):
        with pytest.raises(InvalidInputError, match=reason):
            model.to_sql(table="t", columns=[f"x{number}" for number in range(model.n_features_in_)])
    wide = fitted(np.random.default_rng(0).normal(size=(60, 2000)), 50, init="random")
    with pytest.raises(InvalidInputError, match="longer than 1,000,000 characters"):
        wide.to_sql(table="t", columns=[f"x{number}" for number in range(2000)])


def test_a_model_that_goes_on_writes_the_statement_of_the_fit():
    """With its categories, ids and steps, also from a file; dates are refused alike."""
    frame = trips(600)
    given = {"categories": "onehot", "id_column": ID, "categories_unseen": "ignore"}
    model = fitted(open_source(frame, **given), preprocess={"standardize": NUMBERS})
    stream = model.incremental()
    assert stream.to_sql(table="t") == model.to_sql(table="t")
    found = labels_in_duckdb(stream, frame)
    np.testing.assert_array_equal(found["cluster"], model.labels_)
    np.testing.assert_array_equal(found[ID], frame[ID])
    days = open_source(pd.DataFrame({"t": pd.date_range("2024-01-01", periods=50)}), dates="days")
    for dated in (fitted(days, 2), fitted(days, 2).incremental()):
        with pytest.raises(InvalidInputError, match="its features are days of dates; use predict_to"):
            dated.to_sql(table="t")


URL = "s3://user:secret@bucket/results"
NEEDED = r"^s3://\*\*\*@bucket/results.* is a URL, and results are written to local paths only; give a path"


@pytest.fixture
def begun(monkeypatch, tmp_path):
    """Stages that began, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names, stage = [], Progress.stage
    monkeypatch.setattr(Progress, "stage", lambda self, name, *rest: names.append(name) or stage(self, name, *rest))
    return names


@pytest.fixture
def X():
    return np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)


def kmeans(**settings):
    return StreamKMeans(3, random_state=0, executor=2, progress=False, **settings)


@pytest.mark.parametrize("place", [f"{URL}.zarr", f"{URL}.csv", f"{URL}.parquet", Path(f"{URL}.zarr")])
def test_labels_at_a_url(begun, X, tmp_path, place):
    with pytest.raises(OutputError, match=NEEDED) as refused:
        kmeans().fit(X, labels_to=place)
    assert begun == []
    assert "secret" not in str(refused.value)
    fitted = kmeans().fit(X)
    begun.clear()
    with pytest.raises(OutputError, match=NEEDED):
        fitted.predict_to(X, place)
    assert begun == []
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_and_a_model_at_a_url(begun, X, tmp_path):
    with pytest.raises(OutputError, match=NEEDED):
        kmeans().fit(X, checkpoint=URL)
    assert begun == []
    with pytest.raises(OutputError, match=NEEDED):
        kmeans().fit(X).save(f"{URL}.npz")
    assert not list(tmp_path.iterdir())


def test_results_of_the_command_line_at_a_url(begun, X, tmp_path):
    np.save(tmp_path / "x.npy", X)
    failed = CliRunner().invoke(main, ["fit", "x.npy", "-k", "3", "-o", URL])
    assert failed.exit_code != 0
    assert "is a URL, and results are written to local paths only" in failed.output + str(failed.exception)
    assert begun == []
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


@pytest.mark.parametrize("name", ["labels.csv", "labels.parquet"])
def test_a_table_in_a_folder_that_is_not_there(begun, X, tmp_path, name):
    with pytest.raises(OutputError, match=rf"missing/{name} cannot be written: there is no directory missing; make it"):
        kmeans().fit(X, labels_to=f"missing/{name}")
    assert begun == []
    assert not list(tmp_path.iterdir())
