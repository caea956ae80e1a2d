"""Row g: fits from a Zarr array of digits, against peers in memory and out of it."""

from __future__ import annotations

from tests.benchmarks import data
from tests.benchmarks.comparing import Contest, OurRuns, hold, line
from tests.benchmarks.measure import Row, Settings

BOUND, REFINED_BOUND = 1.005, 1.002
REFINE = 3


def run(settings: Settings) -> list[Row]:
    """Row g, with refine=3 and with all rows projected too."""
    path = data.digits(settings)
    k = 20 if settings.quick else 100
    what = f"fit from {path.name}, k={k}"
    exact = Contest("g", what, "scikit-learn KMeans in memory, one start", "kmeans", 40, {}, BOUND, heavy=False)
    others = [
        Contest("g", what, "faiss Kmeans, 25 iterations", "faiss", 5, {"effort": {"niter": 25}}),
        Contest("g", what, "MiniBatchKMeans.partial_fit, predict", "minibatch_stream", 1, {}, heavy=False),
        Contest("g", what, "sample of 30,000, KMeans, assign", "sample_assign", 2, {}),
        Contest("g", what, "dask-ml KMeans", "dask_ml", 100, {}),
        Contest("g", what, "dask-ml KMeans, oversampling_factor=2k", "dask_ml", 100, {"oversampling": 2 * k}),
    ]
    ours = OurRuns(settings, data=path, k=k, repeats=0 if settings.quick else 2)
    first, bound = hold(exact, path, k, settings, ours)
    rows = [first]
    if bound:
        n_runs = 1 if settings.quick else settings.runs
        refined = OurRuns(settings, data=path, k=k, refine=REFINE)
        contest = Contest("g", f"{what}, refine={REFINE}", exact.peer, "kmeans", 20, {}, REFINED_BOUND)
        rows.append(line(contest, [refined(run) for run in range(n_runs)], bound, settings))
        whole = OurRuns(settings, data=path, k=k, coreset=None)
        contest = Contest("g", f"{what}, coreset=None", exact.peer, "kmeans", None, {})
        rows.append(line(contest, [whole(run) for run in range(n_runs)], bound, settings))
    rows += [hold(contest, path, k, settings, ours)[0] for contest in others if not (contest.heavy and settings.quick)]
    return rows
