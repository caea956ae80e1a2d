"""Updates by workers of a cluster, and updates that are killed and go on: the bits of threads without trouble."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file

from streamkm import IncrementalKMeans, open_source
from streamkm.core.exceptions import CheckpointError
from streamkm.passes.assign import Observe
from tests.children import update_of, update_outcome
from tests.dask_processes import cluster_of
from tests.programs import forking

D, K, N_ROWS = 8, 5, 12_000
OPTIONS = {"chunk_bytes": 4 * D * 1000, "progress": False}


def rows(seed):
    """Groups of normal rows, which lie a little elsewhere for each seed."""
    rng = np.random.default_rng(seed)
    centers = 4 * np.random.default_rng(0).normal(size=(K, D)) + 0.1 * rng.normal(size=(K, D))
    return (centers[rng.integers(K, size=N_ROWS)] + rng.normal(size=(N_ROWS, D))).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Rows in files, and models that were updated by the first of them."""
    place = tmp_path_factory.mktemp("rows")
    for number in range(2):
        X = rows(number)
        np.save(place / f"{number}.npy", X)
        dump_svmlight_file(np.where(np.abs(X) > 1, X, 0), np.zeros(N_ROWS), str(place / f"{number}.svm"))
    for kind in ("npy", "svm"):
        kmeans = IncrementalKMeans((K, K + 2), random_state=0, half_life=20_000, executor=2, **OPTIONS)
        kmeans.update(place / f"0.{kind}")
        kmeans.save(place / f"{kind}.npz")
    return place


def loaded(folder, kind, executor):
    return IncrementalKMeans.load(folder / f"{kind}.npz").set_params(executor=executor, progress=False)


def given(folder, kind):
    return da.from_array(np.load(folder / "1.npy"), chunks=(1700, D)) if kind == "dask" else folder / f"1.{kind}"


def assert_same(got, wanted):
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


@pytest.mark.parametrize("kind", [pytest.param("svm", marks=pytest.mark.slow), "dask"])
def test_workers_find_the_bits_of_threads(folder, client, tmp_path, kind):
    model = "svm" if kind == "svm" else "npy"
    found = []
    for number, (executor, labels_to) in enumerate([(1, False), (2, True), (client, False), (client, True)]):
        kmeans = loaded(folder, model, executor)
        kmeans.update(given(folder, kind), labels_to=tmp_path / f"{number}.zarr" if labels_to else None)
        found.append(update_outcome(kmeans))
        found[-1]["labels"] = np.asarray(found[-1]["labels"][:])
        kmeans.update(given(folder, kind))
        found[-1]["again"] = kmeans.cluster_means_
    for other in found[1:]:
        assert_same(other, found[0])


def end_in(marker):
    """Have the worker that is first to observe rows end as the kernel would end it."""
    step = Observe.step

    def step_or_die(self, state, valid):
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return step(self, state, valid)
        return os.kill(os.getpid(), signal.SIGKILL)

    Observe.step = step_or_die


def test_a_worker_that_is_killed_changes_no_bit(folder, tmp_path):
    wanted = loaded(folder, "npy", 2)
    wanted.update(folder / "1.npy")
    with cluster_of(tmp_path, 2) as (started, client):
        client.run(end_in, str(tmp_path / "marker"))
        kmeans = loaded(folder, "npy", client)
        kmeans.update(folder / "1.npy", labels_to=tmp_path / "labels.zarr")
        got = update_outcome(kmeans)
        got["labels"] = np.asarray(got["labels"][:])
        assert len(started.living()) == 1
    assert_same(got, update_outcome(wanted))


def ended(folder, place, dies, kind="npy", *, call="update", number=1):
    arguments = (folder / f"{kind}.npz", folder / f"{number}.{kind}", place / "state", place / "out.npz", dies, call)
    child = forking().Process(target=update_of, args=arguments)
    child.start()
    child.join(120)
    return child.exitcode


def test_updates_killed_in_either_pass_go_on_to_the_same_bits(folder, tmp_path):
    wanted = loaded(folder, "svm", 2)
    wanted.update(folder / "1.svm")
    for name, n_chunks in (("observe", 5), ("assign", 8), ("assign", 1)):
        assert ended(folder, tmp_path, (name, n_chunks), "svm") == -signal.SIGKILL
        assert (tmp_path / "state").exists()
    assert ended(folder, tmp_path, None, "svm") == 0
    assert not (tmp_path / "state").exists()
    with np.load(tmp_path / "out.npz") as got:
        found = dict(got)
    n_observed, n_assigned = found.pop("n_read")
    assert n_observed == 0
    n_chunks = len(list(open_source(folder / "1.svm").chunks(OPTIONS["chunk_bytes"])))
    assert 0 < n_assigned < n_chunks
    assert_same(found, update_outcome(wanted))


def test_relabelling_that_is_killed_goes_on_to_the_same_bits(folder, tmp_path):
    wanted = loaded(folder, "npy", 2)
    wanted.relabel(folder / "0.npy")
    options = {"call": "relabel", "number": 0}
    assert ended(folder, tmp_path, ("assign", 7), **options) == -signal.SIGKILL
    assert ended(folder, tmp_path, None, **options) == 0
    with np.load(tmp_path / "out.npz") as got:
        found = {name: got[name] for name in got.files}
    assert 0 < found.pop("n_read")[1] < N_ROWS // 1000
    assert_same(found, update_outcome(wanted))


def test_the_first_update_goes_on_too(tmp_path):
    X = rows(0)
    np.save(tmp_path / "1.npy", X)
    IncrementalKMeans(K, random_state=0, **OPTIONS).partial_fit(X[:3000]).save(tmp_path / "npy.npz")
    wanted = loaded(tmp_path, "npy", 2)
    wanted.update(tmp_path / "1.npy")
    assert ended(tmp_path, tmp_path, ("assign", 4)) == -signal.SIGKILL
    assert ended(tmp_path, tmp_path, None) == 0
    with np.load(tmp_path / "out.npz") as got:
        assert_same({name: got[name] for name in got.files if name != "n_read"}, update_outcome(wanted))


def test_a_directory_of_another_update_is_refused(folder, tmp_path):
    assert ended(folder, tmp_path, ("assign", 3)) == -signal.SIGKILL
    kmeans = loaded(folder, "npy", 2)
    with pytest.raises(CheckpointError, match="source"):
        kmeans.update(folder / "0.npy", checkpoint=tmp_path / "state")
    for changed in ({"tol": 0.5}, {"n_clusters": 9}):
        with pytest.raises(CheckpointError, match=next(iter(changed))):
            loaded(folder, "npy", 2).set_params(**changed).update(folder / "1.npy", checkpoint=tmp_path / "state")
    with pytest.raises(CheckpointError, match="weights"):
        kmeans.update(folder / "1.npy", checkpoint=tmp_path / "state", sample_weight=np.linspace(1, 2, N_ROWS))
    kmeans.partial_fit(np.load(folder / "0.npy"))
    with pytest.raises(CheckpointError, match="next row"):
        kmeans.update(folder / "1.npy", checkpoint=tmp_path / "state")
    kmeans = loaded(folder, "npy", 2)
    kmeans.relabel(folder / "0.npy", np.linspace(1, 2, N_ROWS))
    with pytest.raises(CheckpointError, match="clusters"):  # the same centers, but other rows are counted
        kmeans.update(folder / "1.npy", checkpoint=tmp_path / "state")
    assert Path(tmp_path / "state").exists()
