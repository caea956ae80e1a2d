"""Row u: a Dask cluster of two processes, against dask-ml on the same.

Scheduler and workers are started from the command line. What is measured runs in a fresh process each.
"""

from __future__ import annotations

from typing import Any

from tests.benchmarks import data
from tests.benchmarks.measure import MissingPeerError, Row, Settings, run_child

AGAINST_DASK_ML = 30
PEER_ROWS = (1_000_000, 30_000)
OUR_SETTINGS = {
    "": {},
    ", coreset=None": {"coreset": None},
    ", coreset=None, tol=1e-5": {"coreset": None, "tol": 1e-5},
    ", n_init=4, refine=3": {"n_init": 4, "refine": 3},
}


def run(settings: Settings) -> list[Row]:
    """Row u: rows of the target, where dask-ml may have no result, and fewer, where its objective can be seen."""
    rows = [row for n_rows in PEER_ROWS for row in _against_dask_ml(settings, n_rows)]
    return rows[: 2 * len(OUR_SETTINGS)] if settings.quick else rows


def _call(name: str, *, limit_s: float | None = None, **arguments: Any) -> dict[str, Any]:
    return run_child("call", limit_s=limit_s, function=f"cluster_runs:{name}", **arguments)


def _against_dask_ml(settings: Settings, n_rows: int) -> list[Row]:
    path, k = data.digits(settings, n_rows), 20 if settings.quick else 50
    ours = {what: _call("fit_on", path=path, k=k, n_workers=2, **arguments) for what, arguments in OUR_SETTINGS.items()}
    rows = []
    for oversampling in (2, 2 * k):
        arguments = {"path": path, "k": k, "n_workers": 2, "oversampling": oversampling}
        try:
            theirs: dict[str, Any] | MissingPeerError = _call("dask_ml_on", limit_s=settings.peer_limit_s, **arguments)
        except MissingPeerError as error:
            theirs = error
        peer = f"dask-ml KMeans, oversampling_factor={oversampling}"
        rows += [
            _faster(settings, f"fit of {path.name}, k={k}{what}, 2 workers", peer, run, theirs)
            for what, run in ours.items()
        ]
    return rows


def _faster(
    settings: Settings, what: str, peer: str, ours: dict[str, Any], theirs: dict[str, Any] | MissingPeerError
) -> Row:
    target = f">= {AGAINST_DASK_ML} x faster, lower objective"
    if isinstance(theirs, MissingPeerError):
        least = theirs.least_s / ours["seconds"]
        note = f"{ours['seconds']:.1f} s; {theirs}, so its objective is not known"
        return Row("u", what, peer, f"> {least:.0f} x", f"{ours['inertia']:.6g}", target=target, note=note)
    ratio = theirs["seconds"] / ours["seconds"]
    met = ratio >= AGAINST_DASK_ML and ours["inertia"] <= theirs["inertia"]
    note = (
        f"{ours['seconds']:.1f} to {theirs['seconds']:.1f} s; objective {ours['inertia'] / theirs['inertia']:.4f} x; "
        f"the data are read {ours['passes']} times and {theirs['passes']:.0f} times"
    )
    return Row(
        "u", what, peer, f"{ratio:.1f} x", f"{ours['inertia']:.6g}", f"{theirs['inertia']:.6g}", target,
        None if settings.quick else met, note, {"ours": ours, "theirs": theirs},
    )  # fmt: skip
