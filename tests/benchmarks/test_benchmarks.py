"""The benchmarks run, on small data; how fast anything was decides nothing here."""

import json
import logging

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from tests.benchmarks import bench_bounded, bench_curves
from tests.benchmarks.__main__ import BENCHMARKS, main
from tests.benchmarks.methods import METHODS, OURS


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
    rows = bench_curves.read(out)
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


@pytest.mark.benchmark
def test_a_limit_that_is_refused_is_followed_by_the_limit_that_the_refusal_names(tmp_path):
    out = tmp_path / "bounded.csv"
    given = [str(tmp_path), "--rows", "3000", "--k", "8", "--limits", "100", "--out", str(out)]
    given += ["--methods", OURS, "scikit-learn MiniBatchKMeans"]
    bench_bounded.main(given)
    refused, ours, peer = bench_bounded.read(out)
    assert refused["note"] == f"refused: raise memory_limit to {ours['limit_mib']} MiB"
    assert refused["objective"] == ""
    assert 0 < int(ours["peak_mib"]) <= int(ours["limit_mib"])
    assert float(ours["objective"]) < 1.1 * float(peer["objective"])

    text = out.read_text()
    bench_bounded.main(given)
    assert out.read_text() == text
