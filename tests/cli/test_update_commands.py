"""The command `update`: a model that goes on day by day."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from streamkm import IncrementalKMeans, StreamKMeans
from streamkm.cli.main import main
from tests.cli.test_cli import run
from tests.programs import run_program
from tests.tables import cases

CENTERS = 12 * np.random.default_rng(5).normal(size=(6, 4))


def day(number, groups, n_rows=600):
    rng = np.random.default_rng(number)
    return (CENTERS[groups][rng.integers(0, len(groups), n_rows)] + rng.normal(size=(n_rows, 4))).astype("f4")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with days of rows; from day 2 on, a group is new."""
    monkeypatch.chdir(tmp_path)
    for number in range(4):
        np.save(f"day{number}.npy", day(number, [0, 1, 2, 3] if number < 2 else [0, 1, 2, 3, 4]))
    return tmp_path


@pytest.fixture
def begun(folder):
    """A model of two days, and that estimator."""
    kmeans = IncrementalKMeans((3, 8), random_state=0, memory_limit="2 GiB")
    kmeans.update(np.load("day0.npy"))
    kmeans.save("model.npz")
    return kmeans


def told(directory):
    return json.loads(Path(directory, "update.json").read_text())


def test_updates_are_those_of_python(begun):
    for number in (1, 2):
        said = run("update", "model.npz", f"day{number}.npy", "-o", f"out{number}", "--labels-format", "npy")
        update = begun.update(np.load(f"day{number}.npy"))
        np.testing.assert_array_equal(np.load(f"out{number}/labels.npy"), begun.labels_)
        found = told(f"out{number}")
        assert [event["id"] for event in found["lineage"]] == [event.id for event in begun.lineage_]
        wanted = json.loads(json.dumps(update.to_dict()))
        assert {name: found[name] for name in wanted if name != "seconds"} == {
            name: value for name, value in wanted.items() if name != "seconds"
        }
    assert "was born: " in said
    page = Path("out2/update.html").read_text()
    assert "<svg" in page
    assert "was born: " in page
    loaded = IncrementalKMeans.load("model.npz")
    np.testing.assert_array_equal(loaded.cluster_ids_, begun.cluster_ids_)
    np.testing.assert_array_equal(loaded.counts_, begun.counts_)
    np.testing.assert_array_equal(loaded.cluster_centers_, begun.cluster_centers_)
    assert loaded.memory_limit == "2 GiB"
    assert loaded.progress == "auto"


def test_a_fit_leaves_a_model_that_goes_on(folder):
    run("fit", "day0.npy", "-k", 4, "--incremental", "--half-life", 5000, "--seed", 0, "-o", "out", "--no-report")
    model = IncrementalKMeans.load("out/incremental.npz")
    assert (model.n_clusters, model.half_life, model.n_samples_seen_) == (4, 5000, 600)
    fitted = StreamKMeans(4, random_state=0).fit(np.load("day0.npy")).incremental(half_life=5000)
    run("update", "out/incremental.npz", "day2.npy", "-k", "4:8", "-q")
    fitted.set_params(n_clusters=(4, 8)).update(np.load("day2.npy"))
    np.testing.assert_array_equal(np.load("streamkm-update/labels.npy"), fitted.labels_)
    assert list(IncrementalKMeans.load("out/incremental.npz").n_clusters) == [4, 8]
    assert len(fitted.cluster_ids_) == 5
    run(
        "fit", "day0.npy", "-k", 4, "--seed", 0, "-o", "out", "--overwrite", "--no-report"
    )  # of streamkm: the updated model, too
    assert not Path("out/incremental.npz").exists()


def test_an_update_is_not_done_twice(begun):
    run("update", "model.npz", "day1.npy", "-o", "out")
    before = Path("model.npz").read_bytes()
    assert "counted already" in run("update", "model.npz", "day1.npy", "-o", "out")
    assert Path("model.npz").read_bytes() == before
    assert "--overwrite" in run("update", "model.npz", "day2.npy", "-o", "out", code=2)
    run("update", "model.npz", "day2.npy", "-o", "out", "--overwrite")
    assert IncrementalKMeans.load("model.npz").n_samples_seen_ == 1800


def test_skipped_rows_and_restarts(begun):
    begun.set_params(invalid="skip").save("model.npz", overwrite=True)
    X = np.load("day1.npy")
    X[7] = np.nan
    np.save("nan.npy", X)
    output = run("update", "model.npz", "nan.npy", "-o", "out", "--restart")
    assert "600 (1 skipped)" in output
    assert np.flatnonzero(np.load("out/labels.npy") < 0).tolist() == [7]
    assert not Path("out.checkpoint").exists()


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    """A folder with the results of two fits of day 0: `out` can go on, `plain` cannot."""
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path_factory.mktemp("fits"))
        np.save("day0.npy", day(0, [0, 1, 2, 3]))
        np.save("day1.npy", day(1, [0, 1, 2, 3]))
        run("fit", "day0.npy", "-k", 4, "--incremental", "-o", "out", "-q", "--no-report")
        run("fit", "day0.npy", "-k", 4, "-o", "plain", "-q", "--no-report")
        return Path.cwd()


@cases(
    "arguments, message",
    [
        (["update", "plain/model.npz", "day1.npy"], "go on with more rows; give the incremental.npz"),
        (["update", "out/incremental.npz", "day1.npy", "-k", "a:b"], "no number of clusters, like 20"),
        (["update", "out/incremental.npz", "day1.npy", "-k", "9:2"], "9"),
        (["fit", "day0.npy", "-k", 4, "--half-life", 10], "--half-life is of use with --incremental only"),
        (["fit", "day0.npy", "-k", 4, "--incremental", "--metric", "spherical"], "'euclidean', 'cosine'"),
        (["fit", "day0.npy", "-k", 4, "--incremental", "--set", "kernel.kernel=rbf"], "--incremental is for k-means"),
        (["fit", "day0.npy", "-k", 4, "--incremental", "--set", "estimator.assign_space=sketch", "--set",
          "estimator.sketch=countsketch"], "--incremental needs clusters in the original space"),
    ],
)  # fmt: skip
def test_what_cannot_go_on_is_refused_with_the_line_to_write(fits, monkeypatch, arguments, message):
    monkeypatch.chdir(fits)
    before = Path("out/incremental.npz").read_bytes()
    output = run(*arguments, code=2)
    assert message in " ".join(output.split())
    assert Path("out/incremental.npz").read_bytes() == before
    assert not Path("streamkm-out").exists()
    assert not Path("streamkm-update").exists()


def test_drift_is_told_by_exit_code(begun):
    """Once in a process, as a scheduler starts it."""
    given = ["-m", "streamkm", "update", "--dry-run", "model.npz", "day1.npy", "--fail-on", "shifted"]
    assert "Too few updates to judge" in run("update", "--dry-run", "model.npz", "day1.npy", "--fail-on", "shifted")
    for number in range(20, 29):
        begun.update(day(number, [0, 1, 2, 3]))
    begun.save("model.npz", overwrite=True)
    same = run_program(given, timeout=120)
    assert (same.returncode, same.stdout[:7]) == (0, "Stable:")
    np.save("far.npy", np.load("day1.npy") + 40)
    found = begun.drift(np.load("far.npy"))
    for fail_on, code in ((None, 0), ("shifted", 3), ("fit again", 3)):
        done = CliRunner().invoke(
            main, ["update", "--dry-run", "model.npz", "far.npy", *(["--fail-on", fail_on] if fail_on else [])]
        )
        assert (done.exit_code, done.stdout) == (code, f"{found}\n")
    skewed = np.concatenate([day(9, [0], 500), day(10, [1, 2, 3], 100)])
    np.save("skewed.npy", skewed)
    assert begun.drift(skewed).verdict == "shifted"
    run("update", "--dry-run", "model.npz", "skewed.npy", "--fail-on", "fit again")
    run("update", "--dry-run", "model.npz", "skewed.npy", "--fail-on", "shifted", "-q", code=3)
    assert not Path("streamkm-update").exists()
    before = Path("model.npz").read_bytes()
    run("update", "model.npz", "skewed.npy", "--fail-on", "shifted", code=3)
    assert Path("model.npz").read_bytes() != before


def test_a_model_that_another_process_replaced_is_left_alone(begun, monkeypatch):
    update = IncrementalKMeans.update

    def slow(self, *given, **options):
        begun.save("model.npz", overwrite=True)
        return update(self, *given, **options)

    monkeypatch.setattr(IncrementalKMeans, "update", slow)
    assert "was changed while this update ran" in run("update", "model.npz", "day1.npy", "-o", "out", code=2)
    assert not Path("out/update.json").exists()
    assert IncrementalKMeans.load("model.npz").n_samples_seen_ == 600


def test_a_fit_takes_a_range_of_clusters_for_updates(folder):
    run("fit", "day0.npy", "-k", "2:9", "--incremental", "--seed", 0, "-o", "out", "--no-report")
    model = IncrementalKMeans.load("out/incremental.npz")
    assert list(model.n_clusters) == [2, 9]
    assert len(np.unique(np.load("out/labels.npy"))) == 4
    assert "was born: " in run("update", "out/incremental.npz", "day2.npy")
    assert "fit --incremental" in run("fit", "day0.npy", "-k", "2:9", "-o", "other", code=2)
