"""The step "table": what becomes of each column, and what models of it do."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score

from streamkm import IncrementalKMeans, StreamKMeans, open_source
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.preparation.scaling import FATES

N = 6000
KINDS = np.arange(N) % 4


def baskets():
    """Four kinds of baskets, and columns that do not matter: an id, a constant, noise, and a few broken values."""
    rng = np.random.default_rng(0)
    points = rng.normal(50, 10, N)
    points[::1500] = 1e6
    return pd.DataFrame(
        {
            "id": np.arange(N) + 7_000_000,
            "code": rng.permutation(10 * N)[:N],
            "same": np.full(N, 4.0),
            "spend": rng.lognormal(np.array([2.0, 3, 4, 5])[KINDS], 0.4),
            "hour": rng.normal(np.array([9, 18, 9, 18])[KINDS], 1.5),
            "member": rng.integers(2, size=N),
            "noise": rng.normal(size=N),
            "points": points,
            "channel": np.array(["shop", "web", "app"])[
                np.where(rng.random(N) < 0.8, KINDS % 3, rng.integers(3, size=N))
            ],
        }
    )


@pytest.fixture(scope="module")
def model():
    return fitted()


def fitted(rows=None, **given):
    source = open_source(baskets() if rows is None else rows, categories="onehot")
    return StreamKMeans(4, preprocess="table", random_state=0, progress=False, **given).fit(source)


def test_what_becomes_of_each_column(model):
    table, names = model.preparation_.table, list(model.feature_names_in_)
    fates = {name: FATES[int(fate)] for name, fate in zip(names, table.fate, strict=True)}
    assert fates == {
        "id": "a counter", "code": "a number that identifies rows", "same": "constant", "spend": "its logarithm",
        "hour": "a number", "member": "a category", "noise": "a number", "points": "a number",
        "channel=app": "a category", "channel=shop": "a category", "channel=web": "a category",
    }  # fmt: skip
    X = np.asarray(model.preparation_.apply(np.vstack([rows.X for rows in sources()])))
    assert np.ptp(X[:, :3], axis=0).max() == 0
    np.testing.assert_allclose(X[:, [3, 4, 6, 7]].std(axis=0), 1, rtol=0.05)
    assert np.unique(X[:, 8:]).tolist() == pytest.approx([0, 0.5**0.5])
    assert np.unique(X[:, 5]).tolist() == [0, 1]
    assert np.abs(X[:, 7]).max() < 10


def sources():
    return open_source(baskets(), categories="onehot").stream(1 << 24)


def test_the_clusters_are_those_of_columns_prepared_by_hand(model):
    frame = baskets()
    assert adjusted_rand_score(KINDS, model.labels_) > 0.9
    clipped = frame.assign(points=frame["points"].clip(0, 100)).drop(columns=["id", "code", "same"])
    numbers = ["spend", "hour", "noise", "points"]
    clipped["spend"] = np.log1p(clipped["spend"])
    scaled = (clipped[numbers] - clipped[numbers].mean()) / clipped[numbers].std()
    channels = pd.get_dummies(clipped["channel"]) * np.sqrt(0.5)
    by_hand = StreamKMeans(4, random_state=0, progress=False).fit(np.column_stack([scaled, channels]))
    assert adjusted_rand_score(KINDS, model.labels_) >= adjusted_rand_score(KINDS, by_hand.labels_) - 0.005


def test_summary_says_it(model):
    told = str(model.summary())
    assert "logarithms are taken of spend" in told
    assert "id is left out: it is a counter" in told
    assert "same is left out: it is constant" in told
    assert "points has 0.07% of its values outside" in told
    assert "--exclude points" in told
    centers = model.original_centers()
    assert centers[:, 2].tolist() == [4.0] * 4
    assert sorted(centers[:, 3].round(-1).tolist())[-1] > 100


def test_models_go_on(model, tmp_path):
    frame = baskets()
    model.save(tmp_path / "model.npz")
    loaded = StreamKMeans.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(loaded.predict(frame), model.labels_)
    stream = model.incremental()
    np.testing.assert_array_equal(stream.predict(frame), model.labels_)
    stream.update(frame)
    assert np.mean(stream.predict(frame) == model.labels_) > 0.999
    stream.save(tmp_path / "stream.npz")
    later = IncrementalKMeans.load(tmp_path / "stream.npz")
    np.testing.assert_array_equal(later.predict(frame), stream.predict(frame))


def test_a_statement_gives_the_same_labels(model):
    frame = baskets()
    with pytest.importorskip("duckdb").connect() as database:
        database.register("baskets", frame)
        found = database.sql(model.to_sql(table="baskets", id_column="id")).df()
    np.testing.assert_array_equal(found.sort_values("id")["cluster"], model.labels_)


def test_any_executor_has_the_same_bits_and_missing_values_are_filled_first(model):
    again = fitted(executor=2, chunk_bytes=50_000)
    for name in ("shift", "factor", "low", "high", "fate", "beyond"):
        np.testing.assert_array_equal(getattr(again.preparation_.table, name), getattr(model.preparation_.table, name))
    frame = baskets()
    frame.loc[::50, "spend"] = np.nan
    assert adjusted_rand_score(KINDS, fitted(frame, invalid="mean").labels_) > 0.85


def test_refusals():
    with pytest.raises(InvalidInputError, match=r'has sparse rows, and preprocess="table" is for dense ones; pass'):
        StreamKMeans(2, preprocess="table").fit(open_source(baskets(), categories="hash"))
    with pytest.raises(InvalidInputError, match="the step 'table' must see all rows"):
        IncrementalKMeans(2, preprocess="table").partial_fit(np.eye(4))
    with pytest.raises(InvalidParameterError, match="there is no step 'table'"):
        StreamKMeans(2, preprocess={"table": ["a"]}).fit(np.eye(4))
