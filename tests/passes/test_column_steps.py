"""Steps of chosen columns, against plain NumPy."""

import json
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from sklearn.metrics import adjusted_rand_score

from streamkm import StreamKMeans, open_source
from streamkm.cli.main import main
from streamkm.cluster.fit_info import read_arrays
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, ModelFileError
from streamkm.preparation import Preparation

pd = pytest.importorskip("pandas")

RNG = np.random.default_rng(0)
X = np.column_stack(
    [np.exp(RNG.normal(4, 1, 600)), RNG.normal(40, 9, 600), RNG.normal(size=600) + 5 * (np.arange(600) % 3)]
)
FRAME = pd.DataFrame(X, columns=["fare", "age", "score"])
STEPS = {"log1p": ["fare"], "standardize": ["fare", "age"]}


def by_hand(rows=X):
    """What `STEPS` make of rows, with the statistics of X."""
    known = np.column_stack([np.log1p(X[:, 0]), X[:, 1:]])
    made = np.column_stack([np.log1p(rows[:, 0]), rows[:, 1:]])
    made[:, :2] = (made[:, :2] - known[:, :2].mean(axis=0)) / known[:, :2].std(axis=0)
    return made


def fitted(data, steps=STEPS, **given):
    return StreamKMeans(3, preprocess=steps, random_state=0, progress=False, **given).fit(data)


def test_a_fit_is_that_of_rows_that_were_prepared_by_hand(tmp_path):
    model, wanted = fitted(FRAME), fitted(by_hand(), None)
    np.testing.assert_allclose(model.preparation_.apply(X), by_hand(), atol=1e-12)
    np.testing.assert_array_equal(model.labels_, wanted.labels_)
    np.testing.assert_allclose(model.inertia_, wanted.inertia_)
    model.save(tmp_path / "model.npz")
    loaded = StreamKMeans.load(tmp_path / "model.npz")
    for each in (model, loaded):
        np.testing.assert_array_equal(each.predict(FRAME), model.labels_)
        np.testing.assert_allclose(each.transform(FRAME), wanted.transform(by_hand()), atol=1e-9)
    np.testing.assert_array_equal(loaded.set_params(random_state=0).fit(FRAME).labels_, model.labels_)


@pytest.mark.parametrize("data", ["array", "csv"])
def test_columns_by_number_and_by_name(data, tmp_path):
    FRAME.to_csv(tmp_path / "x.csv", index=False)
    numbered = {"log1p": [0], "standardize": [0, 1]}
    given = {"array": (X, numbered), "csv": (tmp_path / "x.csv", STEPS)}[data]
    model, wanted = fitted(*given), fitted(FRAME)
    np.testing.assert_allclose(model.inertia_, wanted.inertia_)
    assert (
        adjusted_rand_score(model.labels_, wanted.labels_) == 1
    )  # starts are drawn by places, which are bytes in text


def test_centers_come_back_in_original_units():
    model = fitted(FRAME, {"standardize": None, "robust": ["age"]})
    means = np.array([X[model.labels_ == label].mean(axis=0) for label in range(3)])
    np.testing.assert_allclose(model.original_centers(), means, rtol=1e-9)


@pytest.mark.parametrize("step", ["log1p", "total", "unit"])
def test_sparse_rows_are_prepared_as_dense_ones(step):
    rows = np.abs(X) * (RNG.random(X.shape) < 0.6)  # a total takes no negative values
    made = Preparation.of({step: [0, 2]}, None, 3, "X")
    alone = Preparation.of([step], None, 2, "X").apply(np.ascontiguousarray(rows[:, [0, 2]]))
    wanted = np.column_stack([alone[:, 0], rows[:, 1], alone[:, 1]])
    np.testing.assert_allclose(made.apply(rows), wanted, rtol=1e-14)
    np.testing.assert_allclose(made.apply(sp.csr_array(rows)).toarray(), wanted, rtol=1e-14)
    given = fitted(sp.csr_array(rows), {step: [0, 2], "standardize": [0]})
    np.testing.assert_array_equal(given.predict(sp.csr_array(rows)), given.labels_)


def test_a_step_of_a_category_is_for_its_cells():
    frame = FRAME.assign(kind=np.array(["a", "b", "c"])[np.arange(600) % 3])
    model = fitted(open_source(frame, categories="onehot"), {"standardize": ["fare", "kind"]})
    made = model.preparation_.apply(np.column_stack([X, np.eye(3)[np.arange(600) % 3]]))
    np.testing.assert_allclose(made[:, [0, 3, 4, 5]].std(axis=0), 1)
    np.testing.assert_array_equal(made[:, 1:3], X[:, 1:])
    np.testing.assert_array_equal(model.predict(frame), model.labels_)


@pytest.mark.parametrize(
    ("steps", "error", "message"),
    [
        ({"log1p": ["fair"]}, InvalidInputError, r"'fair', which is missing .did you mean 'fare'.*there are fare, age"),
        ({"log1p": [3]}, InvalidInputError, "column 3; there are columns 0 to 2"),
        ({"log1p": ["fare", 0]}, InvalidInputError, "column 0 twice"),
        ({"log": ["fare"]}, InvalidParameterError, "no step 'log'.*'unit'"),
        ({"log1p": "fare"}, InvalidParameterError, "needed: a list of columns"),
        ({}, InvalidParameterError, "names no step"),
    ],
)
def test_what_is_refused(steps, error, message):
    with pytest.raises(error, match=message):
        fitted(FRAME, steps)
    with pytest.raises(InvalidInputError, match="have no names; give their numbers"):
        fitted(X, {"log1p": ["fare"]})


@pytest.mark.parametrize(
    "step",
    [
        {"step": "log1p", "columns": [7]},
        {"step": "log1p", "columns": [1, 1]},
        {"step": "log1p", "columns": []},
        {"columns": [1]},
        3,
    ],
)
def test_damaged_models_are_refused(step, tmp_path):
    fitted(FRAME).save(tmp_path / "model.npz")
    header, arrays = read_arrays(tmp_path / "model.npz")
    header["steps"][0] = step
    np.savez(tmp_path / "bad.npz", header=np.array(json.dumps(header)), **arrays)
    with pytest.raises(ModelFileError):
        StreamKMeans.load(tmp_path / "bad.npz")


def test_the_command_line_and_configurations(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    FRAME.to_csv("x.csv", index=False)
    run = CliRunner()
    common = ["-q", "--no-report", "--seed", "0", "-k", "3"]
    text = "log1p:fare,standardize:fare+age"
    with open("c.yaml", "w") as file:
        file.write(
            "data: {path: x.csv}\nestimator: {n_clusters: 3, random_state: 0, preprocess: {log1p: [fare], "
            "standardize: [fare, age]}}\noutput: {directory: two, report: false}\n"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for arguments in (["fit", "x.csv", *common, "--preprocess", text, "-o", "one"], ["fit", "c.yaml", "-q"]):
            result = run.invoke(main, arguments)
            assert result.exit_code == 0, result.output
        result = run.invoke(main, ["fit", "x.csv", *common, "--preprocess", "log1p:a,log1p:b", "-o", "three"])
        assert result.exit_code == 2
        assert "there twice" in result.output
    for name in ("one", "two"):
        np.testing.assert_array_equal(np.load(f"{name}/labels.npy"), fitted("x.csv").labels_)
