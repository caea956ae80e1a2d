"""The commands on a Dask cluster that a configuration names: the same results, seen at the scheduler."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from streamkm.cli import main
from streamkm.sources.stores import StoreSource
from tests.dask_processes import cluster_of

SEED = ("--set", "estimator.random_state=0", "--set", "estimator.chunk_bytes=2000")


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """Processes of a scheduler and two workers, whose current directories are their own."""
    with cluster_of(tmp_path_factory.mktemp("cluster"), 2) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with the same rows as x.svm and x.npy."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(900, 6)) + 9 * (np.arange(900) % 4)[:, None]).astype(np.float32)
    np.save("x.npy", X)
    lines = ("0 " + " ".join(f"{j + 1}:{value:.6g}" for j, value in enumerate(row)) for row in X)
    Path("x.svm").write_text("\n".join(lines) + "\n")
    return tmp_path


def run(*arguments, code=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if code != 1 and result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def calls(dask_scheduler):
    """How many calls of each stage the scheduler has seen."""
    counts = {}
    for name, prefix in dask_scheduler.task_prefixes.items():
        counts[name] = sum(prefix.state_counts.values()) + sum(prefix.groups and [0] or [0])
    return counts


def stages_seen(client):
    return set(client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.task_prefixes)))


@pytest.mark.parametrize("data", ["x.npy", "x.svm"])
def test_fit(folder, running, data):
    started, client = running
    Path("c.yaml").write_text(
        f"data: {{path: {data}}}\nestimator: {{n_clusters: 4, random_state: 0, chunk_bytes: 2000}}\n"
        f"output: {{report: false}}\ncluster: {{scheduler: '{started.address}'}}\n"
    )
    output = run("fit", "c.yaml", "-o", "there")
    assert f"cluster: {started.address}, 2 workers" in output
    run("fit", data, "-k", 4, "-o", "here", "--no-report", *SEED)
    assert np.load("there/labels.npy").tobytes() == np.load("here/labels.npy").tobytes()
    assert {"sketch", "assign"} <= stages_seen(client)
