"""Tables on the command line: by path alone, with flags for columns; documents only where a column of them is named."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import streamkm
from streamkm import IncrementalKMeans, StreamKernelKMeans, StreamKMeans
from streamkm.sources.fitted_tables import table_options
from tests.cli.test_cli import run

N = 600


@pytest.fixture
def trips(tmp_path, monkeypatch):
    """Trips with ids, nulls and categories, in the current directory; give the frame."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, N)
    frame = pd.DataFrame({
        "trip_id": [f"t{i:06}" for i in range(N)],
        "distance": group * 10 + rng.normal(size=N).round(3),
        "fare": group * 30 + rng.normal(size=N).round(3),
        "payment": rng.choice(["card", "cash"], N),
        "passengers": rng.integers(1, 5, N),
    })  # fmt: skip
    frame.loc[[7, 300], "fare"] = np.nan
    frame.to_csv("trips.csv", index=False)
    frame.to_parquet("trips.parquet", index=False)
    return frame


FLAGS = ("--id-column", "trip_id", "--categories", "onehot", "--invalid", "skip", "--seed", 0)


def table_of(directory):
    """How the model of a directory says that its table was opened."""
    made = StreamKMeans.load(f"{directory}/model.npz").fitted_on_
    return table_options(made["made_with"], made.get("id_column"))


def test_models_that_go_on_open_tables_like_the_fit(trips):
    """Ids, categories and the steps of columns go with the model, wherever it is put; a category may be missing."""
    steps = "standardize:distance+fare"
    run("fit", "trips.csv", "-k", 3, "-o", "out", "--no-report", *FLAGS, "--preprocess", steps, "--incremental")
    Path("later").mkdir()
    later = trips[trips["payment"] == "card"].dropna()[::-1].assign(more="x")
    later[["more", *reversed(trips.columns)]].to_csv("later.csv", index=False)
    model = IncrementalKMeans.load("out/incremental.npz")
    wanted = model.predict(later)
    model.save("later/model.npz")
    for path in ("out/model.npz", "out/incremental.npz", "later/model.npz"):
        run("assign", path, "later.csv", "-o", "labels.csv", "--overwrite")
        labels = pd.read_csv("labels.csv")
        assert labels["trip_id"].tolist() == later["trip_id"].tolist()
        np.testing.assert_array_equal(labels["label"], wanted)
    assert "Too few updates to judge" in run("update", "--dry-run", "out/incremental.npz", "later.csv")
    run("update", "out/incremental.npz", "later.csv", "-o", "next", "--labels-format", "csv")
    model.update("later.csv")
    np.testing.assert_array_equal(pd.read_csv("next/labels.csv")["label"], model.predict(later))


def test_fields_end_where_they_did_in_the_fit(trips):
    """What assigns rows later takes the delimiter, the header and line feeds in quotes as the fit did."""
    numbers = trips[["distance", "passengers"]].assign(note=["none", *["a\nb;"] * 599])
    numbers.to_csv("later.csv", index=False, header=False, sep=";")
    dialect = {"delimiter": ";", "header": False, "newlines_in_values": True}
    given = [each for name, value in dialect.items() for each in ("--set", f"data.{name}={json.dumps(value)}")]
    run("fit", "later.csv", "-k", 3, "-o", "out", "--no-report", "--invalid", "skip", "--exclude", "2", *given)
    settings = table_of("out")
    assert {name: settings.get(name) for name in dialect} == dialect
    run("assign", "out/model.npz", "later.csv", "-o", "labels.npy")
    np.testing.assert_array_equal(np.load("labels.npy"), np.load("out/labels.npy"))
    run("fit", "trips.csv", "-k", 3, "-o", "plain", "--no-report", *FLAGS)
    assert not {"delimiter", "header"} & set(table_of("plain"))
    trips.to_csv("trips.tsv", index=False, sep="\t")
    run("assign", "plain/model.npz", "trips.tsv", "-o", "tabs.npy")
    np.testing.assert_array_equal(np.load("tabs.npy"), np.load("plain/labels.npy"))


def test_plans_count_the_reading_that_finds_categories(trips):
    """On the command line and in Python: as many passes as the fit makes, and bytes for each reading."""
    said = run("plan", "trips.parquet", "-k", 3, *FLAGS)
    assert "4, the first for categories and table" in said
    assert "(2 x " in said  # rows stay in memory behind the first pass over them
    wanted = json.loads(run("plan", "trips.parquet", "-k", 3, "--json", *FLAGS))
    given = {"path": "trips.parquet", "id_column": "trip_id", "categories": "onehot"}
    kmeans = StreamKMeans(3, random_state=0, invalid="skip", preprocess=["standardize"])
    planned = kmeans.plan(given)
    assert "4, the first for categories and standardize" in str(planned)
    kmeans.fit(given)
    assert (wanted["passes"], planned.passes, kmeans.plan_.passes) == (4, 4, 4)
    assert (
        json.loads(run("plan", "trips.parquet", "-k", 3, "--json", *FLAGS, "--set", "estimator.preprocess=null"))[
            "passes"
        ]
        == 3
    )
    assert kmeans.n_passes_ == 4 + (kmeans.n_passes_ > 4)
    known = {**given, "categories": {"payment": ["card", "cash"]}}  # nothing is left to be found
    assert StreamKMeans(3).plan(known).passes == 2
    assert StreamKernelKMeans(3).plan(given).passes == StreamKernelKMeans(3).plan(known).passes + 1


def test_what_is_refused(trips):
    said = run("fit", "trips.csv", "-k", 3, code=2)
    assert "column 'trip_id' contains text ('t000000' in row 0)" in said
    assert said.index("If it identifies rows, pass --id-column trip_id. ") < said.index("--exclude trip_id")
    assert "identifies rows" not in run("fit", "trips.csv", "-k", 3, "--exclude", "trip_id", code=2)  # payment
    assert "--categories onehot" in said
    said = run("fit", "trips.csv", "-k", 3, "--columns", "distance,fare", code=2)
    assert "NaN in column 'fare', trips.csv, line 9" in said
    assert "--invalid skip" in said
    Path("semi.csv").write_text("a;b\n1;2\n3;4\n")
    assert "another delimiter; pass --set 'data.delimiter=;'" in run("fit", "semi.csv", "-k", 2, code=2)
    assert "rows       2" in run("fit", "semi.csv", "-k", 2, "--no-report", "--set", "data.delimiter=;")
    Path("late.csv").write_text("a,b\n" + 50 * "1,2\n" + "3,oops\n")
    assert "column 'b' contains text ('oops' in row 50)" in run("fit", "late.csv", "-k", 2, code=2)
    assert "did you mean 'fare'" in run("plan", "trips.csv", "-k", 3, "--columns", "distance,fares", code=2)


def test_the_lines_of_the_readme_run_and_keep_every_row(trips):
    trips.rename(columns={"distance": "miles"}).to_csv("trips.csv", index=False)
    for later in ("new-trips.csv", "tonight.csv"):
        shutil.copy("trips.csv", later)
    shell = Path(streamkm.__file__).parents[1].joinpath("README.md").read_text("utf-8").partition("```sh\n")[2]
    for line in shell.partition("```")[0].splitlines():
        words = shlex.split(line.replace("2:50", "2:4"), comments=True)
        run(*words[1:], *(["--seed", 0] if words[1] in ("fit", "sweep") else []))
    kmeans = StreamKMeans.load("out/model.npz")
    assert (np.load("labels.npy") >= 0).all()
    assert kmeans.get_params()["preprocess"] == ["table"]


def test_stores_of_prepared_rows(trips):
    run("sketch", "trips.csv", "-o", "x.zarr", "--columns", "distance,passengers", "--preprocess", "standardize,unit")
    assert "standardize, unit" in run("inspect", "x.zarr")
    run("fit", "x.zarr", "-k", 3, "-o", "out", "--no-report", "--seed", 1)
    np.save("more.npy", trips[["distance", "passengers"]].to_numpy())  # a store has no names of columns
    assert "1,200" in run("sketch", "--append", "x.zarr", "more.npy")
    run("assign", "out/model.npz", "more.npy", "-o", "labels.npy")
    np.testing.assert_array_equal(np.load("labels.npy"), np.load("out/labels.npy"))
    assert "there is no step 'scale'" in run("sketch", "more.npy", "-o", "y.zarr", "--preprocess", "scale", code=2)
    assert "leave --preprocess unit out" in run("sketch", "x.zarr", "-o", "y.zarr", "--preprocess", "unit", code=2)
    assert "--preprocess standardize out" in run("sweep", "x.zarr", "-k", "2:4", "--preprocess", "standardize", code=2)
    assert "leave --invalid mean out" in run("sweep", "x.zarr", "-k", "2:4", "--invalid", "mean", code=2)


@pytest.fixture
def baskets(tmp_path, monkeypatch):
    """Baskets with an id, a counter, dates, texts of few and of many values, and a number that is missing once."""
    monkeypatch.chdir(tmp_path)
    rng, n = np.random.default_rng(0), 120
    frame = pd.DataFrame({
        "basket_id": [f"B{i:04}" for i in range(n)], "line": np.arange(1, n + 1),
        "day": pd.date_range("2024-01-01", periods=n, freq="h"), "amount": rng.normal(size=n),
        "items": rng.integers(1, 9, n), "pay": rng.choice(["card", "cash"], n), "nothing": [None] * n,
        "note": [f"n {i % 70}" for i in range(n)],
    })  # fmt: skip
    frame.loc[3, "amount"] = np.nan
    return frame


def _typed(output):
    """Run the command that `streamkm inspect` ends with; give its summary."""
    command = shlex.split(output.splitlines()[-1])
    run(*command[1:], "-o", "typed", "--no-report", "--overwrite")
    return json.loads(Path("typed/streamkm.json").read_text())


def test_inspect_lists_every_column_and_ends_with_a_fit_that_runs(baskets):
    Path("folder", "zone=1").mkdir(parents=True)
    baskets.to_csv("folder/zone=1/x.csv", index=False)
    output = run("inspect", "folder")
    assert "choose -k by streamkm sweep" in output
    assert re.search(r"^items .* 1 to 8 +feature$", output, re.M)
    told = re.sub(r" +[-\d.e]+ to [-+\d.e]+ ", " ", output)
    cells = [line.split(maxsplit=4) for line in told.splitlines()]
    found = {cell[0]: cell[2:] for cell in cells if len(cell) == 5 and cell[2].isdigit()}
    assert found["basket_id"] == ["0", "120", "id"]
    assert found["line"] == ["0", "120", "left out: names rows"]
    assert found["day"] == ["0", "120", "left out: date: --dates days makes it a feature"]
    assert found["amount"] == ["1", "119", "feature"]
    assert found["items"] == ["0", "8", "feature"]
    assert found["pay"] == ["0", "2", "one-hot"]
    assert found["nothing"] == ["120", "0", "left out: no values"]
    assert found["note"] == ["0", "70", "left out: text of many values"]
    typed = _typed(output)
    assert typed["data"]["n_features"] == 5
    assert typed["parameters"]["preprocess"] == ["table"]


def test_inspect_shows_broken_values_and_takes_logarithms_of_skewed_ones(baskets):
    rng = np.random.default_rng(1)
    amount, normal = rng.lognormal(3, 1.5, 120), rng.normal(size=120)
    discount = np.where(np.arange(120) == 5, 1e6, rng.random(120))
    baskets.assign(amount=amount, down=-amount, even=normal, discount=discount).to_csv("b.csv", index=False)
    output = run("inspect", "b.csv")
    assert re.search(r"^discount .* to 1e\+06 +feature$", output, re.M)
    assert output.rstrip().endswith("--preprocess table")
    fitted = _typed(output)
    assert any("logarithms are taken of amount" in each for each in fitted["cautions"])
    assert any("discount has" in each and "--exclude discount" in each for each in fitted["cautions"])


def test_plan_says_what_becomes_of_columns_of_a_table(baskets):
    rng = np.random.default_rng(1)
    baskets.assign(amount=rng.lognormal(3, 1.5, 120), same=7.0).to_csv("b.csv", index=False)
    given = ("b.csv", "-k", 2, "--categories", "onehot", "--exclude", "nothing,note,day,basket_id")
    said = run("plan", *given)
    assert re.search(r"^by 120 rows +logarithms are taken of amount$", said, re.M)
    assert re.search(r"^by 120 rows +line is left out: it is a counter$", said, re.M)
    assert re.search(r"^by 120 rows +same is left out: it is constant$", said, re.M)
    assert "by 120 rows" not in run("plan", *given, "--preprocess", "none")
    np.save("x.npy", np.column_stack([rng.normal(size=120), rng.lognormal(0, 2, 120)]))
    assert re.search(
        r"^by 120 rows +logarithms are taken of x1$", run("plan", "x.npy", "-k", 2, "--preprocess", "table"), re.M
    )
    columns = run("sweep", *given[:1], "-k", "2:3", *given[3:], "--preprocess", "none", "-q", "-o", "none")
    assert not columns
    values = json.loads(Path("none/sweep.json").read_text()), json.loads(_swept(given[3:]).read_text())
    assert values[0] != values[1]


def _swept(flags):
    run("sweep", "b.csv", "-k", "2:3", *flags, "-q", "-o", "table")
    return Path("table/sweep.json")


def test_inspect_opens_a_table_as_it_is_told(baskets):
    baskets.rename(columns={"note": "a,b", "items": "--x"}).to_csv("b.csv", index=False, sep=";")
    output = run("inspect", "b.csv", "--set", "data.delimiter=;")
    assert _typed(output)["data"]["n_features"] == 4
    baskets.to_parquet("b.parquet")
    told = run("inspect", "b.parquet", "--columns", "amount,pay", "--categories", "onehot")
    assert re.search("^features +3$", told, re.M)
    assert "streamkm fit" not in told


def test_inspect_keeps_vectors_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    pd.DataFrame({"name": [f"t{i}" for i in range(60)], "age": rng.integers(1, 9, 60), "v": list(rng.random((60, 4)))}
    ).to_parquet("v.parquet", index=False)  # fmt: skip
    output = run("inspect", "v.parquet")
    assert "beside the vectors of v" in output
    assert _typed(output)["data"]["n_features"] == 4
    pd.DataFrame({"note": [f"n {i % 70}" for i in range(99)]}).to_csv("t.csv", index=False)
    assert "no column can be a feature" in run("inspect", "t.csv")


def test_assign_says_which_values_the_fit_had_not_seen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"{i % 3},{('card', 'cash')[i % 2]}" for i in range(60)]
    Path("may.csv").write_text("\n".join(["fare,payment", *lines]))
    Path("june.csv").write_text("\n".join(["fare,payment", *lines, "1,kiosk", "2,kiosk"]))
    run("fit", "may.csv", "-k", 2, "--categories", "onehot", "-o", "out", "--no-report", "-q")
    for file, told in (("june.csv", True), ("may.csv", False)):
        given = ("assign", "out/model.npz", file, "-o", "l.npy", "--categories-unseen", "ignore", "--overwrite")
        assert ("new values  2 of payment: the fit had not seen them" in run(*given)) == told
    lines[0:0] = ["fare,payment"]
    Path("july.csv").write_text("\n".join(f"{line},{i or 'tip'}" for i, line in enumerate(lines)))
    said = run("assign", "out/model.npz", "july.csv", "-o", "l.npy", "--overwrite")
    assert re.search(r"^left out +'tip' \(no feature of the fit\)", said, re.M)
