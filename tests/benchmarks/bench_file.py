"""Rows h and i: fits from svmlight text to labels on disk, and how they grow with the number of rows."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from statistics import median

from tests.benchmarks import data
from tests.benchmarks.comparing import Contest, OurRuns, hold
from tests.benchmarks.measure import Row, Settings, middle, run_child

K = 50
TWICE, GROWTH = 1.6, 10.5


def run(settings: Settings) -> list[Row]:
    """Rows h and i."""
    large = data.topics(settings, kind="svmlight", large=True)
    small = data.topics(settings, kind="svmlight")
    what = f"fit from {large.name}, k={K}, labels on disk"
    with tempfile.TemporaryDirectory() as folder:
        ours = OurRuns(settings, data=large, k=K, out=f"{folder}/ours.npy", repeats=2)
        arguments = {"n_features": data.n_features(settings), "out": str(Path(folder) / "theirs.npy")}
        contest = Contest("h", what, "load_svmlight_file, MiniBatchKMeans.partial_fit, predict", "minibatch_stream", 20,
                          arguments, 1.0)  # fmt: skip
        against, _ = hold(contest, large, K, settings, ours)
        smaller = OurRuns(settings, data=small, k=K, out=f"{folder}/small.npy")
        runs = range(1 if settings.quick else settings.runs)
        pairs, growth = [], []
        for number in runs:
            parser = run_child("parse", data=large, n_threads=os.cpu_count(), passes=2)
            pairs.append((ours(number), parser))
            growth.append((pairs[-1][0], smaller(number)))
    ratio = median(our["later"] / parser["seconds"] for our, parser in pairs)
    first, whole = (median(our[name] / parser[name] for our, parser in pairs) for name in ("seconds", "whole"))
    grown = median(our["seconds"] / less["seconds"] for our, less in growth)
    parsing = middle([parser for _, parser in pairs], "seconds")
    size = large.stat().st_size
    return [
        against,
        Row("h", what, "own parser alone, twice over the file", f"{ratio:.2f} x its time", "", "", f"<= {TWICE}",
            None if settings.quick else ratio <= TWICE,
            f"{middle([our for our, _ in pairs], 'later'):.2f} s to {parsing:.2f} s, both with kernels loaded, the "
            f"parser with all threads, {2 * size / parsing / 1e6:.0f} MB/s; first fit of a process {first:.2f} x, "
            f"whole processes {whole:.2f} x; stages of a first fit {_stages(pairs[-1][0])}",
            {"pairs": pairs}),
        Row("i", f"growth, {small.name} to {large.name}", "itself", f"{grown:.1f} x the time", "", "", f"<= {GROWTH}",
            None if settings.quick else grown <= GROWTH,
            f"first fits of fresh processes, {middle([less for _, less in growth], 'seconds'):.2f} s to "
            f"{middle([our for our, _ in growth], 'seconds'):.2f} s", {"pairs": growth}),
    ]  # fmt: skip


def _stages(run: dict) -> str:
    return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in run["stages"].items())
