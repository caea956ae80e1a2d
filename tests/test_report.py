"""Pictures and the report: that they say what they should. How they look was judged by eye."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from streamkm.cli.html import render_page
from streamkm.cli.report import plot_convergence, plot_sizes, plot_sketch_2d, write_report
from streamkm.cli.summary import project_2d
from streamkm.core.exceptions import SourceError
from tests.tables import cases

pytest.importorskip("matplotlib")

SUMMARY = {
    "data": {"name": "<x>.svm", "n_samples": 1234, "n_skipped": 4, "n_features": 7, "stored_bytes": 99},
    "result": {
        "n_clusters": 3, "objective": 12.5, "objective_per_row": 0.01, "distortion": None, "n_components": 7,
        "assign_space": "sketch", "n_passes": 2, "n_iter": 5, "converged": False, "counts": [600, 600, 30],
    },
    "seconds": 1.5,
    "stages": [{"name": "sketch", "seconds": 1.5, "read_bytes": 99, "rows": 1234}],
    "history": [{"stage": "lloyd", "iteration": i, "inertia": 20.0 - i} for i in range(1, 6)],
    "parameters": {"init": "<b>", "n_clusters": 3},
    "versions": {"python": "3.11"},
}  # fmt: skip


@pytest.fixture
def results(tmp_path):
    """A results directory with what a report is made of."""
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    rng = np.random.default_rng(0)
    points, labels = rng.normal(size=(50, 2)).astype(np.float32), rng.integers(3, size=50).astype(np.int32)
    np.savez(tmp_path / "sketch_view.npz", points=points, labels=labels, shares=[0.5, 0.25])
    return tmp_path


def titles(figure):
    return [axes.get_title(loc="left") for axes in figure.axes]


def test_convergence_has_a_panel_a_stage():
    history = [{"stage": "lloyd", "iteration": i, "inertia": 100.0 / i} for i in (1, 2)]
    history += [{"stage": "polish", "iteration": i, "inertia": 10.0 - i} for i in (1, 2, 3)]
    history += [{"stage": "refine", "iteration": 1, "inertia": 7.25}]
    figure = plot_convergence(history)
    assert titles(figure) == [
        "Lloyd on the sketch\n2 iterations, last 50 % below first",
        "polish: sampled rows, original space\n3 iterations, last 22 % below first",
    ]
    assert figure.axes[1].lines[0].get_xydata().tolist() == [[1, 9], [2, 8], [3, 7]]
    assert figure.get_supxlabel() == "refine: all rows, original space: 7.25"


@cases(
    "history",
    [
        [],
        [{"stage": "lloyd", "iteration": 1, "inertia": 5.0}],
        [{"stage": "lloyd", "iteration": 1, "inertia": None}],
        [{"stage": "lloyd", "iteration": i, "inertia": 0.0} for i in (1, 2)],
        [{"stage": "new", "iteration": i, "inertia": 1e300 / i} for i in range(1, 200)],
    ],
)
def test_convergence_of_odd_runs(history):
    plot_convergence(history).canvas.draw()


def test_sizes_are_sorted_and_named():
    figure = plot_sizes([5, 20, 10])
    (axes,) = figure.axes
    assert [bar.get_height() for bar in axes.patches] == [20, 10, 5]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "0"]
    assert titles(figure) == ["3 clusters of 5 to 20 rows"]
    assert axes.get_yscale() == "linear"


@cases("counts", [[1], [0, 0], [7] * 500, [0, 1, 10_000], np.arange(500), [0.5, 1e9]])
def test_sizes_of_odd_runs(counts):
    plot_sizes(counts).canvas.draw()


def test_sizes_that_differ_widely_are_logarithmic():
    assert plot_sizes([1, 1000]).axes[0].get_yscale() == "log"


@cases("n_clusters", [1, 2, 25, 26, 500])
def test_view_of_any_number_of_clusters(n_clusters):
    rng = np.random.default_rng(0)
    labels = np.concatenate([[-1], np.arange(600) % n_clusters])
    figure = plot_sketch_2d(rng.normal(size=(601, 2)), labels, [0.5, 0.1])
    figure.canvas.draw()
    assert titles(figure)[0].startswith(f"600 sampled rows in {n_clusters} clusters")
    named = {text.get_text() for text in figure.axes[0].texts}
    assert named == ({str(label) for label in range(n_clusters)} if n_clusters <= 25 else set())


def test_view_of_nothing():
    plot_sketch_2d(np.zeros((0, 2)), np.zeros(0, int), [0, 0]).canvas.draw()
    plot_sketch_2d(np.zeros((2, 2)), np.zeros(2, int), [0, 0]).canvas.draw()


def test_clusters_side_by_side_differ_in_colour():
    points = np.repeat(np.stack([np.arange(40.0), np.zeros(40)], axis=1), 5, axis=0)
    figure = plot_sketch_2d(points, np.repeat(np.arange(40), 5), [1, 0])
    middles = figure.axes[0].collections[1]
    colours = middles.get_facecolors()[np.argsort(middles.get_offsets()[:, 0])]
    assert (colours[1:] != colours[:-1]).any(axis=1).all()


@pytest.mark.parametrize("sparse", [False, True])
def test_projection_is_on_principal_components(sparse):
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(200, 12)) * np.geomspace(8, 0.5, 12) + 3).astype(np.float32)
    points, shares = project_2d(sp.csr_array(X) if sparse else X)
    centred = X.astype(np.float64) - X.mean(axis=0, dtype=np.float64)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(np.abs(points), np.abs(left[:, :2] * values[:2]), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(shares, values[:2] ** 2 / (values**2).sum(), rtol=1e-4)


@cases("shape", [(0, 5), (1, 5), (2, 5), (3, 5), (5, 1), (5, 2), (5, 3)])
@cases("make", [np.ones, np.zeros, lambda shape: np.arange(np.prod(shape)).reshape(shape)])
@cases("sparse", [False, True])
def test_projection_of_few_or_equal_rows(shape, make, sparse):
    X = make(shape).astype(np.float32)
    points, shares = project_2d(sp.csr_array(X) if sparse else X)
    assert points.shape == (shape[0], 2)
    assert np.isfinite(points).all()
    assert np.isfinite(shares).all()


def test_report_is_one_file_and_escapes_names(results):
    path = write_report(results)
    text = path.read_text("utf-8")
    assert text.count('src="data:image/png;base64,') == 3
    assert "http" not in text
    assert "<x>" not in text
    assert "&lt;x&gt;.svm" in text
    assert "&lt;b&gt;" in text
    assert "1,234, of which 4 skipped" in text
    assert "5, stopped before convergence" in text
    assert "not measured" in text


def test_without_matplotlib(results, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with caplog.at_level(logging.WARNING):
        text = write_report(results).read_text()
    assert [record.message for record in caplog.records] == [
        "the report has no pictures: matplotlib is missing; pip install 'streamkm[plot]'"
    ]
    assert "<img" not in text
    assert "12.5 (sum of squared distances)" in text


@pytest.mark.parametrize("name", ["summary.json", "sketch_view.npz"])
@pytest.mark.parametrize("damage", ["missing", "cut", "empty", "other"])
def test_damaged_results_are_refused(results, name, damage):
    path: Path = results / name
    if damage == "missing":
        path.unlink()
    else:
        content = path.read_bytes()
        path.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "other": b"[]"}[damage])
    with pytest.raises(SourceError, match="has no complete results"):
        write_report(results)


def test_page_of_numbers_that_are_not_finite():
    result = {**SUMMARY["result"], "objective": None}
    assert "not finite" in render_page({**SUMMARY, "result": result}, {})
