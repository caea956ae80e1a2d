"""What a run has to tell: sizes, objective, stages and versions as plain values, and its sample in two dimensions.

Where these values are written and how they look is not decided here.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm import __version__
from streamkm.estimators.validation import plain
from streamkm.fitting.certificate import WORTH
from streamkm.passes.labels import count_skipped

if TYPE_CHECKING:
    from streamkm.estimators.kernel_kmeans import StreamKernelKMeans
    from streamkm.estimators.kmeans import StreamKMeans
    from streamkm.sources.base import RowSource

_PACKAGES = ("numpy", "scipy", "scikit-learn", "numba", "dask", "h5py", "zarr")
_STAGE = ("name", "seconds", "read_bytes", "rows")
_PROBES, _STEPS = 12, 12
_EQUAL = 1e-12  # variance, as a part of the squares, that is rounding


def summarize(estimator: StreamKMeans | StreamKernelKMeans, source: RowSource) -> dict[str, Any]:
    """Gather what summary.json says, as JSON values.

    Parameters
    ----------
    estimator : StreamKMeans or StreamKernelKMeans
        Fitted on `source`.
    source : RowSource

    Returns
    -------
    dict
        ``data``, ``result``, ``stages``, ``history``, ``parameters`` and ``versions``. Numbers that are not finite
        are null.
    """
    n_skipped = count_skipped(estimator.labels_)
    n_assigned = estimator.n_samples_ - n_skipped
    summary: dict[str, Any] = {
        "data": {
            "name": source.name,
            "n_samples": estimator.n_samples_,
            "n_skipped": n_skipped,
            "n_features": estimator.n_features_in_,
            "stored_bytes": source.n_bytes,
        },
        "result": {
            "n_clusters": len(estimator.cluster_centers_),
            "objective": estimator.inertia_,
            "objective_per_row": estimator.inertia_ / max(n_assigned, 1),
            "distortion": estimator.distortion_,
            "n_components": estimator.n_components_,
            "assign_space": estimator.assign_space_,
            "n_passes": estimator.n_passes_,
            "n_iter": estimator.n_iter_,
            "converged": estimator.converged_,
            "seed": estimator.seed_,
            "counts": estimator.counts_,
        },
        "seconds": sum(stage.seconds for stage in estimator.stages_),
        "stages": [{name: getattr(stage, name) for name in _STAGE} for stage in estimator.stages_],
        "history": estimator.history_,
        "parameters": {name: plain(value) for name, value in estimator.get_params().items()},
        "versions": {"streamkm": __version__, "python": platform.python_version(), **dict(_versions())},
    }
    if hasattr(estimator, "expected_inertia_"):
        names = ("expected_inertia", "expected_inertia_error", "possible_gain")
        summary["result"] |= {name: getattr(estimator, f"{name}_") for name in names}
    size_cap = getattr(estimator, "size_cap_", None)
    if size_cap is not None:
        summary["result"]["size_cap"] = asdict(size_cap)
    if hasattr(estimator, "trace_residual_"):
        summary["result"] |= {"trace_residual": estimator.trace_residual_, "gamma": estimator.kernel_.gamma}
    values: dict[str, Any] = _plain(summary)
    return values


def result_lines(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Label and text, for people: what came out."""
    data, result = summary["data"], summary["result"]
    return [
        ("rows", rows_text(data["n_samples"], data["n_skipped"])),
        ("features", f"{data['n_features']:,}"),
        ("clusters", f"{result['n_clusters']:,}"),
        ("objective", f"{result['objective']:,.6g} ({result['objective_per_row']:,.6g} a row), {_space_text(result)}"),
        *_size_lines(result),
        *_promise_lines(result),
        ("passes", f"{result['n_passes']:,} in {summary['seconds']:.2f} s"),
    ]


def _size_lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """How large clusters are where they may not be larger, and what that cost."""
    cap = result.get("size_cap")
    if cap is None:
        return []
    n_added = result["n_clusters"] - cap["n_clusters_before"]
    largest = f"{cap['largest']:,.0f} rows in the largest, {cap['rows']:,.0f} allowed"
    if not n_added:
        return [("sizes", f"{largest}; no cluster was split")]
    change = f"objective {result['objective'] / max(cap['inertia_before'], np.finfo(float).tiny) - 1:+.2%}"
    was = f"{cap['n_clusters_before']:,} clusters with {cap['largest_before']:,.0f} in the largest before"
    return [("sizes", f"{largest}; {n_added:,} clusters more by splits ({was}), {change}")]


def _promise_lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """What the sample promised, and what another round could gain, where that was looked at."""
    expected, gain = result.get("expected_inertia"), result.get("possible_gain")
    if expected is None or gain is None:
        return []
    said = f"{expected:,.6g} +- {result['expected_inertia_error']:,.2g} by the sample"
    more = f"at least {gain:.1%} could be gained" if gain > WORTH else "nothing seen that another pass would gain"
    return [("expected", f"{said}; {more}")]


def _space_text(result: dict[str, Any]) -> str:
    """Where labels and objective are from."""
    if "trace_residual" in result:
        return "of the kernel's features, as labels"
    return f"in the {result['assign_space']} space, as labels"


def rows_text(n_rows: int, n_skipped: int) -> str:
    """Say how many rows, and how many of them were skipped."""
    return f"{n_rows:,}" + (f" ({n_skipped:,} skipped)" if n_skipped else "")


def source_lines(source: RowSource) -> list[tuple[str, str]]:
    """Label and text, for people: what is known of a source without reading it."""
    if source.n_rows is not None:
        rows = f"{source.n_rows:,}"
    else:
        about = source.estimated_rows
        rows = "known after one pass" if about is None else f"about {about:,}"
    return [
        ("data", source.name),
        ("rows", rows),
        ("features", "known after one pass" if source.n_features is None else f"{source.n_features:,}"),
        ("values", f"{source.dtype}, {'sparse' if source.is_sparse else 'dense'}"),
        ("stored bytes", "unknown" if source.n_bytes is None else f"{source.n_bytes:,}"),
        *source.details().items(),
    ]


def project_2d(sample: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Project rows on their first two principal components, by subspace iteration.

    Centring is never done on a sparse matrix itself, and rows that are all equal are no special case, as they are for
    Lanczos iterations. A picture needs no more digits. O(s * m) for dense rows, O(nnz) for sparse ones.

    Parameters
    ----------
    sample : ndarray or csr_array of shape (s, m)
        Not changed.

    Returns
    -------
    points : float64 ndarray of shape (s, 2)
        Columns that the data have no components for are 0.
    shares : float64 ndarray of shape (2,)
        Part of the variance that each shows.

    References
    ----------
    Halko, Martinsson and Tropp, "Finding structure with randomness", SIAM Review 53 (2011), algorithm 4.4.
    """
    n_rows, n_columns = sample.shape
    points, shares = np.zeros((n_rows, 2)), np.zeros(2)
    scale = float(abs(sample).max()) if n_rows else 0.0
    if scale == 0:
        return points, shares
    X = sample.astype(np.float64) / scale  # squares of large values stay finite
    mean = np.asarray(X.mean(axis=0)).ravel()
    squares = (X.multiply(X) if sp.issparse(X) else X * X).sum()
    variance = float(squares) - n_rows * float(mean @ mean)
    if variance <= _EQUAL * float(squares):
        return points, shares
    basis = np.random.default_rng(0).normal(size=(n_columns, min(_PROBES, n_columns)))
    for _ in range(_STEPS):
        image = X @ basis - mean @ basis
        basis, _triangle = np.linalg.qr(X.T @ image - np.outer(mean, image.sum(axis=0)))
    left, values, _right = np.linalg.svd(X @ basis - mean @ basis, full_matrices=False)
    found = min(2, len(values))
    points[:, :found] = left[:, :found] * (values[:found] * scale)
    shares[:found] = np.minimum(values[:found] ** 2 / variance, 1)
    return points, shares


def _versions() -> Iterator[tuple[str, str]]:
    for package in _PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            yield package, "unknown"


def _plain(value: Any) -> Any:
    """JSON values of NumPy's and Python's: null for numbers that are not finite, types in place of other objects."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value if value is None or isinstance(value, str | int | bool) else plain(type(value))
