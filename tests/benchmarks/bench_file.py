"""Row h: fits from svmlight text to labels on disk."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from statistics import median

from tests.benchmarks import data
from tests.benchmarks.comparing import Contest, OurRuns, hold
from tests.benchmarks.measure import Row, Settings, middle, run_child

K = 50
TWICE = 1.6


def run(settings: Settings) -> list[Row]:
    """Row h."""
    large = data.topics(settings, kind="svmlight", large=True)
    what = f"fit from {large.name}, k={K}, labels on disk"
    with tempfile.TemporaryDirectory() as folder:
        ours = OurRuns(settings, data=large, k=K, out=f"{folder}/ours.npy", repeats=2)
        arguments = {"n_features": data.n_features(settings), "out": str(Path(folder) / "theirs.npy")}
        contest = Contest("h", what, "load_svmlight_file, MiniBatchKMeans.partial_fit, predict", "minibatch_stream", 20,
                          arguments, 1.0)  # fmt: skip
        against, _ = hold(contest, large, K, settings, ours)
        pairs = [
            (ours(number), run_child("parse", data=large, n_threads=os.cpu_count(), passes=2))
            for number in range(1 if settings.quick else settings.runs)
        ]
    ratio = median(our["later"] / parser["seconds"] for our, parser in pairs)
    first, whole = (median(our[name] / parser[name] for our, parser in pairs) for name in ("seconds", "whole"))
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
    ]  # fmt: skip


def _stages(run: dict) -> str:
    return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in run["stages"].items())
