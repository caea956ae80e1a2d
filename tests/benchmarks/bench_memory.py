"""Memory: peaks of fresh processes under a limit, against the projection, and what the limit costs in objective.

Rows are those of the promise, not of a race: nothing is compared with a peer. Large data are looked for in the folder
and left out where they are missing: `make_digits.write` and `make_topics.write` take longer than all that is measured.
"""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks import data
from tests.benchmarks.measure import Row, Settings, run_child

LIMIT, WORST, CLOSE = "1 GiB", 1.01, 0.25
LARGE = (("digits8100k.zarr", 10), ("topics5m.svm", 50), ("topics5m.svm", 1000))


def run(settings: Settings) -> list[Row]:
    """A row for every job."""
    jobs = [(data.digits(settings), 20 if settings.quick else 100), (data.topics(settings, kind="svmlight"), 50)]
    if not settings.quick:
        jobs += [(settings.folder / name, k) for name, k in LARGE if (settings.folder / name).exists()]
    return [_fitted(path, k, settings) for path, k in jobs]


def _fitted(path: Path, k: int, settings: Settings) -> Row:
    limit = "600 MB" if settings.quick else LIMIT
    tight, free = (run_child("limited", data=path, k=k, limit=amount) for amount in (limit, "auto"))
    ratio = tight["inertia"] / free["inertia"] if tight["space"] == free["space"] else float("nan")
    met = (
        tight["peak"] <= tight["limit"]
        and abs(tight["projected"] / tight["peak"] - 1) <= CLOSE
        and (ratio <= WORST or tight["space"] != free["space"])
    )
    return Row(
        "t",
        f"{path.name}, k={k}, within {limit}",
        "no limit",
        f"peak {tight['peak'] / 2**20:.0f} MiB, projected {tight['projected'] / 2**20:.0f}",
        f"objective {ratio:.4f} x",
        f"{free['peak'] / 2**20:.0f} MiB",
        f"<= limit, +-{CLOSE:.0%}, <= {WORST} x",
        None if settings.quick else met,
        f"{tight['seconds']:.1f} s against {free['seconds']:.1f} s; {tight['read_bytes']:,} bytes read; "
        f"{tight['cluster_on']}, assigned in the {tight['space']} space ({free['cluster_on']}, {free['space']})",
        {"tight": tight, "free": free},
    )
