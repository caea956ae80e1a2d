"""Steps of chosen columns against plain NumPy; constant features; integers of 64 bits that float64 rounds."""

from __future__ import annotations

import json
import warnings

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from sklearn.metrics import adjusted_rand_score
from sklearn.preprocessing import StandardScaler

from streamkm import StreamKMeans, open_source
from streamkm.cli.main import main
from streamkm.cluster.fit_info import read_arrays
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, ModelFileError, StreamkmWarning
from streamkm.preparation import Preparation
from streamkm.preparation.moments import MomentsFit

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


def totals(n_rows, kind):
    """Shares that add up to 1 but for rounding, and sums near 0.3 beside two features that vary."""
    rng = np.random.default_rng(0)
    shares = rng.dirichlet([0.6] * 5, n_rows).astype(kind)
    tenths = np.where(np.arange(n_rows) % 2, kind(0.1) + kind(0.2), kind(0.3))
    varied = rng.normal(size=(n_rows, 2)) * [1, 1e-3] + [5, 5]
    return np.column_stack([varied, shares.sum(axis=1), tenths, -1e6 * shares.sum(axis=1)]).astype(kind)


@pytest.mark.parametrize("step", ["standardize", "robust"])
def test_constant_but_for_rounding_is_constant(step):
    for kind, n_rows in ((np.float32, 1500), (np.float64, 40)):
        X = totals(n_rows, kind)
        for rows in (X, sp.csr_array(X)):
            factor = StreamKMeans(2, preprocess=[step], random_state=0).fit(rows).preparation_.found[0].factor
            np.testing.assert_array_equal(factor[2:], 1)
            assert factor[1] > 500 or rows is not X


def test_the_bound_is_that_of_scikit_learn():
    rng = np.random.default_rng(1)
    widths = np.logspace(-16, -8, 60)
    X = 1 + widths * rng.normal(size=(2000, 60))
    fit = MomentsFit(True)
    np.testing.assert_allclose(
        1 / fit.finish(fit.step(None, X, np.empty(0))).factor, StandardScaler().fit(X).scale_, 1e-2
    )


NEAR = np.random.default_rng(0).integers(0, 1000, (600, 2))


def told(X: object, **options: object) -> list[str]:
    """Gather the warnings of a fit."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        StreamKMeans(3, random_state=0, **options).fit(X)
    return [str(each.message) for each in seen if issubclass(each.category, StreamkmWarning) and "2^53" in str(each)]


def stored(X: np.ndarray, kind: str, folder) -> object:
    """Store rows, or hold them, in one of several ways."""
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1] % 7 / 2})
    if kind == "npy":
        np.save(folder / "x.npy", X)
        return folder / "x.npy"
    if kind == "parquet":
        frame.to_parquet(folder / "x.parquet")
        return folder / "x.parquet"
    if kind == "csv":
        frame.to_csv(folder / "x.csv", index=False)
        return folder / "x.csv"
    return {"array": X, "sparse": sp.csr_array(X)}[kind]


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("array", "uint64"), ("sparse", "int64"), ("npy", "int64"), ("parquet", "uint64"), ("csv", "int64")],
)
def test_rounded_integers_are_told_once(tmp_path, kind: str, dtype: str) -> None:
    X = NEAR.astype(dtype) + np.array(2**55, dtype)
    (message,) = told(stored(X, kind, tmp_path), chunk_bytes=4096)
    assert ("x." + kind if kind in ("npy", "parquet", "csv") else kind) in message


def test_rounded_integers_are_told_of_a_cluster(client) -> None:
    assert len(told(da.from_array(NEAR + 2**60, chunks=(100, 2)), executor=client)) == 1
