"""Row u: a Dask cluster of processes, against local threads, against itself with fewer workers, against dask-ml.

Scheduler and workers are started from the command line. What is measured runs in a fresh process each.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks import data
from tests.benchmarks.measure import MissingPeerError, Row, Settings, run_child

SPEEDUP, OVERHEAD, AGAINST_DASK_ML = 1.7, 1.15, 30
THREADS = "1 local thread"
MINUTE_ROWS = 8_100_000
PEER_ROWS = (1_000_000, 30_000)
OUR_SETTINGS = {
    "": {},
    ", coreset=None": {"coreset": None},
    ", coreset=None, tol=1e-5": {"coreset": None, "tol": 1e-5},
    ", n_init=4, refine=3": {"n_init": 4, "refine": 3},
}


def run(settings: Settings) -> list[Row]:
    """Row u: two workers and one, one worker and a thread, dask-ml."""
    return [*_speed(settings), *_peer(settings)]


def _call(name: str, *, limit_s: float | None = None, **arguments: Any) -> dict[str, Any]:
    return run_child("call", limit_s=limit_s, function=f"cluster_runs:{name}", **arguments)


@dataclass(frozen=True, slots=True)
class Minute:
    """A fit of about a minute on one thread.

    Attributes
    ----------
    path, warm : Path
        Its data, and few of their kind that workers load their kernels with.
    k : int
    refine : int
        Further passes.
    """

    path: Path
    warm: Path
    k: int
    refine: int = 0

    def on(self, n_workers: int) -> dict[str, Any]:
        """The fit on so many workers; 0: on a thread."""
        arguments = {"path": self.path, "k": self.k, "n_workers": n_workers, "warm": self.warm}
        return _call("fit_on", refine=self.refine, **arguments)

    @property
    def name(self) -> str:
        """For people."""
        return f"fit of {self.path.name}, k={self.k}" + (f", refine={self.refine}" if self.refine else "")


def _minutes(settings: Settings) -> list[Minute]:
    """Compressed images, which read; text, which is parsed; narrow rows, which are held and walked again and again."""
    n_text, n_narrow = (500_000, 20_000) if settings.quick else (5_000_000, 20_000_000)
    text, few = data.topics(settings, kind="svmlight", n_rows=n_text), data.topics(settings, kind="svmlight")
    narrow = data.narrow(settings, n_narrow), data.narrow(settings, 2_000 if settings.quick else 100_000)
    few_k, k = (10, 10) if settings.quick else (50, 400)
    return [
        Minute(data.digits(settings, MINUTE_ROWS), data.digits(settings), 20, 0 if settings.quick else 2),
        Minute(text, few, few_k, 0 if settings.quick else 8),
        Minute(*narrow, k),
    ]


def _speed(settings: Settings) -> list[Row]:
    short = Minute(data.digits(settings, MINUTE_ROWS), data.digits(settings), 20)
    return [
        *_against_one(settings, short, overhead=True),
        *(row for minute in _minutes(settings) for row in _against_one(settings, minute)),
    ]


def _against_one(settings: Settings, minute: Minute, *, overhead: bool = False) -> list[Row]:
    """Two workers and one; one and a thread, where the overhead is asked for."""
    names = {"1 worker": 1, "2 workers": 2, **({THREADS: 0} if overhead else {})}
    runs = {name: minute.on(n_workers) for name, n_workers in names.items()}
    took = {name: run["seconds"] for name, run in runs.items()}
    note = "; ".join(f"{name} {run['seconds']:.1f} s" for name, run in runs.items())
    speedup = took["1 worker"] / took["2 workers"]
    pairs = [("2 workers", "1 worker", speedup, f">= {SPEEDUP} x faster", speedup >= SPEEDUP)]
    if overhead:
        ratio = took["1 worker"] / took[THREADS]
        pairs.append(("1 worker", THREADS, ratio, f"<= {OVERHEAD} x the time", ratio <= OVERHEAD))
    return [
        Row("u", f"{minute.name}: {what}", peer, f"{ratio:.2f} x", target=target, note=note, figures=runs,
            met=None if settings.quick else met)
        for what, peer, ratio, target, met in pairs
    ]  # fmt: skip


def _peer(settings: Settings) -> list[Row]:
    """dask-ml on the rows of the target, where it may have no result, and on fewer, where its objective can be seen."""
    return [row for n_rows in PEER_ROWS for row in _against_dask_ml(settings, n_rows)][
        : 2 * len(OUR_SETTINGS) if settings.quick else None
    ]


def _against_dask_ml(settings: Settings, n_rows: int) -> list[Row]:
    path, k = data.digits(settings, n_rows), 20 if settings.quick else 50
    ours = {
        what: _call("fit_on", path=path, k=k, n_workers=2, warm=path, **arguments)
        for what, arguments in OUR_SETTINGS.items()
    }
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
