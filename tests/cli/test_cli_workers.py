"""The commands on a Dask cluster that a configuration names: the same results, seen at the scheduler."""

from __future__ import annotations

import json
import os
import re
import select
from pathlib import Path

import numpy as np
import pytest
import zarr

from streamkm.sources.sketch_store import StoreSource
from tests.cli.test_cli import run
from tests.dask_processes import N_WORKERS, watched
from tests.programs import Program
from tests.tables import slow_but

NAMES = ("here", "there")
SEED = ("--set", "estimator.random_state=0", "--set", "estimator.chunk_bytes=2000")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(900, 6)) + 9 * (np.arange(900) % 4)[:, None]).astype(np.float32)
    np.save("x.npy", X)
    lines = ("0 " + " ".join(f"{j + 1}:{value:.6g}" for j, value in enumerate(row)) for row in X)
    Path("x.svm").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.fixture
def seen(cluster):
    """A function that gives the names of the calls that the scheduler has seen in this test."""
    with watched(cluster[1]) as stages:
        yield lambda: set(stages())


@pytest.mark.parametrize(("data", "labels"), slow_but([("x.npy", "zarr")], [("x.npy", "zarr"), ("x.svm", "npy")]))
def test_fit(folder, cluster, seen, data, labels):
    """A path that is relative to the configuration is found on workers that are elsewhere."""
    started, _ = cluster
    Path("c.yaml").write_text(
        f"data: {{path: {data}}}\nestimator: {{n_clusters: 4, random_state: 0, chunk_bytes: 2000}}\n"
        f"output: {{report: false, labels: {labels}}}\ncluster: {{scheduler: '{started.address}'}}\n"
    )
    output = run("fit", "c.yaml", "-o", "there")
    assert f"cluster: {started.address}, {N_WORKERS} workers" in output
    assert {"sketch", "assign"} <= seen()
    run("fit", data, "-k", 4, "-o", "here", "--no-report", *SEED)
    got = zarr.open_array("there/labels.zarr")[:] if labels == "zarr" else np.load("there/labels.npy")
    np.testing.assert_array_equal(got, np.load("here/labels.npy"))
    assert ("labels" in seen()) == (labels == "zarr")  # written there
    assert {path.name for path in Path("there").iterdir()} == {
        f"labels.{labels}", "model.npz", "streamkm.json",
    }  # fmt: skip
    result, wanted = (json.loads(Path(name, "streamkm.json").read_text())["result"] for name in ("there", "here"))
    assert result == wanted


def untimed(table, separator):
    """Rows of a table without the last column, which has seconds."""
    return [line.rpartition(separator)[0].rstrip() for line in table.splitlines()]


def test_other_commands(folder, cluster, seen):
    on = ("--set", f"cluster.scheduler={cluster[0].address}")
    run("fit", "x.npy", "-k", 4, "-o", "out", "--no-report", *SEED)
    for name, where in (("here", ()), ("there", on)):
        run("assign", "out/model.npz", "x.npy", "-o", f"{name}.npy", *where)
        told = run("assign", "out/model.npz", "x.svm", "-o", f"labels-{name}.zarr", *where)
        assert re.search(r"^rows +900$", told, re.MULTILINE)
        run("assign", "out/model.npz", "x.npy", "-o", f"labels-{name}.csv", *where)
        run("sketch", "x.npy", "-o", f"{name}.zarr", "--sketch", "countsketch", "-m", 4, *where)
        run("sketch", "--append", f"{name}.zarr", "x.svm", "--set", "data.n_features=6", *where)
        run("sweep", "x.npy", "-k", "2:5", "-o", f"sweep-{name}", "--random-state", 0, *where)
    assert Path("here.npy").read_bytes() == Path("there.npy").read_bytes()
    assert Path("labels-here.csv").read_bytes() == Path("labels-there.csv").read_bytes()
    here, there = (StoreSource(f"{name}.zarr").read(StoreSource(f"{name}.zarr").chunks(1 << 30)[0]).X for name in NAMES)
    np.testing.assert_array_equal(here, there)
    here, there = (untimed(Path(f"sweep-{name}/sweep.csv").read_text(), ",") for name in NAMES)
    assert here == there
    here, there = (zarr.open_array(f"labels-{name}.zarr")[:] for name in NAMES)
    np.testing.assert_array_equal(here, there)
    assert {"predict", "labels", "sketch", "append"} <= seen()


def test_progress_while_on_a_cluster(folder, cluster):
    """A process of its own, at a terminal: bars of the stages, while workers do the work."""
    here, there = os.openpty()
    command = ["-m", "streamkm", "fit", "x.npy", "-k", "4", "-o", "out", "--no-report", *SEED]
    terminal = os.ttyname(there)
    program = Program(
        [*command, "--set", f"cluster.scheduler={cluster[0].address}"], folder, os.environ, *2 * [terminal]
    )
    shown = b""
    while program.poll() is None or select.select([here], [], [], 0)[0]:
        if select.select([here], [], [], 0.1)[0]:
            shown += os.read(here, 1 << 16)
    os.close(there)
    os.close(here)
    assert program.wait(60) == 0, shown.decode()
    lines = [set(re.findall(rb"(\d+)/11\D", shown[shown.index(stage) :])) for stage in (b"sketch", b"assign")]
    assert all({b"0", b"11"} <= counts for counts in lines), shown.decode()
    assert re.search(rb"seed .*lloyd ", shown, re.DOTALL)
