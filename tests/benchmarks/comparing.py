"""Lines of the table for fits of streamkm against one peer each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.benchmarks.measure import (
    SLOW_SECONDS,
    MissingPeerError,
    Row,
    Settings,
    middle,
    missing,
    paired,
    ratio_of,
    run_child,
)

Runs = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Contest:
    """A fit against a peer."""

    row: str  # of the table
    what: str
    peer: str  # for people
    name: str  # of `peers.PEERS`
    faster: float | None  # how many times faster streamkm is to be
    arguments: dict[str, Any]  # of the peer, beside data, k and seed
    at_most: float | None = None  # its objective times this bounds ours
    heavy: bool = True  # left out in quick runs


def hold(
    contest: Contest, data: Path, k: int, settings: Settings, ours: Callable[[int], dict[str, Any]]
) -> tuple[Row, list[dict[str, Any]]]:
    """Run both by turns, run i of both with seed i; the line and the peer's runs.

    `ours` gives the run of a seed. The ratio is of the seconds from data ready to labels, ours in the first fit of a
    fresh process.
    """

    def theirs(run: int) -> dict[str, Any]:
        arguments = {"name": contest.name, "data": data, "k": k, "seed": run, **contest.arguments}
        return run_child("peer", limit_s=settings.peer_limit_s, **arguments)

    try:
        our_runs, their_runs = paired(ours, theirs, settings)
    except MissingPeerError as error:
        row = missing(contest.row, contest.what, contest.peer, error)
        if not error.least_s:
            return row, []
        took = ours(0)["seconds"]
        targets = "" if contest.faster is None else f">= {contest.faster:g} x faster"
        met = True if contest.faster and error.least_s / took >= contest.faster else None  # else nobody knows
        note = f"{took:.2f} s; the peer had no result after {error.least_s:.0f} s, nor an objective"
        return replace(row, ratio=f"> {error.least_s / took:.0f} x", target=targets, met=met, note=note), []
    return line(contest, our_runs, their_runs, settings), their_runs


def line(contest: Contest, ours: Runs, theirs: Runs, settings: Settings) -> Row:
    """The line of two lists of runs."""
    ratio = ratio_of(ours, theirs)
    quality, bound = middle(ours, "objective"), middle(theirs, "objective")
    targets, met = [], []
    if contest.faster is not None:
        targets.append(f">= {contest.faster:g} x faster")
        met.append(ratio >= contest.faster)
    if contest.at_most is not None:
        targets.append(f"objective <= {contest.at_most:g} x")
        met.append(quality <= contest.at_most * bound)
    note = (
        f"quoted: data ready to labels, first fit of a process, {middle(ours, 'seconds'):.2f} s to "
        f"{middle(theirs, 'seconds'):.2f} s; whole processes {middle(ours, 'whole'):.2f} to "
        f"{middle(theirs, 'whole'):.2f} s ({ratio_of(ours, theirs, 'whole'):.1f} x); objective ratio "
        f"{quality / bound:.4f}"
    )
    later = middle(ours, "later")
    if not math.isnan(later):
        note += f"; later fits {later:.2f} s ({middle(theirs, 'seconds') / later:.1f} x)"
    if len(theirs) < len(ours):
        note += f"; the peer ran {len(theirs)} x only, it takes over {SLOW_SECONDS:.0f} s"
    return Row(
        contest.row,
        contest.what,
        contest.peer,
        f"{ratio:.1f} x",
        f"{quality:.6g}",
        f"{bound:.6g}",
        ", ".join(targets),
        all(met) if met and not settings.quick else None,
        note,
        {"ratio": ratio, "ours": list(ours), "theirs": list(theirs)},
    )


class OurRuns:
    """Fits of streamkm by seed; in quick runs each is made once, for all peers."""

    def __init__(self, settings: Settings, **arguments: Any):
        self._settings, self._arguments = settings, arguments
        self._made: dict[int, dict[str, Any]] = {}

    def __call__(self, run: int) -> dict[str, Any]:
        if run not in self._made or not self._settings.quick:
            self._made[run] = run_child("fit", seed=run, **self._arguments)
        return self._made[run]
