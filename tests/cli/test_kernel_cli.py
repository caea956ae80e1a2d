"""Kernel fits on the command line: plan, results, files, models for `assign`."""

from __future__ import annotations

import html
import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import make_circles
from sklearn.metrics import adjusted_rand_score

from streamkm import StreamKernelKMeans
from streamkm.cli.config import load_run, parse_set
from tests.cli.test_cli import run

KERNEL = ("--set", "kernel.gamma=4", "--set", "kernel.n_landmarks=100", "--set", "estimator.random_state=0")


@pytest.fixture(autouse=True)
def rings(tmp_path, monkeypatch):
    """Two rings in x.npy of the current folder, and which row is of which."""
    monkeypatch.chdir(tmp_path)
    X, y = make_circles(400, noise=0.03, factor=0.3, random_state=0)
    np.save("x.npy", X.astype(np.float32))
    return y


def test_fit_writes_everything_and_assign_reads_it(rings):
    run("fit", "x.npy", "-k", 2, "-o", "out", *KERNEL)
    labels = np.load("out/labels.npy")
    assert adjusted_rand_score(rings, labels) > 0.97
    result = json.loads(Path("out/streamkm.json").read_text())["result"]
    fitted = StreamKernelKMeans(2, gamma=4.0, n_landmarks=100, random_state=0, progress=False).fit("x.npy")
    assert result["objective"] == fitted.inertia_
    assert result["trace_residual"] == fitted.trace_residual_
    assert result["gamma"] == 4
    report = html.unescape(Path("out/report.html").read_text())
    assert "assigned in a sketch of" in report
    steps = report[report.index("# in Python") :].partition("</")[0].replace("(X)", "('x.npy')")
    assert "summary()" not in steps
    exec(steps, found := {})  # what the report says to type runs
    assert isinstance(found["kmeans"], StreamKernelKMeans)
    run("assign", "out/model.npz", "x.npy", "-o", "again.npy")
    np.testing.assert_array_equal(np.load("again.npy"), labels)


def test_plan_says_what_it_will_be():
    assert load_run(None, [parse_set("data.path=x.npy"), *map(parse_set, KERNEL[1::2])]).estimator.tol == 1e-6
    planned = json.loads(run("plan", "x.npy", "-k", 2, "--json", *KERNEL, "--set", "kernel.fit_on=all"))
    assert (planned["sketch"], planned["passes"]) == ("nystroem", 4)
