"""The benchmarks run, on small data; how fast anything was decides nothing here."""

import json
import logging

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from streamkm.cluster.moving_averages import Schedule
from tests.benchmarks import bench_curves, bench_missing, bench_schedule
from tests.benchmarks.__main__ import BENCHMARKS, main
from tests.benchmarks.methods import METHODS
from tests.benchmarks.raw_rows import read


@pytest.mark.benchmark
def test_quick_run_fills_every_row(tmp_path):
    rows = main(["--quick", "--data", str(tmp_path), "--json", str(tmp_path / "all.json")])
    assert {row.row for row in rows} == set("".join(letters for letters, _ in BENCHMARKS.values()))
    assert all(row.met is None for row in rows)
    assert len(json.loads((tmp_path / "all.json").read_text())["rows"]) == len(rows)


@pytest.mark.benchmark
def test_curves_have_a_row_for_each_effort_and_objectives_of_their_labels(tmp_path, caplog):
    ours, sklearn = METHODS[:2]
    peer = next(method for method in METHODS if method.name == "superkmeans flat")
    given = [str(tmp_path), "--reduced", "--data", "images", "--methods", ours.name, sklearn.name, peer.name]
    with caplog.at_level(logging.INFO):
        bench_curves.main(given)
    out = tmp_path / "reduced" / "curves.csv"
    rows = read(out)
    assert {tuple(row) for row in rows} == {bench_curves.COLUMNS}
    assert "" not in {value for row in rows for value in row.values()}
    efforts = [row["method"] for row in rows]
    assert (efforts.count(ours.name), efforts.count(sklearn.name)) == (len(ours.efforts), len(sklearn.efforts))
    assert (peer.name in efforts) == (peer.version is not None)
    assert (f"{peer.name} is left out" in caplog.text) == (peer.version is None)

    X = np.load(tmp_path / "reduced" / "images.npy")
    for method in (ours, sklearn):
        (row,) = (row for row in rows if (row["method"], row["effort"]) == (method.name, bench_curves.said(method, 0)))
        with threadpool_limits(1):
            labels = method.run(X, int(row["k"]), 0, 1, **method.efforts[0])
        parts = [X[labels == label].astype(np.float64) for label in np.unique(labels)]
        objective = sum(((part - part.mean(axis=0)) ** 2).sum() for part in parts) / len(X)
        assert float(row["objective"]) == pytest.approx(objective, rel=1e-9)
        assert (int(row["n"]), int(row["d"])) == X.shape

    text = out.read_text()
    bench_curves.main(given)
    assert out.read_text() == text


def test_a_point_of_the_grid_is_the_schedule_of_a_fit():
    assert bench_schedule.Point(4, 8, 0.4).schedule(20_000, 100) == Schedule.of(20_000, 100, 100)


@pytest.mark.benchmark
def test_schedules_have_a_row_for_each_look_and_are_not_measured_again(tmp_path, caplog):
    given = [str(tmp_path), "--reduced", str(tmp_path), "--data", "embeddings", "USPS", "--seeds", "0"]
    with caplog.at_level(logging.INFO):
        bench_schedule.main(given)
    assert "USPS is left out" in caplog.text
    out = tmp_path / "schedule_grid.csv"
    rows = read(out)
    assert {tuple(row) for row in rows} == {bench_schedule.COLUMNS}
    assert "" not in {value for row in rows for value in row.values()}
    looks = [(int(row["epochs"]), int(row["steps"])) for row in rows]
    assert looks == [(0, 12), (0, 25), (0, 100), (4, 2), (4, 4), (4, 12)]
    objectives = [float(row["objective"]) for row in rows]
    assert objectives[:3] == sorted(objectives[:3], reverse=True)
    assert objectives[3:] == sorted(objectives[3:], reverse=True)
    text = out.read_text()
    bench_schedule.main(given)
    assert out.read_text() == text


@pytest.mark.benchmark
def test_missing_values_have_a_line_for_each_share_and_method(tmp_path):
    bench_missing.main(["--quick", "--out", str(tmp_path / "missing.csv")])
    lines = read(tmp_path / "missing.csv")
    assert len(lines) == 4 * len(bench_missing.SHARES)
    assert all(float(line["rand_index"]) <= 1 <= float(line["objective"]) + 1e-3 for line in lines)
