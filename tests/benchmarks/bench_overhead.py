"""Row j: orchestration, the time of a fit that is in neither kernels nor reads nor matrix products; see `timers`."""

from __future__ import annotations

from tests.benchmarks import data
from tests.benchmarks.measure import Row, Settings, run_child

MOST = 0.07


def run(settings: Settings) -> list[Row]:
    """Row j for the fits of e, g and h."""
    jobs = [
        (data.topics(settings), 50),
        (data.digits(settings), 20 if settings.quick else 100),
        (data.topics(settings, kind="svmlight", large=True), 50),
    ]
    rows = []
    for path, k in jobs[:1] if settings.quick else jobs:
        found = run_child("call", function="timers:shares", data=path, k=k, runs=1 if settings.quick else settings.runs)
        share = max(found["idle"], found["outside"])
        stages = ", ".join(f"{name} {100 * times['idle'] / times['seconds']:.0f} % of {times['seconds']:.2f} s"
                           for name, times in found["stages"].items())  # fmt: skip
        inside = ", ".join(f"{name} {seconds:.2f}" for name, seconds in list(found["inside"].items())[:8])
        rows.append(
            Row(
                "j",
                f"orchestration of {path.name}, k={k}",
                "whole time",
                f"{100 * share:.1f} %",
                "",
                "",
                f"<= {100 * MOST:.0f} %",
                None if settings.quick else share <= MOST,
                f"the larger of: {100 * found['idle']:.1f} % of the time no thread is inside kernels, reads or "
                f"products; threads are outside them for {100 * found['outside']:.1f} % of it, by processor time. "
                f"Nobody inside, by stage: {stages}. Seconds inside, all threads: {inside}",
                found,
            )
        )
    return rows
