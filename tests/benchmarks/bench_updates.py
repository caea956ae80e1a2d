"""Row B: clusters that are followed while rows keep coming, against fits of all rows and methods for streams.

    python -m tests.benchmarks updates --data FOLDER

All methods take the same steps of `moving_groups`, each in a process of its own. The objective of a step is that of all
rows so far, weighted by the half-life, over that of a fit of the same rows with as many clusters. Figures are medians
over seeds. What an update of few new rows takes is measured on other data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.make_embeddings import Embeddings, write
from tests.benchmarks.measure import MissingPeerError, Row, Settings, missing, run_child
from tests.benchmarks.moving_groups import MovingGroups, Step
from tests.benchmarks.update_methods import (
    FEWEST,
    HALF_LIFE,
    METHODS,
    MOST,
    SHORT_HALF_LIFE,
    SPLIT_TOL,
    K,
    Seen,
    refitted,
    updated,
)

LEAST_WEIGHT = 1e-9
QUICK_STEP = {"n_steps": 4, "n_rows": 2000}
NEW_SHARE, N_UPDATES = 0.01, 3
OURS: dict[str, dict[str, Any]] = {
    f"k={K}": {"n_clusters": K, "half_life": HALF_LIFE, "tol": 1e-4},
    f"k from {FEWEST} to {MOST}": {"n_clusters": (FEWEST, MOST), "half_life": SHORT_HALF_LIFE, "tol": SPLIT_TOL},
}


def run(settings: Settings) -> list[Row]:
    """Row B."""
    world = QUICK_STEP if settings.quick else {}
    seeds = range(1 if settings.quick else settings.runs)
    rows: list[Row] = []
    for name, options in OURS.items():
        ours = [_child("follow", seed=seed, world=world, **options) for seed in seeds]
        fits = [
            _child("refit", seed=seed, world=world, half_life=options["half_life"], ks=run["ks"])
            for seed, run in zip(seeds, ours, strict=True)
        ]
        what, ratios = f"updates, {name}", [_ratios(run, fit) for run, fit in zip(ours, fits, strict=True)]
        figures = {"ours": ours, "fits": fits}
        rows.append(_against(what, "StreamKMeans of all rows, matched", ours, fits, ratios, figures))
        if options["n_clusters"] == K:
            rows += _peers(settings, world, seeds, fits)
    return [*rows, _update_and_fit(settings)]


def _child(function: str, **arguments: Any) -> dict[str, Any]:
    return run_child("call", function=f"bench_updates:{function}", **arguments)


def _peers(settings: Settings, world: dict[str, int], seeds: range, fits: Sequence[dict[str, Any]]) -> Iterator[Row]:
    """Lines of other methods with as many clusters, against the same fits."""
    for name in METHODS:
        what = f"{name}, k={K}"
        try:
            runs = [
                run_child("call", function="bench_updates:follow_peer", limit_s=settings.peer_limit_s, name=name,
                          seed=seed, world=world)
                for seed in seeds
            ]  # fmt: skip
        except MissingPeerError as error:
            yield missing("B", what, "StreamKMeans of all rows, matched", error)
            continue
        ratios = [_ratios(run, fit) for run, fit in zip(runs, fits, strict=True)]
        yield _against(what, "StreamKMeans of all rows, matched", runs, fits, ratios, {"runs": runs})


def _ratios(run: dict[str, Any], fit: dict[str, Any]) -> list[float]:
    return [one / other for one, other in zip(run["objectives"], fit["objectives"], strict=True)]


def _against(
    what: str,
    peer: str,
    runs: Sequence[dict[str, Any]],
    fits: Sequence[dict[str, Any]],
    ratios: Sequence[Sequence[float]],
    figures: dict[str, Any],
) -> Row:
    """One line: objective over that of fits, agreement with the true groups, processor seconds."""
    steps = np.median(np.array(ratios), axis=0)
    seconds = [median(sum(run["seconds"]) for run in each) for each in (runs, fits)]
    agreement = [median(run["agreement"] for run in each) for each in (runs, fits)]
    note = (
        f"{what}: objective by step {' '.join(f'{ratio:.4f}' for ratio in steps)}; worst {np.max(ratios):.4f}; "
        f"{seconds[0]:.2f} and {seconds[1]:.2f} processor seconds"
    )
    return Row("B", what, peer, f"{steps.mean():.4f} of the objective", f"ARI {agreement[0]:.3f}",
               f"ARI {agreement[1]:.3f}", note=note, figures=figures)  # fmt: skip


def follow(seed: int, world: dict[str, int], n_clusters: Any, half_life: float, tol: float) -> dict[str, Any]:
    """Updates of one stream."""
    given = n_clusters if isinstance(n_clusters, int) else tuple(n_clusters)
    return _followed(world, seed, half_life, lambda: updated(seed, given, half_life, tol))


def refit(seed: int, world: dict[str, int], half_life: float, ks: list[int]) -> dict[str, Any]:
    """Fits of all rows so far, with the number of clusters that each step has."""
    return _followed(world, seed, half_life, lambda: refitted(seed, ks))


def follow_peer(name: str, seed: int, world: dict[str, int]) -> dict[str, Any]:
    """Another method on one stream; a package that is not there is said, not raised."""
    try:
        return _followed(world, seed, HALF_LIFE, lambda: METHODS[name](seed, K))
    except ImportError as error:
        return {"missing": str(error)}


def _followed(world: dict[str, int], seed: int, half_life: float, method: Any) -> dict[str, Any]:
    """Objectives, processor seconds and agreement with the true groups, of a method step by step."""
    from sklearn.metrics import adjusted_rand_score

    _warm_up()
    steps = list(MovingGroups(**world, seed=seed).steps())
    take, answers, seconds, objectives = method(), [], [], []
    for number in range(1, len(steps) + 1):
        seen = _seen(steps[:number], half_life)
        started = time.process_time()
        answers.append(take(seen))
        seconds.append(time.process_time() - started)
        objectives.append(objective(seen, answers[-1].centers))
    groups = [step.groups for step in steps]
    labels = [answer.labels for answer in answers]
    return {
        "seconds": seconds,
        "objectives": objectives,
        "ks": [len(answer.centers) for answer in answers],
        "agreement": adjusted_rand_score(np.concatenate(groups), np.concatenate(labels)),
    }


def _warm_up() -> None:
    """Load the kernels, so that no method pays for it."""
    from streamkm import IncrementalKMeans, StreamKMeans

    X = np.random.default_rng(0).normal(size=(2000, 24)).astype(np.float32)
    StreamKMeans(3, random_state=0, progress=False).fit(X, sample_weight=np.ones(len(X)))
    kmeans = IncrementalKMeans((2, 5), half_life=1000, random_state=0, progress=False)
    for _ in range(3):
        kmeans.update(X)


def _seen(steps: Sequence[Step], half_life: float) -> Seen:
    """Rows so far that still count."""
    X = np.concatenate([step.X for step in steps])
    weights = np.exp2((np.arange(len(X)) - (len(X) - 1)) / half_life)
    first = int(np.searchsorted(weights, LEAST_WEIGHT))
    return Seen(X[first:], weights[first:], len(steps[-1].X))


def objective(seen: Seen, centers: NDArray[np.float64]) -> float:
    """Weighted sum of squared distances to the nearest centers, in float64."""
    from sklearn.metrics import pairwise_distances_argmin

    total = 0.0
    for first in range(0, len(seen.X), 100_000):
        X = seen.X[first : first + 100_000].astype(np.float64)
        nearest = pairwise_distances_argmin(X, centers)
        total += float(seen.weights[first : first + len(X)] @ np.square(X - centers[nearest]).sum(axis=1))
    return total


def _update_and_fit(settings: Settings) -> Row:
    """One line: an update by few new rows, and a fit of all rows."""
    n_rows, k = (20_000, 50) if settings.quick else (1_000_000, 1000)
    path = settings.folder / f"embeddings64-{n_rows}.npy"
    if not path.exists():
        write(path, Embeddings(n_dims=64), n_rows)
    found = _child("timed", path=str(path), k=k)
    share, quality = found["update"] / found["fit"], found["followed"] / found["fitted"]
    note = (
        f"medians of {N_UPDATES} updates, one fit; first update {found['first']:.2f} processor seconds; "
        f"the objective after the updates is {quality:.4f} of that of the fit"
    )
    return Row("B", f"update by {NEW_SHARE:.0%} new rows, {n_rows:,} rows, k={k}", "StreamKMeans of all rows",
               f"{share:.3f} of the time", f"{found['update']:.2f} s", f"{found['fit']:.2f} s", note=note,
               figures=found)  # fmt: skip


def timed(path: str, k: int) -> dict[str, float]:
    """Processor seconds of updates by new rows, and of a fit of all rows; both after small ones that compile."""
    from streamkm import IncrementalKMeans, StreamKMeans

    X = np.load(path)
    n_new = int(NEW_SHARE * X.shape[0])
    n_old = X.shape[0] - N_UPDATES * n_new
    options: dict[str, Any] = {"random_state": 0, "progress": False}
    for estimator in (IncrementalKMeans(3, **options), StreamKMeans(3, **options)):
        take = estimator.update if isinstance(estimator, IncrementalKMeans) else estimator.fit
        take(X[:2000])
        take(X[2000:4000])

    def seconds_of(take: Callable[[Any], Any], rows: Any) -> float:
        started = time.process_time()
        take(rows)
        return time.process_time() - started

    kmeans, fitted = IncrementalKMeans(k, **options), StreamKMeans(k, **options)
    first = seconds_of(kmeans.update, X[:n_old])
    later = [seconds_of(kmeans.update, X[at : at + n_new]) for at in range(n_old, X.shape[0] - n_new + 1, n_new)]
    whole = seconds_of(fitted.fit, X)
    return {
        "first": first,
        "update": median(later),
        "fit": whole,
        "followed": -kmeans.score(X),
        "fitted": -fitted.score(X),
    }
